"""ε as it is stated, against every bound that is known for the same release.

`account` evaluates one bound after the other and stops where another cannot be better by much. Its ε is compared with
the least of all bounds, each computed whether `account` would have evaluated it or not. A bound alone may be far above
(Rényi divergences of a long vector always are). The divergences of a vector are compared with those of its
coordinates, each on its own.
"""

from math import inf, isfinite, sqrt

import numpy as np
import pytest
import torch

from rqm import RQM, CorrelatedNoise, Gaussian, Participation, StochasticRounding, ThreatModel
from rqm.accounting.accountant import Question, account, account_together
from rqm.accounting.calibration import Target, _estimated_noise, proposed
from rqm.accounting.record_release import RecordRelease
from rqm.accounting.release import Release
from rqm.bounds import Bound, EpsilonResult, FixedOrder, HonestFraction, PureEpsilon, epsilon, gaussian_epsilon
from rqm.certify.affine_rdp import affine_rdp
from rqm.certify.renyi import renyi
from rqm.config.plan import Adapt, Transforms
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.banded import BandedGaussian
from rqm.registry import BUILT_IN
from rqm.simulation.adaptive_clip import AdaptiveClip
from tests.accounting import attacks
from tests.accounting.attacks import Choice
from tests.accounting.random_mechanisms import log_uniform
from tests.plans import make_plan

KINDS = [mechanism.kind for mechanism in BUILT_IN if mechanism.adds_noise and mechanism.has_integer_messages]
KINDS.remove("table")
CLIENTS, DIMS, EPSILONS = (10, 1000, 100_000), (1, 64, 1024, 2**16, 2**20), (0.5, 3, 10)
ORDERS = (2.0, 32.0, 256.0)


def targets(clients, dim, epsilon, neighboring):
    participation = Participation(clients, 1, max(10**6, clients))
    return Target(epsilon, 1e-6, participation, ThreatModel(neighboring=neighboring), Release(Gaussian(1.0), dim, 1.0))


def releases(kind, target):
    """Each way in which a mechanism proposes itself, with about the noise that a Gaussian needs for ε."""
    for first in proposed(kind, {}, target):
        extra = _estimated_noise(first, first.min_noise, target, None)
        yield target.release(first.with_noise(first.min_noise + extra))


def bounds(release, target):
    """ε by every bound that is known, by name."""
    return {kind: target.account(release, kind).epsilon for kind in ("gaussian", "pld", "rdp")}


def loose_statements(kind, clients, dim, epsilon, neighboring):
    """Statements of one cell that are far above the best bound, or infinite."""
    target = targets(clients, dim, epsilon, neighboring)
    for release in releases(kind, target):
        stated, by_bound = target.account(release).epsilon, bounds(release, target)
        if not stated <= 1.1 * min(by_bound.values()) or not isfinite(stated):
            yield f"{release.mechanism!r}, {clients} clients, {dim} coordinates, {neighboring}: {stated}, {by_bound}"


def loose_vectors(kind, clients, dim, epsilon):
    """Releases for which a vector's divergence at some order is infinite, or more than 1.1 times that of its
    coordinates one by one."""
    for release in releases(kind, targets(clients, dim, epsilon, "replace-one")):
        channel = release.mechanism.discrete
        if channel.additive is not None:
            vector = release.rdp(ORDERS, "replace-one", clients).values
        else:
            vector = affine_rdp(channel, ORDERS, honest=clients, dim=dim, l2_clip=1.0, distribution="sampled")
        by_coordinate = [bound.upper for bound in renyi(channel, ORDERS, clients, distribution="sampled")]
        if not (vector <= 1.1 * dim * np.array(by_coordinate)).all() or not np.isfinite(vector).all():
            yield f"{channel!r}, {clients} clients, {dim} coordinates: {vector}, {by_coordinate}"


