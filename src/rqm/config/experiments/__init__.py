"""The experiments that come with the package: one TOML plan each, run by name."""

import re
from itertools import takewhile
from pathlib import Path

from rqm._util.checks import nearest


def names() -> list[str]:
    """The names of all shipped experiments."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def find(name: str) -> Path:
    """The plan of a shipped experiment, or the TOML file of that path."""
    if name in names():
        return Path(__file__).with_name(f"{name}.toml")
    given_path = Path(name)
    if given_path.suffix == ".toml" and given_path.is_file():
        return given_path
    if given_path.is_dir():
        raise ValueError(f"EXPERIMENT = {name}: is a folder; continue a run in it with rqm train --resume {name}")
    hint = nearest(given_path.stem, names())
    if given_path.suffix == ".toml" or given_path.name != name:
        hint = hint or "; rqm experiments lists the shipped plans"
        raise FileNotFoundError(f"{name}: no such plan, ledger or folder of a run{hint}")
    hint = hint or "; must be a TOML file or a name"
    raise ValueError(f"EXPERIMENT = {name}: no such experiment{hint} (rqm experiments lists all)")


def summary(name: str) -> str:
    """The first sentence of the comment at the top of an experiment's file."""
    lines = takewhile(lambda line: line.startswith("#"), find(name).read_text(encoding="utf-8").splitlines())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(line.lstrip("# ") for line in lines))[0]
