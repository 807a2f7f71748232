"""What would happen if an existing Flower app were made private, and the lines that make it so."""

import ast
import importlib
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, final

from flwr.app import ArrayRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from rqm.flower.arrays import TrainedArrays
from rqm.flower.run_settings import Settings
from rqm.flower.shared_plan import SharedPlan
from rqm.flower.strategy import PrivateStrategy, refuse_strategy

TABLE = """
# Private by rqm: (epsilon, delta) for each node against the server, over all rounds together.
[tool.flwr.app.config.rqm]
epsilon = {epsilon:g}
clients = {clients}         # nodes in a round
min-survivors = {survivors}   # rounds that end with fewer are discarded, and stay charged
l2-clip = {l2_clip:g}          # updates are scaled down to this norm
dry-run = false      # true: only simulated nodes take part, and no ledger is kept
"""
"""What is added to an app's `pyproject.toml`."""


@final
@dataclass
class AppCheck:
    """What was found out about an app.

    Attributes:
        folder: The folder of the app.
        strategy: The name of its strategy.
        arrays: For each array its name, shape, dtype and what happens to it.
        settings: The settings of its table, or those that would be added.
        plan: The plan of a run.
        problems: What keeps the app from running privately.
        changes: What works differently.
        edits: The files that change, with their new content; none if the app is private already.
    """

    folder: Path
    strategy: str = ""
    arrays: list[tuple[str, str, str, str]] = field(default_factory=list)
    settings: Settings | None = None
    plan: SharedPlan | None = None
    problems: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    edits: dict[Path, str] = field(default_factory=dict)


class _StartError(Exception):
    """Ends the app's main function where it starts its strategy."""

    def __init__(self, strategy: Any, arrays: Any, caller: FrameType) -> None:
        super().__init__("the strategy starts")
        self.strategy, self.arrays = strategy, arrays
        self.variables: dict[str, Any] = {**caller.f_globals, **caller.f_locals}
        self.path, self.line = Path(caller.f_code.co_filename), caller.f_lineno


def read_app(folder: Path) -> dict[str, Any]:
    """Read the table `[tool.flwr.app]` of an app.

    Args:
        folder: The folder of the app.

    Returns:
        The table, which names both components.

    Raises:
        ValueError: If the folder has no Flower app.
    """
    path = folder / "pyproject.toml"
    try:
        app: dict[str, Any] = tomllib.loads(path.read_text())["tool"]["flwr"]["app"]
        _ = app["components"]["serverapp"], app["components"]["clientapp"]
    except OSError as error:
        raise ValueError(f"{path}: {str(error.strerror).lower()}: must be the pyproject.toml of a Flower app") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is not that of a Flower app ({type(error).__name__}: {error})") from None
    return app


def check_app(folder: Path, *, clients: int | None = None, epsilon: float = 8.0) -> AppCheck:
    """Read an app, run its ServerApp up to the start of its strategy, and find out what a private run would be.

    The app's code runs in this process. Nothing is sent, trained or written.

    Args:
        folder: The folder of the app, with its `pyproject.toml`.
        clients: Nodes in a round, where the app has no table of settings; None: 10.
        epsilon: ε, where the app has no table.

    Returns:
        What was found out.

    Raises:
        ValueError: If the folder has no Flower app.
    """
    result = AppCheck(folder)
    path = folder / "pyproject.toml"
    app = read_app(folder)
    server_name, client_name = app["components"]["serverapp"], app["components"]["clientapp"]
    config = dict(_flattened(app.get("config", {})))
    has_table = any(key.startswith("rqm.") for key in config)
    if not has_table:
        count = clients or 10
        values = {"epsilon": epsilon, "clients": count, "survivors": ceil(0.8 * count), "l2_clip": 1.0}
        result.edits[path] = path.read_text().rstrip("\n") + "\n" + TABLE.format(**values)
        config |= _flattened(tomllib.loads(result.edits[path])["tool"]["flwr"]["app"]["config"])
    with _problems(result):
        result.settings = Settings.from_run_config(config)
    start = _started(folder, server_name, config, result)
    if start is not None:
        _check_strategy(start, result)
        _edit_server(start, result)
    _check_client(folder, client_name, result)
    if result.settings is None:  # lines that cannot work are not written
        result.edits.clear()
    return result


