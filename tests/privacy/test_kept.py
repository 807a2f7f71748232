"""Noise of which a part stays: its certificate against whole small runs that are enumerated, and against Gaussians."""

from itertools import product

import numpy as np
import pytest

from rqm import PrivateMean, Rounding, SecureRandom
from rqm.mechanisms.transient import Transient
from rqm.privacy.calibrate import fitted
from rqm.privacy.cancel import ratio
from rqm.privacy.factorization import Workload
from rqm.privacy.holding import gaussian_handed
from rqm.privacy.iterates import gain
from rqm.privacy.kept import handed_on, sheet
from rqm.privacy.setting import Setting


def law_of(rng, width):
    """A law of 2 · width + 1 outcomes whose ratios are those of a bent line: log-concave."""
    places = np.arange(-width, width + 1)
    law = np.exp(-(places**2) / (2 * rng.uniform(0.6, 1.2) * width) - rng.uniform(0, 0.02) * places**4 / width**2)
    return law / law.sum()


ALONE = np.ones(1)
"""No others: nobody's coins."""


def seen(stays, goes, times, coins, users):
    """The law of all sums that a server sees, of a user with these coins, a round each; ``coins`` of the others."""
    found = {}
    wide, narrow = len(goes) // 2, len(stays) // 2
    draws = [
        (e - narrow, f - wide, r, p * q * c)
        for (e, p), (f, q), (r, c) in product(enumerate(stays), enumerate(goes), enumerate(coins))
    ]
    for turns in product(draws, repeat=len(users)):
        back, chance, view = 0, 1.0, []
        for coin, (e, f, r, one) in zip(users, turns, strict=True):
            view.append(times * e + f + r - back + coin)
            back, chance = (times - 1) * e + f, chance * one
        found[tuple(view)] = found.get(tuple(view), 0.0) + chance
    return found


def curve(stays, goes, times, coins, users, points):
    """sup W(E) − q N(E) for the laws of what is seen with these coins and without."""
    without, having = (seen(stays, goes, times, coins, who) for who in (tuple(0 for _ in users), users))
    views = sorted(set(without) | set(having))
    n, w = (np.array([one.get(view, 0.0) for view in views]) for one in (without, having))
    return np.array([np.maximum(w - q * n, 0).sum() for q in points])


def variance(law):
    places = np.arange(len(law))
    return float(law @ (places - law @ places) ** 2)


def handed(stays, goes, times, rounds, coins=ALONE):
    """What is stated of one coin."""
    spreads = variance(stays), variance(coins)
    found = handed_on(
        ratio([stays], spreads[0], 8), ratio([coins], spreads[1]), spreads, sheet(goes, times), times, rounds
    )
    assert found.chances.sum() == pytest.approx(1, abs=1e-9)
    assert found.chances @ found.values + found.alone == pytest.approx(1, abs=1e-9)
    return found


def stated(stays, goes, times, rounds, points, coins=ALONE):
    """The same by the certificate."""
    found = handed(stays, goes, times, rounds, coins)
    return np.array([np.maximum(found.values - q, 0) @ found.chances + found.alone for q in points])


POINTS = np.concatenate([[0.0], np.geomspace(0.05, 20, 60), np.linspace(0.9, 1.1, 9)])


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("others", [0, 2])
def test_no_run_tells_more_than_is_stated(rounds, others):
    rng, nearest = np.random.default_rng(rounds), 0.0
    for _ in range(12 if rounds < 3 else 2):
        times = int(rng.integers(2, 4))
        stays, goes = law_of(rng, int(rng.integers(1, 3))), law_of(rng, int(rng.integers(4, 7 if rounds < 3 else 5)))
        coins = binomial(others, rng.uniform(0.3, 0.7))
        if rounds == 3 and others:
            stays, goes, times = law_of(rng, 1), law_of(rng, 4), 2
        users = (1,) + (0,) * (rounds - 1)
        exact = curve(stays, goes, times, coins, users, POINTS)
        bound = stated(stays, goes, times, rounds, POINTS, coins)
        assert (exact <= bound + 1e-9).all()
        nearest = max(nearest, float((exact[20:40] / bound[20:40]).max()))
    assert nearest > 0.5


