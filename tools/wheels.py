"""``python -m tools.wheels [VERSION …]``: does everything resolve as wheels, for every Python that is promised?

Nothing is installed: pip is asked what it would take for a Linux machine with that Python, wheels only, as pinned.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in range(36, 4, -1)]
PLATFORMS += [f"{kind}_x86_64" for kind in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
"""What a Linux machine of 2023 takes."""
EXTRAS = ("report", "train", "data", "flower", "docs", "dev")


def promised() -> list[str]:
    """The Pythons that the package names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), flags=re.M)


def wanted() -> list[str]:
    """All requirements of the package and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra in EXTRAS for one in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *extras]


def resolved(version: str, *, pinned: bool = True) -> list[str]:
    """The wheels that pip would take for this Python."""
    pins = ("--constraint", str(ROOT / "constraints.txt")) if pinned else ()
    platforms = [part for one in PLATFORMS for part in ("--platform", one)]
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run"]
        command += ["--ignore-installed", "--only-binary=:all:", "--python-version", version, *platforms, *pins]
        command += ["--target", place, "--report", str(report), *wanted()]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text())["install"]
    return sorted(one["download_info"]["url"].rpartition("/")[2] for one in found)


def main(arguments: list[str] | None = None) -> None:
    """Say what was found, a line a Python."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheels")
    parser.add_argument("version", nargs="*", default=promised())
    parser.add_argument("--newest", action="store_true", help="without the pins")
    chosen = parser.parse_args(arguments)
    for version in chosen.version:
        found = resolved(version, pinned=not chosen.newest)
        others = [name for name in found if not name.endswith(".whl")]
        if others:
            raise SystemExit(f"Python {version}: not as wheels: {', '.join(others)}")
        print(f"Python {version}: all {len(found)} packages resolve as wheels", flush=True)


if __name__ == "__main__":
    main()
