"""Apps in the shape of Flower's examples, made private by the few lines that `rqm flower check --write` adds."""

import difflib
import importlib
import sys
import tomllib
from dataclasses import dataclass

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

from rqm._util.files import state_folder
from rqm.flower import PrivateStrategy
from rqm.flower.app_check import check_app
from rqm.flower.federation_folder import FEDERATIONS, MODEL_FILE
from tests.flower.local_grid import LocalGrid

NODES = 5
PROJECT = """
[project]
name = "{name}"
version = "1"
[tool.flwr.app]
publisher = "matrix"
[tool.flwr.app.components]
serverapp = "quickstart.server_app:app"
clientapp = "quickstart.client_app:app"
[tool.flwr.app.config]
num-server-rounds = 3
local-epochs = 2
"""
SERVER = """
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, Result, Strategy
from quickstart import task

app = ServerApp()
{before}

@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    {model}
    arrays = {arrays}
    strategy = {strategy}
    result = strategy.start(grid=grid, initial_arrays=arrays, {options})
"""
OPTIONS = 'train_config=ConfigRecord({"lr": 0.1}), num_rounds=rounds'
TORCH_SERVER = {"model": "net = task.Net()", "arrays": "ArrayRecord(net.state_dict())"}
CLIENT = """
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from quickstart import task
{before}
app = ClientApp({mods})


@app.train()
def train(msg: Message, context: Context):
    model = task.load(msg.content["arrays"])
    config, data = msg.content["config"], task.load_data(context.node_config["partition-id"])
    loss = task.train(model, data, context.run_config["local-epochs"], {rate})
    metrics = MetricRecord({{"train_loss": loss, "num-examples": len(data[0])}})
    return Message(content=RecordDict({{"arrays": task.save(model), "metrics": metrics}}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context):
    loss = task.test(task.load(msg.content["arrays"]), task.load_data(context.node_config["partition-id"]))
    metrics = MetricRecord({{"eval_loss": loss, "num-examples": 50}})
    return Message(content=RecordDict({{"metrics": metrics}}), reply_to=msg)
"""
TORCH = """
import torch
from flwr.app import ArrayRecord
from torch import nn
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)

class Net(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__({layers})

def load(arrays):
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict(), strict=True)
    return net

def save(net):
    return ArrayRecord(net.state_dict())

def load_data(seed):
    x = torch.randn(50, 8, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long()

def loss_of(net, data):
    return cross_entropy(net(data[0]), data[1])

def train(net, data, epochs, lr, proximal_mu=0.0):
    before = [p.detach().clone() for p in net.parameters()]
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=lr)
    for _ in range(epochs):
        for batch in zip(data[0].split(10), data[1].split(10)):
            optimizer.zero_grad()
            loss = loss_of(net, batch)
            for p, start in zip(net.parameters(), before):
                loss = loss + proximal_mu / 2 * (p - start).square().sum()
            loss.backward()
            optimizer.step()
    return loss.item()

def test(net, data):
    return loss_of(net.eval(), data).item()
"""
LINEAR = TORCH.format(layers="nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)")
BATCH_NORM = TORCH.format(layers="nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)")
LANGUAGE_MODEL = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Linear(8, 6).half().requires_grad_(False)
        self.register_buffer("position_ids", torch.arange(6))
        self.head, self.decoder = nn.Linear(6, 2), nn.Linear(6, 2)
        self.decoder.weight = self.head.weight
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, input_ids, labels):
        hidden = nn.functional.linear(input_ids, self.base.weight.float(), self.base.bias.float()).tanh()
        return {"loss": cross_entropy(self.scale * (self.head(hidden) + self.decoder(hidden)), labels)}

def loss_of(net, data):
    return net(**dict(zip(("input_ids", "labels"), data)))["loss"]
"""
NUMPY = """
import numpy as np
from flwr.app import Array, ArrayRecord

def initial():
    return [np.zeros((1, 8), {dtype}), np.zeros(1, {dtype})]

def load(arrays):
    return [array.copy() for array in arrays.to_numpy_ndarrays()]

