"""vqSGD put together: what a user is told, whoever asks and however, against laws enumerated here."""

import json
from fractions import Fraction
from math import log

import numpy as np
import pytest

from rqm import calibrate, private_mean, private_record_mean
from rqm.accounting.accountant import account
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.audit.privacy import audit_privacy
from rqm.bounds import HonestClients
from rqm.mechanisms.vqsgd import VQSGD
from rqm.plan.plan import Transforms
from rqm.randomness import SeededRandom
from tests.commands import rqm
from tests.plans import make_plan


def told_of_nothing(mech, d):
    """The true ε of one message between a certain vertex and the vector of zeros, a vertex at random; in fractions."""
    slots = 2 * d
    true, other = mech.units(slots) if mech.local else mech.channel.units
    odds = Fraction(true, other) if mech.local else Fraction(true, other) ** 2  # of a vertex against another
    return log(1 / (Fraction(1, slots) + (1 - Fraction(1, slots)) / odds))


@pytest.mark.parametrize("local", [False, True])
def test_a_user_who_is_zeroed_out_is_hidden_as_well_as_is_said(local):
    mech = VQSGD(epsilon=6.0, local=local)
    mean = private_mean(mechanism=mech, dim=2**14, clients=1, honest_clients=1, delta=1e-12, neighboring="zero-out")
    truth = told_of_nothing(mech, 2**14)
    assert truth > 5.9
    assert mean.guarantee().epsilon >= truth


def test_indices_are_not_hidden_by_others():
    mech = VQSGD(epsilon=4.0, local=True)
    release, alone = Release(mech, 16, 1.0), ThreatModel(honest_clients=1)
    expected = account(release, Participation(clients=1), alone, 1e-5).epsilon
    assert 3.9 < expected <= 4.0
    result = account(release, Participation(clients=100), alone, 1e-5)
    assert result.epsilon == expected
    assert HonestClients(1, 100) in result.bound.assumptions
    for honest in (50, None):
        with pytest.raises(ValueError, match=f"honest_clients = {honest}: must be 1"):
            account(release, Participation(clients=100), ThreatModel(honest_clients=honest), 1e-5)
    with pytest.raises(ValueError, match="honest_clients = None: must be 1"):
        private_mean(mechanism=mech, dim=16, clients=100)


def test_records_of_a_silo_are_refused():
    with pytest.raises(ValueError, match="mechanism = 'vqsgd': no bound is known for records"):
        private_record_mean(mechanism=VQSGD(), dim=16, clients=4, record_clip=0.1, l2_clip=1.0, delta=1e-6)


@pytest.mark.parametrize(("options", "wanted"), [((), 4.0), (("--local",), 4.0)])
def test_the_command_tells_of_the_whole_message(options, wanted):
    done = rqm("privacy", "--mechanism", "vqsgd", "--epsilon", 4, "--alpha", "inf", *options, "--json")
    found = json.loads(done.stdout)
    assert found["upper"] == pytest.approx(wanted, abs=1e-6)
    assert found["lower"] == pytest.approx(wanted, abs=1e-6)
    assert found["mechanism"]["mechanism"] == "vqsgd"
    assert found["per"] == "message and round"
    assert "Of a whole message" in rqm("privacy", "--mechanism", "vqsgd", *options).stdout


@pytest.mark.parametrize("local", [False, True])
def test_an_audit_measures_the_message_by_its_own_encoder(local):
    mech = VQSGD(epsilon=2.0, local=local)
    found = audit_privacy(mech, draws=100_000, rng=SeededRandom(1))
    assert found.claimed == pytest.approx(2.0, abs=1e-6)
    assert 1.9 < found.measured < 2.0
    careless = audit_privacy(VQSGD(epsilon=2.2, local=local), draws=100_000, rng=SeededRandom(1))
    assert careless.measured > found.claimed  # an encoder that tells more is seen


def test_an_audit_of_sums():
    found = audit_privacy(VQSGD(epsilon=4.0), 3, draws=100_000, rng=SeededRandom(1))
    assert not found.contradicted
    assert found.measured > 0.6 * found.claimed
    with pytest.raises(ValueError, match="must be audited as certified"):
        audit_privacy(VQSGD(), claim="paper")


def test_a_law_that_no_integers_have_is_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match="epsilon = 2: must be larger for 134217728 vertices"):
        private_mean(mechanism=VQSGD(epsilon=2.0, local=True), dim=2**26, clients=10, honest_clients=1)


def test_indices_are_calibrated_for_their_vertices():
    found = calibrate(
        "vqsgd",
        epsilon=2.0,
        delta=1e-5,
        clients=10,
        honest_clients=1,
        rounds=4,
        max_participations=4,
        dim=500,
        local=True,
    )
    assert 1.95 < found.epsilon <= 2.0
    assert found.guarantee.wire_bits_per_parameter == pytest.approx(10 / 500)


def test_an_index_is_a_few_bits():
    plan = make_plan(
        model="own",
        mechanism=VQSGD(epsilon=9.0, local=True),
        clients=5,
        honest_clients=1,
        dim=100,
        rounds=1,
        transforms=Transforms(l2_clip=1.0, rotate=True),
    )
    found = plan.private_mean().guarantee()
    assert found.wire_bits_per_parameter == pytest.approx(8 / 100)  # one of 2 · 128
    assert "the user's own device is honest" in found.sentence


def test_vertices_of_many_rows_are_those_of_each():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 7))
    rows /= 1.1 * np.linalg.norm(rows, axis=1)[:, None]
    mech = VQSGD()
    found = mech.vertices(rows, SeededRandom(3))
    words = SeededRandom(3).words(400).tolist()
    for row, vertex, first, second in zip(rows, found, words[::2], words[1::2], strict=True):
        place, below = first / 2**64 * 7**0.5, 0
        sums = np.cumsum(np.abs(row))
        below = int((sums <= place).sum())
        wanted = second * 14 >> 64 if below == 7 else below if row[below] > 0 else 7 + below
        assert vertex == wanted
