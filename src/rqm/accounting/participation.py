"""Who takes part in a run, and what is assumed about the adversary."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, NamedTuple, get_args

import numpy as np

from rqm._util.checks import FloatArray, one_of, real, whole
from rqm.bounds import Adversary, Neighboring, Unit
from rqm.correlated.scheme import NoiseScheme
from rqm.mechanisms.base import Mechanism

Sampling = Literal["uniform", "fixed-order", "available"]
Charges = Mapping[int, int]
"""How often each round was charged: more than once where it was interrupted and repeated."""
COHORT_FAILURE = 1e-3
"""The part of δ for cohorts with too few honest clients."""


def implied_sampling(adversary: Adversary, honest_fraction: float | None, min_separation: int) -> Sampling:
    """The way of sampling that a question assumes, where the caller does not name one.

    Args:
        adversary: "server" or "outsider".
        honest_fraction: The honest fraction of the population, or None.
        min_separation: The least number of rounds between two participations.

    Returns:
        "uniform" where a bound needs it, "fixed-order" where users take turns, else "available".
    """
    if adversary == "outsider" or honest_fraction is not None:
        return "uniform"
    return "fixed-order" if min_separation > 1 else "available"


def default_delta(population: int | None) -> float:
    """δ where none is given: 10⁻⁵, or one over the number of users if that is less.

    >>> default_delta(None), default_delta(3400), default_delta(10**6)
    (1e-05, 1e-05, 1e-06)
    """
    return min(1e-5, 1 / population) if population else 1e-5


@dataclass(frozen=True)
class Participation:
    """Who takes part and when. The runner of the rounds enforces it, and the ledger records it.

    Attributes:
        clients: Clients in a round.
        rounds: Number of rounds.
        population: Users that a round's clients are drawn from.
        sampling: "uniform" (a random sample of the population in each round), "fixed-order"
            (users take turns), or "available" (no assumption).
        max_participations: The most rounds that a user, or record, takes part in; None: all of
            them.
        min_separation: The least number of rounds from one participation of a user, or record, to
            the next.
        min_survivors: Rounds that end with fewer clients are discarded and stay charged; None: no
            client drops out.
    """

    clients: int
    rounds: int = 1
    population: int | None = None
    sampling: Sampling = "available"
    max_participations: int | None = None
    min_separation: int = 1
    min_survivors: int | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        object.__setattr__(self, "clients", whole("clients", self.clients, 1))
        object.__setattr__(self, "rounds", whole("rounds", self.rounds, 1))
        one_of("sampling", self.sampling, get_args(Sampling))
        object.__setattr__(self, "min_separation", whole("min_separation", self.min_separation, 1))
        for name, upper in (("population", None), ("max_participations", None), ("min_survivors", self.clients)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), 1, upper))
        if self.population is None:
            return
        if self.population < self.clients:
            raise ValueError(f"population = {self.population}: must be at least {self.clients}, the clients of a round")
        turns = self.population // self.clients
        if self.min_separation > turns:
            raise ValueError(
                f"min_separation = {self.min_separation}: must be at most {turns}, since with {self.clients} clients a "
                f"round {self.population} users are due again after {turns} rounds"
            )

    @property
    def limit(self) -> int:
        """The most rounds that a user can take part in, by both limits."""
        return min(self.max_participations or self.rounds, ceil(self.rounds / self.min_separation))

    @property
    def window(self) -> int:
        """The least number of rounds from a participation of a user to the next, or to the end of
        the run."""
        return self.rounds if self.limit == 1 else self.min_separation

    @property
    def dropouts(self) -> int:
        """The most clients that may drop out of a round."""
        return 0 if self.min_survivors is None else self.clients - self.min_survivors

    def spanning(self, charges: Charges | None) -> "Participation":
        """The same for the rounds that were charged, which limit how often a user took part.

        With a separation these are the rounds from the first to the last that was charged. Without
        one there may be more than planned, where a run was continued with more rounds.

        Args:
            charges: How often each round was charged; None: as planned.

        Returns:
            The participation in these rounds.
        """
        charged = [index for index, charge_count in (charges or {}).items() if charge_count]
        if not charged:
            return self
        if self.min_separation == 1:
            return replace(self, rounds=max(self.rounds, max(charged) + 1))
        return replace(self, rounds=max(charged) - min(charged) + 1)


SUPPORTED: dict[Unit, tuple[tuple[Neighboring, ...], tuple[Adversary, ...], str]] = {
    "user": (
        ("zero-out", "replace-one"),
        ("server", "outsider"),
        ": the number of clients in a round is public (the server divides by it), so no user can be hidden by leaving",
    ),
    "record": (("add-or-remove-one", "replace-one"), ("server",), ""),
}
"""The neighboring relations and adversaries that bounds for a unit of privacy cover, and why no others."""


@dataclass(frozen=True)
class ThreatModel:
    """What is assumed about the adversary and cannot be enforced.

    Attributes:
        adversary: "server" chooses the participants and sees every sum. "outsider" sees all
            models but not who takes part.
        neighboring: "replace-one" (one user's vector, or one record, is replaced by another),
            "zero-out" (a user's vector is replaced by zeros), or "add-or-remove-one" (of
            records).
        unit: What is protected: a "user", who is a client, or a "record" of a client that holds
            many.
        honest_clients: Clients of every round that follow the protocol, dropouts included; None:
            all.
        honest_fraction: The fraction of the population that follows the protocol; at most one of
            the two.
    """

    adversary: Adversary = "server"
    neighboring: Neighboring = "replace-one"
    unit: Unit = "user"
    honest_clients: int | None = None
    honest_fraction: float | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        for name, allowed in (("adversary", Adversary), ("neighboring", Neighboring), ("unit", Unit)):
            one_of(name, getattr(self, name), get_args(allowed))
        if self.honest_clients is not None:
            object.__setattr__(self, "honest_clients", whole("honest_clients", self.honest_clients, 1))
            if self.honest_fraction is not None:
                raise ValueError(f"honest_fraction = {self.honest_fraction}: must not be given with honest_clients")
        if self.honest_fraction is not None:
            fraction = real("honest_fraction", self.honest_fraction, "above 0 and at most 1", 0, 1, closed="]")
            object.__setattr__(self, "honest_fraction", fraction)
        neighboring, adversaries, reason = SUPPORTED[self.unit]
        if self.neighboring not in neighboring:
            raise ValueError(
                f"neighboring = {self.neighboring!r}: must be {' or '.join(map(repr, neighboring))} where the unit is "
                f"a {self.unit}{reason}"
            )
        if self.adversary not in adversaries or (self.honest_fraction is not None and "outsider" not in adversaries):
            name = "honest_fraction" if self.adversary in adversaries else "adversary"
            raise ValueError(
                f"{name} = {getattr(self, name)}: must not be given where the unit is a {self.unit}; the bound is "
                "against the server, for a number of honest silos (honest_clients)"
            )

    def check(self, participation: Participation) -> None:
        """Refuse a participation for which nothing is known under this threat model.

        Args:
            participation: Who takes part.

        Raises:
            ValueError: If the two do not go together.
        """
        clients = participation.clients
        if self.honest_clients is not None and self.honest_clients > clients:
            raise ValueError(
                f"honest_clients = {self.honest_clients}: must be at most {clients}, the clients of a round"
            )
        if self.honest_fraction is not None and (
            participation.population is None or participation.sampling != "uniform"
        ):
            raise ValueError(
                f"honest_fraction = {self.honest_fraction}: must come with a population and with sampling = 'uniform', "
                "which say how many honest clients a round holds; give these, or honest_clients as a number"
            )
        if self.honest_fraction is not None and participation.min_separation > 1:
            raise ValueError(
                f"min_separation = {participation.min_separation}: must be 1 with honest_fraction: users who wait are "
                "not sampled, so no round is a uniform sample; give honest_clients as a number"
            )
        if self.adversary != "outsider":
            return
        if participation.population is None or participation.sampling != "uniform":
            values = f"population = {participation.population}, sampling = {participation.sampling!r}"
            raise ValueError(f"{values}: must be a number of users and 'uniform' where the adversary is an outsider")
        if participation.limit < participation.rounds:
            raise ValueError(
                f"max_participations = {participation.limit}: must not be given where the adversary is an outsider: "
                "users who have used up their rounds are not sampled any more, so the bound for uniform sampling does "
                "not hold"
            )
        if self.honest_clients is not None and self.honest_clients < clients:
            raise ValueError(
                f"honest_clients = {self.honest_clients}: must be given as honest_fraction (such as "
                f"{self.honest_clients / clients:.2g}) where the adversary is an outsider: colluding clients know when "
                "they took part, so how well sampling hides an honest user depends on how many users are honest"
            )

    def check_mechanism(self, mechanism: Mechanism, noise: NoiseScheme | None, participation: Participation) -> None:
        """Refuse a mechanism or correlated noise for which no bound is known.

        Args:
            mechanism: How each client encodes its vector.
            noise: Correlated noise, or None.
            participation: Who takes part.

        Raises:
            ValueError: If they do not go together.
        """
        if mechanism.is_local and mechanism.has_integer_messages and self.honest_clients != 1:
            raise ValueError(
                f"honest_clients = {self.honest_clients}: must be 1 with {mechanism.kind}, a local mechanism whose "
                "messages are accounted for one by one"
            )
        if mechanism.correlation is not None:
            bands, separation = mechanism.correlation.bands, participation.min_separation
            if participation.limit > 1 and bands > separation:
                raise ValueError(
                    f"mechanism.bands = {bands}: must be at most min_separation = {separation}, unless each user takes "
                    "part once (max_participations = 1)"
                )
        if noise is None:
            return
        if self.adversary != "server":
            raise ValueError(
                f"noise = {noise}: must come with adversary = 'server', whose guarantee covers outsiders too"
            )
        if self.honest_fraction is not None:
            raise ValueError(
                f"honest_fraction = {self.honest_fraction}: must be a number of clients of every round with "
                "correlated noise; give honest_clients instead"
            )
        noise.check(mechanism, self.unit)


# -- honest clients -------------------------------------------------------------------------------


class HonestCohort(NamedTuple):
    """One possible cohort: with probability `weight` at least `honest` clients, sampled at `rate`
    from the honest users.

    The rate is 1 if the adversary knows that the user takes part.

    See docs/proofs/participation.md#lemma-5.
    """

    weight: float
    honest: int
    rate: float


def honest_cohorts(
    participation: Participation, threat_model: ThreatModel, failure: float
) -> tuple[list[HonestCohort], float]:
    """The honest clients that a round can hold.

    The adversary may be told which cohort it is, as that does not depend on anyone's data. With an
    honest fraction, the set of honest users is fixed before any sample is drawn, and the server
    cannot influence the sample (docs/proofs/participation.md#assumption-2).

    See docs/proofs/participation.md#lemma-4.

    Args:
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        failure: Probability of small cohorts that may be left out.

    Returns:
        The cohorts, those with few honest clients first, and the probability of those that were
        left out.
    """
    clients, dropouts = participation.clients, participation.dropouts
    is_server = threat_model.adversary == "server"
    if threat_model.honest_fraction is None:
        honest = clients if threat_model.honest_clients is None else threat_model.honest_clients
        # Who drops out may be known in advance, and then sampling hides no one.
        rate = 1.0 if is_server or dropouts else clients / (participation.population or clients)
        return [HonestCohort(1.0, max(1, honest - dropouts), rate)], 0.0
    assert participation.population is not None
    users = max(1, int(threat_model.honest_fraction * participation.population))
    certain = int(is_server)  # the server knows that the user takes part
    weights = hypergeometric_pmf(participation.population - certain, users - certain, clients - certain)
    left_out, groups = 0.0, list[tuple[float, int, int]]()
    for honest, weight in enumerate(weights.tolist(), start=certain):
        if honest == 0 or left_out + weight <= failure:  # a sum without honest clients reveals nothing of them
            left_out += weight if honest else 0.0
        elif groups and honest <= groups[-1][1] * 1.01:  # nearly equal numbers count as the smallest of them
            groups[-1] = groups[-1][0] + weight, groups[-1][1], honest
        elif weight:
            groups.append((weight, honest, honest))
    return [
        HonestCohort(weight, max(1, smallest - dropouts), 1.0 if is_server or dropouts else largest / users)
        for weight, smallest, largest in groups
    ], left_out


def hypergeometric_pmf(population: int, marked: int, draws: int) -> FloatArray:
    """The pmf of how many marked members a sample without replacement holds, rounded up.

    Args:
        population: Members.
        marked: How many of them are marked.
        draws: Size of the sample.

    Returns:
        Probabilities of 0, 1, …, `draws`; each at least the true one.

    >>> hypergeometric_pmf(10, 4, 2).round(6).tolist()
    [0.333333, 0.533333, 0.133333]
    """
    lowest, highest = max(0, draws + marked - population), min(draws, marked)
    h = np.arange(lowest, highest, dtype=np.float64)
    with np.errstate(divide="ignore"):
        steps = np.log(marked - h) + np.log(draws - h) - np.log(h + 1) - np.log(population - marked - draws + h + 1)
    logs = np.concatenate([[0.0], np.cumsum(steps)])
    weights = np.exp(logs - logs.max())
    pmf = np.zeros(draws + 1)
    pmf[lowest : highest + 1] = weights / weights.sum() * (1 + 1e-9)
    return pmf


# -- charges --------------------------------------------------------------------------------------


def charge_counts(participation: Participation, charges: Charges | None) -> tuple[dict[int, int], dict[int, int]]:
    """How many rounds were charged once, twice, …: all rounds, and those that a user took part in at worst.

    The worst ones are those that were charged most often.

    See docs/proofs/participation.md#lemma-1.

    Args:
        participation: Who takes part.
        charges: How often each round was charged; None: every round once, as planned.

    Returns:
        The number of rounds for each number of charges, of all rounds and for one user.
    """
    counts = {1: participation.rounds}
    if charges is not None:
        counts = dict(Counter(charge_count for charge_count in charges.values() if charge_count))
    left, taken = participation.limit, dict[int, int]()
    for charges_per_round in sorted(counts, reverse=True):
        rounds = min(left, counts[charges_per_round])
        if rounds:
            taken[charges_per_round] = rounds
        left -= rounds
    return counts, taken
