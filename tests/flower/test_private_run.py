"""A run from its check to its end: nothing fails silently, metrics are private, and the budget holds over runs."""

import logging

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from rqm.flower import PrivateClientApp, RunFailedError, private_mod
from rqm.ledger.ledger import LEDGER, read
from rqm.ledger.node_policy import TEMPLATE
from rqm.secagg.wire import Kind
from tests.flower.local import (
    LocalGrid,
    accuracy,
    arrays,
    give_policies,
    plan_folder,
    plan_folders,
    private_strategy,
    start,
    survivors,
    training_app,
)
from tests.secagg.test_malicious_clients import dealing_wrongly, other_secret
from tests.simulation.small import federation, model

NODES = 8
CONFIG = {"rqm.epsilon": 500.0, "rqm.clients": NODES, "rqm.min-survivors": 6, "num-server-rounds": 2}
LIMITS = (
    TEMPLATE.replace("epsilon = 8.0", "epsilon = 1e6")
    .replace("release_epsilon = 2.0", "release_epsilon = 1e6")
    .replace("clients = 20", f"clients = {NODES}")
    .replace("honest_fraction = 0.8", f"honest_clients = {NODES}")
    .replace("roster =", "trust_server_with_keys = true  # roster =")
)
DATA = federation(clients=NODES)


def failing_app(fails=lambda partition: True, evaluation=False):
    """An app whose training, or evaluation, raises on some nodes."""

    def call(message, context, call_next):
        wanted = "evaluate" if evaluation else "train"
        if message.metadata.message_type == wanted and fails(context.node_config["partition-id"]):
            raise RuntimeError("no data here")
        return call_next(message, context)

    app = ClientApp(mods=[private_mod, call])
    good = training_app(None, DATA)

    @app.train()
    def train(message, context):
        return good(message, context)

    @app.evaluate()
    def evaluate(message, context):
        return good(message, context)

    return app


def grid_of(app, config=CONFIG, lose=lambda *_: False):
    return LocalGrid(app, NODES, config, lose)


def run(folder, config=None, app=None, policies=None, **options):
    config = {**CONFIG, **(config or {})}
    grid = grid_of(app or training_app(private_mod, DATA), config)
    if policies:
        give_policies(grid, folder, policies)
    return *start(grid, config, folder, **options), grid


# -- errors ---------------------------------------------------------------------------------------


def test_simulated_nodes_say_why_training_fails_and_a_run_where_all_fail_ends(tmp_path):
    """An exception once became an encoding of zero, and the run ended well with a model that had not learned."""
    with pytest.raises(RunFailedError, match="training fails on all 8 nodes: RuntimeError: no data here"):
        run(tmp_path, app=failing_app())
    assert read(plan_folder(tmp_path) / LEDGER).charges == {0: 1}
    assert not (plan_folder(tmp_path) / "model.npz").exists()


def test_one_simulated_node_that_fails_is_named_and_the_others_train(tmp_path, caplog):
    result, _, _ = run(tmp_path, app=failing_app(lambda partition: partition == 3))
    assert survivors(result) == [NODES, NODES]
    assert accuracy(result.arrays) > accuracy(arrays(model())) + 0.1
    assert caplog.text.count("training failed on 1 of 8 nodes; 1 of them: RuntimeError: no data here") == 2


def test_nodes_with_a_policy_never_say_that_training_failed_but_the_count_stops_the_run(tmp_path, caplog):
    """The count is in the secure sum, under ε; the round that it was in stays charged."""
    grid = grid_of(failing_app())
    give_policies(grid, tmp_path, LIMITS)
    with pytest.raises(RunFailedError, match=r"training fails on more than half of the clients: \d+ ± \d+ of 8"):
        start(grid, {**CONFIG, "rqm.failure-share": 0.3}, tmp_path)
    for stage, reply in grid.observed:
        assert list(reply.content.config_records["rqm"]) == ["message"], stage
    assert 1 <= read(plan_folder(tmp_path) / LEDGER).charges.total() <= 2
    assert "RuntimeError: no data here" in caplog.text  # each node's own log


def test_a_single_failure_among_nodes_with_a_policy_stops_nothing(tmp_path):
    app = failing_app(lambda partition: partition == 3)
    result, strategy, grid = run(tmp_path, {"rqm.failure-share": 0.3}, app, policies=LIMITS)
    assert survivors(result) == [NODES, NODES]
    _, deviation = strategy.run.plan.layout.extra_noise(noise_of(strategy), NODES)
    counts = [count for count, _ in strategy.run._failures]
    assert abs(np.mean(counts) - 1) < 5 * deviation / len(counts) ** 0.5
    assert deviation < 1  # so that it would have been seen
    lengths = {len(r.content["rqm"]["message"]) for stage, r in grid.observed if stage == Kind.MASKED}
    assert len(lengths) == 1  # nor does the size of an answer say who failed


def noise_of(strategy):
    """The standard deviation of a coordinate of the decoded mean."""
    return strategy.run.plan.mean.expected_error(0.0) ** 0.5


# -- the check before the first round -------------------------------------------------------------


