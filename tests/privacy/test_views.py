"""The enumerated views of noise that is taken back: against other enumerations, broken schemes, and a certificate."""

from fractions import Fraction
from itertools import product
from math import inf, sqrt

import numpy as np
import pytest
from scipy.stats import norm

from tests.privacy.views import (
    Scheme,
    always,
    between,
    coins,
    dominating,
    holding,
    leaked,
    ratios,
    seen,
    shifted,
    smallest_mu,
    taken_back,
)

LOW, HIGH = 0.25, 0.75


def gaussian(last, deviation):
    law = np.exp(-(np.arange(-last, last + 1) ** 2) / (2 * deviation**2))
    return law / law.sum()


def summed(law, count):
    total = np.ones(1)
    for _ in range(count):
        total = np.convolve(total, law)
    return total


def variance(law):
    t = np.arange(len(law))
    return float(law @ t**2 - (law @ t) ** 2)


def splits(others, low=LOW, high=HIGH):
    return [coins([high] * k + [low] * (others - k)) for k in range(others + 1)]


# -- the enumeration itself -----------------------------------------------------------------------


def test_two_rounds_in_fractions():
    """One or two clients, inputs of the others that depend on what was seen, everything enumerated one by one."""
    third = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)]
    law, chances = dict(zip((-1, 0, 1), third, strict=True)), [Fraction(1, 5), Fraction(7, 10)]
    exact: list[dict[tuple[int, int], Fraction]] = [{}, {}]
    for world, v in enumerate(chances):
        noise = product(law.items(), repeat=4)  # of the user and one more, then of two others
        for ((a, p), (b, q), (c, r), (d, s)), coin, other in product(noise, (0, 1), (0, 1)):
            first, chance = coin + other + a + b, p * q * r * s * (v if coin else 1 - v) * Fraction(1, 2)
            up = chances[first > 0]
            for turned in (0, 1):
                view = first, turned + c + d - a - b
                exact[world][view] = exact[world].get(view, 0) + chance * (up if turned else 1 - up)
    scheme = Scheme(
        taken_back([float(x) for x in third]),
        [2, 2],
        [[coins([0.5])], [coins([float(v)]) for v in chances]],
        choose=lambda turn, past: (past[:, -1] > 0).astype(int) if turn else np.zeros((len(past), 1), dtype=int),
    )
    found = seen(scheme, [{0: always(float(v))} for v in chances])
    for world in range(2):
        assert sorted(exact[world].values()) == pytest.approx(sorted(found[world][found[world] > 0]), abs=1e-15)
    views = sorted(exact[0])
    p, q = (np.array([float(exact[world][view]) for view in views]) for world in range(2))
    assert smallest_mu(*found) == pytest.approx(smallest_mu(p, q), abs=1e-12)


def test_noise_that_stays_is_a_product_of_rounds():
    law, rounds = gaussian(2, 1.2), [summed(gaussian(2, 1.2), n) for n in (1, 2, 3)]
    scheme = Scheme(taken_back(law), [1, 2, 3], [splits(2)[1:2]] * 3, taken=[[], [], []])
    worlds = [{0: always(v), 2: always(v)} for v in (LOW, HIGH)]
    found = seen(scheme, worlds)
    for row, v in zip(found, (LOW, HIGH), strict=True):
        each = [summed_with(noise, [LOW, HIGH, *own]) for noise, own in zip(rounds, ([v], [], [v]), strict=True)]
        direct = np.multiply.outer(np.multiply.outer(each[0], each[1]), each[2]).ravel()
        assert sorted(direct[direct > 0]) == pytest.approx(sorted(row[row > 0]), abs=1e-15)


def summed_with(noise, chances):
    return np.convolve(noise, coins(chances))


def test_two_coordinates_that_do_not_meet_are_a_product():
    law = gaussian(1, 0.8)
    one = Scheme(taken_back(law), [1, 1], [splits(1)[:1]] * 2)
    two = Scheme(taken_back(law), [1, 1], [splits(1)[:1]] * 2, dim=2)
    apart = [seen(one, [{0: always(v)} for v in pair]) for pair in ((LOW, HIGH), (0.4, 0.6))]
    both = seen(two, [{0: always(v, w)} for v, w in ((LOW, 0.4), (HIGH, 0.6))])
    for row in range(2):
        direct = np.multiply.outer(apart[0][row], apart[1][row]).ravel()
        assert sorted(direct) == pytest.approx(sorted(both[row]), abs=1e-15)


