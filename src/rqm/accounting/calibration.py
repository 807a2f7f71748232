"""The parameters with which a mechanism reaches a given ε: one monotone search over its noise.

Every ε that the search compares is certified. Estimates only choose where it starts and which
mechanisms it tries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt
from typing import Any

from rqm._util.checks import real, whole
from rqm.accounting.accountant import EpsilonResult, Question, account
from rqm.accounting.participation import Participation, ThreatModel, charge_counts
from rqm.accounting.record_release import RecordRelease
from rqm.accounting.release import Release
from rqm.bounds import gaussian_mu
from rqm.correlated.factorization import Workload
from rqm.correlated.handover import gaussian_squared_mu
from rqm.correlated.iterates import IterateNoise, iterate_noise
from rqm.correlated.noise import MAX_STD, CorrelatedNoise
from rqm.mechanisms.additive import integer_grid
from rqm.mechanisms.base import Mechanism, ProposalRequest
from rqm.mechanisms.gaussian import Gaussian
from rqm.registry import model_mechanism

DEFAULT_LEVELS = 16
"""Levels of a mechanism where the caller does not ask for another number: four bits."""
ROUNDING_MARGIN = 1.25
"""Correlated noise is worth it where the noise that is needed exceeds that of the clients' rounding by this
factor."""
HALF_WAY_VARIANCE = 0.25
"""The variance of rounding half-way between two levels, in steps²."""
MIN_TRANSIENT_STD = 0.5
"""Standard deviation of transient noise, in steps, below which it is of no use."""
MAX_SUM_BITS = 16
"""Bits of a sum, at most."""


@dataclass(frozen=True)
class Target:
    """What is to be reached: ε at δ, for vectors of some dimension and clip.

    Attributes:
        epsilon: ε.
        delta: δ.
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        dim: Coordinates that a client sends.
        l2_clip: L2 bound of what is encoded.
    """

    epsilon: float
    delta: float
    participation: Participation
    threat_model: ThreatModel
    dim: int
    l2_clip: float

    def __post_init__(self) -> None:
        """Validate ε and the dimension."""
        real("epsilon", self.epsilon, "a positive finite number", 0, inf)
        whole("dim", self.dim, 1)
        self.threat_model.check(self.participation)

    @property
    def privacy_unit_clip(self) -> float:
        """The clip of what one unit of privacy contributes."""
        return self.l2_clip

    @property
    def coordinate_clip(self) -> float:
        """c, the clip of each rotated coordinate: 4C/√d, and never more than C."""
        return coordinate_clip(self.l2_clip, self.dim)

    def release(self, mechanism: Mechanism, noise: CorrelatedNoise | None = None) -> Release:
        """A release of this target.

        Args:
            mechanism: How each client encodes its vector.
            noise: Correlated noise that is added to it.

        Returns:
            The release.
        """
        return Release(mechanism, mechanism.message_length(self.dim), self.l2_clip, noise)

    def find_mechanism(self, *, is_subset: bool = False) -> Mechanism:
        """The mechanism to use where the caller does not ask for one.

        Args:
            is_subset: Whether few coordinates of many are sent, so that one bit may be too coarse.

        Returns:
            One bit; where that is noticeably noisier, PBM; of few coordinates also integer noise.
        """
        choices = (("rounding", 2), ("pbm", 3), ("pbm", 5)) if is_subset else (("rounding", 2), ("pbm", DEFAULT_LEVELS))
        clip = self.coordinate_clip
        firsts = [model_mechanism(kind, clip, {"levels": levels}) for kind, levels in choices]
        return best_fit([*firsts, *(proposed("discrete-gaussian", {}, self) if is_subset else [])], self)

    def find_correlated(
        self, workload: Workload | None = None, bits: int = MAX_SUM_BITS
    ) -> tuple[Mechanism, CorrelatedNoise]:
        """A mechanism and correlated noise, with the least noise in the model.

        Args:
            workload: How the server sums noise into its model; None: momentum 0.9 and a rate that
                falls to zero.
            bits: Bits of a sum, at most.

        Returns:
            The mechanism and the noise in steps.

        Raises:
            ValueError: If users come back in the next round, so that no noise can be canceled.
        """
        self._check_window()
        workload = workload or Workload(self.participation.rounds)
        clip = self.coordinate_clip
        finest = self.honest * (2 * ROUNDING_MARGIN * clip / (self.gaussian_noise() * self.l2_clip)) ** 2
        noise = best_noise(self.participation, self.honest, workload, least_squared_mu=finest, bits=bits)
        return fit(model_mechanism("rounding", clip, {"levels": 2}), self, noise), noise

    def _check_window(self) -> None:
        if self.participation.window == 1:
            raise ValueError(
                "min_separation = 1: must be larger with noise = 'correlated', or max_participations = 1; no noise can "
                "be canceled for users who may take part in the next round"
            )

    def question(self, release: Release) -> Question:
        """The question of how private a run of such releases is."""
        counts = charge_counts(self.participation, None)
        return Question(release, self.participation, self.threat_model, self.delta, counts)

    def account(self, release: Release, accountant: str | None = None) -> EpsilonResult:
        """The certified ε of a run of releases.

        Args:
            release: What one round reveals.
            accountant: The kind of bound; None: all.

        Returns:
            ε and the bound that gave it.
        """
        return account(release, self.participation, self.threat_model, self.delta, accountant=accountant)

    @property
    def honest(self) -> int:
        """The least number of honest clients."""
        return self.question(self.release(Gaussian(1.0))).honest

    def gaussian_noise(self) -> float:
        """The noise multiplier with which a trusted server's Gaussian reaches the target."""
        threat = replace(self.threat_model, honest_clients=None, honest_fraction=None)
        participation = replace(self.participation, min_survivors=None)
        trusted = replace(self, participation=participation, threat_model=threat)
        return gaussian_noise(trusted.question(trusted.release(Gaussian(1.0))), self.epsilon)


