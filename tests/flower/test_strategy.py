"""Private training on Flower's Message API: the same model as the simulator's, sums only, a ledger, any strategy."""

import copy
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.common.config import flatten_dict
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, FedAvgM, Result

import rqm
from rqm.flower import PrivateClientApp, PrivateStrategy, RunFailedError, Settings, private, private_mod
from rqm.secagg.wire import Kind
from rqm.simulation.loop import RunState
from rqm.simulation.models import FlatModel
from tests.flower.local import (
    LocalGrid,
    accuracy,
    arrays,
    federation_of,
    gradient_app,
    plan_folder,
    plan_folders,
    plan_of,
    start,
    survivors,
    training_app,
)
from tests.flower.seeded import seed_nodes
from tests.plans import make_plan
from tests.simulation.small import federation, model

PLAIN = {
    "rqm.epsilon": 1e6,
    "rqm.clients": 6,
    "rqm.rounds": 4,
    "rqm.mechanism.mechanism": "rqm",
    "rqm.mechanism.clip": 0.5,
    "rqm.failure-share": 0.0,
}
PRIVATE = {
    **PLAIN,
    "rqm.epsilon": 1000.0,
    "rqm.mechanism.margin": 30.0,
    "rqm.max-participations": 4,
    "rqm.min-survivors": 4,
}
ALL_STAGES = [Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.ACKS, Kind.REVEAL]


def train(config, app, folder, lose=lambda *_: False, **options):
    grid = LocalGrid(app, 6, config, lose)
    return *start(grid, config, folder, **options), grid


# -- the same model as the simulator's ----------------------------------------------------------


def simulated(plan, rounds):
    """The simulator's model after some rounds."""
    trainer, net = RunState(plan, federation(clients=6), model()), model()
    for _ in range(rounds):
        trainer.step()
    FlatModel(net).values.copy_(trainer.values)
    return net.state_dict()


class Descent(FedAvgM):
    """The simulator's server step, for apps that send their gradient (as ``rate=-1`` does)."""

    def __init__(self, plan):
        self.plan = plan
        super().__init__(fraction_evaluate=0.0, server_learning_rate=-0.5, server_momentum=plan.server.momentum)

    def aggregate_train(self, server_round, replies):
        self.server_learning_rate = -self.plan.server.rate_at(server_round - 1, self.plan.participation.rounds)
        return super().aggregate_train(server_round, replies)


def assert_same(record, expected):
    """Weights, and not gradients, are sent: the difference of two is rounded, to one part in 10⁷ of a weight."""
    for name, array in record.items():
        assert np.abs(array.numpy() - expected[name].numpy()).max() < 1e-6


@pytest.mark.parametrize("change", [{}, {"rqm.coordinates": 20}])
def test_the_model_is_the_simulators(change, tmp_path, monkeypatch):
    config = {**PLAIN, **change}
    mean = plan_of(config).mean
    transforms = {"l2_clip": 1.0, "rotate": True, "coordinates": change.get("rqm.coordinates")}
    values = {"mechanism": mean.mechanism, "clients": 6, "rounds": 4, "sampling": "available"}
    plan = make_plan(**values, transforms=transforms, server={"rate": 0.5, "momentum": 0.9})
    assert plan.private_mean(mean.dim) == mean
    grid = LocalGrid(gradient_app(private_mod, rate=-1.0), 6, config)
    seed_nodes(monkeypatch, grid, plan)
    result, _ = start(grid, config, tmp_path, strategy=Descent(plan))
    expected = simulated(plan, 4)
    assert_same(result.arrays, expected)
    assert max(np.abs(expected[name].numpy() - array.numpy()).max() for name, array in arrays(model()).items()) > 0.01


