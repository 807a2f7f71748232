"""Searches for a mechanism that reaches a given ε: `private_mean`, `private_record_mean` and `calibrate`."""

from dataclasses import dataclass, replace
from math import floor
from typing import Any, Literal, TypeVar

from rqm._util.checks import real, shown
from rqm.accounting.calibration import (
    Target,
    best_fit,
    least_noise,
    proposed,
)
from rqm.accounting.guarantee import Guarantee
from rqm.accounting.participation import Participation, ThreatModel, default_delta, implied_sampling
from rqm.accounting.profiles import poisson_sampled_gaussian
from rqm.accounting.release import Release
from rqm.bounds import Adversary, Bound, Neighboring, PrivacyProfile, compose
from rqm.bounds import epsilon as epsilon_of
from rqm.core.base import BaseMean, sent_coordinates
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean
from rqm.core.transform import second_clip
from rqm.correlated.factorization import Workload
from rqm.correlated.iterates import iterate_noise
from rqm.correlated.scheme import NoiseScheme
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.gaussian import Gaussian

Noise = Literal["independent", "correlated"] | NoiseScheme
AnyMean = TypeVar("AnyMean", bound=BaseMean)


def private_mean(  # noqa: PLR0913 (all that a run is)
    *,
    dim: int,
    clients: int,
    epsilon: float | None = None,
    delta: float | None = None,
    mechanism: Mechanism | None = None,
    l2_clip: float | None = 1.0,
    rotate: bool = True,
    rounds: int = 1,
    population: int | None = None,
    max_participations: int | None = None,
    min_separation: int = 1,
    min_survivors: int | None = None,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    adversary: Adversary = "server",
    neighboring: Neighboring = "replace-one",
    coordinates: int | None = None,
    noise: Noise = "independent",
    seed: int = 0,
) -> PrivateMean:
    """Find the mechanism with which a mean is (ε, δ)-private for every user, or take the given one.

    Args:
        dim: Values of a vector.
        clients: Clients in a round.
        epsilon: ε of all rounds together; may be left out if a mechanism is given.
        delta: δ; None: 10⁻⁵, or one over the population if that is less.
        mechanism: How coordinates are encoded; None: the one with the least noise that reaches ε.
        l2_clip: L2 bound of a vector.
        rotate: Whether vectors are rotated, so that their coordinates are alike.
        rounds: Number of rounds.
        population: Users that a round's clients are drawn from.
        max_participations: The most rounds that a user takes part in; None: all.
        min_separation: The least number of rounds from one participation of a user to the next.
        min_survivors: Rounds that end with fewer clients are discarded; None: no client drops
            out.
        honest_clients: Clients of every round that follow the protocol; None: all.
        honest_fraction: The fraction of the population that follows the protocol, instead of
            `honest_clients`; clients must then be drawn uniformly at random.
        adversary: "server", or "outsider" who sees all models but not who takes part; clients
            must then be drawn uniformly at random.
        neighboring: "replace-one" or "zero-out".
        coordinates: How many of the rotated coordinates are sent, a public choice for each round;
            None: all.
        noise: "independent", "correlated" (found with the mechanism), or given correlated noise.
        seed: Seed of the public rotation.

    Returns:
        The private mean; its `guarantee()` is certified.

    Raises:
        ValueError: If no mechanism reaches ε, or the given one has a larger ε.

    >>> mean = private_mean(epsilon=1, delta=1e-6, clients=1000, dim=60_000)
    >>> mean.mechanism.bits, mean.guarantee().epsilon <= 1
    (1, True)
    """
    sampling = implied_sampling(adversary, honest_fraction, min_separation)
    participation = Participation(
        clients, rounds, population, sampling, max_participations, min_separation, min_survivors
    )
    threat_model = ThreatModel(
        adversary=adversary, neighboring=neighboring, honest_clients=honest_clients, honest_fraction=honest_fraction
    )
    values: dict[str, Any] = {"dim": dim, "participation": participation, "threat_model": threat_model, "delta": delta}
    values |= {"l2_clip": l2_clip, "rotate": rotate, "coordinates": coordinates, "seed": seed}
    return _find(PrivateMean, values, mechanism, epsilon, noise)