@dataclass(frozen=True, kw_only=True)
class RecordTarget(Target):
    """What is to be reached for records of silos.

    Attributes:
        record_clip: L2 bound of a record's vector.
        sampling_rate: The probability with which a silo includes a record; None: all.
    """

    record_clip: float
    sampling_rate: float | None = None

    @property
    def privacy_unit_clip(self) -> float:
        """The clip of a record's vector."""
        return self.record_clip

    def release(self, mechanism: Mechanism, noise: CorrelatedNoise | None = None) -> RecordRelease:
        """A release of this target.

        Args:
            mechanism: How each silo encodes its vector.
            noise: Correlated noise that is added to it.

        Returns:
            The release.
        """
        return RecordRelease(
            mechanism,
            mechanism.message_length(self.dim),
            self.l2_clip,
            noise,
            record_clip=self.record_clip,
            sampling_rate=self.sampling_rate,
        )

    def find_mechanism(self, *, is_subset: bool = False) -> Mechanism:
        """Integer noise that reaches the target.

        Args:
            is_subset: Not used, since records send all coordinates.

        Returns:
            The mechanism.
        """
        return fit(_record_noise(self), self)

    def find_correlated(
        self,
        workload: Workload | None = None,
        bits: int = MAX_SUM_BITS,
    ) -> tuple[Mechanism, CorrelatedNoise]:
        """Integer noise that stays and noise that is canceled, for records in a fixed order.

        Args:
            workload: How the server sums noise into its model; None: momentum 0.9 and a rate that
                falls to zero.
            bits: Not used.

        Returns:
            The mechanism and the noise in steps.

        Raises:
            ValueError: If records come back in the next round, so that no noise can be canceled.
        """
        self._check_window()
        return _fixed_order(self, workload or Workload(self.participation.rounds))


def coordinate_clip(l2_clip: float, dim: int) -> float:
    """c, the clip of each of `dim` rotated coordinates of vectors within C: 4C/√d, and never more
    than C. After a random rotation few coordinates exceed four times their root mean square.

    Args:
        l2_clip: C.
        dim: d.

    Returns:
        c.
    """
    return min(4.0, sqrt(dim)) * l2_clip / sqrt(dim)


# -- the search -----------------------------------------------------------------------------------


class UnreachableError(ValueError):
    """No possible noise reaches a target; `best` is the smallest ε that some noise does."""

    def __init__(self, best: float) -> None:
        super().__init__(f"the smallest ε that is possible is {best:.4g}" if best < inf else "no ε is possible")
        self.best = best


