"""``rqm doctor``: what is installed, what works, and what is missing for which part."""

import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Literal

import numpy as np
import typer

from rqm import __version__
from rqm._util.extras import EXTRAS
from rqm._util.threads import usable_cores
from rqm.cli.options import JsonOption
from rqm.cli.words import say

State = Literal["good", "missing", "broken"]

CORE = ("numpy", "scipy", "numba", "cryptography", "dp-accounting")
WORDS = 2**16


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; ``missing`` is optional, ``broken`` is not."""

    name: str
    state: State
    facts: str

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def examine() -> list[Check]:
    """Look at everything; nothing here raises."""
    checks: dict[str, Callable[[], tuple[State, str]]] = {
        "rqm": lambda: ("good", f"{__version__} on Python {platform.python_version()}, {_system()}"),
        "core": _core,
        **{f"[{extra}]": partial(_extra, extra) for extra in EXTRAS},
        "GPU": _gpu,
        "entropy": _entropy,
        "encoder": _encoder,
        "accounting": _accounting,
        "disk": _disk,
        "browser": _browser,
    }
    found = []
    for name, look in checks.items():
        try:
            state, facts = look()
        except Exception as error:  # whatever is wrong with a machine is worth telling
            state, facts = "broken", f"{type(error).__name__}: {error}"
        found.append(Check(name, state, facts))
    return found


def _system() -> str:
    return f"{platform.system()} {platform.machine()}, {usable_cores()} of {os.cpu_count()} processors to use"


def _core() -> tuple[State, str]:
    return "good", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in CORE)


def _extra(extra: str) -> tuple[State, str]:
    versions = []
    for name in EXTRAS[extra]:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            return "missing", f"{name} is not installed: pip install 'rqm[{extra}]'"
    return "good", ", ".join(versions)


def _gpu() -> tuple[State, str]:
    if find_spec("torch") is None:
        return "missing", "torch is not installed"
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return "missing", "torch finds none; everything runs on the CPU"
    triton = "with Triton" if find_spec("triton") else "without Triton: encoding there is slow"
    return "good", f"{torch.cuda.get_device_name()}, {triton}"


def _entropy() -> tuple[State, str]:
    """Words of the cryptographic source: all different, and each bit set half of the time."""
    from rqm.randomness import SecureRandom

    words = SecureRandom().words(WORDS)
    ones = np.unpackbits(words.view(np.uint8)).reshape(WORDS, 64).mean(axis=0)
    off = float(np.abs(ones - 0.5).max() * 2 * WORDS**0.5)  # in standard deviations
    if len(np.unique(words)) < WORDS or off > 7:
        return "broken", f"the random words are not random ({off:.1f} standard deviations)"
    source = "ChaCha20 and AES-256-CTR keyed by os.urandom" if find_spec("cryptography") else "os.urandom"
    return "good", f"{source}, {64 * WORDS / 8e6:.2g} MB looked at"


def _encoder() -> tuple[State, str]:
    from rqm.audit.sampler import audit_sampler
    from rqm.mechanisms.rqm import RQM
    from rqm.randomness import SecureRandom

    mech, x = RQM(), np.zeros(2**22, dtype=np.float32)
    found = audit_sampler(mech, draws=100_000)
    start = perf_counter()
    mech.encode(x, SecureRandom())
    rate = len(x) / (perf_counter() - start) / 1e6
    said = (
        f"{found.draws:,} draws against the exact law, p = {found.p_value:.2g}; {rate:.0f} million coordinates a second"
    )
    return ("good" if found.passed else "broken"), said if found.passed else f"{said}: {found.worst}"


def _accounting() -> tuple[State, str]:
    """A value that is known: the 1-bit mechanism with a margin of one clip says the truth three times in four."""
    from rqm.certify.renyi import renyi
    from rqm.mechanisms.rounding import Rounding

    found = renyi(Rounding(levels=2, margin=1.0), float("inf")).upper
    good = abs(found - np.log(3)) < 1e-9
    return ("good" if good else "broken"), f"ε of the 1-bit mechanism {found:.9g}, log 3 = {np.log(3):.9g}"


def _disk() -> tuple[State, str]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"rqm")
        file.flush()
        os.fsync(file.fileno())
    try:
        importlib.import_module("fcntl")
    except ModuleNotFoundError:
        return "broken", "this system has no file locks, which a ledger needs"
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    return "good", f"{free:.1f} GB free, writes reach the disk, files can be locked"


def _browser() -> tuple[State, str]:
    names = ("chromium", "chromium-browser", "google-chrome", "firefox")
    found = next((name for name in names if shutil.which(name)), None)
    return ("good", found) if found else ("missing", "none found; open the pages that rqm writes elsewhere")


def sentence(found: list[Check]) -> str:
    """What was found, in one sentence."""
    broken = [one.name for one in found if one.state == "broken"]
    if broken:
        return f"Something that is installed does not work: {', '.join(broken)}."
    missing = [one.name for one in found if one.state == "missing"]
    beside = f"; what is optional and not there: {', '.join(missing)}" if missing else ""
    return f"All that is installed works{beside}."


def command(as_json: JsonOption = False) -> None:
    """Look at the environment, the optional parts, the GPU, the source of entropy and the encoder, in seconds.

    Exit code 1 if something that is installed does not work. Example:

        rqm doctor
    """
    from rqm.cli.waits import waiting

    with waiting("examining", quiet=as_json, key="doctor"):
        found = examine()
    good = all(one.state != "broken" for one in found)
    if as_json:
        typer.echo(json.dumps({"good": good, "sentence": sentence(found), "checks": [one.to_dict() for one in found]}))
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        say(sentence(found), bold=True)
        table = Table(box=None, show_header=False, pad_edge=False)
        colours = {"good": "green", "missing": "yellow", "broken": "bold red"}
        for one in found:
            table.add_row(f"[{colours[one.state]}]{one.state}[/]", escape(one.name), escape(one.facts))
        Console().print(table)
    if not good:
        raise typer.Exit(1)