def save(arrays):
    return {save}

def load_data(seed):
    x = np.random.default_rng(seed).normal(size=(50, 8))
    return x, x @ np.arange(8) / 8 + 1

def train(arrays, data, epochs, lr):
    (coef, intercept), (x, y) = arrays, data
    for _ in range(5 * epochs):
        error = x @ coef[0] + intercept - y
        coef -= (lr * error @ x / len(y)).astype(coef.dtype)
        intercept -= np.asarray(lr * error.mean(), intercept.dtype)
    return float(np.square(error).mean())

def test(arrays, data):
    return float(np.square(data[0] @ arrays[0][0] + arrays[1] - data[1]).mean())
"""
NUMPY_SERVER = {"model": "", "arrays": "task.save(task.initial())"}
NAMED = NUMPY.format(dtype="np.float32", save='ArrayRecord({"w": Array(arrays[0]), "b": Array(arrays[1])})')
UNNAMED = NUMPY.format(dtype="np.float64", save="ArrayRecord(arrays)")
OWN_MOD = """
calls = []

def own_mod(message, context, call_next):
    calls.append(message.metadata.message_type)
    return call_next(message, context)
"""
OWN_STRATEGY = """
class Own(Strategy):
    def __init__(self):
        self.inner, self.survivors = FedAvg(fraction_evaluate=0.0), []

    def start(self, grid, initial_arrays, num_rounds, train_config):
        arrays = initial_arrays
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, train_config, grid)
            arrays, metrics = self.aggregate_train(server_round, grid.send_and_receive(messages))
            self.survivors.append(metrics["survivors"])
        return Result(arrays=arrays)

    def configure_train(self, *args):
        return self.inner.configure_train(*args)

    def aggregate_train(self, *args):
        return self.inner.aggregate_train(*args)

    configure_evaluate = aggregate_evaluate = summary = lambda self, *args: None
"""


@dataclass(frozen=True)
class App:
    """An app without rqm: its task, what differs in its server and client, and lines of its table of settings."""

    task: str
    strategy: str
    server: dict
    client: dict
    table: str = ""
    problem: str = ""
    frozen: tuple = ()

    def files(self, name):
        server = {"before": "", "options": OPTIONS, "strategy": self.strategy, **self.server}
        client = {"before": "", "mods": "", "rate": 'config["lr"]', **self.client}
        texts = {"__init__": "", "task": self.task, "server_app": SERVER.format(**server)}
        texts["client_app"] = CLIENT.format(**client)
        return {"pyproject.toml": PROJECT.format(name=name)} | {f"quickstart/{key}.py": texts[key] for key in texts}


PROXIMAL = {"rate": 'config["lr"], config["proximal-mu"]'}
BEFORE = {"before": f"from rqm.flower import private_mod\n{OWN_MOD}", "mods": "mods=[own_mod, private_mod]"}
APPS = {
    "torch-fedavg-batchnorm": App(
        BATCH_NORM, "FedAvg()", TORCH_SERVER, {}, frozen=("1.running_mean", "1.running_var", "1.num_batches_tracked")
    ),
    "torch-fedadam": App(LINEAR, "FedAdam(eta=0.1)", TORCH_SERVER, {}),
    "torch-fedprox": App(LINEAR, "FedProx(proximal_mu=0.1)", TORCH_SERVER, PROXIMAL),
    "torch-frozen-base": App(
        LINEAR + LANGUAGE_MODEL, "FedAvg()", TORCH_SERVER, {}, frozen=("position_ids", "base.weight", "base.bias")
    ),
    "numpy-fedavgm": App(NAMED, "FedAvgM(server_momentum=0.3)", NUMPY_SERVER, {}),
    "sklearn-fedavg": App(UNNAMED, "FedAvg()", NUMPY_SERVER, {}),
    "own-strategy": App(NAMED, "Own()", NUMPY_SERVER | {"before": OWN_STRATEGY}, {}),
    "own-mod-inside": App(NAMED, "FedAvg()", NUMPY_SERVER, {"before": OWN_MOD, "mods": "mods=[own_mod]"}),
    "own-mod-before": App(NAMED, "FedAvg()", NUMPY_SERVER, BEFORE, problem="private_mod must be the first of the mods"),
    "own-metrics": App(
        NAMED,
        "FedAvg()",
        NUMPY_SERVER,
        {},
        'metric-share = 0.2\ntrain-metrics.train_loss = "[0, 4]"\neval-metrics.eval_loss = "[0, 4]"\n',
    ),
}


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def started(folder, monkeypatch, nodes=NODES):
    """Run an app's ServerApp with its ClientApp on each node: its task, the strategy, the first and last arrays."""
    monkeypatch.syspath_prepend(folder)
    names = ("task", "server_app", "client_app")
    task, server, client = (importlib.import_module(f"quickstart.{name}") for name in names)
    for name in ("quickstart", *(f"quickstart.{name}" for name in names)):
        del sys.modules[name]  # another app has modules of the same names
    values = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    client_app = vars(client).get("app") or server.client
    config = flatten_dict(values["config"])
    outcomes = []

    def start(self, grid, **kwargs):
        outcomes.append((self, kwargs["initial_arrays"], original(self, grid, **kwargs)))
        return outcomes[-1][-1]

    original = PrivateStrategy.start
    monkeypatch.setattr(PrivateStrategy, "start", start)
    context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config, series_id=0)
    server.app(LocalGrid(client_app, nodes, config), context)
    return task, client, *outcomes[0]


