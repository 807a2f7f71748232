"""The package as it ships: a wheel in an empty environment, with the newest dependencies allowed, and the oldest."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DEPENDENCIES = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Without sources that somebody works on, which pip would take for the package."""


def pip(python, *args):
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([python, "-m", "pip", args[0], *quiet, *map(str, args[1:])], check=True, env=ALONE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", place, ROOT)
    (found,) = place.glob("*.whl")
    return found


def test_every_dependency_has_a_lower_bound_and_every_import_a_dependency():
    names = {re.split(r"[<>=]", one)[0] for one in DEPENDENCIES}
    assert all(">=" in one for one in DEPENDENCIES)
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        if "template" in path.parts:  # an app of its own, which imports itself
            continue
        imported |= set(re.findall(r"^(?:import|from) (\w+)", path.read_text(), flags=re.M))
    declared = {name.replace("-", "_") for name in names}
    extras = {"torch", "triton", "matplotlib", "h5py", "pyarrow", "PIL", "flwr", "pfl", "llvmlite", "ray", "opendp"}
    others = imported - set(sys.stdlib_module_names) - declared - extras - {"rqm"}
    assert others == set(), f"imported and not declared: {others}"


@pytest.mark.slow
@pytest.mark.parametrize("age", ["newest", "oldest"])
def test_a_wheel_in_an_empty_environment(age, wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python, limits = tmp_path / "env" / "bin" / "python", tmp_path / "limits.txt"
    limits.write_text("".join(f"{one.replace('>=', '==')}.*\n" if age == "oldest" else "" for one in DEPENDENCIES))
    pip(python, "install", "--constraint", limits, wheel)

    def rqm(*args):
        command = [tmp_path / "env" / "bin" / "rqm", *args]
        return subprocess.run(command, cwd=tmp_path, env=ALONE, capture_output=True, text=True, check=False)

    assert rqm("--version").stdout.startswith("rqm ")
    for args, words in (
        (("--help",), "privacy"),
        (("privacy", "--help"), "--margin"),
        (("privacy", "--margin", "1.0", "--keep", "0.42"), "certified for all inputs"),
        (("account", "glyphs"), "no meaningful protection"),
        (("account", "user-level-server"), "against the server, certified"),
        (("experiments",), "glyphs"),
    ):
        done = rqm(*args)
        assert done.returncode == 0, (args, done.stderr)
        assert words in done.stdout
    for args, words in (
        (("privcy",), "did you mean privacy?"),
        (("bench", "encode"), "benchmarks come with the source"),
    ):
        wrong = rqm(*args)
        assert wrong.returncode == 2
        assert len(wrong.stderr.splitlines()) == 1
        assert words in wrong.stderr
    missing = rqm("train", "glyphs", "--out", "x")
    assert missing.returncode == 1
    assert missing.stderr == "rqm: torch is not installed: pip install 'rqm[train]'\n"
    private = "import numpy, rqm; m = rqm.PrivateMean(epsilon=1, clients=50, dim=9); m.decode(50 * m.encode("
    private += "numpy.ones(9), rqm.SecureRandom()), clients=50); print(m.guarantee)"
    done = subprocess.run([python, "-c", private], cwd=tmp_path, env=ALONE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "for every user against the server" in done.stdout
