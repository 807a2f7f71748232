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


def law(rappor, bloom, reports):
    """Of so many reports of one value: over all permanent responses, by their definition."""
    outcomes = list(product((False, True), repeat=len(bloom)))
    found = {}
    for permanent in outcomes:
        chance = np.prod([1 - rappor.f / 2 if a == b else rappor.f / 2 for a, b in zip(permanent, bloom, strict=True)])
        for seen in product(outcomes, repeat=reports):
            each = chance
            for report in seen:
                for bit, kept in zip(report, permanent, strict=True):
                    one = rappor.q if kept else rappor.p
                    each *= one if bit else 1 - one
            found[seen] = found.get(seen, 0.0) + each
    return found


@pytest.mark.parametrize("reports", [1, 2])
def test_epsilon_is_that_of_all_reports_enumerated(reports):
    laws = [law(SMALL, np.eye(3, dtype=bool)[j], reports) for j in range(3)]
    worst = max(log(p[seen] / q[seen]) for p in laws for q in laws for seen in p)
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
    stays, moves = (np.array(one, dtype=bool) for one in ((1, 0, 0), (0, 1, 0)))
    kept, alone, other = law(SMALL, stays, 2), law(SMALL, stays, 1), law(SMALL, moves, 1)
    ratios = [alone[(seen[0],)] * other[(seen[1],)] / chance for seen, chance in kept.items()]
    assert SMALL.epsilon_change(1) == pytest.approx(max(log(max(ratios)), -log(min(ratios))), abs=1e-9)
    rappor = Rappor(bits=32, hashes=2)
    assert rappor.epsilon_change(0) == pytest.approx(0, abs=1e-12)
    assert rappor.epsilon_change(10) > 2 * rappor.epsilon_infinity  # which is what two values are said to cost
    assert rappor.epsilon_change(100) > 8 * rappor.epsilon_change(10)
    assert Rappor(bits=3, hashes=2).epsilon_change(2) > 0
    assert Rappor(p=0.0, q=1.0).epsilon_change(1) == np.inf


def test_two_values_cost_as_much_as_is_said_if_both_change():
    """Users who change at the same time, each to a value that he never had: enumerated."""
    first, second, third = (law(SMALL, np.eye(3, dtype=bool)[j], 1) for j in range(3))
    worst = max(log(first[a] * second[b] / (third[a] * first[b])) for a in first for b in first)
    assert SMALL.epsilon(1, values=2) == pytest.approx(worst, abs=1e-9)


