"""The settings of a run: read from the app's configuration, refused by name, and made a plan that keeps ε."""

import pytest

pytest.importorskip("flwr")
from rqm import PBM, RQM
from rqm.bounds import compose, epsilon
from rqm.correlated.noise import CorrelatedNoise
from rqm.flower import BudgetSpentError, Settings
from rqm.flower.vector_layout import Metric
from tests.flower.local import plan_of

BASE = {"rqm.epsilon": 8.0, "rqm.clients": 50, "rqm.min-survivors": 40, "num-server-rounds": 3}
MECHANISM = {"rqm.mechanism.mechanism": "rqm", "rqm.mechanism.clip": 0.5, "rqm.mechanism.margin": 30.0}


def settings(**changes):
    return Settings.from_run_config({**BASE, **changes})


def test_four_lines_are_a_run():
    chosen = settings(lr=0.1)
    assert (chosen.epsilon, chosen.rounds, chosen.min_survivors) == (8.0, 3, 40)
    plan = chosen.plan(("w",), 60)
    result = plan.mean.guarantee()
    assert 7.5 < result.epsilon <= 8.0
    assert (result.certified, result.delta, result.min_honest) == (True, 1e-5, 40)
    assert (plan.clients, plan.min_survivors, plan.mean.participation.rounds) == (50, 40, 3)
    assert (plan.layout.failure_share, plan.layout.metrics, plan.mean.dim) == (0.02, (), 61)


def test_rounds_are_flowers_unless_given():
    assert settings().rounds == 3
    assert settings(**{"rqm.rounds": 9}).rounds == 9
    with pytest.raises(
        ValueError, match=r"rqm\.rounds: must be given, or num-server-rounds in the app's configuration"
    ):
        Settings.from_run_config({"rqm.epsilon": 8.0, "rqm.clients": 50})


def test_names_have_hyphens_or_underscores_and_tables_are_dotted():
    given = settings(
        **MECHANISM,
        **{"rqm.l2_clip": 2.0, "rqm.stage-timeout": 5, "rqm.noise.transient-std": 9.0, "rqm.noise.residual_std": 2.0},
        **{"rqm.noise.gain": 5, "rqm.train-metrics.train_loss": "[0, 5]", "rqm.eval_metrics.my-accuracy": [0, 1]},
    )
    assert (given.l2_clip, given.stage_timeout) == (2.0, 5)
    assert given.mechanism == RQM(clip=0.5, margin=30.0)
    assert given.noise == CorrelatedNoise(9.0, 2.0, 5)
    assert given.layout(7).metrics == (Metric("train_loss", 0.0, 5.0), Metric("my-accuracy", 0.0, 1.0, True))


@pytest.mark.parametrize("missing", ["epsilon", "clients"])
def test_what_must_be_given_is_named(missing):
    """With clients and rounds alone an app once trained unprotected."""
    config = {key: value for key, value in BASE.items() if key != f"rqm.{missing}"}
    with pytest.raises(ValueError, match=f"rqm.{missing}"):
        Settings.from_run_config(config)
    with pytest.raises(ValueError, match=r"rqm\.(epsilon|clients)"):
        Settings.from_run_config({"num-server-rounds": 3})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rqm.rouns": 1}, r"rqm.rouns: unknown key; did you mean rqm.rounds\?"),
        ({"rqm.min-survivor": 3}, r"did you mean rqm.min-survivors\?"),
        ({"rqm.mininum-nodes": 3}, "rqm.mininum-nodes: unknown key"),
        ({"rqm.min_survivors": 4}, "rqm.min_survivors: must be given once, with hyphens or with underscores"),
        ({"rqm.clients.more": 3}, "rqm.clients must be a table, or a value, not both"),
        ({"rqm.epsilon": -1.0}, "rqm.epsilon = -1.0: must be a positive finite number"),
        ({"rqm.epsilon": "8"}, "rqm.epsilon = '8'"),
        ({"rqm.epsilon": float("inf")}, "rqm.epsilon = inf"),
        ({"rqm.clients": 1}, "rqm.clients = 1"),
        ({"rqm.stage-timeout": 0}, "rqm.stage-timeout = 0"),
        ({"rqm.dry-run": 1}, "rqm.dry-run = 1: must be true or false"),
        ({"rqm.weight": 3}, "rqm.weight = 3: must be a text"),
        ({"rqm.weight": "num-examples"}, "rqm.max-weight: must be given with rqm.weight"),
        ({"rqm.federation": 3}, "rqm.federation = 3: must be a text"),
        ({"rqm.train-metrics.loss": "[5, 0]"}, "loss: high = 0"),
        ({"rqm.train-metrics.loss": "5"}, r'rqm.train-metrics.loss = .*: must be its bounds, such as "\[0, 5\]"'),
        ({"rqm.eval-metrics.accuracy": "[0, 1, 2]"}, "rqm.eval-metrics.accuracy = .*: must be its bounds"),
        ({"rqm.train-metrics": "loss"}, "rqm.train-metrics = 'loss': must be a table of metrics"),
        ({"rqm.mechanism": "pbm"}, "mechanism"),
        ({"rqm.noise": True}, "noise"),
        ({"rqm.metric-share": 0.3, "rqm.train-metrics.a": "[0, 1]", "rqm.train-metrics.b": "[0, 1]"}, "at most 0.5"),
        ({"rqm.mechanism.mechanism": "noiseless"}, "adds no noise"),
        ({"rqm.mechanism.mechanism": "gaussian", "rqm.epsilon": 1e3}, "must be one that sends integers"),
        ({"rqm.mechanism.mechanism": "nothing"}, "mechanism"),
        ({"rqm.delta": 2.0}, "delta = 2.0"),
        ({"rqm.l2-clip": 0.0}, "l2_clip"),
        ({"rqm.min-survivors": 51}, "min_survivors = 51"),
        ({"rqm.honest-clients": 20}, "min_survivors = 40"),
        ({"rqm.min-separation": 2}, "min_separation = 2: must come with noise = 'correlated'"),
        ({"rqm.record-clip": 1.0}, "rqm.record-clip: must come with rqm.records-per-round"),
        ({"rqm.sampling-rate": 0.5}, "rqm.sampling-rate, rqm.records-per-round: must come with rqm.record-clip"),
        ({"rqm.failure-share": 0.7}, "must be at most 0.5"),
        ({**MECHANISM, "rqm.mechanism.margin": 1.0, "rqm.epsilon": 0.1}, "the mechanism gives"),
        ({"rqm.epsilon": 1e-9}, "epsilon"),
    ],
)
def test_settings_that_cannot_be(change, message):
    with pytest.raises((ValueError, TypeError), match=message):
        settings(**change).plan(("w",), 60)


