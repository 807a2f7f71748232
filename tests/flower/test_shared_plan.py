"""The plan that a server sends: read as it was written, refused if it was not, the same context for all of a sum."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message

from rqm import StochasticRounding
from rqm.config.round_parameters import Link
from rqm.core.search import private_mean
from rqm.flower import private_mod
from rqm.flower.client_training import train
from rqm.flower.messages import PLAN_KEY, PLAN_RECORD, request_message
from rqm.flower.shared_plan import Request, SharedPlan, read_plan
from rqm.flower.vector_layout import VectorLayout
from rqm.secagg import ProtocolError
from rqm.secagg.wire import Kind
from tests.flower.local import LocalGrid, arrays, gradient_app, plan_of
from tests.flower.test_correlated_noise import CONFIG as CORRELATED
from tests.flower.test_strategy import PRIVATE
from tests.simulation.small import model

CONFIG = {**PRIVATE, "rqm.failure-share": 0.02, "rqm.train-metrics.loss": "[0, 5]", "rqm.eval-metrics.right": "[0, 1]"}
PLAN = plan_of(CONFIG)
VALUES = json.loads(PLAN.to_json())


@pytest.mark.parametrize("config", [CONFIG, PRIVATE, CORRELATED, {**CONFIG, "rqm.dry-run": True, "rqm.threshold": 3}])
def test_a_plan_is_read_as_it_was_written(config):
    plan = plan_of(config)
    again = SharedPlan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert again.fingerprint == plan.fingerprint
    assert read_plan(plan.to_json()) is read_plan(plan.to_json())  # a simulation has many nodes in one process


def test_every_value_is_in_the_fingerprint_and_so_in_the_context_of_a_sum():
    layout = PLAN.layout
    plans = [
        PLAN,
        replace(PLAN, threshold=3),
        replace(PLAN, is_dry_run=True),
        replace(PLAN, trained=(*PLAN.trained[:-1], "other")),
        replace(PLAN, trained=PLAN.trained[::-1]),
        replace(PLAN, layout=replace(layout, metric_share=0.03)),
        replace(PLAN, layout=replace(layout, metrics=layout.metrics[::-1])),
        plan_of({**CONFIG, "rqm.seed": 1}),
        plan_of({**CONFIG, "rqm.mechanism.margin": 30.1}),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert len({plan.params(b"round").context for plan in plans}) == len(plans)
    assert len({plan.params(b"round").digest for plan in plans}) == len(plans)


def test_every_round_has_parameters_of_its_own():
    first = PLAN.params(b"first")
    assert PLAN.params(b"first") is first
    assert {PLAN.params(b"second").round, PLAN.params(b"first", bytes(32)).roster} == {b"second", bytes(32)}
    assert PLAN.params(b"first").digest != PLAN.params(b"second").digest
    assert plan_of({**CONFIG, "rqm.threshold": 3}).params(b"first").threshold == 3
    with pytest.raises(ProtocolError, match="chain"):
        PLAN.params(b"first", b"", Link(b"chain", 0))
    with pytest.raises(ProtocolError, match="chain"):
        plan_of(CORRELATED).params(b"first")


def changed(*path, value):
    """The plan's text with one value changed."""
    values = json.loads(PLAN.to_json())
    table = values
    for key in path[:-1]:
        table = table[key]
    table[path[-1]] = value
    return json.dumps(values)


def without(name):
    return json.dumps({key: value for key, value in VALUES.items() if key != name})