def least_noise(epsilon_of: Callable[[float], float], target: float, start: float, tolerance: float = 0.996) -> float:
    """The smallest amount of noise that reaches a target, by a bracketing secant search in
    logarithms.

    Args:
        epsilon_of: The certified ε for an amount of noise, which falls with the amount; it raises
            ValueError for amounts that are not possible, which are taken to be too large.
        target: ε that is to be reached.
        start: An estimate of the amount.
        tolerance: The search ends where ε is at least this part of the target. A smaller difference
            is not worth more evaluations.

    Returns:
        An amount whose ε is at most the target.

    Raises:
        UnreachableError: If no possible amount reaches the target.
    """
    low, at_low, high, at_high = 0.0, inf, inf, 0.0
    aim, x, factor, side = sqrt(tolerance) * target, start, 0.5, 0
    previous = (0.0, 0.0)
    for _ in range(80):  # three to six are usual
        try:
            reached = epsilon_of(x)
        except ValueError:
            reached = -inf
        if tolerance * target <= reached <= target:
            return x
        if reached <= target:
            high, at_high, side = x, reached, max(side, 0) + 1
        else:
            low, at_low, side = x, reached, min(side, 0) - 1
        if low and high / low <= 1 + 1e-4:
            if at_high < 0:
                raise UnreachableError(at_low)
            return high
        if not low or high == inf:
            step = max(factor, 1) * _first_steps((x, reached), previous, aim)
            previous, x, factor = (x, reached), x * exp(step if reached > target else -step), factor * 2
        elif abs(side) >= 3 or at_low == inf or at_high <= 0:  # a line may be far off
            x = sqrt(low * high)
        else:
            fraction = log(at_low / aim) / log(at_low / at_high)
            x = low * (high / low) ** min(max(fraction, 0.02), 0.98)
        if not 1e-12 * start < x < 1e12 * start:
            break
    if at_high > 0:
        return high
    raise UnreachableError(at_low)


def _first_steps(current: tuple[float, float], previous: tuple[float, float], aim: float) -> float:
    """A step of the logarithm of noise, before there are amounts on both sides of the target.

    ε is taken to be a power of the noise, and inversely proportional as long as only one is known.
    """
    (x, reached), (x_before, reached_before) = current, previous
    if not 0 < reached < inf:
        return log(2.0)
    slope = log(reached_before / reached) / log(x / x_before) if 0 < reached_before < inf else 1.0
    return min(max(abs(log(reached / aim)) / min(max(slope, 0.5), 2.0), log(1.001)), log(2.0))


def gaussian_noise(question: Question, epsilon: float) -> float:
    """The noise multiplier with which a Gaussian reaches ε, by its exact account.

    Args:
        question: A question about any release; its mechanism and clips do not matter.
        epsilon: ε.

    Returns:
        The standard deviation of the noise over the clip of a user or record.
    """
    unit = question.release.scaled(Gaussian(1.0))
    unsampled = unit.sensitivity(question.neighboring) * sqrt(question.releases) / gaussian_mu(epsilon, question.delta)
    unsampled *= 1 + 1e-9
    if question.is_server and not unit.is_sampled:
        return unsampled

    def epsilon_of(multiplier: float) -> float:
        release, threat = replace(unit, mechanism=Gaussian(multiplier)), question.threat_model
        charges = dict(
            enumerate(charges_per_round for charges_per_round, rounds in question.counts.items() for _ in range(rounds))
        )
        return account(release, question.participation, threat, question.delta, charges).epsilon

    return least_noise(epsilon_of, epsilon, unsampled / 4, 1 - 1e-6)


