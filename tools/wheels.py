"""``python -m tools.wheels [VERSION …]``: does everything resolve as wheels, for every Python that is promised?

Nothing is installed: uv (which Flower brings) is asked what it would take for a Linux machine with that Python, wheels
only, the package with all of its extras, as pinned or the newest.
"""

import argparse
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLATFORM = "x86_64-manylinux_2_28"


def promised() -> list[str]:
    """The Pythons that the package names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (3\.\d+)$", "\n".join(project["classifiers"]), flags=re.M)


def command(version: str, *, pinned: bool) -> list[str]:
    """What uv is asked."""
    asked = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate"]
    asked += ["--all-extras", "--only-binary", ":all:", "--python-version", version, "--python-platform", PLATFORM]
    pins = ["--constraint", str(ROOT / "constraints.txt")] if pinned else []
    return [*asked, *pins, str(ROOT / "pyproject.toml")]


def resolved(version: str, *, pinned: bool = True) -> list[str]:
    """What would be installed for this Python, by name and version; an error if there is no wheel of something."""
    done = subprocess.run(command(version, pinned=pinned), cwd=ROOT.parent, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"Python {version}: {done.stderr.strip()}")
    return re.findall(r"^[\w.-]+==\S+", done.stdout, flags=re.M)


def main(arguments: list[str] | None = None) -> None:
    """Say what was found, a line a Python."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheels")
    parser.add_argument("version", nargs="*", default=promised())
    parser.add_argument("--newest", action="store_true", help="without the pins")
    chosen = parser.parse_args(arguments)
    for version in chosen.version:
        found = resolved(version, pinned=not chosen.newest)
        print(f"Python {version}: all {len(found)} packages resolve as wheels", flush=True)


if __name__ == "__main__":
    main()
