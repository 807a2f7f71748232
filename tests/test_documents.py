"""What the documents show is run: commands and code of the README and of every page, docstring examples, the site.

In a page's own folder, in this order: a ```toml block that begins with "# NAME.toml" is saved as that file; all
```python blocks run in sequence, as one script; every line "rqm …" of a plain or bash block runs, in sequence, and must
end with exit code 0. A command that several pages show runs once, on the first of them. A block that cannot run here
has a comment just before it, ``<!-- not run: REASON -->``; NOT_RUN counts them.
"""

import ast
import contextlib
import doctest
import importlib
import io
import os
import pkgutil
import re
import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import typer

import rqm as package
from rqm.cli import COMMANDS as COMMANDS_OF_RQM
from rqm.cli import app
from tests.commands import process, rqm

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
NOT_RUN = {
    "docs/auditing.md": 2,
    "docs/cli.md": 1,
    "docs/reproduction.md": 1,
    "docs/tutorials/deploy-on-flower.md": 1,
    "docs/tutorials/train-with-a-budget.md": 2,
}
BLOCK = re.compile(r"^(?:<!-- not run(?P<reason>.*?)-->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.M)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}  # many tests share a few cores


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    reason: str | None  # why it is not run

    @property
    def commands(self):
        lines = self.text.replace("\\\n", " ").splitlines() if self.language in ("", "bash") else []
        return [line.split(" #")[0].strip() for line in lines if line.startswith("rqm ")]


def blocks(page, *, run=True):
    found = [Block(m["language"], m["text"], m["reason"]) for m in BLOCK.finditer(page.read_text())]
    return [block for block in found if block.reason is None or not run]


def new_commands():
    """The commands of each page that no page before it shows; the README comes first."""
    seen, out = set(), {}
    for page in (README, *DOCS):
        shown = [command for block in blocks(page) for command in block.commands]
        out[page] = [command for command in dict.fromkeys(shown) if command not in seen]
        seen.update(shown)
    return out


COMMANDS = new_commands()
ALONE = ROOT / "docs" / "scripts.md"  # each of its scripts by itself
RUNNING = [
    page for page in DOCS if page != ALONE and (COMMANDS[page] or any(b.language == "python" for b in blocks(page)))
]


def name(page):
    return page.relative_to(ROOT).as_posix()


def run_command(folder, command):
    done = rqm(*shlex.split(command)[1:], folder=folder)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_python(page, folder):
    """All code of a page as one script, in a module of its own; return what it prints."""
    label = page.name
    code = "\n".join(block.text for block in blocks(page) if block.language == "python")
    script = ModuleType("page")
    sys.modules["page"] = script  # and nothing is taken out again that it imports: torch must not be loaded twice
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, label, "exec"), vars(script))
    return said.getvalue()


def plain(text, digits=3):
    """Words and numbers, however lines are broken, to so many digits."""
    return re.sub(r"\d+\.\d+(?:e[+-]\d+)?", lambda number: f"{float(number[0]):.{digits}g}", " ".join(text.split()))


def printed(page):
    """What a page says that its commands and code print, but for what is drawn anew every time."""
    texts = [block.text for block in blocks(page) if block.language == "text"]
    return [text for text in texts if not text.startswith(("rqm ", "RQM_STATE")) and "measured ε" not in text]


def modules():
    missing = {"benchmarks.pfl_peer", "benchmarks.flower_peer"}  # scripts for another environment
    if not find_spec("triton"):
        kernels = (
            "cuda",
            "cuda_layers",
            "cuda_rotation",
        )  # nothing else may need what `make setup` lacks
        missing |= {f"rqm.kernels.{name}" for name in kernels}
    names = [m.name for m in pkgutil.walk_packages(package.__path__, "rqm.") if not m.name.endswith("__main__")]
    return [name for name in names if name not in missing]


@pytest.mark.parametrize("name", ["rqm", *modules()])
def test_docstring_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_some_docstrings_have_examples():
    finder = doctest.DocTestFinder()
    examples = sum(len(t.examples) for name in modules() for t in finder.find(importlib.import_module(name)))
    assert examples >= 10


def test_readme_opens_with_the_two_commands():
    first = blocks(README)[0]
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]


def test_readme_python_runs(tmp_path):
    assert [block.language for block in blocks(README)].count("python") == 1
    run_python(README, tmp_path)


def test_readme_shows_the_sentence_that_it_prints():
    """All but ε's last digit: what is printed is in the picture of it."""
    from rqm.simulation.defaults import TrainingRequest, plan_for
    from rqm.simulation.train import Statement

    plan = plan_for(TrainingRequest(3.0), 1000, 42, seed=0)  # the README's thousand people, and Linear(20, 2)
    said = str(Statement(plan.private_mean().guarantee()))
    shown = " ".join(README.read_text().replace("\n> ", " ").split())
    assert said in shown


@pytest.mark.parametrize("command", COMMANDS[README])
def test_readme_commands_run(command, tmp_path):
    assert run_command(tmp_path, command)


DEAR = {
    f"docs/{one}.md"
    for one in (
        "auditing",
        "cancel",
        "how-to/own-model",
        "methods",
        "silos",
        "tour",
        "tutorials/bring-your-model",
        "tutorials/deploy-on-flower",
        "tutorials/private-mean",
        "which-mechanism",
    )
}


@pytest.mark.parametrize(
    "page", [pytest.param(one, id=name(one), marks=[pytest.mark.slow] * (name(one) in DEAR)) for one in RUNNING]
)
def test_what_a_page_shows_runs(page, tmp_path):
    for block in blocks(page):
        title = re.match(r"# ([\w-]+\.toml)\n", block.text)
        if block.language == "toml" and title:
            (tmp_path / title[1]).write_text(block.text)
    said = run_python(page, tmp_path)
    for command in COMMANDS[page]:
        told = run_command(tmp_path, command)
        assert told, f"{command} prints nothing"
        said += told
    for text in printed(page):
        digits = 2 if "own alphabet" in text else 3  # that table is found by a local search, which may end elsewhere
        assert plain(text, digits) in plain(said, digits), f"nothing prints this:\n{text}\nbut this:\n{said}"


