"""Records in a fixed order and noise that is taken back: the certificate against enumerated runs of few silos."""

from math import inf

import numpy as np
import pytest

from rqm import PrivateMean
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.transient import Transient
from rqm.privacy.event import Event
from rqm.privacy.gaussian import gaussian_deltas
from rqm.privacy.ordered import a_step, ordered_epsilon, rise, steepest, tails

EPSILONS = np.linspace(0, 5, 41)


def law(deviation, last):
    places = np.arange(-last, last + 1)
    found = np.exp(-(places**2) / (2 * deviation**2))
    return found / found.sum()


def twice(one):
    return np.convolve(one, one)


STAYS, GOES = twice(law(0.9, 4)), twice(law(2.5, 9))
"""The sums of two silos' noise: what stays, and what is taken back."""


def seen(own, *, back=1, last=False, stays=STAYS, goes=GOES):
    """The law of all that is seen of a run, y_t = X_t + B_t + A_t − A_{t−1}, one coordinate.

    ``own`` holds for every round how likely the silo's integer is 0, 1, …; or two such laws, of which the sign of the
    first sum chooses. All is counted in ``back``'th parts of a step, and one of them is taken back: 1 is all. ``last``
    reveals the transient noise of the last round, too.
    """
    a, half = np.arange(len(goes)) - len(goes) // 2, len(goes) // 2
    state, first = np.ones((1, 1)), np.zeros(1)  # what was seen, and the last transient noise
    for turn, laws in enumerate(own):
        choices = [np.convolve(one, stays) for one in (laws if isinstance(laws, tuple) else (laws, laws))]
        table = np.stack(choices)[(first > 0).astype(int)]
        reach, width = (back + 1) * half, back * (table.shape[1] - 1) + 1
        after = np.zeros((len(first), 2 * reach + width, len(a)))
        for before in range(state.shape[1]):
            for now, chance in enumerate(goes):
                start = reach + back * a[now] - (a[before] if turn else 0)
                after[:, start : start + width : back, now] += chance * state[:, before, None] * table
        outcomes = np.arange(after.shape[1]) - reach - back * (len(stays) // 2)
        first = np.repeat(first, len(outcomes)) if turn else outcomes.astype(float)
        state = after.reshape(-1, len(a))
    return state.ravel() if last else state.sum(axis=1)


def exact(p, q):
    """δ of telling two laws apart, whichever way."""
    some = (p > 0) | (q > 0)
    p, q = p[some], q[some]
    return np.array([max(np.maximum(a - np.exp(e) * b, 0).sum() for a, b in ((p, q), (q, p))) for e in EPSILONS])


def stated(separation, count=1):
    """The same by the certificate's pair of laws, for a record that moves a silo's coordinate by a step."""
    laws = list(a_step(STAYS, GOES, separation, 12 if count > 1 else 100))
    for _ in range(count - 1):
        laws = [np.multiply.outer(one, one).ravel() for one in laws]
    return exact(*laws)


def at(place):
    """The silo's integer if its coordinate lies there, in steps."""
    found = np.zeros(3)
    found[int(place)], found[int(place) + 1] = 1 - place % 1, place % 1
    return found


NONE = at(0.0)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_run_tells_more_of_a_step_than_the_certificates_pair(rounds):
    """Up to the next turn of a record; that noise of the last of these rounds may be shown."""
    noise = {"stays": STAYS, "goes": GOES if rounds < 3 else twice(law(1.5, 4))}
    for parts in [(0.0, 1.0), (0.8, 0.3)]:
        ends = a_step(noise["stays"], noise["goes"], rounds)
        bound = exact(*((1 - u) * ends[0] + u * ends[1] for u in parts))
        own = [[at(place)] + [NONE] * (rounds - 1) for place in parts]
        assert (exact(*(seen(one, **noise) for one in own)) <= bound + 1e-12).all()
        shown = exact(*(seen(one, **noise, last=True) for one in own))
        assert (shown <= bound + 1e-12).all()
        assert shown[0] > 0.9 * bound[0]


def test_a_record_that_comes_back_after_the_separation_is_told_twice_whatever_was_seen():
    """Two turns, two rounds apart; in the second it moves up or down as the first sum says."""
    small = {"stays": twice(law(0.7, 2)), "goes": twice(law(1.0, 2))}
    turns = [[at(float(here)), NONE, (at(float(here)), at(1.0 - here)), NONE] for here in (0, 1)]
    noise, moved = a_step(small["stays"], small["goes"], 2, 12)
    both = exact(np.multiply.outer(noise, noise).ravel(), np.multiply.outer(moved, moved).ravel())
    found = exact(*(seen(own, **small, last=True) for own in turns))
    assert (found <= both + 1e-12).all()
    assert found[0] > 0.75 * both[0]
    assert (found > exact(noise, moved) + 0.01).any()  # once is not enough


def test_a_separation_that_is_not_kept_is_found_out():
    """In two rounds one after the other, each counted as if it had two rounds' noise for itself."""
    found = exact(*(seen([at(float(here))] * 2, last=True) for here in (0, 1)))
    assert (found > stated(2, count=2) + 0.01).any()
    assert (found <= stated(1, count=2) + 1e-12).all()  # as two, for none of which noise is held


def test_noise_of_which_a_part_is_taken_back_is_found_out():
    """A ninth of it: the next sum shows the rest of the division by nine."""
    found = exact(*(seen([at(float(here)), NONE], back=9) for here in (0, 1)))
    assert (found > stated(2) + 0.01).any()


def test_the_last_noise_must_stay_in():
    shown, kept = (exact(*(seen([at(float(here))], last=last) for here in (0, 1))) for last in (True, False))
    assert (shown > stated(2) + 0.01).any()
    assert (kept <= stated(2) + 1e-12).all()


def test_a_silo_that_misses_a_round_leaves_its_noise_in():
    """Of two silos one is away in the second round: what it added first is never taken back, and hides more."""
    one = law(2.5, 9)
    runs = [seen([np.convolve(at(float(here)), one), NONE], goes=one, last=True) for here in (0, 1)]
    assert (exact(*runs) <= exact(*a_step(STAYS, one, 2)) + 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), [(0.0, 0.6), (0.7, 1.4), (0.5, 1.9)])