def made_private(folder, app):
    """Write the app, and then the lines that make it private: those lines."""
    plain = app.files(folder.name)
    written(folder, plain)
    found = check_app(folder, clients=NODES, epsilon=500.0)
    assert [app.problem in problem for problem in found.problems] == [True] * bool(app.problem)
    private = {str(path.relative_to(folder)): text for path, text in found.edits.items()}
    private["pyproject.toml"] += app.table
    written(folder, private)
    before, after = ("".join(texts[name] for name in plain).splitlines() for texts in (plain, plain | private))
    added = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    by_hand = [line for line in before if "rqm" in line]
    return [line for line in added + by_hand if line and not line.startswith("#")]


@pytest.mark.parametrize("name", APPS)
def test_an_app_of_flowers_shape_trains_privately(name, tmp_path, monkeypatch, caplog):
    app, folder = APPS[name], tmp_path / name
    assert sum("metric" not in line for line in made_private(folder, app)) <= 12  # options aside
    task, client, strategy, first, result = started(folder, monkeypatch)

    data = task.load_data(10**6)
    assert task.test(task.load(result.arrays), data) < task.test(task.load(first), data)

    assert list(result.arrays) == list(first)
    for key, array in first.items():
        before, after = array.numpy(), result.arrays[key].numpy()
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert (after.tobytes() == before.tobytes()) == (key in app.frozen)
    for key, source in strategy.choose(first).tied:
        assert (result.arrays[key].numpy() == result.arrays[source].numpy()).all()

    (path,) = (state_folder() / FEDERATIONS / f"matrix.{name}").glob(f"*/{MODEL_FILE}")
    with np.load(path) as saved:
        assert list(saved) == list(first)
        assert all(saved[key].tobytes() == result.arrays[key].numpy().tobytes() for key in saved)

    metrics = list(result.train_metrics_clientapp.values())
    assert ([row["survivors"] for row in metrics] or strategy.survivors) == [NODES] * 3
    assert ("clients' training metrics are off" in caplog.text) == ("train-metrics" not in app.table)
    assert ("clients' evaluation is off" in caplog.text) == ("eval-metrics" not in app.table and name != "own-strategy")
    if app.table:
        assert all("train_loss" in row for row in metrics)
        losses = [row["eval_loss"] for row in result.evaluate_metrics_clientapp.values()]
        assert losses[2] < losses[0]  # they differ by more than four standard deviations
    if "own_mod" in app.client.get("before", ""):
        assert client.calls.count("train") >= 3 * NODES