def fit(first: Mechanism, target: Target, noise: CorrelatedNoise | None = None, *, interior: bool = False) -> Mechanism:
    """The mechanism with the least noise that reaches a target.

    Args:
        first: The mechanism before its noise is adjusted.
        target: What is to be reached.
        noise: Correlated noise that comes with it.
        interior: Whether levels may lie inside the clip.

    Returns:
        The mechanism; its ε is between 99.6 and 100 % of the target.

    Raises:
        ValueError: If no noise reaches the target; the message says which ε is possible.
    """
    minimum = first.min_noise_of_small_cohorts if interior else first.min_noise
    if minimum is None:
        raise ValueError(f"mechanism = {first.kind!r}: has no noise to adjust")
    multiplier = target.gaussian_noise()
    if first.gaussian_multiplier is not None:
        return first.with_noise(multiplier)
    start, release = _estimated_noise(first, minimum, target, noise), target.release
    kind: str | None = None
    reached: dict[float, float] = {}

    def epsilon_of(extra: float) -> float:
        nonlocal kind
        result = target.account(release(first.with_noise(minimum + extra), noise), kind)
        kind = kind or (result.accountant if result.epsilon < inf else None)  # the best bound hardly ever changes
        reached[extra] = result.epsilon
        return result.epsilon

    try:
        extra = least_noise(epsilon_of, target.epsilon, start)
    except UnreachableError as error:
        best = f"; must be at least {error.best:.3g}" if error.best < inf else ""
        raise ValueError(f"epsilon = {target.epsilon:g}: {first.kind} does not reach it here{best}") from None
    mechanism = first.with_noise(minimum + extra)
    if reached[extra] < 0.5 * target.epsilon:  # the least noise that is possible is far more than the target asks for
        raise ValueError(
            f"epsilon = {target.epsilon:g}: {first.kind} has more noise than that here, and cannot be adjusted so "
            f"finely; possible is {reached[extra] * 1.005:.3g}"
        )
    return mechanism


def _estimated_noise(first: Mechanism, minimum: float, target: Target, noise: CorrelatedNoise | None) -> float:
    """The noise beyond the least with which a mechanism reaches a target if all noise were Gaussian."""
    if first.vector_mechanism is not None:  # its noise does not depend on the clip
        return 0.1
    question = target.question(target.release(first, noise))
    needed = question.release.sensitivity(question.neighboring) / target.privacy_unit_clip / target.gaussian_noise()
    honest, window = target.honest, target.participation.window

    def estimated(extra: float) -> float:
        return target.release(first.with_noise(minimum + extra), noise).estimated_mu(
            question.neighboring, honest, window
        )

    try:
        return max(least_noise(estimated, needed, 0.1, 0.99), 1e-3)
    except UnreachableError:
        return 0.1


def noise_over_gaussian(mechanism: Mechanism, target: Target) -> float:
    """The noise of a sum of honest clients over that of a trusted server's Gaussian.

    Args:
        mechanism: A mechanism that sends integers.
        target: What it reaches.

    Returns:
        The ratio of standard deviations.
    """
    deviation = sqrt(float(mechanism.discrete.variance(0.0)) * target.honest) / target.privacy_unit_clip
    return deviation / target.gaussian_noise()


def _least_ratio(first: Mechanism, target: Target) -> float:
    """The least noise of a mechanism over a Gaussian's: where it is large, other mechanisms are
    tried before."""
    if not first.has_integer_messages or first.vector_mechanism is not None or first.min_noise is None:
        return 0.0
    return noise_over_gaussian(first.with_noise(first.min_noise + 1e-6), target)


def best_fit(firsts: Sequence[Mechanism], target: Target) -> Mechanism:
    """The first of some mechanisms that reaches a target with hardly more noise than a Gaussian, or
    the best of them.

    Args:
        firsts: Mechanisms before their noise is adjusted, those with the shortest messages first.
        target: What is to be reached.

    Returns:
        The mechanism with its noise.

    Raises:
        ValueError: If none reaches the target; the message says which ε is possible.
    """
    fitted: list[tuple[float, Mechanism]] = []
    refused: ValueError | None = None
    near_gaussian = 1.05  # noise within this factor of a Gaussian's is as good as any
    variance = (target.gaussian_noise() * target.l2_clip) ** 2 / target.honest  # of one client's coordinate
    may_be_interior = target.threat_model.adversary == "server" and (
        not firsts[0].has_integer_messages or variance > 0.02 * firsts[0].discrete.clip ** 2  # or it is too noisy
    )
    is_small = may_be_interior and target.honest <= 16  # for larger cohorts certificates take up to minutes
    firsts = sorted(firsts, key=lambda first: _least_ratio(first, target) > near_gaussian)
    tries = [(first, is_small) for first in firsts]
    if may_be_interior and not is_small:
        tries += [(first, True) for first in firsts if first.min_noise_of_small_cohorts != first.min_noise]
    for first, interior in tries:
        best_ratio = min((ratio for ratio, _ in fitted), default=inf)
        if (interior and not is_small and best_ratio < 1.5) or _least_ratio(first, target) >= best_ratio:
            continue
        try:
            mechanism = fit(first, target, interior=interior)
        except ValueError as error:
            refused = refused or error
            continue
        if not mechanism.has_integer_messages:
            return mechanism
        ratio = noise_over_gaussian(mechanism, target)
        if ratio < near_gaussian:
            return mechanism
        fitted.append((ratio, mechanism))
    if not fitted:
        assert refused is not None
        raise refused
    return min(fitted, key=lambda pair: pair[0])[1]