def test_many_users_draw_their_own_bits():
    source = SeededRandom(5)
    kept = SMALL.permanent("a", 0, source, users=4000)
    assert kept.shape == (4000, 3)
    bloom = SMALL.bloom("a", 0)
    wanted = np.where(bloom, 1 - SMALL.f / 2, SMALL.f / 2)
    assert kept.mean(axis=0) == pytest.approx(wanted, abs=5 * 0.5 / 4000**0.5)
    seen = SMALL.report(kept, source)
    assert (seen[:2000] != seen[2000:]).any()
    low, high = SMALL.report_probabilities
    assert seen.mean(axis=0) == pytest.approx(np.where(bloom, high, low), abs=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize("reports", [1, 2])
def test_an_audit_measures_reports(reports):
    found = audit_reports(SMALL, reports, draws=60_000, rng=SeededRandom(1))
    assert not found.contradicted
    assert found.measured > 0.8 * found.claimed
    careless = audit_reports(
        Rappor(bits=3, hashes=1, cohorts=2, f=0.2, p=0.2, q=0.9), draws=60_000, rng=SeededRandom(1)
    )
    assert careless.measured > SMALL.epsilon(1)


def test_the_commands_know_it():
    done = rqm("privacy", "--mechanism", "rappor", "--hashes", 2, "--reports", 10, "--json")
    found = json.loads(done.stdout)
    assert found["epsilon"] == pytest.approx(4.2993, abs=1e-4)
    assert found["epsilon_infinity"] == pytest.approx(4 * log(3))
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
    known = law(SMALL, bloom, 2)
    outcomes = {seen: k for k, seen in enumerate(known)}
    kept = SMALL.permanent(value, 1, source, users=15_000)
    seen = zip(*(map(tuple, SMALL.report(kept, source).tolist()) for _ in range(2)), strict=True)
    drawn = [outcomes[both] for both in seen]
    observed = np.bincount(drawn, minlength=len(outcomes))
    assert p_value(observed, list(known.values())) > 1e-6
    alone = law(SMALL, bloom, 1)  # as if nothing were kept between two reports
    apart = [alone[(first,)] * alone[(second,)] for first, second in known]
    assert p_value(observed, apart) < 1e-6


def test_counts_are_unbiased_with_the_published_variance():
    rappor, users, truth, runs = Rappor(bits=8, hashes=1, cohorts=1), 100, 30, 200
    mine, other = rappor.bloom("a", 0), rappor.bloom("c", 0)
    assert (mine != other).sum() == 2
    source, found = SeededRandom(9), []
    for _ in range(runs):
        kept = [rappor.permanent(one, 0, source, users=many) for one, many in (("a", truth), ("c", users - truth))]
        sums = sum(rappor.report(one, source).sum(axis=0) for one in kept)
        found.append(rappor.counts(sums[None], [users])[0])
    found = np.array(found)
    wanted = np.where(mine, truth, np.where(other, users - truth, 0))
    spread = np.array([rappor.variance(count, users) for count in wanted])
    assert np.abs(found.mean(axis=0) - wanted).max() < 5 * sqrt(spread.max() / runs)
    ratio = (found.var(axis=0) / spread).mean()
    assert abs(ratio - 1) < 5 * sqrt(2 / (8 * runs))
    careless = rappor.variance(0, users) * (1 - rappor.f) ** 2  # that of the instantaneous response alone
    assert abs((found.var(axis=0) / careless).mean() - 1) > 5 * sqrt(2 / (8 * runs))


def test_values_are_decoded_through_their_hashes():
    rappor = Rappor(bits=32, hashes=2, cohorts=4, f=0.25, p=0.35, q=0.65)
    truth = {"a": 3000, "b": 1500, "c": 500, "d": 0, "e": 0}
    rng, source = np.random.default_rng(0), SeededRandom(1)
    sums, many = np.zeros((4, 32), dtype=int), np.zeros(4, dtype=int)
    for value in (one for one, count in truth.items() for _ in range(count)):
        cohort = int(rng.integers(4))
        sums[cohort] += rappor.report(rappor.permanent(value, cohort, source), source)
        many[cohort] += 1
    found = rappor.decode(sums, many, list(truth))
    deviation = sqrt(rappor.variance(1500, 5000))
    assert all(abs(found[one] - count) < 4 * deviation for one, count in truth.items())
    assert found["a"] > found["b"] + deviation


def test_what_is_kept_is_a_name():
    """Users of one and the same value are told apart, and found again, by their permanent responses."""
    rappor, users, reports = Rappor(bits=128, f=0.5, p=0.5, q=0.75, cohorts=1), 60, 40
    source = SeededRandom(2)

    def days(kept):
        return [sum(rappor.report(one, source).astype(int) for _ in range(reports)) for one in kept]

    kept = [rappor.permanent("the same", 0, source) for _ in range(users)]
    first, second = np.array(days(kept)), np.array(days(kept))
    apart = np.abs(first[:, None] - second[None]).sum(axis=2)
    assert (apart.argmin(axis=1) == np.arange(users)).mean() > 0.95
    fresh = np.array(days([rappor.permanent("the same", 0, source) for _ in range(users)]))
    apart = np.abs(first[:, None] - fresh[None]).sum(axis=2)
    assert (apart.argmin(axis=1) == np.arange(users)).mean() < 0.1  # where nothing is kept, by chance alone
    guessed = (first > reports * (rappor.p + rappor.q) / 2) == np.array(kept)
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
