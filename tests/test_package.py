"""What ships beside the code: its licence, its number, who may run it, and what it brings along."""

import json
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import rqm

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOW = (ROOT / ".github/workflows/checks.yml").read_text()


def test_one_number_everywhere():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    assert PROJECT["version"] == rqm.__version__ == cited[1]
    assert f"## {rqm.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_promised_python_is_tested_and_no_other():
    promised = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), flags=re.M)
    tested = re.search(r"python: \[(.*?)\] \}", WORKFLOW)[1]
    assert promised == ["3.11", "3.12", "3.13"] == json.loads(f"[{tested}]")
    assert PROJECT["requires-python"] == f">={promised[0]}"


def test_the_workflow_runs_what_one_runs_at_home():
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), flags=re.M)
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        asked = re.findall(r"run: make (.+)", path.read_text())
        assert asked
        assert set(" ".join(asked).split()) <= set(targets), path.name
    for job in ("lint", "tests", "dependencies", "wheel", "docs"):
        assert re.search(rf"^  {job}:$", WORKFLOW, flags=re.M)
    assert "age: [newest, oldest]" in WORKFLOW


def test_every_file_has_a_licence():
    """By the rules of REUSE: each file that is kept is covered by an annotation, whose licence is there in full."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone")
    notes = tomllib.loads((ROOT / "REUSE.toml").read_text())["annotations"]
    patterns = [(one["path"].replace("**", "*"), one["SPDX-License-Identifier"]) for one in notes]
    names = listed.stdout.splitlines()
    assert len(names) > 300
    for name in names:
        licences = [licence for pattern, licence in patterns if fnmatch(name, pattern)]
        assert licences, f"{name} has no licence"
        assert set(licences) == {PROJECT["license"]}
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert PROJECT["license-files"] == ["LICENSE"]


def test_no_addresses_of_registries_or_machines_are_kept():
    for name in ("pyproject.toml", "constraints.txt", "constraints-peers.txt", "Makefile", "CITATION.cff"):
        assert not re.search(r"https?://|index-url|/(?:work|opt)/", (ROOT / name).read_text()), name


def test_the_bill_of_materials_is_whole(tmp_path):
    pytest.importorskip("packaging")
    from tools import sbom

    made = sbom.bill()
    parts = {one["name"]: one for one in made["components"]}
    assert {"numpy", "scipy", "numba", "llvmlite", "cryptography", "cffi", "typer"} <= parts.keys()
    assert not {"pytest", "mypy", "rqm"} & parts.keys()
    assert all(one["version"] and one["licenses"] for one in parts.values())
    refs = {one["ref"] for one in made["dependencies"]}
    assert refs == {*parts, "rqm"}
    assert all(set(one["dependsOn"]) <= refs for one in made["dependencies"])
    sbom.main([str(tmp_path / "deep" / "sbom.json")])
    assert json.loads((tmp_path / "deep" / "sbom.json").read_text()) == made  # the same for the same versions


def test_wheels_are_asked_for_every_promised_python():
    from tools import wheels

    assert wheels.promised() == ["3.11", "3.12", "3.13"]
    asked = wheels.command("3.13", pinned=True)
    assert {"--all-extras", "--only-binary", ":all:", "3.13"} <= set(asked)
    assert str(ROOT / "constraints.txt") in asked
    assert str(ROOT / "constraints.txt") not in wheels.command("3.13", pinned=False)
