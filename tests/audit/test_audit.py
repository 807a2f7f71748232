"""The audits find what is planted, and nothing where there is nothing; they have power."""

import json
from dataclasses import dataclass
from math import exp, inf

import numpy as np
import pytest
import torch

from rqm import PBM, RQM, Rounding, SeededRandom, renyi
from rqm.advice.design import private_table
from rqm.audit.privacy import _pair_epsilon, audit_privacy, exact_epsilon
from rqm.audit.sampler import audit_sampler, crafted_floats, goodness, independence
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.response import RandomizedResponse
from tests.commands import rqm

SMALL = {"scale": 1.0, "steps": 5, "bits": 6}
SHIPPED = [
    RQM(),
    RQM(margin=0.66, keep=0.33),
    PBM(theta=0.1),
    Rounding(levels=2, margin=1.0),
    RandomizedResponse(levels=8, epsilon=3.0),
    DiscreteGaussian(**SMALL),
    Skellam(**SMALL),
    Binomial(**SMALL),
    private_table(3.0, 8, rows=9),
]
IDS = [f"{mech.kind}{number}" for number, mech in enumerate(SHIPPED)]


@pytest.mark.parametrize("mech", SHIPPED, ids=IDS)
def test_every_shipped_sampler_passes(mech):
    assert audit_sampler(mech, draws=200_000).passed


@pytest.mark.parametrize("share", [1.02, pytest.param(0.98, marks=pytest.mark.slow)])
def test_a_keep_that_is_two_per_cent_off_is_found(share):
    found = audit_sampler(RQM(keep=0.42 * share), claimed=RQM())
    assert not found.passed
    assert found.worst.startswith("the law")


@pytest.mark.parametrize("mech", SHIPPED[:4] + SHIPPED[-1:], ids=IDS[:4] + IDS[-1:])
def test_the_plain_operations_of_torch_pass_as_well(mech):
    found = audit_sampler(mech, SeededRandom(0), draws=50_000, backend="torch")
    assert found.passed, found
    assert found.backend == "torch"


def test_seeded_threads_share_no_draws_and_are_not_asked_about_forks():
    found = audit_sampler(RQM(), SeededRandom(3), draws=20_000)
    assert found.passed
    assert found.tests == audit_sampler(RQM(), draws=20_000).tests - 1


def test_crafted_floats_are_what_they_should_be():
    mech = RQM()
    floats = crafted_floats(mech)
    assert {0.0, mech.clip, 5e-324, 1.7e308} <= set(floats.tolist())
    assert np.isfinite(floats).all()
    assert (floats == np.nextafter(mech.clip, 2)).any()
    assert (np.abs(floats) < mech.clip).sum() > 800


def test_a_search_finds_the_worst_crowd_without_being_told():
    mech = Rounding(levels=2, margin=1.0)
    found = audit_privacy(mech, 5, draws=2_000_000)
    assert 0.9 * found.claimed < found.measured <= found.claimed


def test_draws_that_depend_on_each_other_are_found():
    levels = np.random.default_rng(0).integers(0, 16, size=400_000)
    assert independence(levels) > 1e-6
    levels[1::50] = levels[::50]  # one pair in a hundred
    assert independence(levels) < 1e-6


@pytest.mark.parametrize("often", [0, 1])
def test_pairs_are_seen_whichever_outcome_is_the_common_one(often):
    levels = np.where(np.random.default_rng(0).random(20_000) < 0.9, often, 1 - often)
    assert independence(levels) > 1e-6
    levels[1::2] = levels[::2]
    assert independence(levels) < 1e-6


def test_a_level_that_there_is_not_fails_the_audit():
    found = audit_sampler(RQM(levels=32), claimed=RQM(), draws=10_000)
    assert not found.passed
    assert "an outcome that there is not" in found.worst or found.p_value == 0


def test_a_gpu_that_is_not_there_is_named():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(ValueError, match="device = cuda: torch finds no GPU here"):
        audit_sampler(RQM(), backend="cuda")


def test_outcomes_that_one_input_alone_can_have_are_paid_for_by_delta():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.01, 0.99])
    assert _pair_epsilon(p, q, 0.5) == pytest.approx(np.log(50))
    assert _pair_epsilon(p, q, 0.4) == inf


def test_what_is_impossible_must_not_occur():
    assert goodness(np.array([5, 1, 100_000]), np.array([0.0, 0.1, 0.9])) == 0.0
    assert goodness(np.array([0, 0, 100]), np.array([0.0, 0.0, 1.0])) == 1.0


