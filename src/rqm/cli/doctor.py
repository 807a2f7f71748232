"""`rqm doctor`: the installed packages, what works, and which tasks need more."""

import importlib
import importlib.metadata
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import Literal

import numpy as np

from rqm import __version__
from rqm._util.imports import EXTRAS
from rqm._util.threads import usable_cores
from rqm.cli.formatting import Result
from rqm.cli.progress import progress

State = Literal["good", "missing", "broken"]
Outcome = tuple[State, str]
"""The state of a part, and facts about it."""


@dataclass(frozen=True)
class Check:
    """The result of a check. What is "missing" is optional, what is "broken" is not."""

    name: str
    state: State
    facts: str


def examine() -> list[Check]:
    """Run all checks. None of them raises."""
    examinations: dict[str, Callable[[], Outcome]] = {
        "rqm": _package,
        "core": _dependencies,
        **{f"[{extra}]": partial(_extra, extra) for extra in EXTRAS},
        "GPU": _gpu,
        "entropy": _entropy,
        "encoder": _encoder,
        "accounting": _accounting,
        "disk": _disk,
        "browser": _browser,
    }
    checks = []
    for name, examination in examinations.items():
        try:
            state, facts = examination()
        except Exception as error:  # reported, whatever is wrong with this machine
            state = "broken"
            facts = f"{type(error).__name__}: {error}"
        checks.append(Check(name, state, facts))
    return checks


def _package() -> Outcome:
    system = f"{platform.system()} {platform.machine()}, {usable_cores()} cores"
    return "good", f"{__version__} on Python {platform.python_version()}, {system}"


def _dependencies() -> Outcome:
    names = ("numpy", "scipy", "numba", "cryptography", "dp-accounting")
    return "good", ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _extra(extra: str) -> Outcome:
    versions = []
    for name in EXTRAS[extra]:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            return "missing", f"{name} is not installed: pip install 'rqm[{extra}]'"
    return "good", ", ".join(versions)


def _gpu() -> Outcome:
    if find_spec("torch") is None:
        return "missing", "torch is not installed"
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        return "missing", "torch finds none; everything runs on the CPU"
    triton = "with Triton" if find_spec("triton") else "without Triton: encoding there is slow"
    return "good", f"{torch.cuda.get_device_name()}, {triton}"


def _entropy() -> Outcome:
    """Test that random words differ from each other and that each of their bits is 1 half of the time."""
    from rqm.randomness import SecureRandom

    count = 2**16
    words = SecureRandom().words(count)
    ones = np.unpackbits(words.view(np.uint8)).reshape(count, 64).mean(axis=0)
    deviation = float(np.abs(ones - 0.5).max() * 2 * count**0.5)  # in standard deviations
    if len(np.unique(words)) < count or deviation > 7:
        return "broken", f"the random words are not random ({deviation:.1f} standard deviations)"
    return "good", f"ChaCha20 and AES-256-CTR keyed by os.urandom, {8 * count / 1e6:.2g} MB tested"


def _encoder() -> Outcome:
    from rqm.audit.sampler import audit_sampler
    from rqm.mechanisms.rqm import RQM

    audit = audit_sampler(RQM(), draws=100_000)
    facts = f"{audit.draws:,} draws against the exact pmf, p = {audit.p_value:.2g}"
    return ("good", facts) if audit.passed else ("broken", f"{facts}: {audit.worst}")


def _accounting() -> Outcome:
    """Compare ε with a known value: with a margin of one clip, 1 bit is correct with probability 3/4."""
    from rqm.certify.renyi import renyi
    from rqm.mechanisms.stochastic_rounding import StochasticRounding

    epsilon = renyi(StochasticRounding(levels=2, margin=1.0), float("inf")).upper
    is_correct = abs(epsilon - np.log(3)) < 1e-9
    return "good" if is_correct else "broken", f"ε of the 1-bit mechanism {epsilon:.9g}, log 3 = {np.log(3):.9g}"


def _disk() -> Outcome:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"rqm")
        file.flush()
        os.fsync(file.fileno())
    if find_spec("fcntl") is None:
        return "broken", "this system has no file locks, which a ledger needs"
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    return "good", f"{free:.1f} GB free, writes reach the disk, files can be locked"


def _browser() -> Outcome:
    for name in ("chromium", "chromium-browser", "google-chrome", "firefox"):
        if shutil.which(name):
            return "good", name
    return "missing", "none found; open the pages that rqm writes on another machine"


def command() -> Result:
    """Check the installation, the optional parts, the GPU, the entropy source and the encoder, in seconds.

    Exit code 1 if something that is installed does not work. Example:

        rqm doctor
    """
    with progress("checking"):
        checks = examine()
    broken = [check.name for check in checks if check.state == "broken"]
    missing = [check.name for check in checks if check.state == "missing"]
    sentence = f"Installed but does not work: {', '.join(broken)}." if broken else "All that is installed works."
    if missing:
        sentence += f" Optional and missing: {', '.join(missing)}."
    facts = {"good": not broken, "sentence": sentence, "checks": [asdict(check) for check in checks]}
    rows = [(check.state, check.name, check.facts) for check in checks]
    return Result(facts, sentence, rows, exit_code=int(bool(broken)))