def _started(folder: Path, name: str, config: dict[str, Any], result: AppCheck) -> _StartError | None:
    """Run the ServerApp until it starts its strategy."""
    context = SimpleNamespace(run_config=config, node_config={}, state=RecordDict(), run_id=0, node_id=0)
    nodes = list(range(result.settings.clients if result.settings is not None else 10))
    grid = SimpleNamespace(get_node_ids=lambda: nodes, run=None)
    try:
        with _importable(folder), redirect_stdout(sys.stderr):  # standard output is for the command's own result
            module, attribute = name.split(":")
            server_app = getattr(importlib.import_module(module), attribute)
            if getattr(server_app, "_main", None) is None:
                result.problems.append(
                    f"{name}: has no main function, as in Flower's old API: register one with @app.main() that starts "
                    "a strategy of flwr.serverapp.strategy"
                )
                return None
            with _recorded_starts():
                server_app(grid, context)
    except _StartError as start:
        return start
    except (Exception, SystemExit) as error:  # the app's own code
        result.problems.append(f"{name}: stops before its strategy starts: {type(error).__name__}: {error}")
        return None
    result.problems.append(f"{name}: ends without starting a strategy; only strategies can be made private")
    return None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    modules = set(sys.modules)
    sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder.resolve()):
                del sys.modules[name]


@contextmanager
def _recorded_starts() -> Iterator[None]:
    """Let every strategy's `start` raise what it is called with."""

    def start(self: Any, *args: Any, **kwargs: Any) -> None:
        arrays = [value for value in (*args, *kwargs.values()) if isinstance(value, ArrayRecord)]
        raise _StartError(self, arrays[0] if arrays else None, sys._getframe(1))

    kinds, originals = [Strategy], []
    while kinds:
        kind: Any = kinds.pop()
        kinds += kind.__subclasses__()
        if "start" in vars(kind):
            originals.append((kind, kind.start))
            kind.start = start
    try:
        yield
    finally:
        for kind, original in originals:
            kind.start = original


def _check_strategy(start: _StartError, result: AppCheck) -> None:
    """The strategy and the model."""
    strategy, arrays, model = start.strategy, start.arrays, None
    if isinstance(strategy, PrivateStrategy):
        choose, strategy = strategy.choose, strategy.strategy
    else:
        name = _model_name(start)
        model = None if name is None else start.variables[name]

        def choose(arrays: ArrayRecord) -> TrainedArrays:
            return TrainedArrays.of(arrays, model)

    result.strategy = type(strategy).__name__
    with _problems(result):
        refuse_strategy(strategy)
    if arrays is None:
        result.problems.append("the strategy is started without an ArrayRecord: what is trained is not known")
        return
    with _problems(result):
        trained = choose(arrays)
        for key, array in arrays.items():
            tied = key in dict(trained.tied)
            role = "trained" if key in trained.names else "shares its values with a trained one" if tied else "stays"
            values = array.numpy()
            result.arrays.append((key, "×".join(map(str, values.shape)) or "1", str(values.dtype), role))
        if result.settings is not None:
            result.plan = result.settings.plan(trained.names, trained.size(arrays))
    if result.settings is not None:
        _list_changes(strategy, result.settings, result)


def _list_changes(strategy: Any, settings: Settings, result: AppCheck) -> None:
    """What works differently under a private strategy."""
    for name in ("fraction_train", "min_train_nodes", "min_available_nodes"):
        if name in vars(strategy):
            value = getattr(strategy, name)
            result.changes.append(f"{name} = {value}: is ignored; {settings.clients} nodes are drawn for each round")
            break
    if getattr(strategy, "fraction_evaluate", 0) and not settings.eval_metrics:
        result.changes.append(
            "evaluation on clients is off: declare metrics with public bounds, such as eval-metrics.accuracy = "
            '"[0, 1]", or evaluate on public data (evaluate_fn)'
        )
    if not settings.train_metrics and settings.record_clip is None:
        result.changes.append('training metrics are off: declare them, such as train-metrics.train_loss = "[0, 5]"')
    if not settings.weight and settings.record_clip is None:
        result.changes.append('all clients weigh the same: for others give weight = "num-examples" and max-weight')
    if any(name.endswith("running_mean") and role == "stays" for name, _, _, role in result.arrays):
        result.changes.append(
            "statistics of batch normalization stay as the server has them, and evaluation uses them: use GroupNorm, "
            "or private(…, average_buffers=True), which shares the clip with them"
        )
    if result.plan is not None and result.plan.min_survivors < result.plan.survivors_that_unmask:
        result.changes.append(
            f"min-survivors = {result.plan.min_survivors}: a node that is lost while it trains needs "
            f"{result.plan.survivors_that_unmask} others, or the round is discarded, and charged"
        )
    result.changes.append("what a mod of another library adds to a reply before private_mod is not covered by ε")


