"""Records in a fixed order with correlated noise: the certificate against enumerated runs of few silos."""

from math import inf

import numpy as np
import pytest

from rqm import CorrelatedNoise, Participation, PrivateRecordMean, ThreatModel
from rqm.accounting.record_release import RecordRelease
from rqm.bounds import epsilon, gaussian_deltas
from rqm.certify.gaussian_dp import BestEvents
from rqm.correlated.fixed_order import step_pmfs, tail_failure
from rqm.correlated.scheme import Exposure
from rqm.mechanisms.additive import DiscreteGaussian
from tests.correlated.enumeration import discrete_gaussian, hockey_stick, ratio_pmf, sum_pmf

EPSILONS = np.linspace(0, 5, 41)


def silos_noise(largest, deviation):
    """The sum of the noise of two silos."""
    return sum_pmf(discrete_gaussian(largest, deviation), 2)


RESIDUAL, TRANSIENT = silos_noise(4, 0.9), silos_noise(9, 2.5)


def view_pmf(inputs, *, fraction=1, reveals_last=False, residual=RESIDUAL, transient=TRANSIENT):
    """The pmf of all that is seen of a run, y_t = X_t + B_t + A_t − A_{t−1}, one coordinate.

    Args:
        inputs: For every round the pmf of the silo's integer 0, 1, …; or two pmfs, of which the sign of the first sum
            chooses.
        fraction: Only so manieth of A is canceled: 1 is all of it. The unit of what is seen is that part of a step.
        reveals_last: Whether the transient noise of the last round is seen as well.
        residual: The pmf of B.
        transient: The pmf of A.
    """
    a, half = np.arange(len(transient)) - len(transient) // 2, len(transient) // 2
    state, first = np.ones((1, 1)), np.zeros(1)  # what was seen, and the last transient noise
    for round_index, pmfs in enumerate(inputs):
        choices = [np.convolve(pmf, residual) for pmf in (pmfs if isinstance(pmfs, tuple) else (pmfs, pmfs))]
        table = np.stack(choices)[(first > 0).astype(int)]
        largest, width = (fraction + 1) * half, fraction * (table.shape[1] - 1) + 1
        updated = np.zeros((len(first), 2 * largest + width, len(a)))
        for previous in range(state.shape[1]):
            for current, probability in enumerate(transient):
                start = largest + fraction * a[current] - (a[previous] if round_index else 0)
                window = slice(start, start + width, fraction)
                updated[:, window, current] += probability * state[:, previous, None] * table
        outcomes = np.arange(updated.shape[1]) - largest - fraction * (len(residual) // 2)
        first = np.repeat(first, len(outcomes)) if round_index else outcomes.astype(float)
        state = updated.reshape(-1, len(a))
    return state.ravel() if reveals_last else state.sum(axis=1)


def deltas(p, q):
    """The exact δ of two pmfs at EPSILONS, the worse direction."""
    is_possible = (p > 0) | (q > 0)
    return np.array([hockey_stick(p[is_possible], q[is_possible], epsilon) for epsilon in EPSILONS])


GRID = np.concatenate([[0.0], np.geomspace(1e-4, 1e4, 1000)])
"""Likelihood ratios on which pairs are composed."""


def composed(pair, count):
    """A pair of pmfs, composed several times, each first put on a grid of ratios, which only reveals more."""
    pmf = ratio_pmf([pair], GRID)
    pmfs = list(pair) if count == 1 else [np.append(pmf, 0.0), np.append(pmf * GRID, max(0.0, 1 - pmf @ GRID))]
    for _ in range(count - 1):
        pmfs = [np.multiply.outer(pmf, pmf).ravel() for pmf in pmfs]
    return pmfs


def certified_deltas(separation, count=1):
    """δ by the certificate's pair of pmfs, for a record that moves a silo's coordinate by a step."""
    return deltas(*composed(step_pmfs(RESIDUAL, TRANSIENT, separation), count))


def at(coordinate):
    """The pmf of the silo's integer if its coordinate lies there, in steps."""
    pmf = np.zeros(3)
    pmf[int(coordinate)], pmf[int(coordinate) + 1] = 1 - coordinate % 1, coordinate % 1
    return pmf


ZERO = at(0.0)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_no_run_reveals_more_of_a_step_than_the_certificates_pair(rounds):
    """Up to the next participation of a record; transient noise of the last of these rounds may be revealed."""
    noise = {"residual": RESIDUAL, "transient": TRANSIENT if rounds < 3 else silos_noise(4, 1.5)}
    for weights in [(0.0, 1.0), (0.8, 0.3)]:
        ends = step_pmfs(noise["residual"], noise["transient"], rounds)
        bound = deltas(*((1 - u) * ends[0] + u * ends[1] for u in weights))
        inputs = [[at(coordinate)] + [ZERO] * (rounds - 1) for coordinate in weights]
        assert (deltas(*(view_pmf(rows, **noise) for rows in inputs)) <= bound + 1e-12).all()
        revealed = deltas(*(view_pmf(rows, **noise, reveals_last=True) for rows in inputs))
        assert (revealed <= bound + 1e-12).all()
        assert revealed[0] > 0.9 * bound[0]


def test_participations_compose_whatever_was_seen():
    """Two participations, two rounds apart; in the second the record moves up or down as the first sum says."""
    noise = {"residual": silos_noise(2, 0.7), "transient": silos_noise(2, 1.0)}
    inputs = [[at(float(bit)), ZERO, (at(float(bit)), at(1.0 - bit)), ZERO] for bit in (0, 1)]
    pair = step_pmfs(noise["residual"], noise["transient"], 2)
    bound, exact = deltas(*composed(pair, 2)), deltas(*(view_pmf(rows, **noise, reveals_last=True) for rows in inputs))
    assert (exact <= bound + 1e-12).all()
    assert exact[0] > 0.75 * bound[0]
    assert (exact > deltas(*pair) + 0.01).any()  # a single participation reveals less


def test_a_separation_that_is_not_kept_would_be_caught():
    """Two rounds in succession, each counted as if it had the noise of two rounds for itself."""
    exact = deltas(*(view_pmf([at(float(bit))] * 2, reveals_last=True) for bit in (0, 1)))
    assert (exact > certified_deltas(2, count=2) + 0.01).any()
    assert (exact <= certified_deltas(1, count=2) + 1e-12).all()  # two participations with paths of a single round


def test_noise_of_which_only_a_part_is_canceled_would_be_caught():
    """A ninth of it: the next sum reveals the remainder of the division by nine."""
    exact = deltas(*(view_pmf([at(float(bit)), ZERO], fraction=9) for bit in (0, 1)))
    assert (exact > certified_deltas(2) + 0.01).any()


def test_the_transient_noise_of_the_last_round_must_remain():
    revealed, hidden = (
        deltas(*(view_pmf([at(float(bit))], reveals_last=is_revealed) for bit in (0, 1)))
        for is_revealed in (True, False)
    )
    assert (revealed > certified_deltas(2) + 0.01).any()
    assert (hidden <= certified_deltas(2) + 1e-12).all()


def test_a_silo_that_misses_a_round_leaves_its_noise():
    """Of two silos one is absent in the second round: what it added first is never canceled, and hides more."""
    noise = discrete_gaussian(9, 2.5)
    views = [view_pmf([np.convolve(at(float(bit)), noise), ZERO], transient=noise, reveals_last=True) for bit in (0, 1)]
    assert (deltas(*views) <= deltas(*step_pmfs(RESIDUAL, noise, 2)) + 1e-12).all()


@pytest.mark.slow
@pytest.mark.parametrize(("start", "end"), [(0.0, 0.6), (0.7, 1.4), (0.5, 1.9)])
def test_over_several_steps_tails_add_up_to_no_more_than_is_charged(start, end):
    """Wider noise, with κ as the slope per step over the whole distance."""
    residual, transient, tail = silos_noise(13, 3.0), silos_noise(17, 4.0), 1e-5
    views = [
        view_pmf([at(coordinate), ZERO], residual=residual, transient=transient, reveals_last=True)
        for coordinate in (start, end)
    ]
    events = BestEvents.between(*step_pmfs(residual, transient, 2), tail)
    kappa, steps = 2 * events.steepest_slope(), abs(start - end)
    failure = tail_failure(kappa, steps, 1, 1, kappa * steps, tail)
    assert failure < 2e-3
    assert (deltas(*views) <= gaussian_deltas(kappa * steps, EPSILONS) + failure).all()
    assert (deltas(*views) > gaussian_deltas(0.6 * kappa * steps, EPSILONS) + failure).any()


# -- as it is used --------------------------------------------------------------------------------

MECHANISM = DiscreteGaussian(clip=1.0, scale=0.04, steps=255, bits=12)
NOISE = CorrelatedNoise(60.0)


def record_epsilon(honest, separation=8, delta=1e-6):
    """ε of a record that is in two rounds."""
    exposure = Exposure("record", honest, separation, 64, 0.2, RecordRelease.tail_fraction * delta, count=2)
    return epsilon(NOISE.bound(MECHANISM, exposure), delta)


def test_more_honest_silos_and_longer_separations_reveal_less_and_few_silos_have_no_bound():
    epsilons = [record_epsilon(honest) for honest in (1, 3, 4, 8)]
    assert epsilons[0] == inf
    assert epsilons[1] > epsilons[2] > epsilons[3]
    assert record_epsilon(4, separation=16) < epsilons[2]


def record_mean(mechanism, noise, *, honest=None, **values):
    """A private mean of silos whose records come in a fixed order."""
    participation = {name: values.pop(name) for name in ("clients", "rounds", "min_separation")}
    return PrivateRecordMean(
        mechanism=mechanism,
        participation=Participation(sampling="fixed-order", **participation),
        threat_model=ThreatModel(unit="record", neighboring="add-or-remove-one", honest_clients=honest),
        noise=noise,
        **values,
    )


def test_without_a_certificate_of_correlated_noise_that_of_residual_noise_counts():
    values = {"dim": 60, "clients": 2, "delta": 1e-6, "rounds": 8, "record_clip": 0.2, "l2_clip": 1.0}
    correlated, independent = (
        record_mean(MECHANISM, noise, min_separation=4, **values).guarantee().epsilon for noise in (NOISE, None)
    )
    assert correlated == independent


@pytest.mark.parametrize("transient_std", [pytest.param(1.0, marks=pytest.mark.slow), 10.6])
def test_narrow_transient_noise_costs_nothing(transient_std):
    """Its certificate adds up steps; that of residual noise is smaller, and holds whatever else is added."""
    mechanism = DiscreteGaussian(clip=4.0, scale=364 / 255, steps=255, bits=14)
    values = {"clients": 4, "honest": 3, "delta": 1e-8, "dim": 10, "l2_clip": 16.0, "record_clip": 1.0}
    values |= {"rounds": 24, "min_separation": 12}
    charges = dict.fromkeys(range(24), 1)
    independent, narrow, wide = (
        record_mean(mechanism, noise, **values).account(charges).epsilon
        for noise in (None, CorrelatedNoise(transient_std), CorrelatedNoise(1000.0))
    )
    assert narrow <= independent
    assert wide < 0.9 * independent


def test_it_is_near_to_gaussian_noise_of_the_same_shape():
    release = RecordRelease(MECHANISM, 64, 1.0, NOISE, record_clip=0.2)
    removed, replaced = (
        release.correlated_bound(neighboring, 8, 8, 1e-9).claim.mu
        for neighboring in ("add-or-remove-one", "replace-one")
    )
    assert 1 < removed / release.estimated_mu("add-or-remove-one", 8, 8) < 1.15
    assert replaced == pytest.approx(2 * removed)