SAMPLE = [(10, 64, 3, "replace-one"), (40, 2**20, 10, "zero-out"), (10, 1, 0.5, "zero-out")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_statements_is_near_the_best_bound(kind):
    assert [text for cell in SAMPLE for text in loose_statements(kind, *cell)] == []


@pytest.mark.slow
@pytest.mark.parametrize("neighboring", ["replace-one", "zero-out"])
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_statement_is_near_the_best_bound(kind, clients, neighboring):
    cells = [(dim, epsilon) for dim in DIMS for epsilon in EPSILONS]
    assert [text for cell in cells for text in loose_statements(kind, clients, *cell, neighboring)] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_vectors_reveals_no_more_than_its_coordinates(kind):
    assert [text for cell in [(10, 64, 3), (40, 1024, 3)] for text in loose_vectors(kind, *cell)] == []


@pytest.mark.slow
@pytest.mark.parametrize("clients", CLIENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_vector_reveals_more_than_its_coordinates(kind, clients):
    assert [text for dim in DIMS for text in loose_vectors(kind, clients, dim, 3)] == []


def test_a_bound_left_out_is_noticed(monkeypatch):
    """Power: by the Gaussian certificate alone the ε of one bit and one coordinate is too large."""
    impossible = EpsilonResult(inf, Bound(PureEpsilon(inf)), "rdp")
    monkeypatch.setattr(Release, "_by_profile", lambda *_: impossible)
    monkeypatch.setattr(Release, "_by_renyi", lambda *_: impossible)
    monkeypatch.setattr(Release, "_by_pure", lambda *_: iter([]))
    target = targets(10, 1, 3, "replace-one")
    release = next(releases("randomized-response", target))
    stated = account(release, target.participation, target.threat_model, 1e-6).epsilon
    monkeypatch.undo()
    assert stated > 1.1 * min(bounds(release, target).values())


# -- adaptive clipping: a zero update still sends its count bit ------------------------------------

FRACTIONS = (0.1, 0.5, 0.9)
"""s: the part of the L2 budget that the count bit takes."""
ZERO_OUT = ThreatModel(neighboring="zero-out")


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_the_count_bit_of_a_zero_update_is_part_of_the_distance(fraction):
    adapt = Adapt(share=fraction, start=1.0, quantile=0.5)
    adaptive_clip = AdaptiveClip(adapt, 1.0, torch.device("cpu"))
    long, zero = adaptive_clip.messages(torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)).numpy()
    distance = sqrt(1 + 3 * fraction**2)
    assert np.linalg.norm(long - zero) == pytest.approx(distance)
    values = {"data": "mnist-writers", "model": "linear", "clients": 10, "rounds": 2, "neighboring": "zero-out"}
    plan = make_plan(**values, mechanism=Gaussian(2.0), adapt=adapt, transforms=Transforms(0.3, True))
    assert plan.private_mean().zero_distance == pytest.approx(distance)


@pytest.mark.parametrize("fraction", FRACTIONS)
@pytest.mark.parametrize("multiplier", [2.0, 8.0])
def test_zero_out_neighbors_with_adaptive_clipping_are_charged_for_their_distance(fraction, multiplier):
    distance = sqrt(1 + 3 * fraction**2)
    release = Release(Gaussian(multiplier), 10, 1.0, zero_distance=distance)
    stated = account(release, Participation(20), ZERO_OUT, 1e-5).epsilon
    assert stated == pytest.approx(gaussian_epsilon(distance / multiplier, 1e-5), rel=1e-9)
    assert stated > account(Release(Gaussian(multiplier), 10, 1.0), Participation(20), ZERO_OUT, 1e-5).epsilon


@pytest.mark.parametrize("fraction", FRACTIONS)
def test_zero_out_neighbors_with_adaptive_clipping_are_enumerated(fraction):
    """One client, an update of one coordinate and the count bit, with integer noise."""
    mech, delta = DiscreteGaussian(scale=1.0, steps=31, bits=8), 1e-3
    long, zero = (np.array([sqrt(1 - fraction**2), -fraction]), np.array([0.0, fraction]))
    client = attacks.Client(mech)
    choice = Choice([(client.release([long]), client.release([zero]))])
    exact = attacks.smallest_epsilon(lambda at: attacks.delta([[(1.0, choice)]], at), delta)
    charged, forgotten = (
        account(Release(mech, 2, 1.0, zero_distance=distance), Participation(1), ZERO_OUT, delta).epsilon
        for distance in (sqrt(1 + 3 * fraction**2), 1.0)
    )
    assert exact <= charged <= 1.1 * exact
    assert exact > forgotten or fraction == 0.1  # which is what was stated once


# -- several kinds of releases to users of whom a fraction is honest -------------------------------


def together(mechanisms, participation, threat_model, delta):
    return account_together([(Release(mech, 1, mech.clip), participation, threat_model) for mech in mechanisms], delta)


@pytest.mark.parametrize("seed", range(12))
def test_kinds_of_releases_together_cover_all_cohorts(seed):
    """Each round has its own honest clients; what is attained over two kinds of rounds, one after the other."""
    rng = np.random.default_rng(seed)
    clients, population = int(rng.integers(2, 5)), int(rng.integers(6, 30))
    fraction, delta = float(rng.uniform(0.1, 0.9)), log_uniform(rng, 1e-9, 1e-2)
    participation = Participation(clients, 1, population, "uniform")
    threat_model = ThreatModel(honest_fraction=fraction)
    mechanisms = [StochasticRounding(levels=2, margin=log_uniform(rng, 0.1, 20)) for _ in range(2)]
    counts = attacks.honest_counts(population, max(1, int(fraction * population)), clients, is_user_in=True)
    stages = []
    for mech in mechanisms:
        client = attacks.Client(mech)
        cohorts = []
        for weight, honest in counts:
            pairs = [
                (client.summed([1.0, *others]), client.summed([-1.0, *others])) for others in client.crowds(honest - 1)
            ]
            cohorts.append((weight, Choice(pairs)))
        stages.append(cohorts)
    exact = attacks.smallest_epsilon(lambda at: attacks.delta(stages, at), delta)
    result = together(mechanisms, participation, threat_model, delta)
    assert exact <= result.epsilon * (1 + 1e-9)
    if result.epsilon < inf:
        assert result.bound.failure < delta
        assert epsilon(result.bound, result.bound.failure or 1e-300) == inf or not result.bound.failure
        assert HonestFraction(fraction, population) in result.bound.assumptions


def test_a_fraction_that_leaves_a_client_alone_is_paid_for():
    """Four honest users of 200 in rounds of 100: one of them is alone too often for a small δ."""
    participation, threat_model = Participation(100, 1, 200, "uniform"), ThreatModel(honest_fraction=0.02)
    mech = StochasticRounding(levels=2, margin=0.01)
    single = account(Release(mech, 1, 1.0), participation, threat_model, 1e-5).epsilon
    two = together([mech, StochasticRounding(levels=2, margin=0.02)], participation, threat_model, 1e-5).epsilon
    assert two > single > 4
    parts = [(Release(mech, 1, 1.0), participation, threat_model)]
    assert account_together(parts, 1e-5).epsilon == single
    assert account_together([], 1e-5).epsilon == 0


# -- levels inside the clip ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "mech", [RQM(), RQM(margin=0.5, levels=6, keep=0.3), RQM(margin=2.0, levels=8, keep=0.6)], ids=repr
)
def test_more_honest_clients_never_raise_epsilon_and_pure_epsilon_is_a_bound(mech):
    for delta in (1e-9, 1e-5, 1e-2):
        stated = [account(Release(mech, 1, 1.0), Participation(n), ThreatModel(), delta).epsilon for n in (1, 2, 3)]
        pure = [renyi(mech, inf, n, distribution="sampled").upper for n in (1, 2, 3)]
        assert stated == sorted(stated, reverse=True)
        assert all(eps <= at_most for eps, at_most in zip(stated, pure, strict=True))