@contextmanager
def _problems(result: AppCheck) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, RuntimeError) as error:
        result.problems.append(str(error))


def _model_name(start: _StartError) -> str | None:
    """The variable with the PyTorch module whose arrays are trained."""
    if start.arrays is None:
        return None
    for name, value in start.variables.items():
        if hasattr(value, "named_parameters") and hasattr(value, "state_dict"):
            with suppress(Exception):
                if list(value.state_dict()) == list(start.arrays):
                    return name
    return None


# -- the lines that make an app private -------------------------------------------------------------


def _with_import(text: str) -> str:
    """The text with `import rqm` before its first import."""
    imports = [node for node in ast.parse(text).body if isinstance(node, ast.Import | ast.ImportFrom)]
    if any(alias.name == "rqm" and not alias.asname for node in imports for alias in node.names):
        return text
    line = next(node.lineno for node in imports if getattr(node, "module", "") != "__future__") - 1
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:line], "import rqm\n", *lines[line:]])


def _check_client(folder: Path, name: str, result: AppCheck) -> None:
    """Find the ClientApp, and make it private."""
    relative = Path(*name.split(":", maxsplit=1)[0].split("."))
    path = folder / relative.with_suffix(".py")
    if not path.exists():
        path = folder / relative / "__init__.py"
    try:
        text = result.edits.get(path) or path.read_text()
        calls = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and _name_of(node.func) == "ClientApp"
        ]
    except (OSError, SyntaxError) as error:
        result.problems.append(f"{path}: the ClientApp cannot be read ({type(error).__name__})")
        return
    if not calls:
        if "PrivateClientApp" not in text and "private_mod" not in text:
            result.problems.append(f"{path}: no ClientApp(…) is made here; use rqm.flower.PrivateClientApp()")
        return
    call = calls[0]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if call.args or "client_fn" in keywords:
        result.problems.append(f"{path}: the app is made of a client_fn: register functions with @app.train() instead")
    if "private_mod" in text:
        mods = keywords.get("mods")
        first = mods.elts[0] if isinstance(mods, ast.List) and mods.elts else None
        if first is None or _name_of(first) != "private_mod":
            result.problems.append(f"{path}: private_mod must be the first of the mods, or use PrivateClientApp")
        return
    lines = text.encode().splitlines(keepends=True)  # a syntax tree counts bytes
    line, function = lines[call.func.lineno - 1], call.func
    lines[call.func.lineno - 1] = (
        line[: function.col_offset] + b"rqm.flower.PrivateClientApp" + line[function.end_col_offset :]
    )
    result.edits[path] = _with_import(b"".join(lines).decode())


def _edit_server(start: _StartError, result: AppCheck) -> None:
    """Wrap the strategy in the line before it starts."""
    if isinstance(start.strategy, PrivateStrategy):
        return
    named = [name for name, value in start.variables.items() if isinstance(value, SimpleNamespace)]
    context = next((name for name in named if hasattr(start.variables[name], "run_config")), None)
    if context is not None and start.path.is_relative_to(result.folder.resolve()):
        path = result.folder / start.path.relative_to(result.folder.resolve())
        text = path.read_text()
        lines = text.splitlines(keepends=True)
        for statement in ast.walk(ast.parse(text)):
            call = getattr(statement, "value", None)
            if (
                isinstance(statement, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return)
                and statement.lineno <= start.line <= (statement.end_lineno or 0)
                and isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and isinstance(call.func.value, ast.Name)
                and not lines[statement.lineno - 1][: statement.col_offset].strip()
            ):
                variable, model = call.func.value.id, _model_name(start)
                indent = lines[statement.lineno - 1][: statement.col_offset]
                arguments = f"{variable}, {context}" + (f", model={model}" if model else "")
                lines.insert(statement.lineno - 1, f"{indent}{variable} = rqm.flower.private({arguments})\n")
                result.edits[path] = _with_import("".join(lines))
                return
    result.problems.append(
        f"{start.path}: no line strategy.start(…) is found where the context is known: wrap the strategy with "
        "rqm.flower.private"
    )


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables with dotted keys, as Flower gives them to apps."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= _flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values