def test_there_are_five_short_scripts_each_whole():
    found = [block for block in blocks(ALONE) if block.language == "python"]
    assert len(found) == 5
    for block in found:
        assert len([line for line in block.text.splitlines() if line]) <= 12
        assert "import rqm" in block.text


@pytest.mark.parametrize("number", [0, 1, *(pytest.param(more, marks=pytest.mark.slow) for more in (2, 3, 4))])
def test_a_short_script_runs_alone(number, tmp_path):
    (tmp_path / "page.md").write_text(f"```python\n{blocks(ALONE)[number].text}```\n")
    with patch.dict(os.environ, MPLBACKEND="Agg"):
        run_python(tmp_path / "page.md", tmp_path)


def test_every_block_that_is_not_run_says_why():
    found = {}
    for page in (README, *DOCS):
        marked = [block for block in blocks(page, run=False) if block.reason is not None]
        assert page.read_text().count("<!-- not run") == len(marked), f"{page.name}: a mark is not just before a block"
        for block in marked:
            assert re.fullmatch(r": \S.{8,} ", block.reason), f"{page.name}: '{block.reason}' gives no reason"
            assert block.language == "python" or block.commands, f"{page.name}: this block would not run anyway"
        if marked:
            found[name(page)] = len(marked)
    assert found == NOT_RUN


def test_no_block_escapes():
    for page in (README, *DOCS):
        fences = [line for line in page.read_text().splitlines() if line.startswith("```")]
        assert len(fences) == 2 * len(blocks(page, run=False)), f"{page.name} has a block that is not understood"


def made_of_a_notebook(path):
    return path.parent.name == "notebooks" and path.with_suffix(".ipynb").exists()


def test_links_lead_somewhere():
    for page in [README, *DOCS, ROOT / "CONTRIBUTING.md"]:
        text = page.read_text()
        for target in re.findall(r"\]\((?!https://)([^)#]+)(?:#[^)]*)?\)", text):
            assert made_of_a_notebook(page.parent / target) or (page.parent / target).exists(), (
                f"{page.name} links to {target}"
            )
        for path in re.findall(r"`((?:tests|src|docs)/[\w/.-]+)", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
            assert f"def {test}(" in (ROOT / path).read_text()


def options(words):
    """The options of the command that these words begin with; None where there is no such command."""
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), words[0])
    if hasattr(command, "commands") and words[1:]:
        command = command.commands.get(words[1])
    return command and {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


def test_commands_in_the_text_have_the_options_that_they_are_given():
    for page in (README, *DOCS, ROOT / "CONTRIBUTING.md"):
        for text in re.findall(r"`rqm ([a-z][^`]*)`", page.read_text()):
            known, words = options(text.split()), shlex.split(text)
            assert known is not None, f"{page.name}: rqm {text}"
            assert {word for word in words if word.startswith("--")} <= known, f"{page.name}: rqm {text}"


def test_every_command_has_a_section():
    sections = re.findall(r"^## `rqm (\w+)`$", (ROOT / "docs" / "cli.md").read_text(), flags=re.M)
    assert sorted(sections) == sorted(COMMANDS_OF_RQM)


def test_every_row_beside_other_libraries_has_a_command_or_a_link():
    rows = [line for line in (ROOT / "docs" / "compared.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) >= 18
    for row in rows[1:]:
        assert re.search(r"\]\(|`rqm ", row), row


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M))
    pages = [*DOCS, *(path.with_suffix(".md") for path in (ROOT / "docs").rglob("*.ipynb"))]
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in pages}


def test_the_pictures_of_the_steps_are_drawn(tmp_path):
    from tools import steps

    for draw in (steps.keep_bracket_round, steps.walk):
        assert draw(tmp_path / "picture.png").stat().st_size > 10_000
    *_, (_, _, mean), (_, _, truth) = steps.stages()
    assert abs(mean - truth).max() < 0.25  # five standard deviations of the noise


def test_the_core_imports_no_extra():
    probe = "import sys, rqm; rqm.renyi; print([m for m in ('torch', 'flwr', 'matplotlib') if m in sys.modules])"
    assert process("-c", probe).stdout == "[]\n"


def test_the_table_of_mechanisms_is_the_registrys():
    from tools.kinds import PAGE, written

    assert PAGE.read_text() == written(PAGE.read_text()), "run: python -m tools.kinds"


def test_what_examples_benchmarks_and_tools_import_is_there():
    """Some of them run only where their peers or a federation are, as does the server that attacks the template's."""
    template, paths = ROOT / "src/rqm/flower/template", [ROOT / "tests" / "flower" / "malicious_server.py"]
    paths += [path for folder in ("examples", "benchmarks", "tools") for path in (ROOT / folder).rglob("*.py")]
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            names = [one.name for one in node.names]
            if (node.module or "").startswith("app."):  # read, not imported: every app of Flower has this name
                home = path.parents[1] if path.parent.name == "app" else template
                there = ast.parse((home / f"{node.module.replace('.', '/')}.py").read_text()).body
                assert set(names) <= {one.name for one in there if isinstance(one, ast.FunctionDef)}, path
            elif (node.module or "").split(".")[0] in ("rqm", "benchmarks"):
                module = importlib.import_module(node.module)
                for one in names:
                    assert hasattr(module, one) or find_spec(f"{node.module}.{one}"), f"{path}: {one}"
