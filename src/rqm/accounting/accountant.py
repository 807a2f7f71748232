"""The accountant: the smallest ε at δ that the known bounds give for all releases of a run, or of a
ledger."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isnan, sqrt
from typing import NamedTuple

from rqm.accounting.participation import (
    Charges,
    HonestCohort,
    Participation,
    ThreatModel,
    charge_counts,
    honest_cohorts,
    worst_counts,
)
from rqm.accounting.profiles import (
    mixed,
    poisson_sampled_gaussian,
    renyi_without_replacement,
    sampled_without_replacement,
)
from rqm.accounting.release import Release
from rqm.bounds import (
    Assumption,
    Bound,
    FixedOrder,
    GdpMu,
    HonestAfterParticipation,
    HonestClients,
    HonestFraction,
    MaxParticipations,
    MinSeparation,
    MinSurvivors,
    Neighboring,
    NothingElseReleased,
    PoissonSampling,
    PrivacyProfile,
    PureEpsilon,
    RdpCurve,
    ReleaseProfile,
    SecretParticipation,
    SecureSum,
    TrustedServer,
    UniformSampling,
    best_order,
    compose,
    epsilon,
    profile_at,
    profile_of,
    renyi_epsilons,
)

RDP_ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 3.0, 3.25, 3.5, 3.75, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0),
    *(16.0, 18.0, 20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0),
)
"""Rényi orders of releases that are not sampled; between 2 and 3 the bound of a vector does not
hold."""
COHORT_FAILURE = 1e-3
"""The part of δ for cohorts with too few honest clients."""
RECORD_TAIL_FAILURE = 0.02
"""The part of δ that a Gaussian certificate of records leaves out: the noise of few silos is far from
Gaussian in its tails."""


class EpsilonResult(NamedTuple):
    """ε at δ, the bound that gave it, its kind ("gaussian", "pld", "rdp" or "pure") and its Rényi
    order."""

    epsilon: float
    bound: Bound
    accountant: str
    order: float | None = None


@dataclass(frozen=True)
class Question:
    """What is asked of the accountant: releases, who takes part, the adversary, δ, and how often
    rounds were charged.

    An `accountant` asks for a bound of that kind only, where several are known. The `planned_window`
    is the participation's own if not given.
    """

    release: Release
    participation: Participation
    threat_model: ThreatModel
    delta: float
    counts: Mapping[int, int] = field(default_factory=dict)
    accountant: str | None = None
    planned_window: int | None = None

    @classmethod
    def of(
        cls,
        release: Release,
        participation: Participation,
        threat_model: ThreatModel,
        delta: float,
        charges: Charges | None = None,
        accountant: str | None = None,
    ) -> "Question":
        """The question about the rounds from the first to the last that was charged.

        Noise that was not canceled yet protects as much, so the window stays that of the plan
        (docs/proofs/correlated.md).

        Args:
            release: What one round reveals.
            participation: Who takes part, as planned.
            threat_model: What is assumed about the adversary.
            delta: δ.
            charges: How often each round was charged; None: every round once, as planned.
            accountant: The kind of bound; None: any.

        Returns:
            The question.
        """
        spanned = participation.spanning(charges)
        counts = charge_counts(spanned, charges)
        return cls(release, spanned, threat_model, delta, counts, accountant, participation.window)

    @property
    def window(self) -> int:
        """Rounds from a participation to the next, or to the end of the run, as planned."""
        return self.planned_window or self.participation.window

    @property
    def is_server(self) -> bool:
        """Whether the adversary is the server."""
        return self.threat_model.adversary == "server"

    @property
    def user_counts(self) -> dict[int, int]:
        """How many rounds charged once, twice, … a user took part in at worst."""
        return worst_counts(self.participation, self.counts)

    @property
    def releases(self) -> int:
        """The most releases that reveal something of one user, or record."""
        return sum(charges_per_round * rounds for charges_per_round, rounds in self.user_counts.items())

    @property
    def composed_counts(self) -> Mapping[int, int]:
        """The rounds that are composed: of the user's against the server, all of them against an
        outsider."""
        return self.user_counts if self.is_server else self.counts

    @property
    def neighboring(self) -> Neighboring:
        """The relation of a release: with sampling, a sample with the user is compared with one of
        another user. Dropouts may show who takes part, so that sampling hides no one."""
        is_known = self.is_server or self.participation.dropouts
        return self.threat_model.neighboring if is_known else "replace-one"

    @property
    def tail_failure(self) -> float:
        """The probability that a Gaussian certificate may leave out of one release."""
        fraction = 1e-3 if self.release.record_clip is None else RECORD_TAIL_FAILURE
        return fraction * self.delta / self.releases

    def cohorts(self) -> tuple[list[HonestCohort], float]:
        """The possible honest cohorts of a round, and the probability of those that are left out.

        See docs/proofs/participation.md#lemma-12.
        """
        mechanism, fraction = self.release.mechanism, self.threat_model.honest_fraction
        is_exact = mechanism.gaussian_multiplier is not None  # and no other client's noise is counted on
        if (mechanism.has_integer_messages and mechanism.is_local) or (
            is_exact and self.is_server and fraction is not None
        ):
            return [HonestCohort(1.0, 1, 1.0)], 0.0
        return honest_cohorts(self.participation, self.threat_model, COHORT_FAILURE * self.delta / self.releases)

    @property
    def honest(self) -> int:
        """The least number of honest clients of a cohort."""
        return min(cohort.honest for cohort in self.cohorts()[0])


def account(
    release: Release,
    participation: Participation,
    threat_model: ThreatModel,
    delta: float,
    charges: Charges | None = None,
    *,
    accountant: str | None = None,
) -> EpsilonResult:
    """The smallest ε at δ that the known bounds give for all releases of a run.

    Args:
        release: What one round reveals.
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        delta: δ, above 0 and below 1.
        charges: How often each round was charged; None: every round once, as planned.
        accountant: Use a bound of this kind only, where several are known: "gaussian", "pld" or
            "rdp".

    Returns:
        ε and the bound that gave it, with all of its assumptions.

    Raises:
        ValueError: If the participation, the threat model and the release do not go together.
    """
    threat_model.check(participation)
    _check(release, participation, threat_model)
    question = Question.of(release, participation, threat_model, delta, charges, accountant)
    if not question.counts:
        return EpsilonResult(0.0, Bound(GdpMu(0.0), 0.0, frozenset(assumptions(question))), "gaussian")
    reduced = replace(question, release=release.reduced(), threat_model=_reduced(release, threat_model))
    best = min(_results(reduced), key=lambda result: result.epsilon)
    return best._replace(bound=best.bound.assuming(*assumptions(question)))


def account_together(parts: Sequence[tuple[Release, Participation, ThreatModel]], delta: float) -> EpsilonResult:
    """The smallest ε at δ of several kinds of releases to the same users, by bounds of one kind.

    Args:
        parts: For each kind of release, who takes part in its rounds, and the threat model.
        delta: δ, above 0 and below 1.

    Returns:
        ε and the bound that gave it.
    """
    if len(parts) == 1:
        return account(*parts[0], delta)
    together = []
    for kind in ("gaussian", "rdp"):
        bound = compose([(account(*releases, delta, accountant=kind).bound, 1) for releases in parts])
        together.append(EpsilonResult(epsilon(bound, delta), bound, kind, best_order(bound, delta)))
    return min(together, key=lambda result: result.epsilon)


def _reduced(release: Release, threat_model: ThreatModel) -> ThreatModel:
    """A vector of zeros that is sent as a whole is some vertex, as any other vector is."""
    if release.mechanism.vector_mechanism is not None and threat_model.neighboring == "zero-out":
        return replace(threat_model, neighboring="replace-one")
    return threat_model


def _check(release: Release, participation: Participation, threat_model: ThreatModel) -> None:
    """Refuse what does not go together."""
    is_record = threat_model.unit == "record"
    if is_record != (release.record_clip is not None):
        raise ValueError(
            f"record_clip = {release.record_clip}: must be given where the unit is a record, and only there"
        )
    if release.sampling_rate is not None:
        is_rate = 0 < release.sampling_rate <= 1
        if not is_record or threat_model.neighboring != "add-or-remove-one" or not is_rate:
            raise ValueError(
                f"sampling_rate = {release.sampling_rate}: must be above 0 and at most 1, with unit = 'record' and "
                "neighboring = 'add-or-remove-one', for which the bound of Poisson sampling holds"
            )
        if participation.limit < participation.rounds:
            raise ValueError(
                "sampling_rate: must be given without max_participations and min_separation; each round samples anew"
            )
    if release.mechanism.correlation is not None:
        participation.check_bands(release.mechanism.correlation.bands)
    honest = threat_model.honest_clients
    if release.mechanism.has_integer_messages and release.mechanism.is_local and honest != 1:
        raise ValueError(f"honest_clients = {honest}: must be 1; each client's message is accounted for alone")
    if release.noise is not None and (threat_model.adversary != "server" or threat_model.honest_fraction is not None):
        raise ValueError(
            "noise = 'correlated': must come with adversary = 'server' and a number of honest clients of every round "
            "(honest_clients); in a fixed order no round is a random sample"
        )


# -- candidates -----------------------------------------------------------------------------------


def _results(question: Question) -> Iterator[EpsilonResult]:
    """Results by all bounds that may be the best, the likeliest first."""
    release = question.release
    if release.record_clip is not None:
        yield from _record_results(question)
    elif release.noise is not None:
        yield from _correlated_results(question)
    elif release.has_interior_levels:
        yield from _interior_results(question)
    elif question.accountant in _BY_ACCOUNTANT:
        yield _BY_ACCOUNTANT[question.accountant](question)
    else:
        gaussian = _by_gaussian(question)
        yield gaussian
        if gaussian.epsilon == inf or release.dim == 1 or not _is_tight(question):
            yield _by_profile(question)
            yield _by_renyi(question)
            yield from _by_pure(question)


def _is_tight(question: Question, factor: float = 1.01, window: int = 1) -> bool:
    """Whether the certified μ is so near to that of a Gaussian of the same variance that no bound
    can be much better."""
    question_args = question.neighboring, question.honest
    return question.release.mu(*question_args, question.tail_failure, window) <= factor * question.release.estimated_mu(
        *question_args, window
    )


def _result(question: Question, bound: Bound, accountant: str, order: float | None = None) -> EpsilonResult:
    epsilon_at_delta = epsilon(bound, question.delta)
    return EpsilonResult(inf if isnan(epsilon_at_delta) else epsilon_at_delta, bound, accountant, order)


def _impossible(accountant: str) -> EpsilonResult:
    return EpsilonResult(inf, Bound(PureEpsilon(inf)), accountant)


def _by_gaussian(question: Question) -> EpsilonResult:
    """By certified μ of one release."""
    release, failure = question.release, question.tail_failure
    cohorts, left_out = question.cohorts()
    mus = [release.mu(question.neighboring, cohort.honest, failure) for cohort in cohorts]
    if max(mus) == inf:
        return _impossible("gaussian")
    if len(cohorts) == 1 and cohorts[0].rate == 1:
        failure = left_out if release.mechanism.gaussian_multiplier is not None else left_out + failure
        return _result(question, compose([(Bound(GdpMu(mus[0]), failure), question.releases)]), "gaussian")

    def profile(index: int, count: int) -> ReleaseProfile:
        return profile_of(GdpMu(mus[index] * sqrt(count)))

    failure = 0.0 if release.mechanism.gaussian_multiplier is not None else failure
    return _result(question, _mixed(question, cohorts, left_out, profile, failure), "gaussian")


def _mixed(
    question: Question,
    cohorts: list[HonestCohort],
    left_out: float,
    profile: Callable[[int, int], ReleaseProfile],
    failure: float,
) -> Bound:
    """All releases, by the profiles of each cohort for rounds that were charged so often.

    A round that was repeated had the same clients: its releases are composed before the cohorts
    are mixed.

    See docs/proofs/participation.md#lemma-7.
    """
    parts = []
    for charges_per_round, rounds in question.composed_counts.items():
        amplified = [
            (cohort.weight, sampled_without_replacement(profile(index, charges_per_round), cohort.rate))
            for index, cohort in enumerate(cohorts)
        ]
        parts.append((Bound(PrivacyProfile(((mixed(amplified), 1),)), left_out + failure * charges_per_round), rounds))
    return compose(parts)


def _by_profile(question: Question) -> EpsilonResult:
    """By the privacy losses of single coordinates, where they are few."""
    release, failure, (cohorts, left_out) = question.release, question.tail_failure, question.cohorts()
    is_random = len(cohorts) > 1
    single_round = question.is_server and not is_random
    counts = {question.releases: 1} if single_round else question.composed_counts
    profiles: dict[tuple[int, int], ReleaseProfile] = {}
    for index, cohort in enumerate(cohorts):
        mu = release.mu(question.neighboring, cohort.honest, failure) if is_random else inf
        is_gaussian = mu <= 1.01 * release.estimated_mu(question.neighboring, cohort.honest)
        for charges_per_round in counts:
            profile = (
                profile_of(GdpMu(mu * sqrt(charges_per_round)))
                if is_gaussian
                else release.profile(cohort.honest, charges_per_round)
            )
            if profile is None:
                return _impossible("pld")
            profiles[index, charges_per_round] = profile
    failure = failure if is_random else 0.0
    if single_round:
        bound = Bound(PrivacyProfile(((profiles[0, question.releases], 1),)), left_out * question.releases)
    else:
        bound = _mixed(
            question, cohorts, left_out, lambda index, charges_per_round: profiles[index, charges_per_round], failure
        )
    return _result(question, bound, "pld")


def _by_renyi(question: Question) -> EpsilonResult:
    """By Rényi divergences, with the fewest honest clients of all cohorts."""
    release, (cohorts, left_out) = question.release, question.cohorts()
    if question.is_server:
        curve = release.rdp(RDP_ORDERS, question.neighboring, question.honest)
        bound = compose([(Bound(curve, left_out), question.releases)])
    else:
        # The bound of sampling needs all whole orders below each. With interior levels each order takes seconds.
        orders = tuple(map(float, range(2, 5 if release.has_interior_levels else 129)))
        curve, rate = release.rdp(orders, "replace-one", question.honest), max(cohort.rate for cohort in cohorts)
        parts = []
        for charges_per_round, rounds in question.counts.items():
            amplified = renyi_without_replacement(RdpCurve(curve.orders, charges_per_round * curve.values), rate)
            parts.append((Bound(amplified, left_out), rounds))
        bound = compose(parts)
    return _with_order(question, bound)


def _with_order(question: Question, bound: Bound) -> EpsilonResult:
    """A result by Rényi divergences, with the order that gave it."""
    return _result(question, bound, "rdp", best_order(bound, question.delta))


def _by_pure(question: Question) -> Iterator[EpsilonResult]:
    """By pure ε, of few coordinates in few rounds against the server."""
    count = question.release.dim * question.releases
    if question.is_server and count <= 8 and question.release.mechanism.has_integer_messages:
        _, left_out = question.cohorts()
        pure = PureEpsilon(question.release.pure_epsilon(question.honest))
        yield _result(question, compose([(Bound(pure, left_out), question.releases)]), "pure")


def _interior_results(question: Question) -> Iterator[EpsilonResult]:
    """Where levels lie inside the clip, and certificates take seconds."""
    release = question.release
    if question.is_server and release.dim * question.releases == 1:
        _, left_out = question.cohorts()
        target = (1 - COHORT_FAILURE) * question.delta if left_out else question.delta
        single = release.coordinate_epsilon(target, question.honest)
        yield _result(question, Bound(profile_at(single, target), left_out), "pld")
        yield from _by_pure(question)
        return
    gaussian = _by_gaussian(question)
    yield gaussian
    if release.dim > 16 and gaussian.epsilon < 15.0:  # other bounds are hardly ever smaller
        return
    if not question.is_server:
        yield _by_renyi(question)
        return
    yield from _by_pure(question)
    _, left_out = question.cohorts()
    orders = (1.5, 1.75, 2.0, 8.0, 32.0)  # each takes seconds
    attained = RdpCurve(orders, question.releases * release.attained_rdp(orders, question.honest))
    best = gaussian.epsilon
    by_order = renyi_epsilons(attained, question.delta)
    for at_least, order in sorted(zip(by_order, orders, strict=True)):
        if at_least < best:  # no bound at this order is below what is attained
            curve = release.rdp((order,), question.neighboring, question.honest)
            result = _with_order(question, compose([(Bound(curve, left_out), question.releases)]))
            best = min(best, result.epsilon)
            yield result


def _correlated_results(question: Question) -> Iterator[EpsilonResult]:
    """With correlated noise of users: by its certificate; where that is loose, as if transient noise
    were known.

    See docs/proofs/correlated.md#theorem-8.
    """
    release, window, failure = question.release, question.window, question.tail_failure
    is_exact = release.mechanism.gaussian_multiplier is not None
    mu = release.mu(question.neighboring, question.honest, failure, window)
    bound = compose([(Bound(GdpMu(mu), 0.0 if is_exact else failure), question.releases)])
    result = _result(question, bound, "gaussian")
    yield result
    if not is_exact and (result.epsilon == inf or not _is_tight(question, 1.1, window)):
        yield from _results(replace(question, release=release.independent()))


def _record_results(question: Question) -> Iterator[EpsilonResult]:
    """Of records: by certified μ, with Poisson sampling, or in a fixed order with correlated noise.

    See docs/proofs/participation.md#lemma-11.
    """
    release, window = question.release, question.window
    is_exact = release.mechanism.gaussian_multiplier is not None
    if release.noise is not None:
        if is_exact:
            mu = release.mu(question.neighboring, question.honest, 0.0, window)
            yield _result(question, compose([(Bound(GdpMu(mu)), question.releases)]), "gaussian")
            return
        # A silo that misses a round cancels nothing there, and its noise is missing in two rounds.
        honest = max(1, question.honest - question.participation.dropouts)
        failure = RECORD_TAIL_FAILURE * question.delta
        mu, left_out = release.fixed_order_mu(question.neighboring, honest, window, question.releases, failure)
        result = _result(question, Bound(GdpMu(mu), left_out), "gaussian")
        yield result
        independent = replace(question, release=release.independent())
        estimate = independent.release.estimated_mu(question.neighboring, question.honest) * sqrt(question.releases)
        if result.epsilon > epsilon(Bound(GdpMu(estimate)), question.delta):
            yield from _record_results(independent)
        return
    failure = 0.0 if is_exact else question.tail_failure
    mu, rate = release.mu(question.neighboring, question.honest, question.tail_failure), release.sampling_rate
    if rate in (None, 1) or mu == inf:
        yield _result(question, compose([(Bound(GdpMu(mu), failure), question.releases)]), "gaussian")
        return
    parts = []
    for charges_per_round, rounds in question.user_counts.items():
        parts.append((_sampled(mu, rate, failure), charges_per_round * rounds))
        if charges_per_round > 1:  # or as one release of a sample that stays the same; only one of both happens
            parts.append((_sampled(mu * sqrt(charges_per_round), rate, 0.0), rounds))
    yield _result(question, compose(parts), "pld")


def _sampled(mu: float, rate: float | None, failure: float) -> Bound:
    assert rate is not None
    return Bound(PrivacyProfile(((poisson_sampled_gaussian(mu, rate), 1),)), failure)


_BY_ACCOUNTANT = {"gaussian": _by_gaussian, "pld": _by_profile, "rdp": _by_renyi}


# -- assumptions ----------------------------------------------------------------------------------


def assumptions(question: Question) -> Iterator[Assumption]:
    """The conditions under which the answer to a question holds.

    Args:
        question: The question as it was asked.

    Yields:
        The assumptions that its ε rests on.
    """
    release, participation, threat = question.release, question.participation, question.threat_model
    mechanism = release.mechanism
    is_alone = mechanism.is_local
    honest = participation.clients if threat.honest_clients is None else threat.honest_clients
    if release.is_by_trusted_server:
        yield TrustedServer()
    elif is_alone:
        yield HonestClients(1, participation.clients)
    else:
        if honest > 1 or threat.honest_fraction is not None:
            yield SecureSum()
        if threat.honest_fraction is None:
            yield HonestClients(honest, participation.clients)
        if participation.min_survivors is not None:
            yield MinSurvivors(participation.min_survivors, participation.clients)
    is_exact = mechanism.gaussian_multiplier is not None
    if threat.honest_fraction is not None and (not question.is_server if is_exact else not is_alone):
        assert participation.population is not None  # colluders know when they took part
        yield HonestFraction(threat.honest_fraction, participation.population)
        yield UniformSampling(participation.clients, participation.population)
    if threat.adversary == "outsider" and participation.population is not None and not participation.dropouts:
        yield UniformSampling(participation.clients, participation.population)
        yield SecretParticipation()
    rounds = sum(charges_per_round * rounds for charges_per_round, rounds in question.counts.items())
    yield MaxParticipations(question.releases if question.is_server else rounds, rounds)
    if participation.min_separation > 1 and participation.limit > 1:
        yield MinSeparation(participation.min_separation)
    if threat.unit == "record" and (participation.min_separation > 1 or participation.limit < participation.rounds):
        yield FixedOrder()
    if release.noise is not None and mechanism.has_integer_messages:
        yield HonestAfterParticipation(question.window)
    if release.sampling_rate not in (None, 1):
        assert release.sampling_rate is not None
        yield PoissonSampling(release.sampling_rate)
    yield NothingElseReleased()
