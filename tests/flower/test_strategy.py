"""Private training on Flower's Message API: the same model as the simulator's, sums only, a ledger, a budget."""

import json
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.config import flatten_dict
from flwr.serverapp.strategy import FedAvg

import rqm
from rqm.flower import PrivateStrategy, Settings, private_mod, seeded_mod
from rqm.secagg.wire import Kind
from rqm.simulation.loop import RunState
from tests.flower.local import LocalGrid, accuracy, arrays, gradient_app, start, survivors, training_app
from tests.plans import change_plan
from tests.simulation.small import federation, model

PLAIN = {
    "rqm.clients": 6,
    "rqm.rounds": 4,
    "rqm.mechanism.mechanism": "rqm",
    "rqm.mechanism.clip": 0.5,
    "rqm.server.rate": 0.5,
    "rqm.sends": "gradient",
    "rqm.device": "cpu",
}
PRIVATE = {
    **PLAIN,
    "rqm.transforms.l2-clip": 1.0,
    "rqm.transforms.rotate": True,
    "rqm.mechanism.margin": 30.0,
    "rqm.max-participations": 4,
    "rqm.population": 1000,
    "rqm.min-survivors": 4,
}


def train(config, app, tmp_path, lose=lambda *_: False, strategy=None, **options):
    grid = LocalGrid(app, 6, config, lose)
    return *start(grid, config, tmp_path, strategy=strategy, **options), grid


ROTATED = {"rqm.transforms.l2-clip": 1.0, "rqm.transforms.rotate": True}


@pytest.mark.parametrize("change", [{}, ROTATED, {**ROTATED, "rqm.transforms.coordinates": 20}])
def test_the_model_is_the_simulators_bit_for_bit(change, tmp_path):
    config = {**PLAIN, **change}
    result, _, _ = train(config, gradient_app(seeded_mod), tmp_path, seeded=True)
    trainer = RunState(Settings.from_run_config(config).plan, federation(clients=6), model())
    for _ in range(4):
        trainer.step()
    expected = model()
    from rqm.simulation.models import FlatModel

    FlatModel(expected).values.copy_(trainer.values)
    for name, array in result.arrays.items():
        assert (array.numpy() == expected.state_dict()[name].numpy()).all()


@pytest.mark.slow
def test_the_model_of_rqm_train_is_the_plans_and_flowers_bit_for_bit(tmp_path):
    """Seeded, all nodes in each round."""
    data = federation(clients=6)
    node_ledgers = rqm.train(
        model(), data, epsilon=100, rounds=4, clients=6, rate=0.5, seed=2, device="cpu", progress=False
    )
    simulation = rqm.simulate(node_ledgers.plan, model(), data)
    for _ in simulation:
        pass
    values = node_ledgers.plan.to_dict()
    tables = {
        f"rqm.{name}.{key}": value
        for name in ("mechanism", "transforms", "server", "client")
        for key, value in values[name].items()
    }
    plain = {
        f"rqm.{name}": value for name, value in values.items() if value is not None and not isinstance(value, dict)
    }
    config = {**plain, **tables, "rqm.sampling": "available", "rqm.sends": "gradient"}
    result, private, _ = train(config, gradient_app(seeded_mod), tmp_path, seeded=True)
    assert private.settings.plan == change_plan(node_ledgers.plan, sampling="available")
    for name, array in result.arrays.items():
        assert (array.numpy() == node_ledgers.model.state_dict()[name].numpy()).all()
        assert (array.numpy() == simulation.model.state_dict()[name].numpy()).all()
    assert any((p != q).any() for p, q in zip(node_ledgers.model.parameters(), model().parameters(), strict=True))


def test_nothing_but_the_protocol_leaves_a_client(tmp_path):
    _, _, grid = train({**PLAIN, "rqm.sends": "update"}, training_app(private_mod), tmp_path)
    for _, reply in grid.observed:
        assert not reply.content.array_records
        assert not reply.content.metric_records
        assert reply.content.config_records.keys() <= {"rqm", "rqm-next"}
        assert all(record.keys() == {"message"} for record in reply.content.config_records.values())
    stages = {stage for stage, _ in grid.observed}
    assert stages == {Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.ACKS, Kind.REVEAL}


def test_an_unmodified_app_learns_under_flowers_own_strategy(tmp_path):
    config = {**PLAIN, "rqm.sends": "update", "rqm.rounds": 12, "rqm.mechanism.clip": 0.4}
    inner = FedAvg(fraction_evaluate=0.0)
    result, _, _ = train(config, training_app(private_mod), tmp_path, strategy=inner)
    assert accuracy(result.arrays) > 0.85 > accuracy(arrays(model())) + 0.2