def test_nodes_that_all_refuse_end_the_run_at_once_and_uncharged(tmp_path):
    """With the reason, also where a background process has another state: a run once ended well with all refused."""
    grid = grid_of(training_app(private_mod, DATA))
    give_policies(grid, tmp_path, LIMITS.replace("l2_clip = 1.0", "l2_clip = 0.1"))
    private = private_strategy(CONFIG, tmp_path)
    with pytest.raises(
        RunFailedError,
        match=r"0 nodes of 8 connected can take part: must be at least 6 \(rqm\.min-survivors\)\. 8 nodes: it says "
        r"'rqm: the policy of this node: l2_clip = 1.0: must be at most 0.1'\. Nothing was charged",
    ):
        private.start(grid, arrays(model()))
    assert not private.run.guard.charges
    assert not grid.observed


def test_some_that_refuse_are_left_out_and_named(tmp_path, caplog):
    grid = grid_of(training_app(private_mod, DATA))
    give_policies(grid, tmp_path, LIMITS)
    for node in (101, 105):
        (tmp_path / str(node) / "policy.toml").write_text(LIMITS.replace("l2_clip = 1.0", "l2_clip = 0.1"))
    result, _ = start(grid, CONFIG, tmp_path)
    assert survivors(result) == [6, 6]
    assert "node 101 does not take part: it says 'rqm: the policy of this node: l2_clip" in caplog.text
    asked = {reply.metadata.src_node_id for _, reply in grid.observed}
    assert not asked & {101, 105}


def test_too_few_nodes_are_said_after_one_wait(tmp_path, caplog):
    """Two nodes, Flower's default: it says how many are missing, and ends."""
    config = {**CONFIG, "rqm.stage-timeout": 0.3}
    grid = LocalGrid(training_app(private_mod, DATA), 2, config)
    with pytest.raises(RunFailedError, match="2 nodes of 2 connected can take part: must be at least 6"):
        start(grid, config, tmp_path)
    assert "2 of 8 nodes are connected and may take part; waiting for more" in caplog.text


def test_an_app_that_cannot_be_private_is_refused_in_the_check(tmp_path):
    legacy = PrivateClientApp(lambda context: None)
    with pytest.raises(RunFailedError, match="the app is made of a client_fn, which cannot be private"):
        run(tmp_path / "legacy", app=legacy)
    needs = training_app(None, DATA, app=PrivateClientApp(config_keys=["proximal-mu"]))
    with pytest.raises(RunFailedError, match="proximal-mu: is missing in the server's configuration"):
        run(tmp_path / "keys", app=needs)
    assert survivors(run_with(tmp_path, needs, {"proximal-mu": 0.1})) == [NODES, NODES]
    for folder in ("legacy", "keys"):
        assert not read(plan_folder(tmp_path / folder) / LEDGER).charges


def run_with(folder, app, config):
    private = private_strategy(CONFIG, folder / "with")
    return private.start(grid_of(app), arrays(model()), train_config=ConfigRecord(config))


# -- metrics and weights --------------------------------------------------------------------------

METRICS = {"rqm.train-metrics.train_loss": "[0, 3]", "rqm.eval-metrics.accuracy": "[0, 1]", "rqm.metric-share": 0.1}


def test_metrics_are_those_of_the_clients_within_their_noise(tmp_path):
    observed = []

    def noted(message, context, call_next):
        reply = call_next(message, context)
        observed.append((message.metadata.message_type, dict(reply.content["metrics"])))
        return reply

    app = training_app(None, DATA, app=PrivateClientApp(mods=[noted]))
    result, strategy, _ = run(tmp_path, METRICS, app, strategy=FedAvg())
    deviations, _ = strategy.run.plan.layout.extra_noise(noise_of(strategy), NODES)
    for server_round in (1, 2):
        part = observed[(server_round - 1) * 2 * NODES : server_round * 2 * NODES]
        for name, kind, reported in (
            ("train_loss", "train", result.train_metrics_clientapp),
            ("accuracy", "evaluate", result.evaluate_metrics_clientapp),
        ):
            values = [metrics[name] for message_type, metrics in part if message_type == kind]
            (deviation,) = [std for metric, std in deviations.items() if metric.name == name]
            assert len(values) == NODES
            assert abs(reported[server_round][name] - np.mean(values)) < 5 * deviation
            assert deviation < 0.3
    assert set(result.train_metrics_clientapp[1]) == {"train_loss", "survivors", "epsilon"}


def test_evaluation_measures_the_received_model_and_no_evaluate_message_is_sent(tmp_path, caplog):
    kinds = []

    def noted(message, context, call_next):
        kinds.append(message.metadata.message_type)
        return call_next(message, context)

    app = training_app(None, DATA, app=PrivateClientApp(mods=[noted]))
    _, _, grid = run(tmp_path, METRICS, app, strategy=FedAvg())
    assert kinds == ["evaluate", "train"] * (2 * NODES)
    assert len(grid.observed) == 2 * 5 * NODES - 2 * NODES  # the next round's messages travel with the end of one
    assert "metrics of evaluation are those of the model before the last round" in caplog.text


