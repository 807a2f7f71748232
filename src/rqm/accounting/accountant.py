"""The accountant: the smallest ε at δ that the known bounds give for all releases of a run, or of a
ledger."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rqm.accounting.participation import (
    COHORT_FAILURE,
    Charges,
    HonestCohort,
    Participation,
    ThreatModel,
    charge_counts,
    honest_cohorts,
)
from rqm.accounting.release import Release
from rqm.bounds import (
    Assumption,
    Bound,
    EpsilonResult,
    GdpMu,
    HonestAfterParticipation,
    HonestClients,
    HonestFraction,
    MaxParticipations,
    MinSeparation,
    MinSurvivors,
    Neighboring,
    NothingElseReleased,
    SecretParticipation,
    SecureSum,
    TrustedServer,
    UniformSampling,
    compose,
)


@dataclass(frozen=True)
class Question:
    """What is asked of the bounds, and what follows for each of them.

    Attributes:
        release: What one round reveals.
        participation: Who takes part, in the rounds from the first to the last that was charged.
        threat_model: What is assumed about the adversary.
        delta: δ.
        accountant: The kind of bound that is asked for, where several are known; None: all.
        is_server: Whether the adversary is the server.
        window: Rounds from a participation to the next, or to the end of the run, as planned. Noise that was not
            canceled yet protects as much (docs/proofs/correlated.md).
        counts: How many rounds were charged once, twice, ….
        user_counts: How many of these a user took part in at worst.
        charges: All charges.
        releases: The most releases that reveal something of one user, or record.
        neighboring: The relation of a release: with sampling, a sample with the user is compared with one of
            another user. Dropouts may show who takes part, so that sampling hides no one.
        failure: The probability that a Gaussian certificate may leave out of one release; 0 if none is needed.
        cohorts: The possible honest cohorts of a round.
        left_out: The probability of other cohorts.
        honest: The least number of honest clients of a cohort.
    """

    release: Release
    participation: Participation
    threat_model: ThreatModel
    delta: float
    accountant: str | None
    is_server: bool
    window: int
    counts: Mapping[int, int]
    user_counts: Mapping[int, int]
    charges: int
    releases: int
    neighboring: Neighboring
    failure: float
    cohorts: Sequence[HonestCohort]
    left_out: float
    honest: int

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
        """The question how private some releases are.

        See docs/proofs/participation.md#lemma-12.

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
        counts, user_counts = charge_counts(spanned, charges)
        charged, releases = (
            sum(charges_per_round * rounds for charges_per_round, rounds in table.items())
            for table in (counts, user_counts)
        )
        is_server = threat_model.adversary == "server"
        mechanism, is_exact = release.mechanism, release.mechanism.gaussian_multiplier is not None
        is_alone = mechanism.has_integer_messages and mechanism.is_local
        if is_alone or (is_exact and is_server and threat_model.honest_fraction is not None):
            cohorts, left_out = [HonestCohort(1.0, 1, 1.0)], 0.0  # no other client's noise is counted on
        else:
            cohorts, left_out = honest_cohorts(spanned, threat_model, COHORT_FAILURE * delta / max(releases, 1))
        return cls(
            release,
            spanned,
            threat_model,
            delta,
            accountant,
            is_server,
            window=participation.window,
            counts=counts,
            user_counts=user_counts,
            charges=charged,
            releases=releases,
            neighboring=threat_model.neighboring if is_server or spanned.dropouts else "replace-one",
            failure=0.0 if is_exact else release.tail_fraction * delta / max(releases, 1),
            cohorts=cohorts,
            left_out=left_out,
            honest=min(cohort.honest for cohort in cohorts),
        )


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
    release.check(participation, threat_model)
    question = Question.of(release, participation, threat_model, delta, charges, accountant)
    conditions = frozenset(assumptions(question))
    if not question.counts:
        return EpsilonResult(0.0, Bound(GdpMu(0.0), 0.0, conditions), "gaussian")
    reduced = release.reduced()
    if reduced is not release:
        if release.mechanism.vector_mechanism is not None and threat_model.neighboring == "zero-out":
            threat_model = replace(threat_model, neighboring="replace-one")  # zeros are sent as some vertex, too
        question = Question.of(reduced, participation, threat_model, delta, charges, accountant)
    best = min(reduced.results(question), key=lambda result: result.epsilon)
    return best._replace(bound=best.bound.assuming(*conditions))


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
        together.append(EpsilonResult.of(bound, delta, kind))
    return min(together, key=lambda result: result.epsilon)


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
    if mechanism.trusted_server:
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
    charges = question.charges
    yield MaxParticipations(question.releases if question.is_server else charges, charges)
    if participation.min_separation > 1 and participation.limit > 1:
        yield MinSeparation(participation.min_separation)
    if release.noise is not None and mechanism.has_integer_messages:
        yield HonestAfterParticipation(question.window)
    yield from release.assumptions(participation)
    yield NothingElseReleased()
