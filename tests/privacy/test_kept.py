"""Noise of which a part stays: its certificate against whole small runs that are enumerated, and against Gaussians."""

from itertools import product

import numpy as np
import pytest

from rqm import PrivateMean, Rounding
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


def seen(stays, goes, times, rounds, coin):
    """The law of all sums that a server sees, of a user whose coin in the first round is this."""
    found = {}
    wide, narrow = len(goes) // 2, len(stays) // 2
    draws = [(e - narrow, f - wide, p * q) for (e, p), (f, q) in product(enumerate(stays), enumerate(goes))]
    for turns in product(draws, repeat=rounds):
        back, chance, view = 0, 1.0, []
        for number, (e, f, one) in enumerate(turns):
            view.append(times * e + f - back + (coin if number == 0 else 0))
            back, chance = (times - 1) * e + f, chance * one
        found[tuple(view)] = found.get(tuple(view), 0.0) + chance
    return found


def curve(stays, goes, times, rounds, points):
    """sup W(E) − q N(E) for the laws of what is seen with the coin and without."""
    without, having = (seen(stays, goes, times, rounds, coin) for coin in (0, 1))
    views = sorted(set(without) | set(having))
    n, w = (np.array([one.get(view, 0.0) for view in views]) for one in (without, having))
    return np.array([np.maximum(w - q * n, 0).sum() for q in points])


def stated(stays, goes, times, rounds, points):
    """The same by the certificate."""
    spread = float(stays @ (np.arange(len(stays)) - len(stays) // 2) ** 2)
    found = handed_on(ratio([stays], spread, 8), spread, sheet(goes, times), times, rounds)
    assert found.chances.sum() == pytest.approx(1, abs=1e-9)
    assert found.chances @ found.values + found.alone == pytest.approx(1, abs=1e-9)
    return np.array([np.maximum(found.values - q, 0) @ found.chances + found.alone for q in points])


POINTS = np.concatenate([[0.0], np.geomspace(0.05, 20, 60), np.linspace(0.9, 1.1, 9)])


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_run_tells_more_than_is_stated(rounds):
    rng, nearest = np.random.default_rng(rounds), 0.0
    for _ in range(12 if rounds < 3 else 4):
        times = int(rng.integers(2, 4))
        stays, goes = law_of(rng, int(rng.integers(1, 3))), law_of(rng, int(rng.integers(4, 7 if rounds < 3 else 5)))
        exact, bound = curve(stays, goes, times, rounds, POINTS), stated(stays, goes, times, rounds, POINTS)
        assert (exact <= bound + 1e-9).all()
        nearest = max(nearest, float((exact[20:40] / bound[20:40]).max()))
    assert nearest > 0.5


def wide(deviation, reach):
    places = np.arange(-reach, reach + 1)
    law = np.exp(-(places**2) / (2 * deviation**2))
    return law / law.sum()


def two_rounds(stays, goes, times, coin, *, left=1):
    """The law of both sums, for laws that are too wide to be enumerated; ``left`` of e stays."""
    narrow, far = len(stays) // 2, len(goes) // 2
    most = times * narrow + far
    alone = np.zeros(2 * most + 1)  # of one sum's noise
    for e, p in enumerate(stays):
        alone[most + times * (e - narrow) - far : most + times * (e - narrow) + far + 1] += p * goes
    found = np.zeros((2 * most + 2, 4 * most + 1))
    for e, p in enumerate(stays):
        for f, q in enumerate(goes):
            first, back = times * (e - narrow) + f - far, (times - left) * (e - narrow) + f - far
            found[most + first + coin, most - back : 3 * most - back + 1] += p * q * alone
    return found.ravel()


def told_by(stays, goes, times, **how):
    n, w = (two_rounds(stays, goes, times, coin, **how) for coin in (0, 1))
    return np.array([np.maximum(w - q * n, 0).sum() for q in POINTS])


def test_two_rounds_of_wide_noise_tell_nearly_what_is_stated_and_a_broken_scheme_more():
    stays, goes = wide(4.0, 24), wide(20.0, 120)
    exact, bound = told_by(stays, goes, 6), stated(stays, goes, 6, 2, POINTS)
    near = (POINTS > 0.94) & (POINTS < 1.01)
    assert (exact <= bound + 1e-9).all()
    assert (exact[near] > 0.9 * bound[near]).all()
    assert (told_by(stays, goes, 4) > 1.02 * bound).any()  # e is sent four times as large, not six
    assert (told_by(stays, wide(14.0, 120), 6)[near] > exact[near]).all()


@pytest.mark.parametrize("clients", [100, 1000])
def test_it_is_a_gaussians_where_noise_is_wide(clients):
    noise = Transient(40.0, 1.5, 49)
    (goes, _), (stays, _) = noise.summed(clients), noise.left.summed(clients)
    spread = float(stays @ (np.arange(len(stays)) - len(stays) // 2) ** 2)
    found = handed_on(ratio([stays], spread, 8), spread, sheet(goes, 49), 49, 30)
    exact = gaussian_handed(30, clients * noise.deviation**2, clients * noise.stays**2, 49)
    assert exact <= found.variance <= (1.02 if clients == 1000 else 1.08) * exact


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
    twice = {**who, "participations": 2, "separation": 5}
    with pytest.raises(ValueError, match="one number where a user takes part more than once"):
        PrivateMean(mechanism=kept.mechanism, cancel=kept.cancel, l2_clip=1.0, **twice)
    with pytest.raises(ValueError, match="or three numbers"):
        PrivateMean(mechanism=kept.mechanism, cancel=(3.0, 1.0), l2_clip=1.0, **who)


def fitted_to(goes, who):
    setting = Setting(**{name: value for name, value in who.items() if name != "dim"})
    first = Rounding(clip=4 / 2**8, levels=2)
    return fitted(first, 1.0, setting, dim=who["dim"], l2_clip=1.0, cancel=goes)