def test_epsilon_is_logged_and_the_budget_stops_the_run(tmp_path):
    result, private, _ = train(PRIVATE, gradient_app(private_mod), tmp_path / "free")
    spent = [result.train_metrics_clientapp[round_index]["epsilon"] for round_index in range(1, 5)]
    assert spent == sorted(spent)
    assert spent[0] > 0
    budget = (spent[1] + spent[2]) / 2
    config = {**PRIVATE, "rqm.budget-epsilon": budget}
    result, private, _ = train(config, gradient_app(private_mod), tmp_path / "paid")
    assert private.stopped
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert result.train_metrics_clientapp[2]["epsilon"] <= budget
    lines = [json.loads(line) for line in (tmp_path / "paid" / "ledger.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines[1:]] == [0, 1]


@pytest.mark.parametrize("stage", [Kind.KEYS, Kind.SHARES, Kind.MASKED, Kind.ACKS, Kind.REVEAL])
def test_a_lost_node_does_not_stop_the_run(stage, tmp_path):
    config = {**PRIVATE, "rqm.threshold": 3}
    result, _, _ = train(
        config,
        gradient_app(private_mod),
        tmp_path,
        lambda node, now, round_index: node == 103 and now == stage and round_index == 1,
    )
    # A node that is silent at the end of a round is also silent at the beginning of the next.
    assert survivors(result) == ([6, 5, 6, 6] if stage <= Kind.MASKED else [6, 6, 5, 6])


def test_errors_are_answered_not_raised(tmp_path):
    grid = LocalGrid(gradient_app(private_mod), 6, PLAIN)
    app, context = grid.app, grid.contexts[100]
    plain = Message(RecordDict({"arrays": arrays(model())}), dst_node_id=100, message_type="train")
    assert "not a message of a private round" in app(plain, context).error.reason
    late = ConfigRecord({"stage": 3, "message": b"", "round": b"x", "dim": 5, "client": 0, "round_index": 0})
    lone = Message(RecordDict({"rqm": late}), dst_node_id=100, message_type="train")
    assert "in no round" in app(lone, context).error.reason
    context.run_config["rqm.cleints"] = 3
    lone = Message(RecordDict({"rqm": late}), dst_node_id=100, message_type="train")
    assert "rqm.cleints" in app(lone, context).error.reason


def test_a_client_whose_training_fails_sends_zero(tmp_path):
    from flwr.clientapp import ClientApp

    app = ClientApp(mods=[private_mod])

    @app.train()
    def broken(message, context):
        raise RuntimeError("no data here")

    result, _, _ = train({**PLAIN, "rqm.rounds": 1}, app, tmp_path)
    assert result.train_metrics_clientapp[1]["survivors"] == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rqm.mechanism.mechanism": "noiseless"}, "must be one that sends integers"),
        ({"rqm.sends": "all"}, "must be update or gradient"),
        ({"rqm.delta": 2.0}, "rqm.delta = 2.0"),
        ({"rqm.budget-epsilon": -1.0}, "rqm.budget_epsilon"),
        ({"rqm.clients": 1}, "rqm.clients = 1"),
        ({"rqm.rouns": 1}, "rqm.rouns"),
        ({"rqm.min-survivor": 3}, r"did you mean rqm.min-survivors\?"),
        ({"rqm.min-survivors": 3, "rqm.min_survivors": 4}, "rqm.min_survivors: must be given once"),
        ({"rqm.sampling": "uniform", "rqm.population": 100}, "rqm.sampling = 'uniform': must be 'available'"),
        ({"rqm.adversary": "outsider"}, "adversary"),
        ({"rqm.client.work": "fedcomgate"}, "an app sends its own vector"),
        ({"rqm.clients.more": 3}, "rqm.clients must be a table, or a value, not both"),
    ],
)
def test_settings_that_cannot_be(change, message):
    config = {**PLAIN, **change}
    with pytest.raises(ValueError, match=message):
        Settings.from_run_config(config)


@pytest.mark.parametrize("page", ["docs/deploy.md", "examples/flower/pyproject.toml"])
def test_the_shown_settings_are_good(page):
    text = (Path(__file__).parents[2] / page).read_text()
    text = text.split("```toml")[1].split("```")[0] if page.endswith("md") else text
    settings = Settings.from_run_config(flatten_dict(tomllib.loads(text)["tool"]["flwr"]["app"]["config"]))
    assert settings.params(1000, b"x").minimum == settings.plan.participation.min_survivors


def test_caps_and_too_many_clients(tmp_path):
    options = {"stage_timeout": 0.05}
    result, _, _ = train(
        {**PLAIN, "rqm.clients": 9, "rqm.min-survivors": 5, "rqm.threshold": 5},
        gradient_app(private_mod),
        tmp_path / "fewer",
        **options,
    )
    assert survivors(result) == [6, 6, 6, 6]
    result, _, _ = train(
        {**PLAIN, "rqm.max-participations": 2}, gradient_app(private_mod), tmp_path / "capped", **options
    )
    assert survivors(result) == [6, 6, 0, 0]
    with pytest.raises(ValueError, match="num_rounds = 9"):
        PrivateStrategy(Settings.from_run_config(PLAIN), folder=tmp_path).start(None, arrays(model()), 9)
