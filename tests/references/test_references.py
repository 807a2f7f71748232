"""The library against its recorded outputs; see `record` for how they were made.

`make test` compares a fixed sample of each group, the slow tests compare all of it. Results that change by
design are recorded anew: `python -m tests.references.record GROUP`, with the reason in the commit message.
"""

from dataclasses import dataclass
from math import isclose

import pytest

from tests.references import adapter
from tests.references.record import DATA, GROUPS, compute, environment, isolated, read

CHUNK = 100
"""Scenarios of one slow test."""
SHOWN = 10
"""Differences that a failing test shows."""


@dataclass(frozen=True)
class Comparison:
    """How a group is compared. Texts, hashes, whole numbers and types must always be equal.

    Args:
        tolerance: Largest relative difference of floats.
        sample: Step between the scenarios that `make test` compares: 3 compares every third one.
        absolute: Difference of floats that is allowed in any case: errors of Fourier transforms.
        elsewhere: The relative tolerance on another processor, or with another version of torch or NumPy.
        processor_dependent: Keys of hashes of floats, which are not compared there.
    """

    tolerance: float
    sample: int
    absolute: float = 0.0
    elsewhere: float | None = None
    processor_dependent: frozenset[str] = frozenset()


COMPARISONS = {
    "encodings": Comparison(0.0, sample=3, processor_dependent=frozenset({"gathered", "float_sums", "float_means"})),
    "models": Comparison(1e-7, sample=2, elsewhere=1e-4, processor_dependent=frozenset({"model"})),
    "transcripts": Comparison(0.0, sample=2),
    "ledgers": Comparison(1e-9, sample=5),
    "bounds": Comparison(1e-9, sample=11, absolute=1e-14),
    "calibrations": Comparison(1e-7, sample=13),
    "experiments": Comparison(1e-9, sample=11),
    "block_certificates": Comparison(1e-9, sample=12),
    "settings": Comparison(1e-9, sample=29),
}


@pytest.fixture(autouse=True)
def _isolated():
    with isolated():
        yield


def differences(expected, actual, tolerance, absolute=0.0, path=""):
    """Where two results differ, in words."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in sorted(expected.keys() | actual.keys()):
            if key in expected and key in actual:
                yield from differences(expected[key], actual[key], tolerance, absolute, f"{path}.{key}")
            else:
                yield f"{path}.{key}: only in the {'recorded' if key in expected else 'computed'} result"
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for index, pair in enumerate(zip(expected, actual, strict=True)):
            yield from differences(*pair, tolerance, absolute, f"{path}[{index}]")
    elif not _equal(expected, actual, tolerance, absolute):
        yield f"{path}: recorded {expected!r}, computed {actual!r}"


def _equal(expected, actual, tolerance, absolute):
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (expected, actual))
    if numbers and float in (type(expected), type(actual)):
        return isclose(expected, actual, rel_tol=tolerance, abs_tol=absolute)
    return type(expected) is type(actual) and expected == actual


def compared(entry, group, actual=None, *, same_machine=True):
    """The differences between a recorded result and the computed one."""
    scenario, expected, comparison = entry["scenario"], entry["result"], COMPARISONS[group]
    tolerance = comparison.tolerance
    if actual is None:
        actual = compute(scenario, may_fail="error" in expected)
    if "printed" in expected or "lines" in expected:
        expected, actual = adapter.new_keys(expected), adapter.new_keys(actual)
    if not same_machine:
        expected, actual = (
            {key: value for key, value in result.items() if key not in comparison.processor_dependent}
            for result in (expected, actual)
        )
        tolerance = comparison.elsewhere or tolerance
    return [
        f"{scenario['id']}{difference}" for difference in differences(expected, actual, tolerance, comparison.absolute)
    ]


def check(group, chosen):
    """Compare some scenarios of a group."""
    recorded_in, entries = read(group)
    same_machine = recorded_in == environment()
    failures = [text for entry in entries[chosen] for text in compared(entry, group, same_machine=same_machine)]
    assert not failures, "\n".join([f"{len(failures)} differences", *failures[:SHOWN]])


@pytest.mark.parametrize("group", GROUPS)
def test_a_sample_is_as_recorded(group):
    check(group, slice(None, None, COMPARISONS[group].sample))


def chunks():
    """All groups in parts of some scenarios."""
    return [(group, start) for group in GROUPS for start in range(0, len(read(group)[1]), CHUNK)]


@pytest.mark.slow
@pytest.mark.parametrize(("group", "start"), chunks())
def test_everything_is_as_recorded(group, start):
    check(group, slice(start, start + CHUNK))


# -- the recorded data ----------------------------------------------------------------------------


@pytest.mark.parametrize("group", GROUPS)
def test_the_scenarios_are_those_that_were_recorded(group):
    recorded = [entry["scenario"] for entry in read(group)[1]]
    assert list(differences(recorded, GROUPS[group](), 0.0)) == []
    assert len({scenario["id"] for scenario in recorded}) == len(recorded)


def test_most_settings_have_a_moderate_epsilon():
    results = [entry["result"] for entry in read("settings")[1]]
    epsilons = [result["epsilon"] for result in results if "epsilon" in result]
    moderate = [epsilon for epsilon in epsilons if epsilon != "inf" and 0.01 <= epsilon <= 50]
    assert len(epsilons) >= 2000
    assert len(moderate) > 0.95 * len(epsilons)
    assert len(results) - len(epsilons) <= 0.05 * len(results)


def test_nothing_else_was_refused():
    for group in GROUPS.keys() - {"settings"}:
        refused = [entry["scenario"]["id"] for entry in read(group)[1] if "error" in entry["result"]]
        assert refused == (["find_mean-57"] if group == "calibrations" else [])


def test_the_data_are_compact():
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 2_500_000


# -- power ----------------------------------------------------------------------------------------


def changed(value, change):
    """A result with its first value changed to which the change applies, and whether there is one."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            inner, done = changed(value[key], change)
            if done:
                copy = value.copy()
                copy[key] = inner
                return copy, True
        return value, False
    replacement = change(value)
    return (value, False) if replacement is None else (replacement, True)