def private_record_mean(  # noqa: PLR0913 (all that a run is)
    *,
    dim: int,
    clients: int,
    record_clip: float,
    l2_clip: float,
    delta: float,
    epsilon: float | None = None,
    mechanism: Mechanism | None = None,
    sampling_rate: float | None = None,
    neighboring: Neighboring = "add-or-remove-one",
    rotate: bool = True,
    rounds: int = 1,
    max_participations: int | None = None,
    min_separation: int = 1,
    min_survivors: int | None = None,
    honest_clients: int | None = None,
    noise: Noise = "independent",
    seed: int = 0,
    workload: Workload | None = None,
) -> PrivateRecordMean:
    """Find the noise with which a mean over silos is (ε, δ)-private for every record, or take the
    given mechanism.

    Args:
        dim: Values of a vector.
        clients: Silos in a round.
        record_clip: L2 clip of each record's vector.
        l2_clip: L2 bound of a silo's sum.
        delta: δ, well below one over the number of all records.
        epsilon: ε of all rounds together; may be left out if a mechanism is given.
        mechanism: How coordinates are encoded; None: integer noise that reaches ε.
        sampling_rate: The probability with which a silo includes a record in a round (Poisson
            sampling); None: all.
        neighboring: "add-or-remove-one" or "replace-one".
        rotate: Whether vectors are rotated.
        rounds: Number of rounds.
        max_participations: The most rounds that a record is in; None: all.
        min_separation: The least number of rounds from one participation of a record to the next.
        min_survivors: Rounds that end with fewer silos are discarded; None: no silo drops out.
        honest_clients: Silos of every round that follow the protocol; None: all.
        noise: "independent", "correlated" (found with the mechanism), or given correlated noise.
        seed: Seed of the public rotation.
        workload: How the server sums noise into its model, for which correlated noise is found;
            None: momentum 0.9 and a rate that falls to zero.

    Returns:
        The private mean; its `encode` takes the vectors of a silo's records.

    Raises:
        ValueError: If no noise reaches ε, or the given mechanism has a larger ε.
    """
    sampling = implied_sampling("server", None, min_separation)
    participation = Participation(clients, rounds, None, sampling, max_participations, min_separation, min_survivors)
    threat_model = ThreatModel(unit="record", neighboring=neighboring, honest_clients=honest_clients)
    values: dict[str, Any] = {"dim": dim, "participation": participation, "threat_model": threat_model, "delta": delta}
    values |= {"l2_clip": l2_clip, "rotate": rotate, "seed": seed}
    values |= {"record_clip": record_clip, "sampling_rate": sampling_rate}
    return _find(PrivateRecordMean, values, mechanism, epsilon, noise, workload)


def _find(
    mean_class: type[AnyMean],
    values: dict[str, Any],
    mechanism: Mechanism | None,
    epsilon: float | None,
    noise: Noise,
    workload: Workload | None = None,
) -> AnyMean:
    """A private mean with a given mechanism, or with one that is found."""
    if not isinstance(noise, NoiseScheme) and noise not in ("independent", "correlated"):
        raise ValueError(f"noise = {shown(noise)}: must be 'independent', 'correlated', or rqm.CorrelatedNoise(…)")
    if mechanism is not None:
        if noise == "correlated":
            raise ValueError("noise = 'correlated': must be rqm.CorrelatedNoise(…) where a mechanism is given")
        correlated = noise if isinstance(noise, NoiseScheme) else None
        mean = mean_class(**values, mechanism=mechanism, noise=correlated)
        if epsilon is not None:
            reached = mean.guarantee().epsilon
            if not reached <= real("epsilon", epsilon, "a positive finite number", 0, float("inf")):
                raise ValueError(
                    f"epsilon = {epsilon:g}: the mechanism gives {reached:.4g}: must be at least that, or without a "
                    "mechanism, which is then searched for"
                )
        return mean
    if epsilon is None:
        raise ValueError("epsilon = None: must be given, or else a mechanism")
    if values["l2_clip"] is None or not values["rotate"]:
        raise ValueError(
            "mechanism = None: must be given unless vectors are clipped in L2 (l2_clip) and rotated (rotate)"
        )
    if isinstance(noise, NoiseScheme):
        raise ValueError(
            f"noise = {shown(noise)}: must be 'correlated' where no mechanism is given, as both are searched for"
        )
    # Check all values but the mechanism with a trusted server's Gaussian, which is allowed with all of them.
    baseline = mean_class(
        **values, mechanism=Gaussian(1.0), noise=NoiseScheme.of(1.0) if noise == "correlated" else None
    )
    target = baseline.target(epsilon)
    try:
        if noise == "correlated":
            mechanism, correlated = target.find_correlated(workload)
        else:
            mechanism, correlated = target.find_mechanism(is_subset=baseline.is_subset), None
    except ValueError as error:
        raise ValueError(f"epsilon = {epsilon:g}: no mechanism reaches it here ({error})") from None
    return replace(baseline, mechanism=mechanism, noise=correlated, coordinates=values.get("coordinates"))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Calibration:
    """What reaches a given ε.

    Attributes:
        mechanism: The mechanism. It clips every coordinate but no vector: use `private_mean()`.
        noise_multiplier: Standard deviation of the noise of the sum over the L2 clip. The L2
            sensitivity is twice the clip where a vector is replaced.
        epsilon: The ε that is reached.
        guarantee: The guarantee, or None for a trusted server with Poisson sampling.
        mean: The private mean, or None.
    """

    mechanism: Mechanism
    noise_multiplier: float
    epsilon: float
    guarantee: Guarantee | None
    mean: PrivateMean | None

    def private_mean(self) -> PrivateMean:
        """The object that encodes and decodes with this mechanism, and carries the guarantee."""
        if self.mean is None:
            raise TypeError(
                "neighboring = 'add-or-remove-one': Poisson sampling of users needs a trusted server, so there is no "
                "private mean for a secure sum; must be 'replace-one' or 'zero-out'"
            )
        return self.mean