def binomial(number, chance):
    law = ALONE
    for _ in range(number):
        law = np.convolve(law, [1 - chance, chance])
    return law


@pytest.mark.slow
def test_who_comes_back_after_the_separation_is_told_of_twice_and_sooner_more():
    """Rounds 0 and 2 with paths of less than two rounds each; in rounds 0 and 1 they would share the noise."""
    stays, goes, coins = wide(2.0, 5), wide(7.0, 20), binomial(2, 0.5)
    found = handed(stays, goes, 3, 2, coins)
    values, chances = (np.multiply.outer(one, one).ravel() for one in (found.values, found.chances))
    alone = 1 - (1 - found.alone) ** 2
    bound = np.array([np.maximum(values - q, 0) @ chances + alone for q in POINTS])
    views = [in_rounds(stays, goes, 3, coins, users) for users in ((0, 0, 0), (1, 0, 1), (1, 1, 0))]
    apart, sooner = (np.array([np.maximum(one - q * views[0], 0).sum() for q in POINTS]) for one in views[1:])
    assert (apart <= bound + 1e-9).all()
    assert (sooner > 1.02 * apart)[(POINTS > 0.8) & (POINTS < 1.5)].all()


def wide(deviation, reach):
    places = np.arange(-reach, reach + 1)
    law = np.exp(-(places**2) / (2 * deviation**2))
    return law / law.sum()


def in_rounds(stays, goes, times, coins, users, *, left=1, shown=False):
    """The same as ``seen``, for laws that are too wide to be enumerated, from the last round back; ``left`` of e stays.

    With a round more in front, what it takes back is a shift of the next sum. ``shown``: what the last one does, too.
    """
    narrow, far = len(stays) // 2, len(goes) // 2
    most, reach = times * narrow + far, (times - left) * narrow + far
    later = np.ones(1) if shown else np.ones(())
    for coin in reversed(users):
        size = later.shape[0] + 2 * reach if later.ndim else 1
        found = np.zeros((2 * most + 1, size, *later.shape[1:]))
        for (e, p), (f, q) in product(enumerate(stays), enumerate(goes)):
            first, back = times * (e - narrow) + f - far, (times - left) * (e - narrow) + f - far
            at = slice(reach - back, reach - back + later.shape[0]) if later.ndim else 0
            found[most + first, at] += p * q * later
        later = np.zeros((2 * most + 1 + len(coins), *found.shape[1:]))
        for r, chance in enumerate(coins):
            later[r + coin : r + coin + 2 * most + 1] += chance * found
    return later.ravel()


def told_by(stays, goes, times, **how):
    n, w = (in_rounds(stays, goes, times, ALONE, (coin, 0), shown=True, **how) for coin in (0, 1))
    return np.array([np.maximum(w - q * n, 0).sum() for q in POINTS])


@pytest.mark.slow
def test_two_rounds_of_wide_noise_tell_nearly_what_is_stated_and_a_broken_scheme_more():
    stays, goes = wide(2.0, 8), wide(8.0, 32)
    exact, bound = told_by(stays, goes, 4), stated(stays, goes, 4, 2, POINTS)
    near = (POINTS > 0.94) & (POINTS < 1.01)
    assert (exact <= bound + 1e-9).all()
    assert (exact[near] > 0.9 * bound[near]).all()
    assert (told_by(wide(1.75, 8), wide(7.0, 32), 4)[near] > bound[near]).all()  # an eighth less noise
    assert (told_by(stays, goes, 4, left=0)[near] > 5 * bound[near]).all()  # of which nothing stays


@pytest.mark.parametrize(("clients", "noise"), [(100, (64.0, 2.0, 16)), (1000, (27.0, 1.0, 50))])
def test_it_is_a_gaussians_where_noise_is_wide(clients, noise):
    drawn, coins = Transient(*noise), binomial(clients - 1, 0.5)
    (goes, _), (stays, _) = drawn.summed(clients), drawn.left.summed(clients)
    found = handed(stays, goes, drawn.times, 34, coins)
    exact = gaussian_handed(34, clients * noise[0] ** 2, clients * noise[1] ** 2, noise[2], (clients - 1) / 4)
    assert exact <= found.variance <= 1.03 * exact