def by_a_millionth(value):
    return value * (1 + 1e-6) if isinstance(value, float) and value else None


def other_hash(value):
    is_hash = isinstance(value, str) and len(value) >= 32
    return value[:-1] + ("0" if value[-1] != "0" else "1") if is_hash else None


@pytest.mark.parametrize("group", sorted(GROUPS.keys() - {"encodings", "transcripts"}))
def test_a_value_that_changed_by_a_millionth_is_noticed(group):
    noticed = 0
    for entry in read(group)[1][::7]:
        actual, done = changed(entry["result"], by_a_millionth)
        assert len(compared(entry, group, actual)) == done
        assert compared(entry, group, entry["result"]) == []
        noticed += done
    assert noticed > 1


@pytest.mark.parametrize("group", ["encodings", "models", "transcripts"])
def test_a_changed_hash_is_noticed(group):
    for entry in read(group)[1]:
        actual, done = changed(entry["result"], other_hash)
        assert done
        assert len(compared(entry, group, actual)) == 1


def test_a_result_that_is_missing_or_new_or_of_another_type_is_noticed():
    assert list(differences({"epsilon": 1.0}, {}, 1e-9)) == [".epsilon: only in the recorded result"]
    assert list(differences({}, {"epsilon": 1.0}, 1e-9)) == [".epsilon: only in the computed result"]
    assert list(differences([1, 2], [1], 1e-9)) == [": recorded [1, 2], computed [1]"]
    assert list(differences({"a": [1, True]}, {"a": [1, 1]}, 1e-9)) == [".a[1]: recorded True, computed 1"]
    assert list(differences("inf", 50.0, 1e-9)) == [": recorded 'inf', computed 50.0"]
    assert list(differences(1.0, 1.0 + 1e-10, 1e-9)) == []


def test_a_library_that_is_wrong_by_a_millionth_fails(monkeypatch):
    right = adapter.guarantee

    def wrong(scenario):
        result = right(scenario)
        return {**result, "epsilon": result["epsilon"] * (1 + 1e-6)}

    monkeypatch.setattr(adapter, "guarantee", wrong)
    with pytest.raises(AssertionError, match=r"one-bit-0\.epsilon"):
        check("settings", slice(0, 1))
