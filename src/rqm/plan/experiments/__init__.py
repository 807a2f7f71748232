"""The experiments that come with the package: one TOML plan each, run by name."""

import re
from itertools import takewhile
from pathlib import Path

from rqm._util.checks import nearest

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of all shipped experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(name: str) -> Path:
    """The plan of a shipped experiment, or the TOML file of that path."""
    path, own = FOLDER / f"{name}.toml", Path(name)
    if name in names():
        return path
    if own.suffix == ".toml" and own.is_file():
        return own
    if own.is_dir():
        raise ValueError(f"EXPERIMENT = {name}: is a folder; a run in it goes on with rqm train --resume {name}")
    near = nearest(own.stem, names())
    if own.suffix == ".toml" or own.name != name:
        near = near or "; rqm experiments lists the plans that come along"
        raise FileNotFoundError(f"{name}: no such plan, ledger or folder of a run{near}")
    near = near or "; must be a TOML file or a name"
    raise ValueError(f"EXPERIMENT = {name}: no such experiment{near} (rqm experiments lists all)")


def about(name: str) -> str:
    """What an experiment is: the first sentence of the comment that its file begins with."""
    lines = takewhile(lambda line: line.startswith("#"), find(name).read_text(encoding="utf-8").splitlines())
    return re.split(r"(?<=\.) (?=[A-Z])", " ".join(line.lstrip("# ") for line in lines))[0]
