"""One vector for updates, metrics and the failure count: within the clip for all inputs, and read back as it was."""

import json
from math import inf, nan, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rqm.flower.vector_layout import Metric, VectorLayout

FLOAT32_ROUNDING = 1 + 2**-20
"""A vector of float32 may be longer by its rounding; encoding clips it again."""


@st.composite
def layouts(draw):
    """Layouts of all shapes that are allowed."""
    bounds = st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
    drawn = draw(st.lists(st.tuples(bounds, st.booleans()), max_size=4))
    metrics = tuple(Metric(f"m{i}", low, low + width, kind) for i, ((low, width), kind) in enumerate(drawn))
    failure_share = draw(st.sampled_from([0.0, 0.02, 0.1]))
    largest = (0.5 - failure_share) / max(1, len(metrics))
    metric_share = draw(st.floats(1e-4, largest * 0.999))
    weight = draw(st.sampled_from(["", "num-examples"]))
    max_weight = draw(st.floats(0.1, 1e6))
    mean_weight = max_weight * draw(st.floats(0.01, 1.0))
    size, clip = draw(st.integers(1, 20)), draw(st.floats(1e-3, 1e3))
    return VectorLayout(size, clip, metrics, metric_share, failure_share, weight, max_weight, mean_weight)


@st.composite
def reports(draw):
    """A layout, and what a client could report by it: any finite numbers."""
    layout = draw(layouts())
    numbers = st.floats(-1e300, 1e300, allow_nan=False)
    update = draw(arrays.arrays(np.float64, layout.size, elements=numbers))
    values = {metric: draw(numbers) for metric in layout.metrics}
    return layout, update, values, draw(numbers)


@given(reports())
def test_a_clients_vector_is_within_the_clip_whatever_it_reports(report):
    layout, update, values, weight = report
    vector = layout.pack(update, values, weight)
    assert vector.shape == (layout.size + layout.extras,)
    assert vector.dtype == np.float32
    assert np.linalg.norm(vector.astype(np.float64)) <= layout.l2_clip * FLOAT32_ROUNDING
    assert np.linalg.norm(layout.pack_failure().astype(np.float64)) <= layout.l2_clip * FLOAT32_ROUNDING


@given(layouts(), st.integers(0, 2**32 - 1))
def test_what_is_read_is_what_was_packed(layout, seed):
    rng = np.random.default_rng(seed)
    update = rng.normal(size=layout.size)
    update *= 0.9 * layout.l2_clip * sqrt(layout.update_share) / np.linalg.norm(update)
    values = {metric: float(rng.uniform(metric.low, metric.high)) for metric in layout.metrics}
    weight = float(rng.uniform(0, layout.max_weight))
    report = layout.read(layout.pack(update, values, weight), survivors=1)
    expected = update * weight / layout.mean_weight if layout.weight else update
    assert np.allclose(report.update, expected, rtol=1e-5, atol=1e-6 * layout.l2_clip)
    for metric, value in values.items():
        assert report.metrics[metric] == pytest.approx(value, abs=1e-5 * (metric.high - metric.low))
    assert report.failures == (0.0 if layout.failure_share else None)


@given(layouts(), st.integers(1, 50), st.data())
def test_failures_are_counted_among_others_reports(layout, survivors, data):
    failures = data.draw(st.integers(0, survivors))
    middle = {metric: (metric.low + metric.high) / 2 for metric in layout.metrics}
    good = layout.pack(np.zeros(layout.size), middle).astype(np.float64)
    total = failures * layout.pack_failure().astype(np.float64) + (survivors - failures) * good
    report = layout.read(total / survivors, survivors)
    if layout.failure_share:
        assert report.failures == pytest.approx(failures, abs=1e-3)
    assert all(value == pytest.approx(middle[metric], abs=1e-5 * (metric.high - metric.low))
               for metric, value in report.metrics.items())  # fmt: skip


@given(layouts())
def test_zero_is_the_zero_vector(layout):
    """A failure without a failure count reports nothing at all; so does a client without an update."""
    middle = {metric: (metric.low + metric.high) / 2 for metric in layout.metrics}
    quiet = layout.pack(np.zeros(layout.size), middle)
    assert np.abs(quiet).max() <= 1e-9 * layout.l2_clip * max([1, *(abs(m.low) / (m.high - m.low) for m in middle)])
    failed = layout.pack_failure()
    assert not failed[: layout.size + len(layout.metrics)].any()
    assert np.count_nonzero(failed) == (layout.failure_share > 0)


