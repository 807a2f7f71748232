"""ε of coordinates: what is measured is below what is certified, and close to what is exact."""

import json
from math import exp, inf

import numpy as np
import pytest

from rqm import RQM, SeededRandom, StochasticRounding, renyi
from rqm.audit.measurement import event_bounds
from rqm.audit.privacy import audit_privacy, exact_epsilon, pair_epsilon
from tests.audit import MECHANISMS, kind
from tests.commands import rqm


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=kind)
def test_of_one_client_at_least_four_fifths_of_the_exact_epsilon_are_measured(mechanism):
    delta = 0.01 if mechanism.is_modular else 0.0  # no number of draws reaches the tails of additive noise
    audit = audit_privacy(mechanism, delta=delta)
    assert not audit.contradicted
    assert 0.8 * audit.claimed <= audit.measured <= audit.claimed
    assert delta or audit.claimed == renyi(mechanism, inf, distribution="sampled").lower


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=kind)
def test_of_three_clients_no_more_is_measured_than_certified(mechanism):
    audit = audit_privacy(mechanism, 3, draws=300_000)
    assert not audit.contradicted
    assert 0.3 * audit.claimed <= audit.measured <= audit.claimed
    with pytest.raises(ValueError, match=r"delta = 0.01: must be 0 unless one client"):
        audit_privacy(mechanism, 3, delta=0.01)


def test_the_search_finds_the_worst_inputs_of_the_other_clients():
    audit = audit_privacy(StochasticRounding(levels=2, margin=1.0), 5, draws=2_000_000)
    assert 0.9 * audit.claimed < audit.measured <= audit.claimed


def test_the_papers_claim_is_contradicted_where_a_level_inside_is_worse_and_ours_is_not():
    mechanism = RQM(margin=1.0, keep=0.23)
    paper, ours = (
        audit_privacy(mechanism, claim=claim, draws=10_000_000, rng=SeededRandom(1)) for claim in ("paper", "certified")
    )
    assert paper.contradicted
    assert paper.claimed == pytest.approx(3.17378, abs=1e-4)
    assert 3.17378 < paper.measured <= 3.21931
    assert np.abs(np.abs([paper.x, paper.x_prime]) - 0.9333).min() < 1e-4
    assert not ours.contradicted
    assert ours.claimed == pytest.approx(3.21931, abs=1e-4)


def test_plain_rounding_excludes_inputs():
    audit = audit_privacy(StochasticRounding(levels=4), draws=100_000)
    assert audit.claimed == inf
    assert audit.measured > 8
    assert json.loads(json.dumps(audit.to_dict()))["claimed"] == "inf"


def test_an_exact_epsilon_satisfies_the_definition():
    """δ(ε) = max over pairs of Σ max(0, p − e^ε q), in fractions."""
    mechanism = RQM()
    pmfs = [[float(value) for value in mechanism.sampled_pmf(x)] for x in mechanism.breakpoints]
    for delta in (1e-4, 1e-2, 0.2):
        factor = exp(exact_epsilon(mechanism, delta))
        largest = max(sum(max(0.0, a - factor * b) for a, b in zip(p, q, strict=True)) for p in pmfs for q in pmfs)
        assert largest == pytest.approx(delta, rel=1e-9)
    assert exact_epsilon(mechanism, 1e-13) == pytest.approx(
        renyi(mechanism, inf, distribution="sampled").upper, rel=1e-6
    )


def test_outcomes_of_one_input_only_are_covered_by_delta():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.01, 0.99])
    assert pair_epsilon(p, q, 0.5) == pytest.approx(np.log(50))
    assert pair_epsilon(p, q, 0.4) == inf


def test_event_bounds_hold_as_often_as_they_say():
    rng = np.random.default_rng(0)
    for probability in (0.0, 0.01, 0.5, 1.0):
        counts = rng.binomial(200, probability, size=(2000, 2))
        lower, upper = np.transpose([event_bounds(*pair, 200, 0.05) for pair in counts.tolist()])
        assert (lower > probability).mean() < 0.07
        assert (upper < probability).mean() < 0.07
        if probability == 0.5:
            assert (lower > 0.5).mean() > 0.02
            assert (upper < 0.5).mean() > 0.02


def test_the_command_exits_with_one_if_a_claim_is_contradicted():
    options = ("--mechanism", "rounding", "--levels", "2", "--margin", "1", "--draws", "100000", "--json")
    sound = rqm("audit", "privacy", *options)
    assert sound.returncode == 0, sound.stderr
    assert {"claimed", "measured", "confidence"} <= json.loads(sound.stdout).keys()
    options = ("--margin", "1.0", "--keep", "0.23", "--claim", "paper", "--draws", "10000000")
    refuted = rqm("audit", "privacy", *options)
    assert refuted.returncode == 1
    assert refuted.stdout.startswith("CONTRADICTED")
    assert refuted.stderr == ""
    assert rqm("audit", "sampler", "--draws", "100000").returncode == 0
    wrong = rqm("audit", "privacy", "--confidence", "2")
    assert wrong.returncode == 2
    assert "--confidence 2" in wrong.stderr
