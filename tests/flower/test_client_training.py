"""What a client's training makes of its app: a vector of the same size and within the clip, whatever the app does."""

import re

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from rqm.flower.client_training import train
from rqm.flower.messages import request_message
from rqm.secagg import ProtocolError
from tests.flower.local import settings_of
from tests.flower.local_grid import LocalGrid

SETTINGS = {
    "rqm.epsilon": 100.0,
    "rqm.clients": 6,
    "rqm.rounds": 2,
    "rqm.failure-share": 0.04,
    "rqm.metric-share": 0.01,
}
DECLARED = {"rqm.train-metrics.loss": "[0, 4]", "rqm.eval-metrics.accuracy": "[0, 1]", "rqm.weight": "count"}
PLAN = settings_of({**SETTINGS, **DECLARED, "rqm.max-weight": 10.0}).plan(("w", "b"), 5)
MODEL = {"w": np.arange(3, dtype=np.float32), "b": np.zeros(2), "frozen": np.array([7])}


def record(**values):
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in values.items()})


def reply_to(message, values=None, metrics=None, **content):
    """What a good app answers, with some of it changed."""
    if message.metadata.message_type == "evaluate":
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.75})}), reply_to=message)
    values = {"w": MODEL["w"] + 0.1, "b": MODEL["b"] - 0.1} if values is None else values
    metrics = {"loss": 1.0, "count": 5, **(metrics or {})}
    metrics = MetricRecord({name: value for name, value in metrics.items() if value is not None})
    return Message(RecordDict({"arrays": record(**values), "metrics": metrics, **content}), reply_to=message)


def outcome_of(app, model=None, plan=PLAN):
    content = {"arrays": record(**(MODEL if model is None else model)), "config": ConfigRecord({"lr": 0.1})}
    message = Message(request_message(100, plan, [], content).content, dst_node_id=100, message_type="train")
    return train(plan, message, LocalGrid(None, 6, {}).contexts[100], app)


def test_a_client_sends_the_difference_of_weights_and_its_metrics():
    outcome = outcome_of(lambda message, context: reply_to(message))
    update, loss, accuracy, failure = np.split(outcome.vector, [5, 6, 7])
    assert outcome.failure == ""
    assert update == pytest.approx([0.05, 0.05, 0.05, -0.05, -0.05], abs=1e-6)  # half of the largest weight
    assert loss == pytest.approx([0.1 * (2 * 1.0 / 4 - 1)])
    assert accuracy == pytest.approx([0.1 * (2 * 0.75 - 1)])
    assert failure.tolist() == [0.0]


def test_an_app_may_change_the_received_model_in_place():
    """As PyTorch's arrays allow it: the update is against what the server sent."""

    def app(message, context):
        if message.metadata.message_type == "train":
            message.content["arrays"]["w"] = Array(np.full(3, 1e6, np.float32))
        return reply_to(message)

    assert outcome_of(app).vector[:5] == pytest.approx([0.05, 0.05, 0.05, -0.05, -0.05], abs=1e-6)


def test_evaluation_gets_the_received_model_and_configuration_and_no_plan():
    seen = []

    def app(message, context):
        seen.append((message.metadata.message_type, sorted(message.content), message.content["config"]["lr"]))
        return reply_to(message)

    outcome_of(app)
    assert seen == [("evaluate", ["arrays", "config"], 0.1), ("train", ["arrays", "config", "rqm-plan"], 0.1)]


def raises(error):
    def app(message, context):
        raise error

    return app


