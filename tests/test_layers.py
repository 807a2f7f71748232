"""The order of the packages: each imports only those before it, lazily too; and none asks which mechanism it has."""

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from rqm.correlated.scheme import SCHEMES, scheme_class
from rqm.registry import kinds

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "rqm"
ORDER = (
    ("_util",),
    ("randomness",),
    ("bounds",),
    ("kernels",),
    ("mechanisms",),
    ("related",),
    ("registry",),
    ("certify",),
    ("correlated",),
    ("accounting",),
    ("core",),
    ("secagg",),
    ("ledger",),
    ("config", "advice"),
    ("data",),
    ("simulation",),
    ("flower", "audit"),
    ("report",),
    ("verify",),
    ("cli",),
    ("__main__",),
)
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FUNCTION_LINES = 60


def package_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def module(name):
    """Whether there is such a module, and not only such a name in one."""
    place = SOURCE.joinpath(*name.split(".")[1:])
    return place.with_suffix(".py").exists() or (place / "__init__.py").exists()


def imports(tree):
    """Every module of this package that is imported anywhere in a file: at the top, in functions, for types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "rqm":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if node.module == "rqm" or module(inner) else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "rqm")


def wrong(path, text):
    """What a file imports though it may not."""
    own = LEVEL[package_of(path)]
    for name in imports(ast.parse(text)):
        other = name.split(".")[1] if "." in name else "rqm"
        if name == "rqm.__version__" or other == package_of(path):
            continue
        if other not in LEVEL:  # a public name: only the command line goes through the front door
            if package_of(path) != "cli":
                yield f"{path.relative_to(ROOT)}: {name}"
        elif LEVEL[other] >= own:
            yield f"{path.relative_to(ROOT)}: {name}"


def test_every_package_is_in_the_order():
    assert {package_of(path) for path in FILES} - {"__init__"} == set(LEVEL)


def test_each_package_imports_only_those_before_it():
    assert [found for path in FILES if package_of(path) != "__init__" for found in wrong(path, path.read_text())] == []


@pytest.mark.parametrize(
    "line",
    [
        "from rqm.simulation.loop import RunState",
        "def f():\n    from rqm.ledger.budget_guard import Guard",
        "if TYPE_CHECKING:\n    import rqm.cli",
        "from rqm import PrivateMean",
    ],
)
def test_an_import_of_a_later_package_is_noticed(line):
    assert list(wrong(SOURCE / "certify" / "affine_rdp.py", line))


def test_there_are_no_circular_imports():
    """Modules that import each other at the top could not be read one after the other."""
    graph = {}
    for path in FILES:
        name = ".".join(("rqm", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        graph[name] = {one for one in imports(tree) if one != name}
    done, path_ = set(), []

    def visit(name):
        if name in done or name not in graph:
            return
        assert name not in path_, f"a circle: {' → '.join([*path_[path_.index(name) :], name])}"
        path_.append(name)
        for other in graph[name]:
            visit(other)
        path_.pop()
        done.add(name)

    for name in graph:
        visit(name)


def test_no_other_package_asks_which_mechanism_it_has():
    names = {made.__name__ for made in kinds().values()} | {
        "DiscreteMechanism",
        "TableMechanism",
        "Additive",
        "Mechanism",
    }
    found = []
    for path in FILES:
        if package_of(path) == "mechanisms":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
                found += [f"{path.relative_to(ROOT)}:{node.lineno}"] if asked & names else []
    assert found == []


SCHEME_FIELDS = {entry.name for kind in SCHEMES for entry in fields(scheme_class(kind))}
"""The parameters of all schemes of correlated noise."""
SCHEME_MODULES = {f"rqm.correlated.{path.rpartition('.')[0]}" for path in SCHEMES.values()}
UNIT_NAMES = {"unit", "records", "sums_records", "per_record"}
UNIT_VALUES = {"user", "record"}
UNIT_BRANCHES_ALLOWED = ("core/record_mean.py", "accounting/record_release.py", "certify/", "correlated/", "verify/")


def conditions(tree):
    """The conditions of all branches of a file, with their lines; checks, which only raise an error, are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and all(isinstance(statement, ast.Raise) for statement in node.body):
            continue
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            yield node.lineno, node.test
        elif isinstance(node, ast.comprehension):
            yield from ((condition.lineno, condition) for condition in node.ifs)
        elif isinstance(node, ast.match_case):
            yield node.pattern.lineno, node.pattern


def branches_on(text, names, values=frozenset()):
    """Lines of branches whose condition mentions one of some attributes or compares with one of some values."""
    for line, condition in conditions(ast.parse(text)):
        mentioned = {node.attr for node in ast.walk(condition) if isinstance(node, ast.Attribute)}
        compared = {node.value for node in ast.walk(condition) if isinstance(node, ast.Constant)}
        if mentioned & names or compared & values:
            yield line


