"""RAPPOR: both responses against enumeration, ε exactly, decoding, and what memory leaks."""

import json
from itertools import product
from math import exp, log, sqrt

import numpy as np
import pytest

from rqm import SecureRandom, SeededRandom
from rqm.audit.privacy import audit_reports
from rqm.related.randomized_response import RandomizedResponse
from rqm.related.rappor import Rappor
from tests.commands import rqm
from tests.goodness import p_value

SMALL = Rappor(bits=3, hashes=1, cohorts=2, f=0.4, p=0.3, q=0.8)


def report_pmf(rappor, bloom, reports):
    """The pmf of several reports of one value, summed over all permanent responses."""
    outcomes = list(product((False, True), repeat=len(bloom)))
    pmf = {}
    for permanent in outcomes:
        chance = np.prod([1 - rappor.f / 2 if a == b else rappor.f / 2 for a, b in zip(permanent, bloom, strict=True)])
        for reports_seen in product(outcomes, repeat=reports):
            chance_given = chance
            for report in reports_seen:
                for bit, is_set in zip(report, permanent, strict=True):
                    probability = rappor.q if is_set else rappor.p
                    chance_given *= probability if bit else 1 - probability
            pmf[reports_seen] = pmf.get(reports_seen, 0.0) + chance_given
    return pmf


@pytest.mark.parametrize("reports", [1, 2])
def test_epsilon_is_that_of_all_reports_enumerated(reports):
    pmfs = [report_pmf(SMALL, np.eye(3, dtype=bool)[j], reports) for j in range(3)]
    worst = max(log(p[outcome] / q[outcome]) for p in pmfs for q in pmfs for outcome in p)
    assert SMALL.epsilon(reports) == pytest.approx(worst, abs=1e-9)


def test_the_published_epsilons():
    """Erlingsson et al. 2014: ε∞ = 2h ln((1 − f/2)/(f/2)), ε₁ = h ln(q*(1 − p*)/(p*(1 − q*)))."""
    rappor = Rappor(f=0.5, p=0.5, q=0.75, hashes=2)
    low, high = rappor.report_probabilities
    assert (low, high) == (0.5625, 0.6875)
    assert rappor.epsilon_infinity == pytest.approx(4 * log(3))
    assert rappor.epsilon_one == pytest.approx(2 * log(high * (1 - low) / (low * (1 - high))))
    many = [rappor.epsilon(reports) for reports in (1, 2, 5, 20, 100, 2000)]
    assert many == sorted(many)
    assert many[0] < many[-1] <= rappor.epsilon_infinity  # however many
    assert many[-1] == pytest.approx(rappor.epsilon_infinity, rel=1e-6)
    assert rappor.epsilon(2000, values=3) == pytest.approx(3 * rappor.epsilon_infinity, rel=1e-6)  # who changes pays


def test_that_a_value_was_changed_is_not_hidden():
    """One report before and one after: kept bits or fresh ones, enumerated; and with more reports there is no bound."""
    first_bloom, second_bloom = (np.array(entry, dtype=bool) for entry in ((1, 0, 0), (0, 1, 0)))
    unchanged = report_pmf(SMALL, first_bloom, 2)
    before_change, after_change = (report_pmf(SMALL, bloom, 1) for bloom in (first_bloom, second_bloom))
    ratios = [before_change[reports[:1]] * after_change[reports[1:]] / chance for reports, chance in unchanged.items()]
    assert SMALL.epsilon_change(1) == pytest.approx(max(log(max(ratios)), -log(min(ratios))), abs=1e-9)
    rappor = Rappor(bits=32, hashes=2)
    assert rappor.epsilon_change(0) == pytest.approx(0, abs=1e-12)
    assert rappor.epsilon_change(10) > 2 * rappor.epsilon_infinity  # which is what two values are said to cost
    assert rappor.epsilon_change(100) > 8 * rappor.epsilon_change(10)
    assert Rappor(bits=3, hashes=2).epsilon_change(2) > 0
    assert Rappor(p=0.0, q=1.0).epsilon_change(1) == np.inf