@pytest.mark.slow
def test_the_model_of_rqm_train_is_the_plans_and_flowers(tmp_path, monkeypatch):
    """Seeded, all nodes in each round."""
    data = federation(clients=6)
    trained = rqm.train(model(), data, epsilon=100, rounds=4, clients=6, rate=0.5, seed=2, device="cpu", progress=False)
    plan = trained.plan
    simulation = rqm.simulate(plan, model(), data)
    for _ in simulation:
        pass
    table = {f"rqm.mechanism.{key}": value for key, value in plan.mechanism.to_dict().items()}
    config = {**table, "rqm.epsilon": 100.0, "rqm.clients": 6, "rqm.rounds": 4, "rqm.seed": 2}
    config |= {"rqm.failure-share": 0.0, "rqm.delta": plan.delta, "rqm.l2-clip": plan.transforms.l2_clip}
    grid = LocalGrid(gradient_app(private_mod, rate=-1.0), 6, config)
    seed_nodes(monkeypatch, grid, plan)
    result, _ = start(grid, config, tmp_path, strategy=Descent(plan))
    assert_same(result.arrays, trained.model.state_dict())
    assert_same(result.arrays, simulation.model.state_dict())
    assert any((p != q).any() for p, q in zip(trained.model.parameters(), model().parameters(), strict=True))


# -- one run --------------------------------------------------------------------------------------


def test_nothing_but_the_protocol_leaves_a_client(tmp_path):
    _, _, grid = train(PLAIN, training_app(private_mod), tmp_path)
    for _, reply in grid.observed:
        assert not reply.content.array_records
        assert not reply.content.metric_records
        assert reply.content.config_records.keys() <= {"rqm", "rqm-next"}
        assert all(record.keys() == {"message"} for record in reply.content.config_records.values())
    assert {stage for stage, _ in grid.observed} == set(ALL_STAGES)
    assert all(list(reply.content["rqm"]) == ["simulated"] for reply in grid.checks)


def test_an_unmodified_app_learns_under_flowers_own_strategy(tmp_path):
    config = {**PLAIN, "rqm.rounds": 12, "rqm.mechanism.clip": 0.4}
    result, _, _ = train(config, training_app(private_mod), tmp_path)
    assert accuracy(result.arrays) > 0.85 > accuracy(arrays(model())) + 0.2