def uses_of_a_scheme(text):
    """Lines that read a parameter of a scheme, whether or not in a branch, or import one."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in SCHEME_FIELDS and "noise" in ast.unparse(node.value):
            yield node.lineno
    yield from (name for name in imports(tree) if name in SCHEME_MODULES)


def test_only_correlated_knows_which_correlated_noise_there_is():
    assert [
        f"{path.relative_to(SOURCE)}:{use}"
        for path in FILES
        if package_of(path) not in ("correlated", "verify", "__init__")
        for use in uses_of_a_scheme(path.read_text())
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "if noise.residual_std:\n    x = 1",
        "variance = self.release.noise.transient_std**2",
        "from rqm.correlated.noise import CorrelatedNoise",
    ],
)
def test_a_use_of_a_scheme_is_noticed(text):
    assert list(uses_of_a_scheme(text))


def test_only_the_mean_of_records_and_bounds_depend_on_the_unit_of_privacy():
    assert [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in FILES
        if not str(path.relative_to(SOURCE)).startswith(UNIT_BRANCHES_ALLOWED)
        for line in branches_on(path.read_text(), UNIT_NAMES, UNIT_VALUES)
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        "x = 1 if plan.records is None else 2",
        "if threat_model.unit == 'record':\n    pass",
        "rows = [row for row in rows if unit == 'user']",
        "while mean.sums_records:\n    pass",
    ],
)
def test_a_branch_on_the_unit_is_noticed(text):
    assert list(branches_on(text, UNIT_NAMES, UNIT_VALUES))


def body_lines(function):
    """Lines of a function without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    return function.end_lineno - function.lineno + 1 - (docstring.end_lineno - docstring.lineno + 1 if docstring else 0)


def test_functions_are_short():
    long = []
    for folder in ("src", "tests", "benchmarks", "tools", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            if "kernels" in path.parts:  # loops that are compiled whole
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef) and body_lines(node) > MAX_FUNCTION_LINES:
                    long.append(f"{path.relative_to(ROOT)}: {node.name}, {body_lines(node)} lines")
    assert long == []


def test_tests_use_no_private_names_of_a_trainer_or_a_strategy():
    used = [
        f"{path.name}: {match}"
        for folder in ("simulation", "flower", "audit", "config")
        for path in (ROOT / "tests" / folder).rglob("*.py")
        for match in re.findall(r"\b(?:trainer|strategy|private|simulation)\._[a-z]\w*", path.read_text())
    ]
    assert used == []


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Missing())
"""


def without(missing, code):
    """Run code where some libraries are not installed."""
    text = WITHOUT.replace("{missing}", repr(set(missing))) + code
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)


def test_the_core_the_plan_the_account_and_reports_need_no_torch(tmp_path):
    done = without(
        ["torch", "flwr"],
        f"""
import json, pathlib
import rqm, rqm.ledger.budget_guard, rqm.secagg, rqm.advice.adviser, rqm.report.page, rqm.report.paper_figures
from rqm.report import plots
from rqm.config.sweep import Sweep
from rqm.config.experiments import find
from rqm.config.coordinate_divergences import leak
plans = Sweep.from_toml(find("glyphs"), ["clients=1"]).variants
lines = {{
    name: {{"round": [1], "loss": [[2.0]], "accuracy": [[0.1]], "plan": plan.to_dict(), "leak": leak(plan)}}
    for name, plan in plans.items()
}}
print(plots.save(plots.plot_curves(lines), pathlib.Path({str(tmp_path)!r}) / "curves.png").stat().st_size > 10_000)
from rqm.cli import app
app(["account", "glyphs", "--set", "clients=2", "--json"], standalone_mode=False)
""",
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("True")
    assert '"epsilon"' in done.stdout


@pytest.mark.parametrize(
    ("missing", "command", "extra"),
    [
        ("torch", '["train", "glyphs", "--out", "x"]', "train"),
        ("matplotlib", '["figures", "laws", "--out", "x"]', "report"),
        ("flwr", None, "flower"),
    ],
)
def test_a_missing_extra_names_its_command(missing, command, extra, tmp_path):
    code = (
        f"import os; os.chdir({str(tmp_path)!r}); import sys; sys.argv = ['rqm', *{command}]\n"
        "from rqm.cli import main; main()"
        if command
        else "from rqm.flower import private_mod"
    )
    done = without([missing], code)
    assert done.returncode == 1
    assert f"pip install 'rqm[{extra}]'" in done.stderr
    if command:
        assert len(done.stderr.strip().splitlines()) == 1
