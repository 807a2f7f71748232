"""What the documents show is run: README commands and code, docstring examples, and the files they name."""

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import rqm

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for language, block in BLOCKS
    if language == ""
    for line in block.splitlines()
    if line.startswith("rqm ")
]


def modules():
    missing = {"rqm.bench.pfl_peer", "rqm.bench.flower_peer"}  # scripts for another environment
    if not find_spec("triton"):
        missing |= {"rqm.kernels.cuda", "rqm.kernels.cuda_rotation"}  # nothing else may need what `make setup` lacks
    names = [m.name for m in pkgutil.walk_packages(rqm.__path__, "rqm.") if not m.name.endswith("__main__")]
    return [name for name in names if name not in missing]


@pytest.mark.parametrize("name", ["rqm", *modules()])
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_some_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    examples = sum(len(t.examples) for name in modules() for t in finder.find(importlib.import_module(name)))
    assert examples >= 10


def test_readme_opens_with_the_two_commands():
    _, block = BLOCKS[0]
    assert [line.split("#")[0].strip() for line in block.splitlines()] == ["make demo", "make test"]


def test_readme_python_runs(tmp_path):
    (code,) = (block for language, block in BLOCKS if language == "python")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, timeout=300)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_python_in_the_docs_runs(page, tmp_path):
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, capture_output=True, timeout=300)


@pytest.mark.parametrize("command", COMMANDS)
def test_readme_commands_run(command, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
        for path in re.findall(r"`((?:tests|src|docs)/[\w/.-]+)", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
            assert f"def {test}(" in (ROOT / path).read_text()


def test_the_core_imports_no_extra():
    probe = "import sys, rqm; rqm.renyi; print([m for m in ('torch', 'flwr', 'matplotlib') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout == "[]\n"