def calibrate(  # noqa: PLR0913 (all that a run is)
    mechanism: str = "rounding",
    *,
    epsilon: float,
    delta: float | None = None,
    clients: int,
    population: int | None = None,
    rounds: int,
    dim: int,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    min_survivors: int | None = None,
    neighboring: Neighboring = "replace-one",
    adversary: Adversary = "server",
    max_participations: int | None = 1,
    min_separation: int = 1,
    l2_clip: float = 1.0,
    coordinates: int | None = None,
    **options: Any,
) -> Calibration:
    """Find the noise with which a mechanism of a given kind makes a run (ε, δ)-private for every
    user.

    This is for comparing mechanisms; `private_mean` chooses one.

    Args:
        mechanism: The name of the mechanism; "rounding" is the 1-bit mechanism.
        epsilon: See `private_mean`.
        delta: See `private_mean`.
        clients: See `private_mean`.
        population: See `private_mean`.
        rounds: See `private_mean`.
        dim: See `private_mean`.
        honest_clients: See `private_mean`.
        honest_fraction: See `private_mean`.
        min_survivors: See `private_mean`.
        neighboring: See `private_mean`; "add-or-remove-one" is a trusted server's Gaussian with
            Poisson sampling, for which the adversary must be "outsider".
        adversary: See `private_mean`.
        max_participations: The most rounds that a user takes part in, against the server.
        min_separation: See `private_mean`.
        l2_clip: See `private_mean`.
        coordinates: See `private_mean`.
        **options: Options of the mechanism, such as `levels`, `keep`, `steps` or `bits`; others
            are chosen.

    Returns:
        The mechanism, its noise and its guarantee.

    Raises:
        ValueError: If no noise reaches ε; the message says which ε is possible.

    >>> calibration = calibrate(
    ...     "gaussian", epsilon=10, delta=1 / 3400, clients=100, population=3400, rounds=1500, dim=1,
    ...     neighboring="add-or-remove-one", adversary="outsider",
    ... )
    >>> round(calibration.noise_multiplier, 3)
    0.791
    """
    real("epsilon", epsilon, "a positive finite number", 0, float("inf"))
    limit = max_participations if adversary == "server" else None
    sampling = implied_sampling(adversary, honest_fraction, min_separation)
    participation = Participation(clients, rounds, population, sampling, limit, min_separation, min_survivors)
    delta = default_delta(population) if delta is None else delta
    if neighboring == "add-or-remove-one":
        if mechanism != Gaussian.kind or adversary != "outsider":
            raise ValueError(
                "neighboring = 'add-or-remove-one': must come with the mechanism gaussian and the adversary outsider"
            )
        return _poisson_gaussian(epsilon, delta, participation)
    threat_model = ThreatModel(
        adversary=adversary, neighboring=neighboring, honest_clients=honest_clients, honest_fraction=honest_fraction
    )
    count = sent_coordinates(dim, True, coordinates)
    bound = l2_clip * second_clip(count) if count < sent_coordinates(dim, True, None) else l2_clip
    target = Target(epsilon, delta, participation, threat_model, Release(Gaussian(1.0), count, bound))
    candidates = proposed(mechanism, options, target)
    mean = PrivateMean(
        dim=dim,
        mechanism=best_fit(candidates, target),
        participation=participation,
        threat_model=threat_model,
        l2_clip=l2_clip,
        coordinates=count,
        delta=delta,
    )
    reached = mean.guarantee()
    return Calibration(mean.mechanism, reached.noise_multiplier, reached.epsilon, reached, mean)