@pytest.mark.parametrize(
    ("noise", "clients", "rounds"),
    [
        ((4.0, 1.0, 144), 3, 3),  # m is far beyond the sum of what goes
        ((2.0, 1.0, 100), 100, 5),
        ((0.5, 1.0, 300), 1000, 5),
        ((30.0, 2.0, 1024), 100, 3),
        ((8.0, 1.0, 30), 10, 5),  # ratios far above all points
        ((40.0, 2.0, 50), 2, 5),  # tails of the table, which do not bend
        ((40.0, 2.0, 50), 1, 2),
        ((10.0, 1.0, 5), 100_000, 5),  # hardly bent at all
        ((100.0, 1.0, 2), 1000, 5),
    ],
)
def test_odd_parameters_have_a_bound_too_and_quickly(noise, clients, rounds):
    drawn = Transient(*noise)
    (goes, _), (stays, _) = drawn.summed(clients), drawn.left.summed(clients)
    found = handed(stays, goes, drawn.times, rounds, binomial(min(clients, 200) - 1, 0.5))
    assert found.chances.min() >= 0
    assert found.alone >= 0
    here = sheet(goes, drawn.times)
    for ratio_, alone in ((here.one, here.alone), (here.back, here.alone_back)):
        assert ratio_.min() >= 0
        assert ratio_ @ here.chances + alone == pytest.approx(1, abs=1e-9)


@pytest.mark.slow
def test_it_has_less_noise_than_where_nothing_stays():
    who = {"clients": 1000, "population": 10**6, "participations": 1, "rounds": 40, "delta": 1e-6, "dim": 2**16}
    kept = PrivateMean(epsilon=1, cancel=True, **who)
    assert isinstance(kept.cancel, tuple)
    assert 0.98 <= kept.guarantee.epsilon <= 1
    assert PrivateMean.from_dict(kept.to_dict()) == kept
    goes = gain(Workload(40)).best_ratio(40) / 2
    plain = PrivateMean(mechanism=fitted_to(goes, who), cancel=goes, l2_clip=1.0, **who)
    noise, more = (one.guarantee.iterate_noise_over_independent for one in (kept, plain))
    assert plain.guarantee.epsilon <= 1
    assert noise < 0.97 * more
    for wrong in ((3.0, 1.0), (3.0, 0.0, 1), (3.0, False, True), (3.0, 1.0, 2.5), (3.0, float("nan"), 2)):
        with pytest.raises((ValueError, TypeError), match="cancel"):
            PrivateMean(mechanism=kept.mechanism, cancel=wrong, l2_clip=1.0, **who)
    ways = ((30.0, 2.0, 5), (30, 2, 5), {"goes": 30, "stays": 2, "times": 5})
    assert len({PrivateMean(mechanism=kept.mechanism, cancel=one, l2_clip=1.0, **who).kind for one in ways}) == 1


@pytest.mark.slow
def test_what_was_drawn_is_taken_though_all_of_it_may_be_zero():
    mean = PrivateMean(dim=8, clients=4, rounds=4, separation=2, mechanism=Rounding(levels=2), cancel=(20.0, 0.5, 8))
    for _ in range(30):  # one in ten has no e at all
        mean.encode(np.zeros(8), SecureRandom(), transient=mean.transient(SecureRandom()))
    wide = PrivateMean(dim=800, clients=4, rounds=4, separation=2, mechanism=Rounding(levels=2), cancel=(20.0, 0.5, 8))
    with pytest.raises(ValueError, match="as drawn"):
        wide.take_back(np.zeros((2, wide.coordinates), dtype=np.int64))


def fitted_to(goes, who):
    setting = Setting(**{name: value for name, value in who.items() if name != "dim"})
    first = Rounding(clip=4 / 2**8, levels=2)
    return fitted(first, 1.0, setting, dim=who["dim"], l2_clip=1.0, cancel=goes)