def test_metrics_that_are_off_are_named_once_and_their_functions_are_not_called(tmp_path, caplog):
    def aggregate(records, key):
        return MetricRecord({"mine": records[0]["metrics"]["train_loss"]})

    options = {"train_metrics_aggr_fn": aggregate, "evaluate_metrics_aggr_fn": aggregate}
    result, _, _ = run(tmp_path / "off", strategy=FedAvg(**options))
    assert set(result.train_metrics_clientapp[1]) == {"survivors", "epsilon"}
    assert not result.evaluate_metrics_clientapp
    assert caplog.text.count("clients' evaluation is off: their answers would be unprotected") == 1
    app = training_app(None, DATA, app=PrivateClientApp())
    result, _, _ = run(tmp_path / "on", METRICS, app, strategy=FedAvg(**options))
    assert set(result.train_metrics_clientapp[1]) == {"mine", "survivors", "epsilon"}
    assert caplog.text.count("asks for the metric 'train_loss', which is off") == 1  # among those of evaluation


def test_a_metric_that_the_app_does_not_report_is_a_failure_with_its_name(tmp_path):
    with pytest.raises(RunFailedError, match="the app reports no metric 'f1', which the run's settings declare"):
        run(tmp_path, {"rqm.train-metrics.f1": "[0, 1]"})


def test_evaluation_is_refused_behind_private_mod_which_does_not_reach_it(tmp_path):
    """It would call training a second time, and report its metrics as those of evaluation."""
    with pytest.raises(RunFailedError, match=r"rqm\.eval-metrics: need a PrivateClientApp with a function that"):
        run(tmp_path, METRICS)


def test_updates_are_weighted_by_the_number_of_examples(tmp_path):
    """The fixed denominator of McMahan et al. (2018): the sum of weights over clients times their public mean."""
    config = {"rqm.weight": "num-examples", "rqm.max-weight": 20.0, "rqm.mean-weight": 10.0, "num-server-rounds": 1}
    app, before = ClientApp(mods=[private_mod]), np.zeros(40)
    direction = np.ones(40) / 40**0.5

    @app.train()
    def train(message, context):
        partition = context.node_config["partition-id"]
        record = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + 0.9 * direction)})
        metrics = MetricRecord({"num-examples": 5 * partition})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    config = {**CONFIG, **config}
    private = private_strategy(config, tmp_path)
    result = private.start(grid_of(app, config), ArrayRecord({"w": Array(before)}))
    moved = float(result.arrays["w"].numpy() @ direction)
    expected = 0.9 * np.mean([min(5 * partition, 20) for partition in range(NODES)]) / 10
    assert abs(moved - expected) < 5 * noise_of(private) * 20 / 10
    assert noise_of(private) < 0.1


# -- runs of a federation -------------------------------------------------------------------------


def test_a_dry_run_leaves_no_ledger_and_no_model(tmp_path):
    config = {"rqm.dry-run": True}
    for _ in range(2):  # and can be repeated
        result, strategy, _ = run(tmp_path, config)
        assert survivors(result) == [NODES, NODES]
        assert not plan_folders(tmp_path)
        assert not strategy.run._folder.path.exists()


def test_a_dry_run_is_refused_by_nodes_that_are_not_simulated(tmp_path):
    with pytest.raises(RunFailedError, match=r"rqm\.dry-run: this node is not simulated: its policy must be"):
        run(tmp_path, {"rqm.dry-run": True}, policies=LIMITS)


def test_the_end_says_what_is_guaranteed_and_under_which_conditions(tmp_path, caplog):
    caplog.set_level(logging.INFO)

    def lose(node, stage, round_index):
        return round_index == 0 and stage == Kind.MASKED and node < 105

    grid = grid_of(training_app(private_mod, DATA), CONFIG, lose)
    _, strategy = start(grid, CONFIG, tmp_path)
    for said in (
        "1 of 2 charged rounds were released; the model is",
        f"ε = {strategy.run.guard.epsilon():.4g}, δ = 1e-05",
        "It assumes that:",
        "a user is one node, with all of its data",
        "all nodes trust the server (simulated): nothing in this run was protected from it",
        "round 1 is discarded, and charged",
    ):
        assert said in caplog.text, said
    caplog.clear()
    run(tmp_path / "deployed", policies=LIMITS)
    assert "simulated" not in caplog.text


def test_the_budget_stops_a_run_whose_rounds_were_repeated(tmp_path, monkeypatch):
    """A round that clients corrupted is charged again, so ε is spent before the last round."""
    dealing_wrongly(monkeypatch, {1}, other_secret)
    config = {"num-server-rounds": 3, "rqm.epsilon": 20.0, "rqm.min-survivors": 5}
    result, strategy, _ = run(tmp_path, config)
    spent = [metrics["epsilon"] for metrics in result.train_metrics_clientapp.values()]
    assert max(spent) <= 20.0
    assert survivors(result)[-1] == 0
    assert strategy.run.guard.charges.total() <= 3
    assert (plan_folder(tmp_path) / "model.npz").exists()