@given(layouts())
def test_a_layout_is_read_as_it_was_written(layout):
    assert VectorLayout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout


def test_a_weight_beyond_the_largest_counts_as_the_largest_and_a_negative_one_as_none():
    layout = VectorLayout(2, 1.0, weight="num-examples", max_weight=50.0, mean_weight=20.0)
    update = np.array([0.3, 0.4])
    packed = {weight: layout.pack(update, {}, weight) for weight in (-5.0, 0.0, 25.0, 50.0, 1e9)}
    assert not packed[-5.0].any()
    assert not packed[0.0].any()
    assert packed[1e9].tolist() == packed[50.0].tolist() == np.float32(update).tolist()
    assert packed[25.0] == pytest.approx(update / 2)
    assert layout.read(packed[50.0], 1).update == pytest.approx(update * 50 / 20)


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_is_refused(value):
    layout = VectorLayout(2, 1.0, (Metric("loss", 0.0, 5.0),))
    (metric,) = layout.metrics
    with pytest.raises(ValueError, match="must be 2 finite ones"):
        layout.pack(np.array([0.0, value]), {metric: 1.0})
    with pytest.raises(ValueError, match=r"loss = .*: must be finite"):
        layout.pack(np.zeros(2), {metric: value})
    weighted = VectorLayout(2, 1.0, weight="n", max_weight=3.0)
    packed_weight = {nan: None, inf: 1.0, -inf: 0.0}[value]
    if packed_weight is None:
        with pytest.raises(ValueError, match="n = nan: must be a number"):
            weighted.pack(np.ones(2) / 2, {}, value)
    else:
        assert weighted.pack(np.ones(2) / 2, {}, value) == pytest.approx(packed_weight * np.ones(2) / 2)
    for size in (1, 3):
        with pytest.raises(
            ValueError, match=f"training returned {size} values, of which {size} are finite: must be 2 finite ones"
        ):
            layout.pack(np.zeros(size), {metric: 1.0})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"size": 0}, "size = 0"),
        ({"failure_share": -0.1}, "failure_share = -0.1"),
        ({"failure_share": nan}, "failure_share = nan"),
        ({"failure_share": 0.6}, "they take 0.64 of the squared clip: must be at most 0.5"),
        ({"metric_share": 0.3}, "they take 0.6 of the squared clip"),
        ({"max_weight": 0.0}, "max_weight = 0"),
        ({"mean_weight": 2.0}, "mean_weight = 2"),
        ({"mean_weight": 0.0}, "mean_weight = 0"),
        ({"l2_clip": 0.0}, "l2_clip = 0"),
        ({"l2_clip": nan}, "l2_clip = nan"),
        ({"metrics": [{"name": "a", "low": 1.0, "high": 1.0, "is_evaluation": False}]}, "a: high = 1"),
        ({"metrics": [{"name": "a", "low": 0.0, "high": inf, "is_evaluation": False}]}, "a: high = inf"),
        ({"other": 1}, "other"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(changes, reason):
    metrics = (Metric("loss", 0.0, 5.0), Metric("accuracy", 0.0, 1.0, True))
    values = VectorLayout(5, 1.0, metrics).to_dict()
    with pytest.raises(ValueError, match=reason):
        VectorLayout.from_dict({**values, **changes})


def test_the_noise_of_metrics_and_of_the_failure_count_follows_from_that_of_a_coordinate():
    layout = VectorLayout(3, 2.0, (Metric("loss", 0.0, 5.0),), metric_share=0.04, failure_share=0.01)
    rng, (metric,) = np.random.default_rng(0), layout.metrics
    means = rng.normal(scale=0.05, size=(20_000, 5))
    reports = [layout.read(mean, 30) for mean in means]
    deviations, failures = layout.extra_noise(0.05, 30)
    assert np.std([report.metrics[metric] for report in reports]) == pytest.approx(deviations[metric], rel=0.03)
    assert np.std([report.failures for report in reports]) == pytest.approx(failures, rel=0.03)
    assert VectorLayout(3).extra_noise(0.05, 30) == ({}, None)
