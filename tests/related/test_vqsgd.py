"""vqSGD: its pmf and its ε against enumeration, its variance against the published formulas, its use everywhere."""

import json
from fractions import Fraction
from itertools import product
from math import exp, log, sqrt

import numpy as np
import pytest
import torch

from rqm import (
    CorrelatedNoise,
    SeededRandom,
    advise,
    calibrate,
    private_mean,
    private_record_mean,
    simulate,
)
from rqm.accounting.accountant import account
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.audit.privacy import audit_privacy
from rqm.bounds import HonestClients
from rqm.config.plan import Transforms
from rqm.core.from_dict import mean_from_dict
from rqm.related.vqsgd import VQSGD
from tests.commands import rqm
from tests.goodness import p_value
from tests.plans import make_plan
from tests.simulation.small import federation, model

V = np.array([0.5, -0.6])
BITS = [np.array(bits) for bits in product((0, 1), repeat=4)]


def corners(d):
    return sqrt(d) * np.concatenate([np.eye(d), -np.eye(d)])


def one_hot_law(mech, shares):
    """Of all 2^(2d) messages, by their definition."""
    flip = 1 / (1 + exp(mech.epsilon / 2))
    result = np.zeros(len(BITS))
    for vertex, share in enumerate(shares):
        for k, bits in enumerate(BITS):
            wrong = (bits != np.eye(4)[vertex]).sum()
            result[k] += share * flip**wrong * (1 - flip) ** (4 - wrong)
    return result


@pytest.mark.parametrize("d", [1, 2, 5])
def test_a_vector_is_a_mean_of_the_corners_whatever_its_norm(d):
    rng = np.random.default_rng(d)
    for length in (0.0, 0.3, 1.0):
        v = rng.normal(size=d)
        v *= length / np.linalg.norm(v)
        shares = VQSGD().shares(v)
        assert shares.min() >= 0
        assert shares.sum() == pytest.approx(1, abs=1e-12)
        assert shares @ corners(d) == pytest.approx(v, abs=1e-12)
        for local in (False, True):  # and so is what is decoded, on average
            mech = VQSGD(epsilon=3.0, local=local)
            assert mech.decode(mech.response_pmf(v), 1, check=False) == pytest.approx(v, abs=1e-9)


def test_messages_have_the_law_that_was_enumerated():
    mech, source = VQSGD(epsilon=2.0), SeededRandom(3)
    rows = np.tile(V, (12_000, 1))
    observed = np.zeros(16, dtype=np.int64)
    for row in rows:
        observed[int(mech.encode(row, source) @ (8, 4, 2, 1))] += 1
    sum_pmf = one_hot_law(mech, mech.shares(V))
    assert p_value(observed, sum_pmf) > 1e-6
    assert p_value(observed, one_hot_law(mech, mech.shares(0.75 * V))) < 1e-6  # another norm is seen
    assert [sum_pmf[[bits[slot] == 1 for bits in BITS]].sum() for slot in range(4)] == pytest.approx(
        mech.response_pmf(V), abs=1e-9
    )


def test_indices_have_the_law_that_was_enumerated():
    mech, source = VQSGD(epsilon=2.0, local=True), SeededRandom(3)
    observed = mech.encode_sum(np.tile(V, (100_000, 1)), source, np.zeros(4, dtype=np.int64))
    keep = exp(2) / (exp(2) + 3)
    sum_pmf = keep * mech.shares(V) + (1 - keep) / 3 * (1 - mech.shares(V))
    assert p_value(observed, sum_pmf) > 1e-6
    assert p_value(observed, VQSGD(epsilon=2.1, local=True).response_pmf(V)) < 1e-6


def test_epsilon_of_a_message_is_exact():
    mech = VQSGD(epsilon=2.0)
    pmfs = [one_hot_law(mech, np.eye(4)[vertex]) for vertex in range(4)]
    worst = max(log((p / q).max()) for p in pmfs for q in pmfs)
    assert worst == pytest.approx(2.0, abs=1e-12)
    true, false_units = mech.discrete.units
    assert 2 * log(true / false_units) <= worst
    local = VQSGD(epsilon=2.0, local=True)
    true, false_units = local.units(64)
    assert true + 63 * false_units == 2**40
    assert 2.0 - 1e-9 < log(true / false_units) <= 2.0


