"""Flower's accountants and ours: which mechanisms ours takes, and what a noise multiplier is relative to."""

from pathlib import Path

import pytest

pytest.importorskip("flwr")
from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod

from rqm import PBM, Gaussian, Participation, StochasticRounding, ThreatModel, calibrate
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.bounds import epsilon_of_gaussian
from rqm.flower.privacy_accountant import DiscreteAccountant, DiscreteEvent
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam

ALONE = PrivacyConfig(1e-5, 10_000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
SAMPLED = PrivacyConfig(1e-5, 10_000, NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)
INTEGER_NOISE = {"clip": 0.5, "scale": 1.0, "steps": 15, "bits": 12}


@pytest.mark.parametrize("config", [ALONE, SAMPLED], ids=["alone", "sampled"])
@pytest.mark.parametrize(
    "mechanism",
    [
        DiscreteGaussian(**INTEGER_NOISE),
        Skellam(**INTEGER_NOISE),
        Binomial(**INTEGER_NOISE),
        StochasticRounding(clip=0.5, margin=20.0, levels=2),
        PBM(clip=0.5, theta=0.02, levels=4),
    ],
    ids=lambda mechanism: mechanism.kind,
)
def test_the_accountant_takes_every_mechanism_with_a_certificate(mechanism, config):
    accountant = DiscreteAccountant(config)
    accountant.compose(DiscreteEvent(mechanism, 100, 64, 1.0, 100, 10_000), 3)
    is_sampled = config is SAMPLED
    participation = Participation(100, 3, 10_000, "uniform")
    threat_model = ThreatModel("outsider", "replace-one") if is_sampled else ThreatModel("server", "zero-out")
    ours = account(Release(mechanism, 64, 1.0), participation, threat_model, 1e-5).epsilon
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours, rel=1e-9)
    assert 0 < ours < 100


def flowers_epsilon(multiplier, releases, delta):
    """ε of Gaussian noise by Flower's own accountant."""
    from flwr.supercore.privacy_accounting import GaussianPrivacyEvent
    from flwr.supercore.privacy_accounting.rdp_accountant import RdpAccountant

    accountant = RdpAccountant(ALONE)
    accountant.compose(GaussianPrivacyEvent(multiplier, 100, 10_000), releases)
    return accountant.get_epsilon(delta)


def test_a_noise_multiplier_is_over_the_clip_and_a_replaced_vector_moves_by_two():
    """ε of 2/z-GDP where a vector is replaced, of 1/z-GDP where it is zeroed out."""
    release, participation = Release(Gaussian(8.0), 10, 1.0), Participation(100)
    replaced = account(release, participation, ThreatModel(), 1e-5).epsilon
    zeroed = account(release, participation, ThreatModel(neighboring="zero-out"), 1e-5).epsilon
    assert replaced == pytest.approx(epsilon_of_gaussian(4.0, 1e-5))
    assert zeroed == pytest.approx(epsilon_of_gaussian(8.0, 1e-5))
    values = {"epsilon": 3, "delta": 1e-5, "clients": 100, "rounds": 1, "dim": 10}
    relations = "replace-one", "zero-out"
    ours = [calibrate("gaussian", **values, neighboring=relation).noise_multiplier for relation in relations]
    assert ours[0] == pytest.approx(2 * ours[1], rel=1e-6)


@pytest.mark.parametrize("multiplier", [3.0, 10.0])
def test_flowers_multiplier_is_over_the_sensitivity(multiplier):
    theirs = flowers_epsilon(multiplier, 5, 1e-5)
    zeroed = epsilon_of_gaussian(multiplier, 1e-5, 5)
    replaced = epsilon_of_gaussian(multiplier / 2, 1e-5, 5)
    assert zeroed <= theirs < 1.2 * zeroed  # theirs are Rényi divergences
    assert theirs < 0.7 * replaced


def test_the_document_says_so():
    page = " ".join((Path(__file__).parents[2] / "docs" / "how-to" / "flower-app.md").read_text().split())
    assert "Flower's `RdpAccountant` takes C as the sensitivity (add-or-remove-one)" in page
    assert "`rqm.calibrate` takes 2C by default (replace-one)" in page