def test_epsilon_is_logged_for_each_charge_of_the_ledger(tmp_path):
    result, strategy, _ = train(PRIVATE, gradient_app(private_mod), tmp_path)
    spent = [result.train_metrics_clientapp[round_index]["epsilon"] for round_index in range(1, 5)]
    assert 0 < spent[0] < spent[1] < spent[2] < spent[3] == strategy.run.guard.epsilon()
    lines = [json.loads(line) for line in (plan_folder(tmp_path) / "ledger.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines[1:]] == [0, 1, 2, 3]


@pytest.mark.parametrize("stage", ALL_STAGES)
def test_a_lost_node_does_not_stop_the_run(stage, tmp_path):
    def lose(node, now, round_index):
        return node == 103 and now == stage and round_index == 1

    result, _, _ = train({**PRIVATE, "rqm.threshold": 3}, gradient_app(private_mod), tmp_path, lose)
    # A node that is silent at the end of a round is also silent at the beginning of the next.
    assert survivors(result) == ([6, 5, 6, 6] if stage <= Kind.MASKED else [6, 6, 5, 6])


def test_fewer_nodes_than_clients_suffice_and_each_takes_part_as_often_as_allowed(tmp_path):
    few = {**PLAIN, "rqm.clients": 9, "rqm.min-survivors": 5, "rqm.threshold": 5, "rqm.stage-timeout": 0.05}
    assert survivors(train(few, gradient_app(private_mod), tmp_path / "fewer")[0]) == [6, 6, 6, 6]
    capped = {**PLAIN, "rqm.max-participations": 2, "rqm.stage-timeout": 0.05}
    assert survivors(train(capped, gradient_app(private_mod), tmp_path / "capped")[0]) == [6, 6, 0, 0]


@pytest.mark.parametrize("page", ["docs/how-to/flower-app.md", "examples/flower/pyproject.toml"])
def test_the_shown_settings_are_good(page):
    text = (Path(__file__).parents[2] / page).read_text()
    text = text.split("```toml")[1].split("```")[0] if page.endswith("md") else text
    values = flatten_dict(tomllib.loads(text)["tool"]["flwr"]["app"]["config"])
    settings = Settings.from_run_config({"num-server-rounds": 3, **values})
    plan = settings.plan(("w",), 1000)
    assert plan.params(b"x").minimum == plan.min_survivors


# -- any strategy ---------------------------------------------------------------------------------

BASE = {"rqm.epsilon": 500.0, "rqm.clients": 6, "num-server-rounds": 3, "rqm.stage-timeout": 0.2}
BASE |= {"rqm.failure-share": 0.0}
"""Settings that give ε and leave the mechanism to rqm."""


def context_of(config, folder):
    """The ServerApp's context."""
    run_config = {**BASE, "rqm.federation": federation_of(folder), **config}
    return Context(1, 0, {}, RecordDict(), run_config, 0)


def run_private(strategy, folder, config=None, app=None, grid=None, start_options=None, **options):
    """Three rounds of a strategy that `private` has wrapped."""
    context = context_of(config or {}, folder)
    grid = grid or LocalGrid(app or training_app(private_mod), 6, context.run_config)
    wrapped = private(strategy, context, **options)
    start_options = {"initial_arrays": arrays(model()), **(start_options or {})}
    return wrapped.start(grid=grid, **start_options), wrapped, grid


STRATEGIES = [
    ("FedAvg", {}),
    ("FedAvgM", {"server_momentum": 0.5, "server_learning_rate": 0.9}),
    ("FedAdam", {"eta": 0.1}),
    ("FedYogi", {"eta": 0.1}),
    ("FedAdagrad", {"eta": 0.1}),
    ("FedProx", {"proximal_mu": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), STRATEGIES, ids=[name for name, _ in STRATEGIES])
def test_a_strategy_that_needs_only_the_mean_keeps_its_configuration_and_its_server_step(name, options, tmp_path):
    """What it makes of the replies is what it would make of them without rqm, bit for bit."""
    kind, configs, replies, kept = getattr(flower, name), [], [], []

    class Noted(kind):
        def configure_train(self, server_round, record, config, grid):
            messages = list(super().configure_train(server_round, record, config, grid))
            configs.append(dict(messages[0].content["config"]))
            kept.append(record)
            return messages

        def aggregate_train(self, server_round, received):
            replies.append([copy.deepcopy(reply.content) for reply in received])
            return super().aggregate_train(server_round, received)

    result, _, grid = run_private(Noted(fraction_evaluate=0.0, **options), tmp_path)
    assert accuracy(result.arrays) > accuracy(arrays(model())) + 0.1
    assert [config["server-round"] for config in configs] == [1, 2, 3]
    assert all((config.get("proximal-mu") == 0.1) == (name == "FedProx") for config in configs)
    assert [len(contents) for contents in replies] == [1, 1, 1]
    plain, record = kind(fraction_evaluate=0.0, **options), arrays(model())
    for number, (content,) in enumerate(replies, 1):
        assert all((array.numpy() == record[key].numpy()).all() for key, array in kept[number - 1].items())
        (message, *_) = plain.configure_train(number, record, ConfigRecord(), grid)
        record, _ = plain.aggregate_train(number, [Message(content, reply_to=message)])
        record = ArrayRecord({key: Array(array.numpy().astype(np.float32)) for key, array in record.items()})
    for key, array in result.arrays.items():
        assert array.numpy().dtype == np.float32
        assert (array.numpy() == record[key].numpy()).all()


@pytest.mark.parametrize(
    "name",
    ["Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg", "QFedAvg", "FedXgbBagging", "FedXgbCyclic"],
)
def test_a_strategy_that_needs_single_updates_is_refused_with_the_reason(name, tmp_path):
    kind = getattr(flower, name)

    class Mine(kind):
        """A strategy of the user's own."""

    options = {"client_learning_rate": 0.1} if name == "QFedAvg" else {}
    for strategy in (kind(**options), Mine(**options)):
        with pytest.raises(ValueError, match=f"{name}: needs the updates of single clients, which a secure sum hides"):
            private(strategy, context_of({}, tmp_path))


@pytest.mark.parametrize(
    "name",
    [name for name in flower.__all__ if name.startswith("DifferentialPrivacy")],
)
def test_a_strategy_that_adds_noise_itself_is_refused(name, tmp_path):
    strategy = object.__new__(getattr(flower, name))
    with pytest.raises(ValueError, match=f"{name}: clips or adds noise itself; wrap the strategy that it wraps"):
        private(strategy, context_of({}, tmp_path))


def test_a_schedule_of_the_learning_rate_and_record_keys_of_ones_own_reach_the_app(tmp_path):
    """By `configure_train`, which Flower's users override; and by `train_config`."""
    observed = []

    class Scheduled(FedAvg):
        def configure_train(self, server_round, record, config, grid):
            config["lr"] = 0.3 * 0.5**server_round
            return super().configure_train(server_round, record, config, grid)

    def noted(message, context, call_next):
        if message.metadata.message_type == MessageType.TRAIN:
            observed.append((sorted(message.content), dict(message.content.config_records["settings"])))
        return call_next(message, context)

    app = PrivateClientApp(mods=[noted])
    training_app(None, app=app)
    strategy = Scheduled(fraction_evaluate=0.0, arrayrecord_key="weights", configrecord_key="settings")
    options = {"train_config": ConfigRecord({"batch": 8})}
    result, _, _ = run_private(strategy, tmp_path, app=app, start_options=options)
    assert [settings["lr"] for _, settings in observed] == [lr for lr in (0.15, 0.075, 0.0375) for _ in range(6)]
    assert all(settings["batch"] == 8 for _, settings in observed)
    assert all({"weights", "settings"} <= set(names) for names, _ in observed)
    assert survivors(result) == [6, 6, 6]


def test_a_strategy_with_its_own_start_keeps_it(tmp_path):
    """It chooses its own rounds, messages and what it does between them; it is not a FedAvg."""

    class Own(flower.Strategy):
        def __init__(self):
            self.inner, self.seen = FedAvg(fraction_evaluate=0.0), []

        def start(self, grid, initial_arrays, rounds):
            record = initial_arrays
            for server_round in range(1, rounds + 1):
                messages = list(self.configure_train(server_round, record, ConfigRecord(), grid))
                record, metrics = self.aggregate_train(server_round, grid.send_and_receive(messages))
                self.seen.append(metrics["survivors"])
            return Result(arrays=record)

        def configure_train(self, *args):
            return self.inner.configure_train(*args)

        def aggregate_train(self, *args):
            return self.inner.aggregate_train(*args)

        def configure_evaluate(self, *args):
            return []

        def aggregate_evaluate(self, *args):
            return None

        def summary(self):
            return None

    strategy = Own()
    result, _, _ = run_private(strategy, tmp_path, start_options={"rounds": 3})
    assert strategy.seen == [6, 6, 6]
    assert accuracy(result.arrays) > accuracy(arrays(model())) + 0.2
    assert "aggregate_train" not in vars(strategy)  # it was adapted for the run alone


def test_a_start_of_more_rounds_than_are_accounted_for_is_refused(tmp_path):
    with pytest.raises(ValueError, match="num_rounds = 9: must be 3, which the settings account for"):
        run_private(FedAvg(), tmp_path, start_options={"num_rounds": 9})
    assert not plan_folders(tmp_path)

    class Endless(FedAvg):
        """Asks once more than it says."""

        def start(self, grid, initial_arrays, num_rounds):
            for server_round in range(1, num_rounds + 2):
                messages = self.configure_train(server_round, initial_arrays, ConfigRecord(), grid)
                self.aggregate_train(server_round, grid.send_and_receive(messages))

    with pytest.raises(RunFailedError, match="round 4: the settings account for 3"):
        run_private(Endless(), tmp_path)
    assert plan_folder(tmp_path)


def test_messages_that_differ_between_nodes_are_refused_before_the_charge(tmp_path):
    class Personal(FedAvg):
        def configure_train(self, *args):
            messages = list(super().configure_train(*args))
            for message in messages:
                own = ConfigRecord({"node": message.metadata.dst_node_id})
                message.content = RecordDict({**message.content, "config": own})
            return messages

    with pytest.raises(RunFailedError, match=r"messages differ between nodes \(config\).*Nothing was charged"):
        run_private(Personal(), tmp_path)


def test_a_strategy_that_sends_by_another_way_is_refused(tmp_path):
    class Pushing(FedAvg):
        def start(self, grid, initial_arrays, num_rounds):
            grid.push_messages(self.configure_train(1, initial_arrays, ConfigRecord(), grid))

    class Querying(FedAvg):
        def start(self, grid, initial_arrays, num_rounds):
            messages = list(self.configure_train(1, initial_arrays, ConfigRecord(), grid))
            for message in messages:
                message.metadata.message_type = "query"
            grid.send_and_receive(messages)

    class Idle(FedAvg):
        def start(self, grid, initial_arrays, num_rounds):
            return Result()

    for strategy, reason in (
        (Pushing(), "push_messages: must not be used"),
        (Querying(), "messages of type query: no answer to them would be protected"),
        (Idle(), "has sent no training messages"),
    ):
        grid = LocalGrid(training_app(private_mod), 6, BASE)
        with pytest.raises(RunFailedError, match=reason):
            run_private(strategy, tmp_path, grid=grid)
        assert not grid.observed
        assert not grid.checks


def test_a_discarded_round_gives_the_strategy_nothing_and_the_run_goes_on(tmp_path):
    def lose(node, now, round_index):
        return round_index == 1 and now == Kind.MASKED and node < 104

    config = {**BASE, "rqm.min-survivors": 4}
    grid = LocalGrid(training_app(private_mod), 6, config, lose)
    result, strategy, _ = run_private(flower.FedAdam(eta=0.1, fraction_evaluate=0.0), tmp_path, config, grid=grid)
    assert survivors(result) == [6, 0, 6]
    assert strategy.run.released == 2
    assert strategy.run.guard.charges == {0: 1, 1: 1, 2: 1}


def test_a_run_that_releases_nothing_fails(tmp_path):
    """So that it ends as failed in Flower's list of runs, and no app saves its initial model as a result."""
    grid = LocalGrid(training_app(private_mod), 6, BASE, lambda node, now, round_index: now == Kind.MASKED)
    with pytest.raises(RunFailedError, match="no round has released a model"):
        run_private(FedAvg(), tmp_path, grid=grid)


def test_the_wrapped_strategys_attributes_are_its_own(tmp_path):
    strategy = FedAvg(fraction_train=0.5)
    wrapped = private(strategy, context_of({}, tmp_path))
    assert isinstance(wrapped, PrivateStrategy)
    assert wrapped.fraction_train == 0.5
    with pytest.raises(AttributeError):
        _ = wrapped.nothing_of_this_name


# -- imports --------------------------------------------------------------------------------------


def test_everything_is_there_after_importing_rqm():
    probe = "import rqm; rqm.flower.private_mod, rqm.flower.PrivateClientApp, rqm.flower.private, rqm.flower.gathered"
    subprocess.run([sys.executable, "-c", probe], check=True)


NUMPY_APP = """
import sys
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam
import rqm
from tests.flower.local_grid import LocalGrid
app = rqm.flower.PrivateClientApp()

@app.train()
def train(message, context):
    w = message.content["arrays"]["w"].numpy()
    target = np.arange(4, dtype=np.float32)
    record = ArrayRecord({"w": Array(w + 0.5 * (target - w))})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": 3})}), reply_to=message)

config = {"rqm.epsilon": 500.0, "rqm.clients": 5, "num-server-rounds": 2, "rqm.federation": "numpy", "rqm.l2-clip": 9.0}
context = Context(1, 0, {}, RecordDict(), config, 0)
strategy = rqm.flower.private(FedAdam(eta=0.5, fraction_evaluate=0.0), context)
result = strategy.start(LocalGrid(app, 5, config), ArrayRecord({"w": Array(np.zeros(4, np.float32))}))
assert result.arrays["w"].numpy()[3] > 0.5, result.arrays["w"].numpy()
assert "torch" not in sys.modules
print("trained")
"""


def test_an_app_of_numpy_arrays_needs_no_torch_on_client_and_server():
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", NUMPY_APP], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "trained\n"