def test_the_papers_mechanism_at_a_small_delta():
    """5.4808, 5.6131, 5.5032 were stated once, above its pure ε: 5.4699, 5.2122, 5.1250."""
    stated = [account(Release(RQM(), 1, 1.0), Participation(n), ThreatModel(), 1e-5).epsilon for n in (1, 2, 3)]
    assert stated[0] <= 5.4700
    assert stated[1] <= 5.2123
    assert stated[2] <= 5.1251


# -- what the core alone must charge, state or refuse ----------------------------------------------


@pytest.mark.parametrize("dim", [1, 64])
def test_cohorts_that_are_left_out_are_charged_also_where_one_cohort_remains(dim):
    """An honest fraction near one leaves a single cohort, and a few too small ones that are left out."""
    participation = Participation(1000, 10, 10**6, "uniform", 10)
    release = Release(StochasticRounding(clip=0.5, levels=2, margin=20.0), dim, 1.0)
    question = Question.of(release, participation, ThreatModel(honest_fraction=0.9999), 1e-6)
    assert len(question.cohorts) == 1
    assert question.left_out > 0
    for kind in ("gaussian", "pld"):
        bound = account(release, participation, question.threat_model, 1e-6, accountant=kind).bound
        assert bound.failure >= question.left_out * question.releases or bound.claim == PureEpsilon(inf)