@pytest.mark.parametrize("name", ["sends", "transforms", "server", "records", "budget-epsilon", "model", "device"])
def test_keys_of_earlier_versions_are_unknown(name):
    for key in (f"rqm.{name}", f"rqm.{name}.rate"):
        with pytest.raises(ValueError, match=f"rqm.{name}: unknown key"):
            settings(**{key: 1})


def test_a_mechanism_of_ones_own_is_taken_as_it_is():
    plan = settings(**MECHANISM, **{"rqm.epsilon": 100.0}).plan(("w",), 60)
    assert plan.mean.mechanism == RQM(clip=0.5, margin=30.0)
    assert plan.mean.guarantee().epsilon < 100


def test_what_earlier_runs_have_spent_is_left_out_of_a_plans_epsilon():
    """Both together guarantee ε; with little left there is more noise, and with nothing left there is no plan."""
    first = settings(**{"rqm.epsilon": 5.0}).plan(("w",), 60)
    earlier = first.mean.account().bound
    alone, second = (settings().plan(("w",), 60, bound) for bound in (None, earlier))
    bound = second.mean.account().bound
    together = epsilon(compose([(bound, 1), (earlier, 1)]), 1e-5)
    assert 7.0 < together <= 8.0
    assert second.mean.expected_error(0.0) > 1.1 * alone.mean.expected_error(0.0)
    assert second.mean.guarantee().epsilon < alone.mean.guarantee().epsilon
    with pytest.raises(
        BudgetSpentError, match=r"earlier runs have spent .* of it: raise rqm\.epsilon, or give another"
    ):
        settings(**{"rqm.epsilon": first.mean.guarantee().epsilon}).plan(("w",), 60, earlier)


def test_metrics_the_count_and_weights_are_in_the_plan_that_nodes_get():
    declared = {"rqm.train-metrics.loss": "[0, 5]", "rqm.weight": "num-examples", "rqm.max-weight": 50.0}
    layout = plan_of({**BASE, **declared, "rqm.mean-weight": 20.0}).layout
    assert (layout.extras, layout.weight, layout.max_weight, layout.mean_weight) == (2, "num-examples", 50.0, 20.0)
    assert plan_of({**BASE, **declared}).layout.mean_weight == 50.0
    assert plan_of({**BASE, "rqm.failure-share": 0.0}).layout.extras == 0


def test_a_plan_searches_among_mechanisms_for_the_least_noise():
    mean = settings().plan(("w",), 60).mean
    pbm = settings(**{"rqm.mechanism.mechanism": "pbm", "rqm.mechanism.clip": 0.5, "rqm.mechanism.theta": 0.05})
    given = pbm.plan(("w",), 60).mean
    assert isinstance(given.mechanism, PBM)
    assert given.guarantee().epsilon < 8
    assert mean.expected_error(0.0) < given.expected_error(0.0)