@pytest.mark.parametrize("lost", [0.0, 1e-3, 0.05])
def test_the_smallest_mu_is_enough_and_no_less_would_be(lost):
    rng = np.random.default_rng(8)
    for _ in range(20):
        p, q = rng.dirichlet(np.ones(12), 2)
        mu = smallest_mu(p, q, lost)
        every = np.linspace(0, 8, 801)

        def excess(mu, p=p, q=q, every=every):
            alone = norm.cdf(mu / 2 - every / mu) - np.exp(every) * norm.cdf(-mu / 2 - every / mu)
            return max(leaked(p, q, e) - a for e, a in zip(every, alone, strict=True)) - lost

        assert excess(mu) <= 1e-9
        assert excess(0.99 * mu) > 0


def test_what_tells_all_has_no_mu():
    assert smallest_mu(np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])) == inf
    assert smallest_mu(np.array([0.01, 0.99, 0.0]), np.array([0.0, 0.99, 0.01]), 0.01) == pytest.approx(0, abs=1e-12)


# -- schemes that are broken ----------------------------------------------------------------------

NOISE, HONEST, OTHERS = gaussian(2, 1.5), 2, 4


def mu_of(turns, *, honest=(HONEST,) * 3, noise=None, taken=(), unit=1):
    """μ of three rounds or more, between the ends of the clip in some of them; the others are halfway."""
    half = coins([HIGH] * (OTHERS // 2) + [LOW] * (OTHERS // 2), unit)
    others = [[half] if number else [np.ones(1)] for number in honest]
    scheme = Scheme(noise or taken_back(NOISE), honest, others, taken=taken, unit=unit)
    return smallest_mu(*seen(scheme, [{turn: always(v) for turn in turns} for v in (LOW, HIGH)]))


EIGHTHS = {(8 * a, 7 * a): p for (a, _), p in taken_back(NOISE).items()}
SOUND = {turn: mu_of([turn]) for turn in range(3)}
BARE = smallest_mu(*[coins([HIGH] * 2 + [LOW] * 2 + [v]) for v in (LOW, HIGH)])
"""Of the coins alone."""
BROKEN = {
    "a last round of second messages": lambda: mu_of([2], honest=(2, 2, 2, 0)),
    "a second message that is sent twice": lambda: mu_of([0], taken=[[], [0], [1, 0]]),
    "second messages beside nobody honest": lambda: mu_of([0], honest=(2, 0, 2)),
    "a lost client": lambda: mu_of([0], honest=(1, 2, 2)),
    "seven eighths taken back": lambda: mu_of([0], honest=(2, 2), noise=EIGHTHS, unit=8),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_scheme_tells_more(name):
    sound = SOUND[2 if "last" in name else 0]
    assert BROKEN[name]() > 1.05 * sound
    assert sound < BARE


@pytest.mark.parametrize("name", ["second messages beside nobody honest", "seven eighths taken back"])
def test_some_leave_nothing_but_coins(name):
    """All of the transient noise is known afterwards: of a fraction of it, by what is seen modulo its denominator."""
    assert BROKEN[name]() == pytest.approx(BARE, rel=1e-9)


def test_who_comes_back_too_early_tells_more():
    assert mu_of([0, 1]) > 1.15 * mu_of([0, 2])


def test_taking_back_a_rounded_half_is_no_leak_of_its_own():
    """Whole numbers show no remainder: then less than all is only less."""
    rounded = {(a, round(a / 2)): p for (a, _), p in taken_back(NOISE).items()}
    assert mu_of([0], noise=rounded) < SOUND[0]


# -- the certificate ------------------------------------------------------------------------------


def policy(rng, others):
    """What the others hold in each coordinate, often by all that was seen of all coordinates."""
    table, kind = rng.integers(0, others + 1, 997), rng.integers(4)
    weights = rng.integers(1, 997, (8, 4))

    def chosen(turn, past):
        shape = len(past), past.shape[2]
        total = (past * weights[: past.shape[1], : past.shape[2]]).sum(axis=(1, 2))
        if kind == 0:
            return np.broadcast_to(table[: shape[1]], shape)
        if kind == 1:
            return table[(total[:, None] + np.arange(shape[1])) % 997]
        if kind == 2:
            return np.broadcast_to(np.where(past.sum(axis=(1, 2)) > turn * others / 2, others, 0)[:, None], shape)
        return table[past.sum(axis=1) % 997]

    return chosen


def case(rng, dim, times):
    """A random scheme, its user's rounds and inputs, and how long shifts are held."""
    rounds, last = int(rng.integers(times, 5 if dim == 1 else 3)), int(rng.integers(1, 3)) if dim == 1 else 1
    honest = int(rng.integers(1, {1: 5, 2: 4, 3: 4 if last == 1 else 3, 4: 3}[rounds]))
    honest, others = (honest if dim == 1 else min(honest, 2)), int(rng.integers(1, 7 if dim == 1 else 3))
    law = gaussian(last, rng.uniform(0.5, 3)) * (rng.uniform(0.2, 1, 2 * last + 1) if rng.random() < 0.4 else 1)
    low, high = (
        np.sort(rng.uniform(0.05, 0.95, 2)) if rng.random() < 0.5 else 0.5 + rng.uniform(0.02, 0.45) * np.array([-1, 1])
    )
    turns = np.sort(rng.choice(rounds, times, replace=False))
    gap = int(np.diff(turns).min()) if times > 1 else rounds - int(turns[0]) + 1
    separation = int(rng.integers(1, gap + 1))
    law, extra = law / law.sum(), int(rng.integers(2))  # a round without honest clients, but only after it all
    pick = policy(rng, others)
    scheme = Scheme(
        taken_back(law),
        [honest] * rounds + [0] * (extra if turns[-1] + separation <= rounds else 0),
        [splits(others, low, high)] * rounds + [[np.ones(1)]],
        dim=dim,
        choose=lambda turn, past: pick(turn, past) * (turn < rounds),
    )
    inputs = [(low, high) if rng.random() < 0.7 else rng.uniform(low, high, 2) for _ in range(dim)]
    spread = others * (low * (1 - low) + high * (1 - high)) / 2
    weights = holding(honest * variance(law), spread, separation)
    weights = weights if rng.random() < 0.6 else rng.dirichlet(np.ones(separation))
    pair = dominating(summed(law, honest), scheme.others[0], weights)
    return scheme, turns, inputs, pair


def turning(inputs, world, often):
    """A user with one input or the other in one world, and with the other one in the other, by what was seen."""
    table = np.array(inputs)
    return lambda turn, past: table[np.arange(len(inputs)), (world + often * past.sum(axis=1)) % 2]


def checked(seed, count, dim, times):
    """How near the certificate is to what is exactly so, at most; never below."""
    rng, nearest = np.random.default_rng(seed), 0.0
    for _ in range(count):
        (scheme, turns, inputs, pair), often = case(rng, dim, times), int(rng.integers(2))
        p, q = seen(scheme, [dict.fromkeys(turns, turning(inputs, world, often)) for world in (0, 1)])
        assert p.sum() == pytest.approx(1, abs=1e-12)
        each = [smallest_mu(*[between(pair, v) for v in one]) for one in inputs]
        bound, found = sqrt(times * sum(mu**2 for mu in each)), smallest_mu(p, q)
        assert found <= bound * (1 + 1e-9) + 1e-12
        for epsilon in (0.0, 0.1, 0.5, 1.5) if dim == times == 1 else ():
            assert leaked(p, q, epsilon) <= leaked(*[between(pair, v) for v in inputs[0]], epsilon) + 1e-12
        nearest = max(nearest, found / bound)
    return nearest


@pytest.mark.parametrize(
    ("dim", "times", "count", "near"), [(1, 1, 120, 0.85), (1, 2, 60, 0.8), (2, 1, 40, 0.75), (2, 2, 20, 0.6)]
)
def test_no_view_tells_more_than_the_certificate(dim, times, count, near):
    assert near < checked(5, count, dim, times) < 1 + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "times"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_no_view_of_thousands_tells_more_than_the_certificate(dim, times):
    checked(6, 2500 if dim == 1 else 500, dim, times)


@pytest.mark.parametrize("rule", range(6))
def test_a_server_that_chooses_whose_noise_is_revealed_learns_no_more(rule):
    """Of the user and one more client, by the first sum: as if one of two had no noise at all, and it was anybody."""
    law = dict(zip((-1, 0, 1), (0.3, 0.45, 0.25), strict=True))
    picks = np.random.default_rng(rule).integers(0, 3, 9)  # the user, the other, or nobody
    laws: list[dict[tuple[int, ...], float]] = [{}, {}]
    for world, v in enumerate((LOW, HIGH)):
        for (a, p), (b, q), (c, r) in product(law.items(), repeat=3):
            for coin, (x, f), (y, g) in product((0, 1), *[list(enumerate(coins([HIGH, LOW]).tolist()))] * 2):
                first = coin + x + a + b
                shown = (a, b, 0)[picks[first + 2]]
                left = a + b - (shown if picks[first + 2] < 2 else 0)
                view = first, shown, y + c - left
                laws[world][view] = laws[world].get(view, 0.0) + p * q * r * f * g * (v if coin else 1 - v)
    views = sorted(laws[0] | laws[1])
    p, q = (np.array([one.get(view, 0.0) for view in views]) for one in laws)
    assert p.sum() == pytest.approx(1)
    pair = dominating(np.array(list(law.values())), splits(2), [0.4, 0.6])
    for epsilon in (0.0, 0.05, 0.2, 0.5, 1.0):
        assert leaked(p, q, epsilon) <= leaked(*[between(pair, v) for v in (LOW, HIGH)], epsilon) + 1e-12
    scheme = Scheme(taken_back(list(law.values())), [1, 1], [[coins([HIGH, LOW])]] * 2)
    fixed = seen(scheme, [{0: always(v)} for v in (LOW, HIGH)])
    assert smallest_mu(p, q) <= smallest_mu(*fixed) + 1e-12


WIDE, MANY = gaussian(8, 2.0), 16


def wide(turns, rounds=3):
    """Noise that is wide enough for the certificate to be near; what remains of it is shown at last."""
    scheme = Scheme(taken_back(WIDE), [1] * rounds + [0], [splits(MANY)[MANY // 2 :][:1]] * rounds + [[np.ones(1)]])
    return seen(scheme, [{turn: always(v) for turn in turns} for v in (LOW, HIGH)])


def held(most, lost, every=False):
    weights = holding(variance(WIDE), MANY * LOW * (1 - LOW), most)
    pair = dominating(WIDE, splits(MANY) if every else splits(MANY)[MANY // 2 :][:1], weights)
    return smallest_mu(*[between(pair, v) for v in (LOW, HIGH)], lost)


@pytest.mark.slow
def test_the_certificate_is_near_where_noise_is_wide():
    """And one that is too small by six per cent would be caught."""
    exact = smallest_mu(*wide([0]), 1e-4)
    assert 0.94 * held(3, 1e-4) < exact <= held(3, 1e-4)


def test_holding_beyond_the_separation_would_be_caught():
    """Users who are back after one round, with the certificate of those who are back after three."""
    exact = smallest_mu(*wide([0, 1]), 2e-4)
    assert sqrt(2) * held(3, 1e-4) < 0.95 * exact < exact <= sqrt(2) * held(1, 1e-4)


def test_a_pair_on_a_grid_tells_no_less():
    """At every level, and little more; the worst of several tells what each of them tells."""
    pairs = [shifted(law) for law in (gaussian(3, 1.1), *splits(5))]
    grid = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 200)])
    law = ratios(pairs, grid)
    assert law.sum() == pytest.approx(1)
    made = np.append(law, 0.0), np.append(law * grid, 1 - law @ grid)
    for q in np.geomspace(0.01, 20, 57):
        worst = max(np.maximum(w - q * n, 0).sum() for n, w in pairs)
        assert worst - 1e-12 <= np.maximum(made[1] - q * made[0], 0).sum() <= worst + 4e-3


def test_holding_is_the_gaussians_best():
    transient, persistent = 3.0, 5.0

    def cost(weights):
        tails = 1 - np.cumsum(weights)[:-1]
        return (tails**2).sum() / transient + (weights**2).sum() / persistent

    best = holding(transient, persistent, 4)
    assert best.sum() == pytest.approx(1)
    assert min(best) > 0
    rng = np.random.default_rng(1)
    assert all(cost(best) <= cost(rng.dirichlet(100 * best)) for _ in range(200))