def test_epsilon_of_a_sum_is_that_of_the_worst_others():
    """Three clients, d = 2: every outcome of all four sums, whatever the two others hold."""
    delta, mech = 0.01, VQSGD(epsilon=3.0)
    mean = private_mean(mechanism=mech, dim=2, clients=3, delta=delta)
    flip = 1 / (1 + exp(1.5))

    def sum_pmf(vertices):
        pmfs = []
        for slot in range(4):
            sums = np.ones(1)
            for vertex in vertices:
                on = 1 - flip if vertex == slot else flip
                sums = np.convolve(sums, (1 - on, on))
            pmfs.append(sums)
        return np.einsum("a,b,c,d->abcd", *pmfs).ravel()

    def spare(epsilon):
        others = product(range(4), repeat=2)
        pairs = ((sum_pmf((0, *vertices)), sum_pmf((vertex, *vertices))) for vertices in others for vertex in (1, 2))
        return max(np.maximum(p - exp(epsilon) * q, 0).sum() for p, q in pairs)

    assert spare(mean.guarantee().epsilon) <= delta
    assert spare(0.995 * mean.guarantee().epsilon) > delta  # and hardly less would be wrong


def test_an_index_is_accounted_for_by_itself():
    mech = VQSGD(epsilon=3.0, local=True)
    mean = private_mean(mechanism=mech, dim=4, clients=100, delta=1e-3, honest_clients=1, rounds=3)
    p, q = (units / 2**40 for units in mech.units(8))
    entry = np.array([p, 1 - p - q, q])
    first, second = np.ones(1), np.ones(1)
    for _ in range(3):
        first, second = np.outer(first, entry).ravel(), np.outer(second, entry[::-1]).ravel()

    def spare(epsilon):
        return np.maximum(first - exp(epsilon) * second, 0).sum()

    assert spare(mean.guarantee().epsilon) <= 1e-3 < spare(0.99 * mean.guarantee().epsilon)
    assert mean.guarantee().min_honest == 1
    with pytest.raises(ValueError, match="honest_clients = None: must be 1"):
        private_mean(mechanism=mech, dim=4, clients=100)


@pytest.mark.parametrize("local", [False, True])
def test_the_published_variance(local):
    """Gandikota et al. 2021: d without privacy, × ((e^ε + 2d − 1)/(e^ε − 1))² told by randomized response."""
    d, draws, mech = 8, 3000, VQSGD(epsilon=3.0, local=local)
    v = np.linspace(-0.3, 0.4, d)
    source = SeededRandom(5)
    result = np.array([mech.decode(mech.encode(v, source), 1) for _ in range(draws)])
    squares = ((result - v) ** 2).sum(axis=1)

    def expected(epsilon):
        if local:
            return d * ((exp(epsilon) + 2 * d - 1) / (exp(epsilon) - 1)) ** 2 - v @ v
        flip = 1 / (1 + exp(epsilon / 2))
        return d - v @ v + 2 * d**2 * flip * (1 - flip) / (1 - 2 * flip) ** 2

    error = squares.std() / sqrt(draws)
    assert abs(squares.mean() - expected(3.0)) < 5 * error
    assert abs(squares.mean() - expected(3.5)) > 5 * error  # another ε is seen
    assert d * mech.variance(2 * d) - v @ v == pytest.approx(expected(3.0), rel=1e-6)
    assert abs(result.mean(axis=0) - v).max() < 5 * result.std() / sqrt(draws)


def test_it_needs_the_square_root_of_d_more_noise():
    result = [
        private_mean(mechanism=VQSGD(epsilon=0.3), dim=d, clients=1000, delta=1e-5).guarantee().noise_std_over_gaussian
        for d in (16, 1024)
    ]
    assert result[0] == pytest.approx(sqrt(16), rel=0.05)
    assert result[1] == pytest.approx(sqrt(1024), rel=0.05)


def test_a_private_mean_of_vectors_in_both_libraries():
    mean = private_mean(mechanism=VQSGD(epsilon=12.0), dim=6, clients=1000, l2_clip=2.0)
    assert mean.coordinates == 16
    assert mean_from_dict(mean.to_dict()) == mean
    x = np.linspace(-1, 1, 6)
    total = torch.zeros(16, dtype=torch.int32)
    mean.add_messages(torch.from_numpy(np.tile(x, (1000, 1))).float(), total, SeededRandom(1), round_index=0)
    clipped = x * min(1, 2 / np.linalg.norm(x))
    error = 5 * 2 * sqrt(mean.mechanism.variance(16) / 1000)
    assert abs(mean.decode(total, 1000).numpy() - clipped).max() < error
    for one in (x, torch.from_numpy(x)):
        message = mean.encode_simulated(one, SeededRandom(2))
        assert message.shape == (16,)
        assert 0 <= message.min() <= message.max() <= 1
    with pytest.raises(ValueError, match="must come without correlated noise"):
        private_mean(mechanism=VQSGD(), dim=6, clients=4, noise=CorrelatedNoise(2.0), min_separation=2, rounds=4)


@pytest.mark.parametrize("secagg", ["ideal", "real"])
def test_it_trains_and_is_charged_for(secagg):
    plan = make_plan(
        mechanism=VQSGD(epsilon=20.0),
        clients=6,
        rounds=2,
        secagg=secagg,
        evaluate_every=2,
        transforms=Transforms(l2_clip=1.0, rotate=True),
    )
    run = simulate(plan, model(), federation())
    last = list(run)[-1]
    assert last.loss is not None
    assert last.bits_up == 6 * 2 * 64
    assert 0 < run.guarantee.epsilon <= 40  # two releases, each of 20 at most