def proposed(kind: str, options: Mapping[str, Any], target: Target) -> list[Mechanism]:
    """Mechanisms of a kind before their noise is adjusted; options that are not given are chosen for
    the target.

    Args:
        kind: The name of the mechanism.
        options: Options of it that are given.
        target: What is to be reached.

    Returns:
        One or more mechanisms.

    Raises:
        ValueError: If an option is not one of the mechanism's.
    """
    clip = target.coordinate_clip
    first = model_mechanism(kind, clip, options)
    ask = ProposalRequest(
        levels=DEFAULT_LEVELS,
        bits=MAX_SUM_BITS,
        clients=target.participation.clients,
        typical=target.l2_clip / clip / sqrt(target.dim),
        deviation=target.gaussian_noise() * target.privacy_unit_clip / clip,
        options=options,
    )
    return [model_mechanism(kind, clip, {**proposal, **options}) for _, proposal in first.proposals(ask)] or [first]


# -- what private_mean(epsilon=…) uses --------------------------------------------------------------


def correlated_pays(target: Target) -> bool:
    """Whether correlated noise leaves less in the model than independent noise, by a quick estimate.

    Args:
        target: What is to be reached.

    Returns:
        Whether rounding is fine enough for it.
    """
    window = target.participation.window
    if window == 1:
        return False
    ratio = max(iterate_noise(Workload(target.participation.rounds)).best_ratio(window) / 2, MIN_TRANSIENT_STD)
    needed = target.gaussian_noise() * sqrt(gaussian_squared_mu(window, 0.0, 4 * ratio**2, 1, 1.0))
    rounding_std = target.coordinate_clip / target.l2_clip * sqrt(target.honest)  # of rounding to the ends of the clip
    return needed > ROUNDING_MARGIN * rounding_std


def best_noise(
    participation: Participation,
    honest: int,
    workload: Workload,
    *,
    least_squared_mu: float = 0.0,
    bits: int = MAX_SUM_BITS,
) -> CorrelatedNoise:
    """Correlated noise, in steps of two levels, with the least noise in the model for the same μ.

    Args:
        participation: Who takes part.
        honest: Honest clients in each round.
        workload: How the server sums noise into its model.
        least_squared_mu: μ² of a shift by one step that a client's noise must at least allow for,
            as steps cannot be finer.
        bits: Bits of a sum, at most.

    Returns:
        The noise.
    """
    noise, window, clients = iterate_noise(workload), participation.window, participation.clients
    simple = CorrelatedNoise(max(noise.best_ratio(window) / 2, MIN_TRANSIENT_STD))
    residuals = (0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0)  # standard deviations, in steps
    with_residual = [_best_residual(window, clients, honest, noise, residual, bits) for residual in residuals]
    usable = [
        candidate
        for candidate in with_residual
        if candidate is not None and _gaussian_mu(candidate, window, HALF_WAY_VARIANCE) >= least_squared_mu
    ]
    predicted = {candidate: _predicted(candidate, window, honest, noise) for candidate in (simple, *usable)}
    near_best = [candidate for candidate in predicted if predicted[candidate] <= 1.015 * min(predicted.values())]
    return min(near_best, key=lambda candidate: (candidate.sum_bits(clients, clients), predicted[candidate]))


