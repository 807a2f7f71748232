"""Enumerated runs with correlated noise: against other enumerations, broken schemes, and a plain certificate."""

from fractions import Fraction
from itertools import product
from math import inf, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from tests.correlated.enumeration import (
    Scheme,
    always,
    bernoulli_sum,
    best_path,
    curve,
    discrete_gaussian,
    dominating_pair,
    hockey_stick,
    joint_pmf,
    mixture,
    path_cost,
    pmf_variance,
    ratio_pmf,
    shifted_pair,
    smallest_mu,
    sum_pmf,
    transient_only,
)

LOW, HIGH = 0.25, 0.75


def splits(others, low=LOW, high=HIGH):
    """The pmfs of the others' rounding, with 0, 1, … of them at the upper end of the clip."""
    return [bernoulli_sum([high] * k + [low] * (others - k)) for k in range(others + 1)]


# -- the enumeration itself -----------------------------------------------------------------------


def test_two_rounds_in_fractions():
    """One or two clients, inputs of the others that depend on what was seen, everything enumerated one by one."""
    third = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    pmf, ups = dict(zip((-1, 0, 1), third, strict=True)), [Fraction(1, 5), Fraction(7, 10)]
    exact: list[dict[tuple[int, int], Fraction]] = [{}, {}]
    for world, v in enumerate(ups):
        noise = product(pmf.items(), repeat=4)  # of the user and one more, then of two others
        for ((a, p), (b, q), (c, r), (d, s)), rounded, coin in product(noise, (0, 1), (0, 1)):
            first, probability = rounded + coin + a + b, p * q * r * s * (v if rounded else 1 - v) * Fraction(1, 2)
            up = ups[first > 0]
            for later in (0, 1):
                view = first, later + c + d - a - b
                exact[world][view] = exact[world].get(view, 0) + probability * (up if later else 1 - up)
    scheme = Scheme(
        transient_only([float(x) for x in third]),
        [2, 2],
        [[bernoulli_sum([0.5])], [bernoulli_sum([float(v)]) for v in ups]],
        choose=lambda t, past: (past[:, -1] > 0).astype(int) if t else np.zeros((len(past), 1), dtype=int),
    )
    enumerated = joint_pmf(scheme, [{0: always(float(v))} for v in ups])
    for world in range(2):
        row = enumerated[world]
        assert sorted(exact[world].values()) == pytest.approx(sorted(row[row > 0]), abs=1e-15)
    views = sorted(exact[0])
    p, q = (np.array([float(exact[world][view]) for view in views]) for world in range(2))
    assert smallest_mu(*enumerated) == pytest.approx(smallest_mu(p, q), abs=1e-12)


def test_noise_that_is_never_canceled_gives_a_product_of_rounds():
    pmf = discrete_gaussian(2, 1.2)
    scheme = Scheme(transient_only(pmf), [1, 2, 3], [splits(2)[1:2]] * 3, canceled=[[], [], []])
    worlds = [{0: always(v), 2: always(v)} for v in (LOW, HIGH)]
    enumerated = joint_pmf(scheme, worlds)
    for row, v in zip(enumerated, (LOW, HIGH), strict=True):
        rounds = [
            np.convolve(sum_pmf(pmf, n), bernoulli_sum([LOW, HIGH, *user_inputs]))
            for n, user_inputs in zip((1, 2, 3), ([v], [], [v]), strict=True)
        ]
        direct = np.multiply.outer(np.multiply.outer(rounds[0], rounds[1]), rounds[2]).ravel()
        assert sorted(direct[direct > 0]) == pytest.approx(sorted(row[row > 0]), abs=1e-15)


def test_two_independent_coordinates_are_a_product():
    pmf = discrete_gaussian(1, 0.8)
    first = Scheme(transient_only(pmf), [1, 1], [splits(1)[:1]] * 2)
    two = Scheme(transient_only(pmf), [1, 1], [splits(1)[:1]] * 2, dim=2)
    single = [joint_pmf(first, [{0: always(v)} for v in pair]) for pair in ((LOW, HIGH), (0.4, 0.6))]
    joint = joint_pmf(two, [{0: always(v, w)} for v, w in ((LOW, 0.4), (HIGH, 0.6))])
    for row in range(2):
        direct = np.multiply.outer(single[0][row], single[1][row]).ravel()
        assert sorted(direct) == pytest.approx(sorted(joint[row]), abs=1e-15)