def test_two_values_cost_as_much_as_is_said_if_both_change():
    """Users who change at the same time, each to a value that he never had: enumerated."""
    first, second, third = (report_pmf(SMALL, np.eye(3, dtype=bool)[j], 1) for j in range(3))
    worst = max(log(first[a] * second[b] / (third[a] * first[b])) for a in first for b in first)
    assert SMALL.epsilon(1, values=2) == pytest.approx(worst, abs=1e-9)


def test_many_users_draw_their_own_bits():
    source = SeededRandom(5)
    permanent = SMALL.permanent("a", 0, source, users=4000)
    assert permanent.shape == (4000, 3)
    bloom = SMALL.bloom("a", 0)
    expected = np.where(bloom, 1 - SMALL.f / 2, SMALL.f / 2)
    assert permanent.mean(axis=0) == pytest.approx(expected, abs=5 * 0.5 / 4000**0.5)
    reports_seen = SMALL.report(permanent, source)
    assert (reports_seen[:2000] != reports_seen[2000:]).any()
    low, high = SMALL.report_probabilities
    assert reports_seen.mean(axis=0) == pytest.approx(np.where(bloom, high, low), abs=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("reports", [1, 2])
def test_an_audit_measures_reports(reports):
    result = audit_reports(SMALL, reports, draws=60_000, rng=SeededRandom(1))
    assert not result.contradicted
    assert result.measured > 0.8 * result.claimed
    careless = audit_reports(
        Rappor(bits=3, hashes=1, cohorts=2, f=0.2, p=0.2, q=0.9), draws=60_000, rng=SeededRandom(1)
    )
    assert careless.measured > SMALL.epsilon(1)


def test_the_commands_know_it():
    done = rqm("privacy", "--mechanism", "rappor", "--hashes", 2, "--reports", 10, "--json")
    result = json.loads(done.stdout)
    assert result["epsilon"] == pytest.approx(4.2993, abs=1e-4)
    assert result["epsilon_infinity"] == pytest.approx(4 * log(3))
    assert "ε = 4.29934" in rqm("privacy", "--mechanism", "rappor", "--hashes", 2, "--reports", 10).stdout
    done = rqm("audit", "privacy", "--mechanism", "rappor", "--bits", 8, "--draws", 20000)
    assert done.returncode == 0
    assert "not contradicted: claimed ε ≤ 1.07429" in done.stdout
    wrong = rqm("privacy", "--mechanism", "rappor", "--theta", 0.2)
    assert wrong.returncode == 2
    assert "--theta 0.2: must not be given with --mechanism rappor" in wrong.stderr
    wrong = rqm("privacy", "--reports", 3)
    assert "--reports 3: must come with --mechanism rappor" in wrong.stderr


def test_one_bit_of_it_is_randomized_response():
    bit = Rappor(bits=1, hashes=1, cohorts=1, f=0.5, p=0.0, q=1.0)
    low, high = bit.report_probabilities
    assert [1 - high, high] == pytest.approx(RandomizedResponse(levels=2, epsilon=log(3)).pmf(1.0), abs=1e-9)
    assert low == pytest.approx(0.25)


def test_reports_have_the_law_that_was_enumerated():
    source, value = SeededRandom(4), "blue"
    bloom = SMALL.bloom(value, 1)
    expected_pmf = report_pmf(SMALL, bloom, 2)
    outcomes = {reports_seen: k for k, reports_seen in enumerate(expected_pmf)}
    permanent = SMALL.permanent(value, 1, source, users=15_000)
    reports_seen = zip(*(map(tuple, SMALL.report(permanent, source).tolist()) for _ in range(2)), strict=True)
    drawn = [outcomes[pair] for pair in reports_seen]
    observed = np.bincount(drawn, minlength=len(outcomes))
    assert p_value(observed, list(expected_pmf.values())) > 1e-6
    single_pmf = report_pmf(SMALL, bloom, 1)  # as if nothing were kept between two reports
    distances = [single_pmf[(first,)] * single_pmf[(second,)] for first, second in expected_pmf]
    assert p_value(observed, distances) < 1e-6


def test_counts_are_unbiased_with_the_published_variance():
    rappor, users, truth, runs = Rappor(bits=8, hashes=1, cohorts=1), 100, 30, 200
    first, second = rappor.bloom("a", 0), rappor.bloom("c", 0)
    assert (first != second).sum() == 2
    source, result = SeededRandom(9), []
    for _ in range(runs):
        responses = [
            rappor.permanent(value, 0, source, users=count) for value, count in (("a", truth), ("c", users - truth))
        ]
        sums = sum(rappor.report(permanent, source).sum(axis=0) for permanent in responses)
        result.append(rappor.counts(sums[None], [users])[0])
    result = np.array(result)
    expected = np.where(first, truth, np.where(second, users - truth, 0))
    spread = np.array([rappor.variance(count, users) for count in expected])
    assert np.abs(result.mean(axis=0) - expected).max() < 5 * sqrt(spread.max() / runs)
    ratio = (result.var(axis=0) / spread).mean()
    assert abs(ratio - 1) < 5 * sqrt(2 / (8 * runs))
    careless = rappor.variance(0, users) * (1 - rappor.f) ** 2  # that of the instantaneous response alone
    assert abs((result.var(axis=0) / careless).mean() - 1) > 5 * sqrt(2 / (8 * runs))


def test_values_are_decoded_through_their_hashes():
    rappor = Rappor(bits=32, hashes=2, cohorts=4, f=0.25, p=0.35, q=0.65)
    truth = {"a": 3000, "b": 1500, "c": 500, "d": 0, "e": 0}
    rng, source = np.random.default_rng(0), SeededRandom(1)
    sums, many = np.zeros((4, 32), dtype=int), np.zeros(4, dtype=int)
    for value in (entry for entry, count in truth.items() for _ in range(count)):
        cohort = int(rng.integers(4))
        sums[cohort] += rappor.report(rappor.permanent(value, cohort, source), source)
        many[cohort] += 1
    result = rappor.decode(sums, many, list(truth))
    deviation = sqrt(rappor.variance(1500, 5000))
    assert all(abs(result[entry] - count) < 4 * deviation for entry, count in truth.items())
    assert result["a"] > result["b"] + deviation


def test_what_is_kept_is_a_name():
    """Users with the same value are distinguished, and recognized, by their permanent responses."""
    rappor, users, reports = Rappor(bits=128, f=0.5, p=0.5, q=0.75, cohorts=1), 60, 40
    source = SeededRandom(2)

    def days(permanent):
        return [sum(rappor.report(entry, source).astype(int) for _ in range(reports)) for entry in permanent]

    permanent = [rappor.permanent("the same", 0, source) for _ in range(users)]
    first, second = np.array(days(permanent)), np.array(days(permanent))
    distances = np.abs(first[:, None] - second[None]).sum(axis=2)
    assert (distances.argmin(axis=1) == np.arange(users)).mean() > 0.95
    fresh = np.array(days([rappor.permanent("the same", 0, source) for _ in range(users)]))
    distances = np.abs(first[:, None] - fresh[None]).sum(axis=2)
    assert (distances.argmin(axis=1) == np.arange(users)).mean() < 0.1  # where nothing is kept, by chance alone
    guessed = (first > reports * (rappor.p + rappor.q) / 2) == np.array(permanent)
    assert guessed.mean() == pytest.approx(rappor.recovered(reports), abs=0.02)
    assert rappor.recovered(0) == 0.5
    assert rappor.recovered(1) == pytest.approx(0.625)


def test_values_are_checked():
    with pytest.raises(ValueError, match=r"q = 0.3: must be larger than p = 0.5"):
        Rappor(p=0.5, q=0.3)
    with pytest.raises(ValueError, match="hashes = 9"):
        Rappor(bits=8, hashes=9)
    with pytest.raises(ValueError, match="f = 1e-15"):
        Rappor(f=1e-15)
    rappor = Rappor(bits=8, cohorts=2)
    with pytest.raises(ValueError, match=r"shapes \(1, 8\), \(1,\): must be a row of 8 bits"):
        rappor.decode(np.zeros((1, 8)), [3], ["a"])
    with pytest.raises(ValueError, match="reports"):
        rappor.decode(np.zeros((2, 8)), [0, 0], ["a"])
    with pytest.raises(ValueError, match="candidates"):
        rappor.decode(np.zeros((2, 8)), [1, 1], [])
    rappor = Rappor()
    assert rappor.report(rappor.permanent("x", 0, SecureRandom()), SecureRandom()).shape == (128,)
    assert rappor.bloom("x", 3).sum() == 2
    assert exp(rappor.epsilon(0)) == 1
