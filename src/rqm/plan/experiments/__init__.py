"""The experiments that come with the package: one TOML plan each, run by name."""

from pathlib import Path

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of all shipped experiments."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find(name: str) -> Path:
    """The plan of a shipped experiment, or the TOML file of that path."""
    path = FOLDER / f"{name}.toml"
    if path.exists():
        return path
    if Path(name).suffix == ".toml":
        return Path(name)
    raise ValueError(f"EXPERIMENT = {name}: must be a TOML file or among {', '.join(names())}")


def about(name: str) -> str:
    """What an experiment is: the comment that its file begins with."""
    return find(name).read_text().splitlines()[0].lstrip("# ")