@pytest.mark.slow
def test_the_adviser_knows_it():
    advice = advise(clients=20, dim=16, epsilon=8, bits=2)
    result = next(entry for entry in advice.candidates if entry.name == "vqSGD")
    assert result.epsilon <= 8
    assert result.mse > advice.best.mse
    assert result.bits_per_coordinate == 2


def epsilon_of_zero(mech, d):
    """The true ε of one message between a certain vertex and the vector of zeros, a vertex at random; in fractions."""
    slots = 2 * d
    odds = Fraction(*(mech.units(slots) if mech.local else mech.discrete.units))  # of a vertex against another
    odds = odds if mech.local else odds**2
    return log(1 / (Fraction(1, slots) + (1 - Fraction(1, slots)) / odds))


@pytest.mark.parametrize("local", [False, True])
def test_a_user_who_is_zeroed_out_is_hidden_as_well_as_is_said(local):
    mech = VQSGD(epsilon=6.0, local=local)
    mean = private_mean(mechanism=mech, dim=2**14, clients=1, honest_clients=1, delta=1e-12, neighboring="zero-out")
    truth = epsilon_of_zero(mech, 2**14)
    assert truth > 5.9
    assert mean.guarantee().epsilon >= truth


def test_indices_are_not_hidden_by_others():
    mech = VQSGD(epsilon=4.0, local=True)
    release, single_honest = Release(mech, 16, 1.0), ThreatModel(honest_clients=1)
    expected = account(release, Participation(clients=1), single_honest, 1e-5).epsilon
    assert 3.9 < expected <= 4.0
    result = account(release, Participation(clients=100), single_honest, 1e-5)
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


@pytest.mark.parametrize(("options", "expected"), [((), 4.0), (("--local",), 4.0)])
def test_the_command_tells_of_the_whole_message(options, expected):
    done = rqm("privacy", "--mechanism", "vqsgd", "--epsilon", 4, "--alpha", "inf", *options, "--json")
    result = json.loads(done.stdout)
    assert result["upper"] == pytest.approx(expected, abs=1e-6)
    assert result["lower"] == pytest.approx(expected, abs=1e-6)
    assert result["mechanism"]["mechanism"] == "vqsgd"
    assert result["per"] == "message and round"
    assert "Of a whole message" in rqm("privacy", "--mechanism", "vqsgd", *options).stdout


@pytest.mark.parametrize("local", [False, True])
def test_an_audit_measures_the_message_by_its_own_encoder(local):
    mech = VQSGD(epsilon=2.0, local=local)
    result = audit_privacy(mech, draws=100_000, rng=SeededRandom(1))
    assert result.claimed == pytest.approx(2.0, abs=1e-6)
    assert 1.9 < result.measured < 2.0
    careless = audit_privacy(VQSGD(epsilon=2.2, local=local), draws=100_000, rng=SeededRandom(1))
    assert careless.measured > result.claimed  # an encoder that tells more is seen


def test_an_audit_of_sums():
    result = audit_privacy(VQSGD(epsilon=4.0), 3, draws=100_000, rng=SeededRandom(1))
    assert not result.contradicted
    assert result.measured > 0.6 * result.claimed
    with pytest.raises(ValueError, match="must be audited as certified"):
        audit_privacy(VQSGD(), claim="paper")


def test_a_law_that_no_integers_have_is_refused_before_anything_is_sent():
    with pytest.raises(ValueError, match="epsilon = 2: must be larger for 134217728 vertices"):
        private_mean(mechanism=VQSGD(epsilon=2.0, local=True), dim=2**26, clients=10, honest_clients=1)


def test_indices_are_calibrated_for_their_vertices():
    result = calibrate(
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
    assert 1.95 < result.epsilon <= 2.0
    assert result.guarantee.wire_bits_per_parameter == pytest.approx(10 / 500)


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
    result = plan.private_mean().guarantee()
    assert result.wire_bits_per_parameter == pytest.approx(8 / 100)  # one of 2 · 128
    assert "the user's own device is honest" in result.sentence


def test_vertices_of_many_rows_are_those_of_each():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 7))
    rows /= 1.1 * np.linalg.norm(rows, axis=1)[:, None]
    mech = VQSGD()
    result = mech.vertices(rows, SeededRandom(3))
    words = SeededRandom(3).words(400).tolist()
    for row, vertex, first, second in zip(rows, result, words[::2], words[1::2], strict=True):
        position, below = first / 2**64 * 7**0.5, 0
        sums = np.cumsum(np.abs(row))
        below = int((sums <= position).sum())
        expected = second * 14 >> 64 if below == 7 else below if row[below] > 0 else 7 + below
        assert vertex == expected
