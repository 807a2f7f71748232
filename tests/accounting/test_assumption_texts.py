"""Every text about a guarantee names all that its ε rests on.

For 2,000 random settings each field of `Participation` and `ThreatModel` is changed. Where ε changes, the printed text
must change as well: the unit, neighboring relation and adversary of the headline, or the text of an assumption.
"""

from collections import Counter
from math import inf, isclose

import numpy as np
import pytest

from rqm import CorrelatedNoise, Gaussian, Participation, Plan, PrivateMean, StochasticRounding, ThreatModel, account
from rqm.accounting import accountant
from rqm.accounting.guarantee import guarantee
from rqm.accounting.release import Release
from rqm.bounds import (
    HonestAfterParticipation,
    HonestClients,
    HonestFraction,
    MaxParticipations,
    MinSeparation,
    MinSurvivors,
    PoissonSampling,
    UniformSampling,
    gaussian_epsilon,
)
from rqm.config.experiments import find
from rqm.config.sweep import Sweep
from rqm.correlated.factorization import Workload, banded
from rqm.mechanisms.banded import BandedGaussian
from tests.accounting.random_settings import FIELDS, changed, correlated_setting, other_values, printed, random_setting

SAMPLE, ALL = 120, 2000


def silent_changes(number, draw=random_setting, names=FIELDS, seed=0):
    """Fields of one random setting that change ε and nothing that is printed; and which fields changed ε at all."""
    rng = np.random.default_rng([seed, number])
    while True:
        try:
            mean = draw(rng)
            break
        except ValueError:  # values that do not go together
            continue
    result, text, silent, counted = mean.account(), None, [], Counter()
    for name in names:
        values = other_values(rng, mean, name)
        try:
            changed_mean = changed(mean, name, values[rng.integers(len(values))])
        except ValueError:  # no guarantee is known
            continue
        changed_result = changed_mean.account()
        epsilons = result.epsilon, changed_result.epsilon
        if isclose(*epsilons, rel_tol=1e-9) or epsilons == (inf, inf):
            continue
        counted[name] += 1
        text = text or printed(mean, result)
        if text == printed(changed_mean, changed_result):
            silent.append(f"{name}: ε = {epsilons} of {mean} and {changed_mean}: {text}")
    return silent, counted


def check(count):
    """All changes of some settings are printed, and all fields that can change ε did so."""
    counted = Counter()
    for number in range(count):
        silent, changes = silent_changes(number)
        assert silent == []
        counted += changes
    can_change = set(FIELDS) - {"unit", "sampling"}  # these two change what is allowed, and never ε alone
    assert set(counted) == can_change, counted


def test_every_field_that_changes_epsilon_is_printed():
    check(SAMPLE)


@pytest.mark.slow
def test_every_field_that_changes_epsilon_is_printed_for_thousands():
    check(ALL)


def without(kind):
    """The accountant's assumptions, one kind of them forgotten."""
    complete = accountant.assumptions

    def assumptions(question):
        return (assumption for assumption in complete(question) if not isinstance(assumption, kind))

    return assumptions