HOSTILE = {
    "not JSON": ("{", "JSON|line|Expecting"),
    "no table": ("[]", "table"),
    "nothing": ("", "JSON|line|Expecting|empty"),
    "None": ("None", "JSON|line|Expecting"),
    "huge": (" " * (2**24 + 1), "plan: has 16777217 characters: must be at most 16777216"),
    "deep": ("[" * 100_000, "plan|JSON|nested|deep|recursion"),
    "another format": (changed("plan_format", value=2), "plan_format = 2: must be 1.*the same version of rqm"),
    "no format": (without("plan_format"), "plan_format = None: must be 1"),
    "format of a text": (changed("plan_format", value="1"), "plan_format = '1'"),
    **{f"no {name}": (without(name), name) for name in ("mean", "trained", "layout", "threshold", "dry_run")},
    "unknown key": (json.dumps({**VALUES, "more": 1}), "more"),
    "names of numbers": (changed("trained", value=[1, 2]), r"trained = \[1, 2\]: must be a list of names"),
    "names of a text": (changed("trained", value="abc"), "trained = 'abc': must be a list of names"),
    "layout of a list": (changed("layout", value=[]), "layout, dry_run: must be a table"),
    "dry run of a number": (changed("dry_run", value=1), "layout, dry_run: must be a table, and true or false"),
    "a negative threshold": (changed("threshold", value=-1), "threshold = -1"),
    "a clip beyond that of the mean": (changed("layout", "l2_clip", value=9.0), r"layout: l2_clip = 9.0: must be 1.0"),
    "a clip that is none": (changed("layout", "l2_clip", value="1"), "l2_clip = '1'"),
    "another size": (changed("layout", "size", value=50), "dim = 54: must be 53"),
    "another dim": (changed("mean", "dim", value=55), "dim = 55: must be 54"),
    "a huge size": (changed("layout", "size", value=10**30), "size|dim"),
    "metrics of numbers": (changed("layout", "metrics", value=[1]), "metrics|mapping|table"),
    "a metric without bounds": (changed("layout", "metrics", 0, value={"name": "x"}), "low|metrics|missing"),
    "a metric's other key": (
        changed("layout", "metrics", 0, value={"name": "x", "low": 0, "high": 1, "more": 2}),
        "more|metrics",
    ),
    "all of the clip for metrics": (changed("layout", "metric_share", value=0.4), "at most 0.5"),
    "a mechanism without noise": (
        changed("mean", "mechanism", value={"mechanism": "noiseless", "clip": 1.0}),
        "must be one that sends integers",
    ),
    "no clip": (changed("mean", "l2_clip", value=None), "with an L2 clip"),
    "an unknown mechanism": (changed("mean", "mechanism", value={"mechanism": "nothing"}), "mechanism"),
    "a mean of a list": (changed("mean", value=[]), "must be a table of names and values"),
    "min survivors beyond the clients": (changed("mean", "min_survivors", value=7), "min_survivors = 7: must be"),
}


@pytest.mark.parametrize(("text", "reason"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_plan_is_refused_by_a_node_in_one_line(text, reason, tmp_path):
    """Before anything is checked, charged or answered: by the plan's reader, and by a node that gets it."""
    with pytest.raises((ValueError, TypeError), match=reason):
        SharedPlan.from_json(text)
    grid = LocalGrid(gradient_app(private_mod), 6, PRIVATE)
    for requests in ([], [Request(Kind.KEYS, b"round", 0, 0, b"")]):
        message = request_message(100, PLAN, requests)
        message.content[PLAN_RECORD] = ConfigRecord({PLAN_KEY: text})
        reply = grid.app(message, grid.contexts[100])
        assert reply.has_error()
        assert "\n" not in reply.error.reason
        assert len(reply.error.reason) < 1000
    assert not grid.contexts[100].state.config_records.get("rqm")


@pytest.mark.parametrize("value", [None, 1, b"x", [1.5], ["x"], True])
def test_a_plan_that_is_no_text_is_refused(value):
    grid = LocalGrid(gradient_app(private_mod), 6, PRIVATE)
    message = request_message(100, PLAN)
    message.content[PLAN_RECORD] = ConfigRecord({} if value is None else {PLAN_KEY: value})
    assert grid.app(message, grid.contexts[100]).has_error()


@pytest.mark.parametrize(
    "trained", [("0.weight", "0.bias", "2.weight", "other"), ("2.weight",), ("0.bias", "0.bias"), ()]
)
def test_names_that_are_not_the_models_are_refused_where_the_model_comes(trained):
    """A node learns only then which arrays there are. Nothing was sent, and the vector is refused."""
    plan, grid = replace(PLAN, trained=trained), LocalGrid(gradient_app(private_mod), 6, PRIVATE)
    message = request_message(100, plan, [], {"arrays": arrays(model())})
    delivered = Message(message.content, dst_node_id=100, message_type="train")
    with pytest.raises(ProtocolError, match="the model"):
        train(plan, delivered, grid.contexts[100], lambda *_: pytest.fail("the app is called"))


def test_a_mean_that_a_plan_cannot_have_is_refused():
    values = {"dim": 5, "clients": 6, "mechanism": StochasticRounding(clip=0.5, levels=2, margin=9.0)}
    layout = VectorLayout(5)
    assert SharedPlan(private_mean(**values), ("w",), layout).min_survivors == 6
    for changes, reason in (
        ({"l2_clip": None, "rotate": False}, "with an L2 clip"),
        ({"population": 100, "adversary": "outsider"}, "available nodes are no random sample of the population"),
        ({"rounds": 5, "min_separation": 3}, "min_separation = 3: must come with noise = 'correlated'"),
        ({"clients": 1}, "clients = 1"),
        ({"l2_clip": 2.0}, r"layout: l2_clip = 1.0: must be 2.0"),
        ({"dim": 6}, "dim = 6: must be 5"),
    ):
        with pytest.raises(ValueError, match=reason):
            SharedPlan(private_mean(**{**values, **changes}), ("w",), layout)