def test_a_limit_on_participations_of_a_record_assumes_a_fixed_order():
    release = RecordRelease(Gaussian(2.0), 4, 1.0, record_clip=1.0)
    threat = ThreatModel(unit="record", neighboring="add-or-remove-one")
    limited = account(release, Participation(3, 20, max_participations=3), threat, 1e-6).bound.assumptions
    assert FixedOrder() in limited
    assert FixedOrder() not in account(release, Participation(3, 20), threat, 1e-6).bound.assumptions


def test_the_distance_from_a_zero_update_is_refused_where_no_bound_uses_it():
    with pytest.raises(ValueError, match=r"zero_distance = 1\.5: must be from 1 to 1"):
        Release(Gaussian(2.0), 4, 1.0, CorrelatedNoise(2.0), zero_distance=1.5)
    with pytest.raises(ValueError, match=r"zero_distance = 1\.5: must be from 1 to 1"):
        RecordRelease(Gaussian(2.0), 4, 1.0, zero_distance=1.5, record_clip=0.5)
    with pytest.raises(ValueError, match=r"zero_distance = 0\.5: must be from 1 to 2"):
        Release(Gaussian(2.0), 4, 1.0, zero_distance=0.5)


def test_the_accountant_refuses_bands_over_which_participations_overlap():
    release = Release(BandedGaussian(2.0, bands=8), 4, 1.0)
    with pytest.raises(ValueError, match=r"mechanism\.bands = 8: must be at most min_separation = 1"):
        account(release, Participation(10, 20), ThreatModel(), 1e-6)
    assert account(release, Participation(10, 20, max_participations=1), ThreatModel(), 1e-6).epsilon > 0


def test_a_mechanism_may_state_a_bound_of_its_own(monkeypatch):
    release, participation = Release(StochasticRounding(levels=2, margin=1.0), 1, 1.0), Participation(10, 3)
    generic = account(release, participation, ThreatModel(), 1e-6)
    monkeypatch.setattr(StochasticRounding, "own_bound", lambda *_: Bound(PureEpsilon(0.01), 1e-9))
    result = account(release, participation, ThreatModel(), 1e-6)
    assert (result.accountant, result.bound.failure) == ("pure", pytest.approx(3e-9))
    assert result.epsilon < generic.epsilon
    assert result.epsilon == pytest.approx(0.03)
    assert result.bound.assumptions == generic.bound.assumptions