@pytest.mark.parametrize("mech", SHIPPED, ids=IDS)
def test_what_is_measured_never_passes_what_is_certified(mech):
    for clients, draws in ((1, 1_000_000), (3, 300_000)):
        found = audit_privacy(mech, clients, draws=draws)
        assert not found.contradicted
        assert found.measured <= found.claimed


@pytest.mark.parametrize(
    "mech",
    [RQM(), RQM(keep=0.23), PBM(theta=0.1, levels=8), Rounding(levels=2, margin=1.0), SHIPPED[4], SHIPPED[-1]],
    ids=str,
)
def test_the_audit_reaches_four_fifths_of_the_exact_epsilon(mech):
    found = audit_privacy(mech)
    assert found.claimed == renyi(mech, inf, distribution="sampled").lower
    assert found.measured >= 0.8 * found.claimed


@pytest.mark.parametrize("mech", SHIPPED[5:8], ids=IDS[5:8])
def test_noise_with_tails_is_audited_at_a_delta(mech):
    found = audit_privacy(mech, delta=0.01)
    assert 0.8 * found.claimed <= found.measured <= found.claimed
    with pytest.raises(ValueError, match=r"delta = 0.01: must be 0 unless one client"):
        audit_privacy(mech, 3, delta=0.01)


def test_an_exact_epsilon_is_where_its_delta_is():
    """By its definition, in fractions: δ(ε) = max over pairs of Σ max(0, p − e^ε q)."""
    mech = RQM()
    pmfs = [[float(value) for value in mech.sampled_pmf(x)] for x in mech.breakpoints]
    for delta in (1e-4, 1e-2, 0.2):
        epsilon = exact_epsilon(mech, delta)
        found = max(sum(max(0.0, a - exp(epsilon) * b) for a, b in zip(p, q, strict=True)) for p in pmfs for q in pmfs)
        assert found == pytest.approx(delta, rel=1e-9)
    assert exact_epsilon(mech, 1e-13) == pytest.approx(renyi(mech, inf, distribution="sampled").upper, rel=1e-6)


def test_the_papers_claim_is_contradicted_where_a_knot_is_worse_and_ours_is_not():
    mech = RQM(margin=1.0, keep=0.23)
    paper = audit_privacy(mech, claim="paper", draws=10_000_000, rng=SeededRandom(1))
    assert paper.contradicted
    assert paper.claimed == pytest.approx(3.17378, abs=1e-4)
    assert 3.17378 < paper.measured <= 3.21931
    assert abs(paper.x) == pytest.approx(0.9333, abs=1e-4) or abs(paper.x_prime) == pytest.approx(0.9333, abs=1e-4)
    ours = audit_privacy(mech, draws=10_000_000, rng=SeededRandom(1))
    assert not ours.contradicted
    assert ours.claimed == pytest.approx(3.21931, abs=1e-4)


def test_plain_rounding_is_seen_to_rule_inputs_out():
    found = audit_privacy(Rounding(levels=4), draws=100_000)
    assert found.claimed == inf
    assert found.measured > 8
    assert json.loads(json.dumps(found.to_dict()))["claimed"] == "inf"


def test_the_command_line_ends_with_one_if_a_claim_is_contradicted():
    def audit(*args):
        return rqm("audit", *args)

    good = audit("privacy", "--mechanism", "rounding", "--levels", "2", "--margin", "1", "--draws", "100000", "--json")
    assert good.returncode == 0, good.stderr
    assert {"claimed", "measured", "confidence"} <= json.loads(good.stdout).keys()
    bad = audit("privacy", "--margin", "1.0", "--keep", "0.23", "--claim", "paper", "--draws", "10000000")
    assert bad.returncode == 1
    assert bad.stdout.startswith("CONTRADICTED")
    assert bad.stderr == ""
    assert audit("sampler", "--draws", "100000").returncode == 0
    wrong = audit("privacy", "--confidence", "2")
    assert wrong.returncode == 2
    assert "--confidence 2" in wrong.stderr


def test_a_law_that_is_stated_but_not_sampled_is_found():
    """As of a mechanism that was made by copying another's sampler."""

    @dataclass(frozen=True)
    class Copied(Rounding):
        kind = "copied"

        def pmf(self, x):
            return 0.9 * super().pmf(x) + 0.1 / self.levels

    assert not audit_sampler(Copied(levels=4), draws=10_000).passed
    assert audit_sampler(Rounding(levels=4), draws=10_000).passed