@pytest.mark.parametrize("failure", [0.0, 1e-3, 0.05])
def test_the_smallest_mu_is_enough_and_no_less_would_be(failure):
    rng = np.random.default_rng(8)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(12), 2)
        mu = smallest_mu(p, q, failure)
        epsilons = np.linspace(0, 8, 801)

        def excess(mu, p=p, q=q, epsilons=epsilons):
            allowed = norm.cdf(mu / 2 - epsilons / mu) - np.exp(epsilons) * norm.cdf(-mu / 2 - epsilons / mu)
            return max(hockey_stick(p, q, e) - delta for e, delta in zip(epsilons, allowed, strict=True)) - failure

        assert excess(mu) <= 1e-9
        assert excess(0.99 * mu) > 0


def test_what_reveals_everything_has_no_mu():
    assert smallest_mu(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])) == inf
    assert smallest_mu(np.array([0.01, 0.99, 0.0]), np.array([0.0, 0.99, 0.01]), 0.01) == pytest.approx(0, abs=1e-12)


# -- schemes that are broken ----------------------------------------------------------------------

NOISE, HONEST, OTHERS = discrete_gaussian(2, 1.5), 2, 4


def mu_of(rounds, *, honest=(HONEST,) * 3, noise=None, canceled=(), unit=1):
    """μ of three rounds or more, between the ends of the clip in some of them; the others are halfway."""
    half = bernoulli_sum([HIGH] * (OTHERS // 2) + [LOW] * (OTHERS // 2), unit)
    others = [[half] if number else [np.ones(1)] for number in honest]
    scheme = Scheme(noise or transient_only(NOISE), honest, others, canceled=canceled, unit=unit)
    return smallest_mu(*joint_pmf(scheme, [{t: always(v) for t in rounds} for v in (LOW, HIGH)]))


EIGHTHS = {(8 * a, 7 * a): p for (a, _), p in transient_only(NOISE).items()}
SOUND = {t: mu_of([t]) for t in range(3)}
ROUNDING_ALONE = smallest_mu(*[bernoulli_sum([HIGH] * 2 + [LOW] * 2 + [v]) for v in (LOW, HIGH)])
BROKEN = {
    "a last round of second messages": lambda: mu_of([2], honest=(2, 2, 2, 0)),
    "a second message that is sent twice": lambda: mu_of([0], canceled=[[], [0], [1, 0]]),
    "second messages without honest clients": lambda: mu_of([0], honest=(2, 0, 2)),
    "a client that drops out": lambda: mu_of([0], honest=(1, 2, 2)),
    "seven eighths canceled": lambda: mu_of([0], honest=(2, 2), noise=EIGHTHS, unit=8),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_scheme_reveals_more(name):
    sound = SOUND[2 if "last" in name else 0]
    assert BROKEN[name]() > 1.05 * sound
    assert sound < ROUNDING_ALONE


@pytest.mark.parametrize("name", ["second messages without honest clients", "seven eighths canceled"])
def test_some_leave_only_the_rounding(name):
    """All of the transient noise is known afterwards: of a fraction of it, by the sums modulo its denominator."""
    assert BROKEN[name]() == pytest.approx(ROUNDING_ALONE, rel=1e-9)


def test_participations_too_close_together_reveal_more():
    assert mu_of([0, 1]) > 1.15 * mu_of([0, 2])


def test_canceling_a_rounded_half_reveals_nothing_by_itself():
    """Whole numbers show no remainder: then to cancel less of the noise only hides more."""
    rounded = {(a, round(a / 2)): p for (a, _), p in transient_only(NOISE).items()}
    assert mu_of([0], noise=rounded) < SOUND[0]


# -- the plain certificate ------------------------------------------------------------------------


def policy(rng, others):
    """What the others hold in each coordinate, often by all that was seen of all coordinates."""
    table, kind = rng.integers(0, others + 1, 997), rng.integers(4)
    weights = rng.integers(1, 997, (8, 4))

    def chosen(round_index, past):
        shape = len(past), past.shape[2]
        total = (past * weights[: past.shape[1], : past.shape[2]]).sum(axis=(1, 2))
        if kind == 0:
            return np.broadcast_to(table[: shape[1]], shape)
        if kind == 1:
            return table[(total[:, None] + np.arange(shape[1])) % 997]
        if kind == 2:
            is_high = past.sum(axis=(1, 2)) > round_index * others / 2
            return np.broadcast_to(np.where(is_high, others, 0)[:, None], shape)
        return table[past.sum(axis=1) % 997]

    return chosen


def random_case(rng, dim, participations):
    """A random scheme, its user's rounds and inputs, and a certificate's pair for it."""
    rounds, largest = int(rng.integers(participations, 5 if dim == 1 else 3)), int(rng.integers(1, 3))
    largest = largest if dim == 1 else 1
    honest = int(rng.integers(1, {1: 5, 2: 4, 3: 4 if largest == 1 else 3, 4: 3}[rounds]))
    honest, others = (honest if dim == 1 else min(honest, 2)), int(rng.integers(1, 7 if dim == 1 else 3))
    pmf = discrete_gaussian(largest, rng.uniform(0.5, 3))
    pmf = pmf * (rng.uniform(0.2, 1, 2 * largest + 1) if rng.random() < 0.4 else 1)
    low, high = (
        np.sort(rng.uniform(0.05, 0.95, 2)) if rng.random() < 0.5 else 0.5 + rng.uniform(0.02, 0.45) * np.array([-1, 1])
    )
    taken = np.sort(rng.choice(rounds, participations, replace=False))
    gap = int(np.diff(taken).min()) if participations > 1 else rounds - int(taken[0]) + 1
    separation = int(rng.integers(1, gap + 1))
    pmf, extra = pmf / pmf.sum(), int(rng.integers(2))  # a round without honest clients, but only after it all
    pick = policy(rng, others)
    scheme = Scheme(
        transient_only(pmf),
        [honest] * rounds + [0] * (extra if taken[-1] + separation <= rounds else 0),
        [splits(others, low, high)] * rounds + [[np.ones(1)]],
        dim=dim,
        choose=lambda t, past: pick(t, past) * (t < rounds),
    )
    inputs = [(low, high) if rng.random() < 0.7 else rng.uniform(low, high, 2) for _ in range(dim)]
    rounding = others * (low * (1 - low) + high * (1 - high)) / 2
    path = best_path(honest * pmf_variance(pmf), rounding, separation)
    path = path if rng.random() < 0.6 else rng.dirichlet(np.ones(separation))
    pair = dominating_pair(sum_pmf(pmf, honest), scheme.others[0], path)
    return scheme, taken, inputs, pair


def adaptive(inputs, world, depends):
    """A user with one input or the other in one world, and with the other one in the other, by what was seen."""
    table = np.array(inputs)
    return lambda t, past: table[np.arange(len(inputs)), (world + depends * past.sum(axis=1)) % 2]


def largest_fraction(seed, count, dim, participations):
    """The largest exact μ over the certificate's; no case may exceed the certificate."""
    rng, largest = np.random.default_rng(seed), 0.0
    for _ in range(count):
        (scheme, taken, inputs, pair), depends = random_case(rng, dim, participations), int(rng.integers(2))
        p, q = joint_pmf(scheme, [dict.fromkeys(taken, adaptive(inputs, world, depends)) for world in (0, 1)])
        assert p.sum() == pytest.approx(1, abs=1e-12)
        mus = [smallest_mu(*[mixture(pair, v) for v in ends]) for ends in inputs]
        bound, exact = sqrt(participations * sum(mu**2 for mu in mus)), smallest_mu(p, q)
        assert exact <= bound * (1 + 1e-9) + 1e-12
        for epsilon in (0.0, 0.1, 0.5, 1.5) if dim == participations == 1 else ():
            allowed = hockey_stick(*[mixture(pair, v) for v in inputs[0]], epsilon)
            assert hockey_stick(p, q, epsilon) <= allowed + 1e-12
        largest = max(largest, exact / bound)
    return largest


@pytest.mark.parametrize(
    ("dim", "participations", "count", "min_ratio"),
    [(1, 1, 120, 0.85), (1, 2, 60, 0.8), (2, 1, 40, 0.75), (2, 2, 20, 0.6)],
)
def test_no_run_reveals_more_than_the_certificate(dim, participations, count, min_ratio):
    assert min_ratio < largest_fraction(5, count, dim, participations) < 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "participations"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_none_of_thousands_of_runs_reveals_more_than_the_certificate(dim, participations):
    largest_fraction(6, 2500 if dim == 1 else 500, dim, participations)


@pytest.mark.parametrize("rule", range(6))
def test_a_server_that_chooses_whose_noise_is_revealed_learns_no_more(rule):
    """Of the user and one more client, by the first sum: as if one of two had no noise at all, and it was anybody."""
    pmf = dict(zip((-1, 0, 1), (0.3, 0.45, 0.25), strict=True))
    picks = np.random.default_rng(rule).integers(0, 3, 9)  # the user, the other, or nobody
    rounding = list(enumerate(bernoulli_sum([HIGH, LOW]).tolist()))
    exact: list[dict[tuple[int, ...], float]] = [{}, {}]
    for world, v in enumerate((LOW, HIGH)):
        for (a, p), (b, q), (c, r) in product(pmf.items(), repeat=3):
            for rounded, (x, f), (y, g) in product((0, 1), rounding, rounding):
                first = rounded + x + a + b
                revealed = (a, b, 0)[picks[first + 2]]
                canceled = a + b - (revealed if picks[first + 2] < 2 else 0)
                view = first, revealed, y + c - canceled
                exact[world][view] = exact[world].get(view, 0.0) + p * q * r * f * g * (v if rounded else 1 - v)
    views = sorted(exact[0] | exact[1])
    p, q = (np.array([pmf.get(view, 0.0) for view in views]) for pmf in exact)
    assert p.sum() == pytest.approx(1)
    pair = dominating_pair(np.array(list(pmf.values())), splits(2), [0.4, 0.6])
    for epsilon in (0.0, 0.05, 0.2, 0.5, 1.0):
        assert hockey_stick(p, q, epsilon) <= hockey_stick(*[mixture(pair, v) for v in (LOW, HIGH)], epsilon) + 1e-12
    scheme = Scheme(transient_only(list(pmf.values())), [1, 1], [[bernoulli_sum([HIGH, LOW])]] * 2)
    fixed = joint_pmf(scheme, [{0: always(v)} for v in (LOW, HIGH)])
    assert smallest_mu(p, q) <= smallest_mu(*fixed) + 1e-12


WIDE, MANY = discrete_gaussian(8, 2.0), 16


def wide_run(taken, rounds=3):
    """Noise that is wide enough for the certificate to be near; what remains of it is revealed at last."""
    half = splits(MANY)[MANY // 2 :][:1]
    scheme = Scheme(transient_only(WIDE), [1] * rounds + [0], [half] * rounds + [[np.ones(1)]])
    return joint_pmf(scheme, [{t: always(v) for t in taken} for v in (LOW, HIGH)])


def wide_bound(rounds, failure):
    path = best_path(pmf_variance(WIDE), MANY * LOW * (1 - LOW), rounds)
    pair = dominating_pair(WIDE, splits(MANY)[MANY // 2 :][:1], path)
    return smallest_mu(*[mixture(pair, v) for v in (LOW, HIGH)], failure)


@pytest.mark.slow
def test_the_certificate_is_near_where_noise_is_wide():
    """And one that is too small by six per cent would be caught."""
    exact = smallest_mu(*wide_run([0]), 1e-4)
    assert 0.94 * wide_bound(3, 1e-4) < exact <= wide_bound(3, 1e-4)


def test_paths_longer_than_the_separation_would_be_caught():
    """Users who are back after one round, with the certificate of those who are back after three."""
    exact = smallest_mu(*wide_run([0, 1]), 2e-4)
    assert sqrt(2) * wide_bound(3, 1e-4) < 0.95 * exact < exact <= sqrt(2) * wide_bound(1, 1e-4)


def test_a_pair_on_a_grid_reveals_no_less():
    """At every level, and little more; the worst of several reveals what each of them reveals."""
    pairs = [shifted_pair(pmf) for pmf in (discrete_gaussian(3, 1.1), *splits(5))]
    grid = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 200)])
    pmf = ratio_pmf(pairs, grid)
    assert pmf.sum() == pytest.approx(1)
    on_grid = np.append(pmf, 0.0), np.append(pmf * grid, 1 - pmf @ grid)
    for q in np.geomspace(0.01, 20, 57):
        worst = max(curve(*pair, q) for pair in pairs)
        assert worst - 1e-12 <= curve(*on_grid, q) <= worst + 4e-3


def test_the_best_path_is_the_best_for_gaussians():
    best = best_path(3.0, 5.0, 4)
    assert best.sum() == pytest.approx(1)
    assert min(best) > 0
    rng = np.random.default_rng(1)
    assert all(path_cost(best, 3.0, 5.0) <= path_cost(rng.dirichlet(100 * best), 3.0, 5.0) for _ in range(200))
