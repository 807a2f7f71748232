"""The headline: a trusted server's noise from an untrusted one; and honest numbers of honest clients."""

from dataclasses import replace

import pytest

from rqm import RQM, Rounding, calibrate
from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.accountant import gaussian_noise
from rqm.privacy.event import Event
from rqm.privacy.guarantee import guarantee
from rqm.privacy.setting import Setting

MILLION = {"clients": 1000, "population": 10**6, "rounds": 500, "delta": 1e-6, "dim": 2**20}
WRITERS = {"clients": 100, "population": 3400, "rounds": 1500, "delta": 1 / 3400, "dim": 2**20}
SCALES = {
    "server": {**MILLION, "observer": "server", "participations": 1},
    "outsider": {**WRITERS, "observer": "outsider", "participations": None},
}


@pytest.mark.parametrize("epsilon", [3, *(pytest.param(more, marks=pytest.mark.slow) for more in (5, 10))])
@pytest.mark.parametrize("observer", ["server", "outsider"])
@pytest.mark.parametrize(("mechanism", "levels"), [("rqm", 16), ("rounding", 2), ("pbm", 16)])
def test_the_noise_is_a_trusted_servers(mechanism, levels, observer, epsilon):
    found = calibrate(mechanism, epsilon=epsilon, levels=levels, **SCALES[observer])
    assert 0.999 * epsilon < found.epsilon <= epsilon
    assert found.guarantee.certified
    assert found.guarantee.accountant == "gaussian"
    most = {"server": {2: {3: 1.006, 5: 1.012, 10: 1.025}[epsilon], 16: 1.01}[levels], "outsider": 1.06}[observer]
    assert 1 <= found.guarantee.noise_std_over_gaussian <= most
    assert found.guarantee.bits_per_coordinate == {16: 4, 2: 1}[levels]


@pytest.mark.parametrize(("mechanism", "levels"), [("rqm", 16), ("rounding", 2)])
def test_with_four_fifths_honest_it_costs_what_it_must(mechanism, levels):
    found = calibrate(mechanism, epsilon=10, levels=levels, honest=800, **SCALES["server"])
    assert found.guarantee.honest == 800
    assert 1.25**0.5 < found.guarantee.noise_std_over_gaussian <= 1.02 * 1.25**0.5


def test_epsilon_of_a_mechanism_moves_the_right_way():
    setting, mech = (
        Setting(clients=50, population=1000, rounds=20, participations=2),
        Rounding(clip=0.01, levels=2, margin=100.0),
    )
    here = guarantee(Event(mech, 10_000, 0.5), setting).epsilon
    for better in (
        guarantee(Event(Rounding(clip=0.01, levels=2, margin=120.0), 10_000, 0.5), setting),
        guarantee(Event(mech, 10_000, 0.5), replace(setting, clients=60)),
        guarantee(Event(mech, 10_000, 0.5), replace(setting, participations=1)),
        guarantee(Event(mech, 10_000, 0.5), replace(setting, neighbours="zero-out")),
        guarantee(Event(mech, 10_000, 0.4), setting),
    ):
        assert better.epsilon < here
    assert guarantee(Event(mech, 10_000, 0.5), replace(setting, honest=40)).epsilon > here


@pytest.mark.parametrize(("clients", "leak"), [(5, 2.995), pytest.param(40, 0.5137, marks=pytest.mark.slow)])
def test_the_papers_setting_protects_nobody(clients, leak):
    setting = Setting(clients=clients, population=3400, rounds=2000)
    found = guarantee(Event(RQM(clip=2.9731e-5), 1_018_174, 0.03), setting)
    assert found.epsilon > 1e8
    assert found.per_coordinate == pytest.approx(leak, abs=1e-3)
    assert found.noise_std_over_gaussian is None
    assert found.participations == 2000


def test_a_gaussian_is_its_own_measure():
    setting = Setting(clients=100, population=3400, rounds=1500, delta=1 / 3400, observer="outsider")
    z = gaussian_noise(setting, 10)
    assert guarantee(Event(Gaussian(z), 10, 1.0), setting).epsilon == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilon": 0}, "epsilon = 0"),
        ({"levels": 3}, "levels = 3: must be even"),
        ({"mechanism": "laplace"}, "mechanism = 'laplace'"),
        ({"honest": 101}, "honest = 101"),
        ({"honest": 1.5}, "honest = 1.5"),
        ({"participations": 0}, "participations = 0"),
        ({"neighbours": "add-remove"}, "must come with the mechanism gaussian"),
        ({"population": 10}, "population = 10"),
    ],
)
def test_bad_values_are_named(changes, words):
    values = {"mechanism": "rqm", "epsilon": 3, **WRITERS, **changes}
    with pytest.raises(ValueError, match=words):
        calibrate(values.pop("mechanism"), **values)