@pytest.mark.parametrize(
    ("kind", "draw", "names"),
    [
        (MinSeparation, correlated_setting, ["min_separation"]),
        (UniformSampling, random_setting, ["population"]),
        (HonestClients, random_setting, ["honest_clients"]),
        (HonestFraction, random_setting, ["honest_fraction"]),
        (MinSurvivors, random_setting, ["min_survivors"]),
        (MaxParticipations, random_setting, ["max_participations"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_assumption_that_is_forgotten_is_noticed(kind, draw, names, monkeypatch):
    """Power: within the number of settings of the ordinary run."""
    also = () if kind is not MinSeparation else (HonestAfterParticipation,)  # which names the same window
    monkeypatch.setattr(accountant, "assumptions", without((kind, *also)))
    assert any(silent_changes(number, draw, names)[0] for number in range(SAMPLE))


# -- minimum separation ----------------------------------------------------------------------------

APART = "two participations of a user are at least 20 rounds apart"
SPACED = Participation(100, 400, sampling="fixed-order", min_separation=20)


@pytest.mark.parametrize(
    ("mechanism", "noise"),
    [
        (BandedGaussian(5.0, bands=20), None),
        (Gaussian(5.0), CorrelatedNoise(20.0)),
        (StochasticRounding(clip=0.5, levels=2, margin=33.0), CorrelatedNoise(26.0)),
    ],
    ids=["banded", "Gaussian with correlated noise", "rounding with correlated noise"],
)
def test_the_minimum_separation_is_stated(mechanism, noise):
    mean = PrivateMean(dim=64, mechanism=mechanism, participation=SPACED, noise=noise)
    stated = mean.guarantee()
    for text in (str(stated), stated.sentence, stated.to_dict()["assumptions"]):
        assert APART in str(text)
    assert MinSeparation(20) in stated.assumptions
    once = mean.with_values(max_participations=1).guarantee()  # there is no second participation
    assert "rounds apart" not in str(once)
    assert "at most 1 of the 400 rounds" in str(once)


def test_rounds_in_a_row_would_cost_much_more():
    """What the text allowed without the separation: participations one after the other."""
    mean = PrivateMean(dim=64, mechanism=BandedGaussian(5.0, bands=20), participation=SPACED)
    strategy = banded(Workload(400), 20)
    separated, in_a_row = (strategy.sensitivity(20, separation) for separation in (20, 1))
    assert mean.guarantee().epsilon == pytest.approx(gaussian_epsilon(2 / 5 * separated, 1e-5), rel=1e-6)
    assert gaussian_epsilon(2 / 5 * in_a_row, 1e-5) > 2 * mean.guarantee().epsilon


# -- sampling --------------------------------------------------------------------------------------

OUTSIDER_TEXTS = (
    "each round's 100 clients are drawn uniformly at random from 100,000 users, independently of earlier rounds",
    "the adversary never learns who takes part in a round",
    "an outsider who sees every model but not who takes part",
)


def test_against_an_outsider_the_sampling_and_the_population_are_stated():
    mean = PrivateMean(
        dim=1000,
        rotate=False,
        l2_clip=1.0,
        mechanism=StochasticRounding(clip=0.02, margin=20.0, levels=2),
        participation=Participation(100, 100, 10**5, "uniform"),
        threat_model=ThreatModel("outsider"),
        delta=1e-6,
    )
    stated, server = mean.guarantee(), mean.with_values(adversary="server").guarantee()
    assert stated.epsilon < 0.05
    assert server.epsilon > 10
    for text in OUTSIDER_TEXTS:
        assert text in str(stated)
        assert text in stated.sentence
        assert text not in str(server)
    assert UniformSampling(100, 10**5) in stated.assumptions
    assert stated.adversary_text != server.adversary_text


def test_the_shipped_outsider_experiment_is_accounted_for_the_outsider():
    plan = Plan.from_dict(next(iter(Sweep.from_toml(find("user-level-outsider")).variants.values())).to_dict())
    stated = account(plan)
    assert stated.threat_model.adversary == "outsider"
    assert stated.epsilon <= 3
    assert "drawn uniformly at random from 3,400 users" in str(stated)
    assert account(plan, adversary="server").epsilon > 300


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.8, "0.8 of the 3,400 users are honest"), (1.0, "all 3,400 users are honest")]
)
def test_a_fraction_is_not_printed_as_a_number_of_clients(fraction, text):
    participation = Participation(100, 10, 3400, "uniform")
    release = Release(StochasticRounding(levels=2, margin=20.0), 1, 1.0)
    stated = guarantee(release, participation, ThreatModel(honest_fraction=fraction), 1e-5)
    assert text in str(stated)
    assert "1 of the" not in str(stated)
    assert "1 are honest" not in str(stated)


def test_what_colluders_know_of_the_sample_is_stated_for_a_trusted_server():
    """They know when they took part, so ε depends on the honest fraction though none of them adds noise."""
    release, participation = Release(Gaussian(2.0), 1, 1.0), Participation(20, 10, 1000, "uniform")
    honest, colluding = (
        guarantee(release, participation, ThreatModel("outsider", honest_fraction=fraction), 1e-5)
        for fraction in (None, 0.5)
    )
    assert colluding.epsilon > 1.05 * honest.epsilon
    assert "0.5 of the 1,000 users are honest" in str(colluding)


def test_poisson_sampling_is_named():
    text = PoissonSampling(0.02).text("record")
    assert "(Poisson sampling)" in text
    assert "0.02" in text


# -- remedies --------------------------------------------------------------------------------------


def useless(mechanism, **turns):
    stated = guarantee(Release(mechanism, 10, 1.0), Participation(10, 1000, **turns), ThreatModel(), 1e-5)
    assert stated.epsilon > 100
    assert "no meaningful protection" in str(stated)
    return str(stated)


def test_advice_fits_the_cause():
    assert "max_participations" in useless(Gaussian(1.0))
    assert "max_participations" in useless(StochasticRounding(levels=2, margin=0.5))
    limited = useless(Gaussian(0.5), max_participations=100)
    assert "max_participations" not in limited
    assert "add more noise" in limited
    for mechanism in (Gaussian(1.0), BandedGaussian(0.1, bands=1), StochasticRounding(levels=2, margin=0.5)):
        assert "margin" not in useless(mechanism)
    bits = Release(StochasticRounding(levels=2, margin=1.0), 10**5, 1e3)
    coordinates = guarantee(bits, Participation(1), ThreatModel(), 1e-5)
    assert "clip vectors in L2" in str(coordinates)