def _gaussian_mu(noise: CorrelatedNoise, window: int, rounding: float) -> float:
    """μ² of a shift by one step, for one client, if all noise were Gaussian."""
    return gaussian_squared_mu(window, noise.residual_std**2, noise.transient_std**2, noise.gain, rounding)


def _predicted(noise: CorrelatedNoise, window: int, honest: int, iterates: IterateNoise) -> float:
    """The noise of the iterates over that of independent noise, if it were Gaussian but for how
    paths are drawn."""
    transient, residual, gain = noise.transient_std, noise.residual_std, noise.gain
    squared = _gaussian_mu(noise, window, HALF_WAY_VARIANCE)
    if residual:  # that a path ends in a random round reveals more, the fewer clients there are
        squared += (1 / residual**2 + gain**2 / transient**2) ** 2 / (4 * gain * honest)
    return iterates.rms(sqrt(HALF_WAY_VARIANCE), transient, residual, gain) * sqrt(squared) / iterates.rms(1.0, 0.0)


def _best_residual(
    window: int, clients: int, honest: int, iterates: IterateNoise, residual: float, bits: int
) -> CorrelatedNoise | None:
    """The best noise with this residual noise and at most `bits` bits: a coarse grid, then a fine one."""
    best: CorrelatedNoise | None = None
    # A path that ends at random reveals much in the tails of sums with smaller standard deviations, in steps.
    if residual < 20.0 / sqrt(honest):
        return None
    min_ratio = max(15.0 / sqrt(honest), MIN_TRANSIENT_STD)
    shapes = (0.25, 0.4, 0.6, 1.0, 1.6, 2.5)  # of transient noise over `gain` times residual noise
    tried = [(shape * residual, gain) for shape in shapes for gain in range(8, 129, 8)]
    for _ in range(2):
        choices = [
            CorrelatedNoise(round(ratio * gain, 4), residual, gain) for ratio, gain in tried if ratio >= min_ratio
        ]
        choices = [candidate for candidate in choices if candidate.sum_bits(clients, clients) <= bits]
        if not choices:
            return best
        best = min(choices, key=lambda candidate: _predicted(candidate, window, honest, iterates))
        ratio, middle = best.transient_std / best.gain, best.gain
        tried = [(by * ratio, gain) for by in (0.9, 1.0, 1.1) for gain in range(max(2, middle - 7), middle + 8)]
    return best


def _record_noise(target: Target, ratio: float = 0.0) -> Mechanism:
    """Integer noise of silos before it is adjusted, in steps so fine that rounding adds hardly any
    noise.

    Transient noise is `ratio` times as wide.
    """
    clip, clients = target.coordinate_clip, target.participation.clients
    total_std = target.gaussian_noise() * target.privacy_unit_clip / clip
    client_std = total_std / sqrt(target.honest)
    if ratio:
        client_std *= sqrt(gaussian_squared_mu(target.participation.window, 0.0, ratio**2, 1, 1.0))
    steps, bits = integer_grid(
        clients, clients, client_std, total_std, MAX_SUM_BITS, ratio=ratio, widest=MAX_STD, is_single=target.honest == 1
    )
    return model_mechanism("discrete-gaussian", clip, {"steps": steps, "bits": bits, "scale": client_std})


def _fixed_order(target: Target, workload: Workload) -> tuple[Mechanism, CorrelatedNoise]:
    """Integer noise that stays and noise in steps that is canceled, for records in a fixed order."""
    ratio = iterate_noise(workload).best_ratio(target.participation.window)
    first = _record_noise(target, ratio)
    client_std, steps = first.discrete.scale, first.discrete.steps  # type: ignore[attr-defined]

    def noise(factor: float) -> CorrelatedNoise:
        return CorrelatedNoise(ratio * client_std * factor * steps / 2)

    def epsilon_of(factor: float) -> float:
        return target.account(target.release(first.with_noise(client_std * factor), noise(factor))).epsilon

    try:
        factor = least_noise(epsilon_of, target.epsilon, 1.05)
    except UnreachableError:
        raise ValueError(f"epsilon = {target.epsilon:g}: correlated noise of records does not reach it here") from None
    return first.with_noise(client_std * factor), noise(factor)
