"""Calibration: more bits are never worse, options are used or refused, and Poisson sampling has its exact account."""

from itertools import pairwise

import dp_accounting as dp
import pytest

from rqm import calibrate

INTEGER_NOISE = {"epsilon": 10, "delta": 1e-5, "clients": 100, "dim": 512, "rounds": 1}


def noise(kind, **options):
    return calibrate(kind, **INTEGER_NOISE, **options).guarantee.noise_std_over_gaussian


@pytest.mark.parametrize("kind", ["discrete-gaussian", "skellam"])
def test_more_bits_are_never_worse(kind):
    ratios = [noise(kind, bits=bits) for bits in (8, 9, 10, 11, 12)]
    assert all(more <= 1.001 * fewer for fewer, more in pairwise(ratios))
    assert ratios[-1] < 1.002
    assert noise(kind) < 1.002  # the default


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"bits": 14}, {"bits": 16}, {"steps": 511}])
def test_with_many_bits_integer_noise_is_as_good_as_a_gaussian(options):
    """With 16 bits it needed 2.441 times a Gaussian's noise once."""
    assert noise("discrete-gaussian", **options) < 1.001


def test_options_are_used_as_they_are_given():
    assert calibrate("discrete-gaussian", **INTEGER_NOISE, bits=11).mechanism.bits == 11
    assert calibrate("discrete-gaussian", **INTEGER_NOISE, steps=31).mechanism.steps == 31
    assert calibrate("pbm", **INTEGER_NOISE, levels=8).mechanism.levels == 8


@pytest.mark.parametrize("kind", ["discrete-gaussian", "skellam", "binomial"])
def test_options_that_a_mechanism_does_not_have_are_refused(kind):
    with pytest.raises(ValueError, match="levels: unknown key; known are bits, scale, steps"):
        calibrate(kind, **INTEGER_NOISE, levels=16)
    with pytest.raises(ValueError, match="keep: unknown key"):
        calibrate(kind, **INTEGER_NOISE, keep=0.5)


@pytest.mark.parametrize(("eps", "clients", "rounds"), [(10, 2941, 1500), (1, 1000, 100), (3, 100, 1000)])
def test_poisson_sampling_is_calibrated_by_privacy_losses(eps, clients, rounds):
    """Rényi orders that are whole numbers took 1.05 to 1.42 times the noise."""
    population, delta = 10**5, 1e-5
    calibrated = calibrate(
        "gaussian",
        epsilon=eps,
        delta=delta,
        clients=clients,
        population=population,
        rounds=rounds,
        dim=1,
        neighboring="add-or-remove-one",
        adversary="outsider",
    )

    def reached(multiplier, accountant):
        event = dp.PoissonSampledDpEvent(clients / population, dp.GaussianDpEvent(multiplier))
        return accountant.compose(event, rounds).get_epsilon(delta)

    multiplier = calibrated.noise_multiplier
    assert calibrated.epsilon <= eps
    assert reached(multiplier, dp.pld.PLDAccountant()) == pytest.approx(eps, rel=1e-3)
    assert reached(0.99 * multiplier, dp.pld.PLDAccountant()) > eps
    orders = list(map(float, range(2, 129)))
    assert reached(1.03 * multiplier, dp.rdp.RdpAccountant(orders)) > eps