def _poisson_gaussian(epsilon: float, delta: float, participation: Participation) -> Calibration:
    """A trusted server's Gaussian with Poisson sampling, users added or removed, by privacy loss
    distributions."""
    if participation.population is None:
        raise ValueError("population = None: must be the number of users that clients are sampled from")
    rate = participation.clients / participation.population

    def reached(multiplier: float) -> float:
        claim = PrivacyProfile(((poisson_sampled_gaussian(1 / multiplier, rate), 1),))
        return epsilon_of(compose([(Bound(claim), participation.rounds)]), delta)

    multiplier = least_noise(reached, epsilon, 1.0, 1 - 1e-4)
    return Calibration(Gaussian(multiplier), multiplier, reached(multiplier), None, None)


@dataclass(frozen=True)
class RecordOrder:
    """The order of a silo's records that reaches ε with the least noise in the model.

    Attributes:
        mean: The private mean.
        reason: Why this order was chosen, with the noise of the others.
    """

    mean: PrivateRecordMean
    reason: str


def calibrate_records(
    *,
    epsilon: float,
    sampling_rate: float,
    rounds: int,
    clients: int,
    dim: int,
    delta: float,
    record_clip: float,
    l2_clip: float,
    workload: Workload | None = None,
    **options: Any,
) -> RecordOrder:
    """Compare Poisson sampling of records, a fixed order, and a fixed order with correlated noise.

    Records are added or removed. The batch of a record must depend on that record only, such as a
    hash of it, so that adding a record moves no other. The three orders are compared by the noise
    of a trusted server's Gaussian. The private mean that is returned is certified.

    Args:
        epsilon: ε of all rounds together.
        sampling_rate: The probability with which a silo includes a record; in a fixed order, as
            often.
        rounds: Number of rounds.
        clients: Silos in a round.
        dim: Values of a vector.
        delta: δ.
        record_clip: L2 clip of each record's vector.
        l2_clip: L2 bound of a silo's sum.
        workload: How the server sums noise into its model; None: momentum 0.9 and a rate that
            falls to zero.
        **options: Other arguments of `private_record_mean`, such as `honest_clients`.

    Returns:
        The best of the three.

    >>> silos = {"clients": 4, "dim": 50, "delta": 1e-6, "record_clip": 1.0, "l2_clip": 9.0}
    >>> order = calibrate_records(epsilon=8, sampling_rate=0.1, rounds=40, **silos)
    >>> order.mean.participation.min_separation, order.reason.split(":")[0]
    (10, 'A fixed order of 10 batches with correlated noise')
    """
    rate = real("sampling_rate", sampling_rate, "above 0 and at most 1", 0, 1, closed="]")
    batches = min(max(1, floor(1 / rate)), rounds)
    values: dict[str, Any] = {"rounds": rounds, "clients": clients, "dim": dim, "delta": delta}
    values |= {"record_clip": record_clip, "l2_clip": l2_clip} | options
    sampled = private_record_mean(**values, mechanism=Gaussian(1.0), sampling_rate=rate)
    ordered = private_record_mean(**values, mechanism=Gaussian(1.0), min_separation=batches)
    noise = {}
    for name, mean in (("Poisson sampling", sampled), (f"a fixed order of {batches} batches", ordered)):
        noise[name] = mean.target(epsilon).gaussian_noise()
    window = ordered.participation.window
    if window > 1:
        iterates = iterate_noise(workload or Workload(rounds))
        ratio = iterates.over_independent(window, 1.0, iterates.best_ratio(window))
        noise[f"a fixed order of {batches} batches with correlated noise"] = (
            ratio * noise[f"a fixed order of {batches} batches"]
        )
    best = min(noise, key=lambda name: noise[name])
    others = ", ".join(
        f"{name} {value / noise[best]:.2f} times as much" for name, value in noise.items() if name != best
    )
    reason = f"{best[0].upper()}{best[1:]}: the least noise in the model; {others}."
    if best == "Poisson sampling":
        return RecordOrder(private_record_mean(**values, epsilon=epsilon, sampling_rate=rate), reason)
    kind: Noise = "correlated" if "correlated" in best else "independent"
    mean = private_record_mean(**values, epsilon=epsilon, min_separation=batches, noise=kind, workload=workload)
    return RecordOrder(mean, reason)
