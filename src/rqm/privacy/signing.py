"""Who vouches for a ledger: the server's key signs every line, a witness is told every head.

The key lies where only its owner reads it. Whoever has it can write another ledger that looks as good: that a ledger
was rewritten or put back is noticed by a witness, who keeps the heads elsewhere.
"""

import json
import os
import shlex
import subprocess
import warnings
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, final

from rqm._util.disk import lock, state_folder
from rqm._util.files import write_atomically

KEY = "ledger.key"
"""The name of the server's key in the folder of a user's state."""
SIGNED = "signed"
"""A folder beside it: a mark for every place where it has signed a ledger."""
PURPOSE = b"rqm ledger"
COMMAND = "cmd:"
"""What a witness begins with that is a command."""
PATIENCE = 60
"""Seconds that a witness's command may take."""
MOST = 2**16
"""Bytes that a line of a witness has at most."""


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or is in use."""


@final
class Signer:
    """An Ed25519 key in a file; made, if the file is not there. A ``given`` one must have signed all it opens."""

    def __init__(self, path: Path, *, given: bool = True) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 (lazy: 50 ms)

        if not path.exists():
            with suppress(FileExistsError):  # another process has just made one
                write_atomically(path, (os.urandom(32).hex() + "\n").encode(), new=True, private=True)
        try:
            secret = bytes.fromhex(path.read_text().strip())
            self._key = Ed25519PrivateKey.from_private_bytes(secret)
        except ValueError:
            raise LedgerError(f"key = {path}: must hold 32 bytes in hexadecimal, and holds something else") from None
        self.given, self.path, self.public = given, path, self._key.public_key().public_bytes_raw().hex()

    def has_signed(self, path: Path, *, now: bool = False) -> bool:
        """Whether this key has signed a ledger in that place, or does ``now``: none there is unsigned after that."""
        mark = self.path.parent / SIGNED / sha256(str(path.resolve()).encode()).hexdigest()
        if now and not self.given:
            mark.parent.mkdir(mode=0o700, exist_ok=True)
            mark.touch(mode=0o600)
        return self.given or mark.exists()

    def sign(self, digest: str) -> str:
        """The signature of a line, by its hash."""
        return self._key.sign(PURPOSE + bytes.fromhex(digest)).hex()


def signer(path: Path | None = None) -> Signer | None:
    """The server's key, from that file or from the folder of the user's state; None where there can be none."""
    try:
        return Signer(state_folder() / KEY if path is None else path, given=path is not None)
    except ModuleNotFoundError:
        if path is not None:
            raise LedgerError(f"key = {path}: cryptography is not installed here, so nothing can be signed") from None
    except OSError as error:
        if path is not None:
            raise
        warnings.warn(f"the ledger will not be signed: no key can be kept ({error}); set RQM_STATE", stacklevel=2)
    return None


def signed(public: str, digest: str, signature: object) -> bool:
    """Whether that key has signed a line with this hash; where there are no ciphers, nobody can tell: yes."""
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    except ModuleNotFoundError:
        return True
    try:
        raw = bytes.fromhex(str(signature))
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(raw, PURPOSE + bytes.fromhex(digest))
    except (InvalidSignature, ValueError):
        return False
    return raw.hex() == signature  # as it was written, to the letter


@final
class Witness:
    """Keeps the heads of ledgers elsewhere: ``where`` is a file to be added to, or ``cmd:`` and a command.

    A head that was told is on the disk when ``tell`` returns. A command gets it as a line of JSON, and must end with 0.
    What a command was told it alone knows, so only a file is asked when a ledger is opened.
    """

    def __init__(self, where: str | Path) -> None:
        text = str(where)
        self.command = shlex.split(text.removeprefix(COMMAND)) if text.startswith(COMMAND) else None
        self.path = None if self.command is not None else Path(where)
        if self.command == []:
            raise ValueError(f"witness = {text}: must be a file, or {COMMAND} and a command")

    def tell(self, path: Path, first: str, lines: int, head: str) -> None:
        """That the ledger in this file, which begins with this hash, now has so many lines and this head."""
        told = {"ledger": first, "lines": lines, "head": head, "path": str(path.resolve())}
        data = (json.dumps(told) + "\n").encode()
        try:
            if self.path is not None:
                _append(self.path, data)
            else:
                assert self.command is not None
                subprocess.run(self.command, input=data, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise LedgerError(
                f"the witness was not reached ({error}); nothing is released that it has not seen"
            ) from None

    def check(self, path: Path, hashes: list[str]) -> None:
        """Refuse a ledger that lacks what the witness was told of it."""
        for told in self._all():
            here = told.get("path") == str(path.resolve())
            if not hashes or told.get("ledger") != hashes[0]:
                if here:
                    raise LedgerError(
                        f"{path}: is not the ledger that the witness knows here: that one began otherwise"
                    )
                continue
            lines = told.get("lines")
            if not isinstance(lines, int) or not 1 <= lines <= len(hashes) or hashes[lines - 1] != told.get("head"):
                raise LedgerError(
                    f"{path}: has not the line {lines} that the witness was told of ({told.get('head')}): it was put "
                    "back, or written anew"
                )

    def _all(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return []
        found = []
        for number, raw in enumerate(self.path.read_bytes().split(b"\n")[:-1], start=1):
            try:
                told = json.loads(raw)
                if not isinstance(told, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError):
                raise LedgerError(f"witness = {self.path}: line {number} was changed") from None
            found.append(told)
        return found


def _append(path: Path, data: bytes) -> None:
    """Add a line; one that somebody was killed over is cut off, since nothing was released for it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        lock(file, wait=True)
        size = os.fstat(file).st_size
        last = os.pread(file, MOST, max(0, size - MOST))
        size -= len(last) - (last.rfind(b"\n") + 1)
        os.truncate(file, size)
        if os.write(file, data) != len(data):
            os.truncate(file, size)
            raise OSError(f"{path}: the disk is full")
        os.fsync(file)
    finally:
        os.close(file)