FAILURES = {
    "raises": (raises(RuntimeError("no data here")), "RuntimeError: no data here"),
    "out of memory": (raises(MemoryError()), "MemoryError"),
    "fails to assert": (raises(AssertionError("x")), "AssertionError: x"),
    "answers an error": (lambda m, c: Message(Error(0, "broken"), reply_to=m), "RuntimeError: broken"),
    "answers nothing": (lambda m, c: None, "AttributeError"),
    "no arrays": (lambda m, c: Message(RecordDict(), reply_to=m), "no metric 'accuracy'|ValueError"),
    "two records of arrays": (lambda m, c: reply_to(m, more=record(x=[1.0])), "ValueError: too many values"),
    "an array is missing": (lambda m, c: reply_to(m, {"w": MODEL["w"]}), "b: is missing among the arrays"),
    "another shape": (lambda m, c: reply_to(m, {"w": np.zeros((3, 1)), "b": np.zeros(2)}), r"w: has shape \(3, 1\)"),
    "integers": (lambda m, c: reply_to(m, {"w": np.zeros(3, int), "b": np.zeros(2)}), "w: has dtype int64"),
    "not a number": (
        lambda m, c: reply_to(m, {"w": np.full(3, np.nan), "b": np.zeros(2)}),
        "5 values, of which 2 are finite: must be 5",
    ),
    "infinite": (lambda m, c: reply_to(m, {"w": np.full(3, np.inf), "b": np.zeros(2)}), "must be 5 finite ones"),
    "no metric": (lambda m, c: reply_to(m, metrics={"loss": None}), "reports no metric 'loss'"),
    "a metric that is a list": (lambda m, c: reply_to(m, metrics={"loss": [1.0, 2.0]}), "TypeError"),
    "a metric that is no number": (lambda m, c: reply_to(m, metrics={"loss": float("nan")}), "must be finite"),
    "no weight": (lambda m, c: reply_to(m, metrics={"count": None}), "count"),
    "a weight that is no number": (lambda m, c: reply_to(m, metrics={"count": float("nan")}), "must be a number"),
}


@pytest.mark.parametrize(("app", "reason"), FAILURES.values(), ids=FAILURES)
def test_whatever_goes_wrong_with_data_is_a_failure_that_looks_like_any_other(app, reason, caplog):
    """Nothing is raised: an answer that is an error would tell the server about the data."""
    outcome = outcome_of(app)
    assert np.array_equal(outcome.vector, PLAN.layout.pack_failure())
    assert outcome.vector.dtype == np.float32
    assert re.search(reason, outcome.failure)
    assert "training failed here; an encoding of zero is sent" in caplog.text


@pytest.mark.parametrize("scale", [1e3, 1e30, 1e38])
def test_an_update_of_any_size_is_clipped(scale):
    outcome = outcome_of(lambda m, c: reply_to(m, {"w": MODEL["w"] + scale, "b": MODEL["b"] - scale}, {"count": 1e9}))
    assert outcome.failure == ""
    bound = PLAN.layout.l2_clip * PLAN.layout.update_share**0.5
    assert np.linalg.norm(outcome.vector[:5].astype(float)) == pytest.approx(bound, rel=1e-5)


def test_metrics_are_cut_to_their_bounds():
    for value, expected in ((-5.0, -0.1), (1e300, 0.1), (4, 0.1)):
        outcome = outcome_of(lambda m, c, value=value: reply_to(m, metrics={"loss": value}))
        assert outcome.vector[5] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"w": MODEL["w"]}, "the model: b: is missing"),
        ({**MODEL, "w": np.zeros(4)}, "the model has 6 trained values: must be 5"),
        ({**MODEL, "b": np.array(["a", "b"])}, "the model: b: has dtype"),
    ],
)
def test_a_model_that_is_not_the_plans_is_refused_whatever_the_data(model, reason):
    with pytest.raises(ProtocolError, match=reason):
        outcome_of(raises(AssertionError("the app is called")), model)
    message = Message(request_message(100, PLAN).content, dst_node_id=100, message_type="train")
    with pytest.raises(ProtocolError, match="the model cannot be read"):
        train(PLAN, message, None, raises(AssertionError("the app is called")))


def test_what_an_app_refuses_for_the_protocol_is_refused():
    with pytest.raises(ProtocolError, match="mixes records"):
        outcome_of(raises(ProtocolError("mixes records")))
