"""What makes a ledger trustworthy: the server's key signs every line, and a witness keeps every head
elsewhere.

Only the owner of the key's file can read it. Anyone who has the key can write another ledger that
looks as good; a witness notices a ledger that was rewritten or restored.
"""

import json
import os
import shlex
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from rqm._util.files import append, lock, read_bytes, state_folder, write_atomically


class LedgerError(ValueError):
    """A ledger that cannot be trusted, or is in use."""


@final
class Signer:
    """An Ed25519 key in a file, which is created if it does not exist.

    Args:
        path: The file.

    Raises:
        LedgerError: If the file holds no key.
    """

    def __init__(self, path: Path) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415 (50 ms)

        if not path.exists():
            with suppress(FileExistsError):  # another process has just created one
                write_atomically(path, (os.urandom(32).hex() + "\n").encode(), new=True, private=True)
        try:
            self._key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(read_bytes(path).decode().strip()))
        except ValueError:
            raise LedgerError(f"key = {path}: must hold 32 bytes in hexadecimal") from None
        self.path = path
        self.public = self._key.public_key().public_bytes_raw().hex()

    def sign(self, digest: str) -> str:
        """The signature of a line.

        Args:
            digest: The hash of the line, in hexadecimal.

        Returns:
            The signature, in hexadecimal.
        """
        return self._key.sign(_signed_message(digest)).hex()


def signer(path: Path | None = None) -> Signer | None:
    """The server's key.

    Args:
        path: The key's file; None: the one in the folder of the user's state.

    Returns:
        The key, or None where none can be kept.
    """
    try:
        return Signer(state_folder() / "ledger.key" if path is None else path)
    except ModuleNotFoundError:
        if path is not None:
            raise LedgerError(f"key = {path}: cryptography is not installed, so nothing can be signed") from None
    except OSError as error:
        if path is not None:
            raise
        warnings.warn(f"the ledger will not be signed: no key can be kept ({error}); set RQM_STATE", stacklevel=2)
    return None


def _signed_message(digest: str) -> bytes:
    """The purpose and the hash, so that a signature is valid for no other purpose."""
    return b"rqm ledger" + bytes.fromhex(digest)


def is_signed(public: str, digest: str, signature: object) -> bool:
    """Whether a key has signed a line.

    Args:
        public: The public key, in hexadecimal.
        digest: The hash of the line, in hexadecimal.
        signature: The signature, in hexadecimal.

    Returns:
        Whether it has; True if no library for signatures is installed, as it cannot be checked.
    """
    try:
        from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    except ModuleNotFoundError:
        return True
    try:
        raw = bytes.fromhex(str(signature))
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(raw, _signed_message(digest))
    except (InvalidSignature, ValueError):
        return False
    return raw.hex() == signature  # exactly as it was written


@final
class Witness:
    """Keeps the heads of ledgers elsewhere.

    A head that was reported is on the disk when `report` returns. A command gets it as a line of
    JSON and must end with exit code 0. Only a file is asked when a ledger is opened.

    Args:
        where: A file that lines are added to, or "cmd:" and a command.
    """

    def __init__(self, where: str | Path) -> None:
        text = str(where)
        self.command = shlex.split(text.removeprefix("cmd:")) if text.startswith("cmd:") else None
        self.path = None if self.command is not None else Path(where)
        if self.command == []:
            raise ValueError(f"witness = {text}: must be a file, or cmd: and a command")

    def report(self, path: Path, first: str, lines: int, head: str) -> None:
        """Report the head of a ledger.

        Args:
            path: The ledger.
            first: The hash of its first line.
            lines: How many lines it has.
            head: The hash of its last line.

        Raises:
            LedgerError: If the witness cannot be reached.
        """
        entry = {"ledger": first, "lines": lines, "head": head, "path": str(path.resolve())}
        data = (json.dumps(entry) + "\n").encode()
        try:
            if self.path is not None:
                _append_line(self.path, data)
            else:
                assert self.command is not None
                subprocess.run(self.command, input=data, check=True, timeout=60, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise LedgerError(
                f"the witness could not be reached ({error}); nothing is released that it has not seen"
            ) from None

    def check(self, path: Path, hashes: list[str]) -> None:
        """Refuse a ledger that lacks what was reported of it.

        Args:
            path: The ledger.
            hashes: The hashes of its lines.

        Raises:
            LedgerError: If a reported line is missing.
        """
        for entry in self._entries():
            is_here = entry.get("path") == str(path.resolve())
            if not hashes or entry.get("ledger") != hashes[0]:
                if is_here:
                    raise LedgerError(
                        f"{path}: is not the ledger that the witness knows here: its first line is another one"
                    )
                continue
            lines = entry.get("lines")
            if not isinstance(lines, int) or not 1 <= lines <= len(hashes) or hashes[lines - 1] != entry.get("head"):
                raise LedgerError(
                    f"{path}: lacks line {lines}, which the witness has seen ({entry.get('head')}): it was restored "
                    "from a copy, or rewritten"
                )

    def _entries(self) -> list[dict[str, Any]]:
        if self.path is None or not self.path.exists():
            return []
        entries = []
        for number, raw in enumerate(read_bytes(self.path, 2**33).split(b"\n")[:-1], start=1):
            try:
                entry = json.loads(raw)
                if not isinstance(entry, dict):
                    raise ValueError("not an object")
            except (ValueError, RecursionError):
                raise LedgerError(f"witness = {self.path}: line {number} was changed") from None
            entries.append(entry)
        return entries


def _append_line(path: Path, data: bytes) -> None:
    """Add a line; one that was interrupted is cut off, as nothing was released for it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        lock(file, wait=True)
        size = os.fstat(file).st_size
        max_line = 2**16
        last = os.pread(file, max_line, max(0, size - max_line))
        os.truncate(file, size - len(last) + last.rfind(b"\n") + 1)
        append(file, data, f"{path}: the disk is full")
    finally:
        os.close(file)