def test_on_a_way_of_several_steps_tails_add_up_to_no_more_than_is_charged(one, other):
    """Wider noise, of which a whole way is told by κ a step."""
    stays, goes, tail = twice(law(3.0, 13)), twice(law(4.0, 17)), 1e-5
    runs = [seen([at(place), NONE], stays=stays, goes=goes, last=True) for place in (one, other)]
    kappa, far = steepest(stays, goes, 2, tail), abs(one - other)
    lost = tails(kappa, far, 1, 1, kappa * far, tail)
    assert lost < 2e-3
    assert (exact(*runs) <= gaussian_deltas(kappa * far, EPSILONS) + lost).all()
    assert (exact(*runs) > gaussian_deltas(0.6 * kappa * far, EPSILONS) + lost).any()


# -- as it is used --------------------------------------------------------------------------------

MECH = DiscreteGaussian(clip=1.0, scale=0.04, steps=255, bits=12)
WHO = {"separation": 8, "dim": 64, "moved": 0.2, "count": 2, "delta": 1e-6}


def test_more_honest_silos_and_longer_separations_tell_less_and_few_silos_nothing_is_known_of():
    found = [ordered_epsilon(MECH, Transient(60.0), honest=honest, **WHO) for honest in (1, 3, 4, 8)]
    assert found[0] == inf
    assert found[1] > found[2] > found[3]
    longer = ordered_epsilon(MECH, Transient(60.0), honest=4, **WHO | {"separation": 16})
    assert longer < found[2]


def test_without_a_bound_of_its_own_noise_that_stays_is_what_counts():
    alone, known = (
        PrivateMean(
            unit="record", neighbours="add-remove", mechanism=MECH, dim=60, clients=2, delta=1e-6, rounds=8,
            record_clip=0.2, l2_clip=1.0, separation=4, **more,
        ).guarantee.epsilon
        for more in ({"cancel": 60.0}, {})
    )  # fmt: skip
    assert alone == known


@pytest.mark.parametrize("cancel", [pytest.param(1.0, marks=pytest.mark.slow), 10.6])
def test_narrow_noise_that_is_taken_back_costs_nothing(cancel):
    """Its certificate walks step by step; that of noise that stays says less, and holds whatever else is added."""
    mech = DiscreteGaussian(clip=4.0, scale=364 / 255, steps=255, bits=14)
    who = {"unit": "record", "neighbours": "add-remove", "clients": 4, "honest": 3, "delta": 1e-8, "dim": 10}
    who |= {"l2_clip": 16.0, "record_clip": 1.0, "rounds": 24, "separation": 12, "mechanism": mech}
    charges = dict.fromkeys(range(24), 1)
    stays = PrivateMean(**who).spent(charges).epsilon
    assert PrivateMean(**who, cancel=cancel).spent(charges).epsilon <= stays
    assert PrivateMean(**who, cancel=1000.0).spent(charges).epsilon < 0.9 * stays


def test_it_is_near_to_gaussian_noise_of_the_same_shape():
    event = Event(MECH, 64, 1.0, 60.0, 8, 0.2)
    over = event.mu("add-remove", 8, 1e-9) / event.least_mu("add-remove", 8)
    assert 1 < over < 1.15
    assert event.mu("replace", 8, 1e-9) == pytest.approx(2 * event.mu("add-remove", 8, 1e-9))
    assert rise(MECH, Transient(60.0), 8, 8) < rise(MECH, Transient(60.0), 8, 8, quick=True)
