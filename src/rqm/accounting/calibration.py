"""The parameters with which a mechanism reaches a given ε: one monotone search over its noise.

Every ε that the search compares is certified. Estimates only choose where it starts and which
mechanisms it tries.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log, sqrt
from typing import Any

from rqm._util.checks import real
from rqm.accounting.accountant import Question, account
from rqm.accounting.participation import Charges, Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.bounds import EpsilonResult, gaussian_mu
from rqm.correlated.factorization import Workload
from rqm.correlated.scheme import NoiseScheme, scheme_class
from rqm.mechanisms.additive import integer_grid
from rqm.mechanisms.base import Mechanism, ProposalRequest
from rqm.mechanisms.gaussian import Gaussian
from rqm.registry import model_mechanism

ROUNDING_MARGIN = 1.25
"""Correlated noise is worth it where the noise that is needed exceeds that of the clients' rounding by this
factor."""
MAX_SUM_BITS = 16
"""Bits of a sum, at most."""


@dataclass(frozen=True)
class Target:
    """What is to be reached: ε at δ, for releases of vectors of some dimension and clip.

    Attributes:
        epsilon: ε.
        delta: δ.
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        baseline: A release of such vectors. Its mechanism and its noise do not matter.
    """

    epsilon: float
    delta: float
    participation: Participation
    threat_model: ThreatModel
    baseline: Release

    def __post_init__(self) -> None:
        """Validate ε."""
        real("epsilon", self.epsilon, "a positive finite number", 0, inf)
        self.threat_model.check(self.participation)

    @property
    def coordinate_clip(self) -> float:
        """c, the clip of each rotated coordinate: 4C/√d, and never more than C."""
        return coordinate_clip(self.baseline.l2_clip, self.baseline.dim)

    def release(self, mechanism: Mechanism, noise: NoiseScheme | None = None) -> Release:
        """A release of this target.

        Args:
            mechanism: How each client encodes its vector.
            noise: Correlated noise that is added to it.

        Returns:
            The release.
        """
        dim = mechanism.message_length(self.baseline.dim)
        return replace(self.baseline, mechanism=mechanism, dim=dim, noise=noise)

    def find_mechanism(self, *, is_subset: bool = False) -> Mechanism:
        """The mechanism to use where the caller does not ask for one.

        Args:
            is_subset: Whether few coordinates of many are sent, so that one bit may be too coarse.

        Returns:
            One bit; where that is noticeably noisier, PBM; of few coordinates also integer noise.
        """
        choices = (("rounding", 2), ("pbm", 3), ("pbm", 5)) if is_subset else (("rounding", 2), ("pbm", 16))
        clip = self.coordinate_clip
        firsts = [model_mechanism(kind, clip, {"levels": levels}) for kind, levels in choices]
        return best_fit([*firsts, *(proposed("discrete-gaussian", {}, self) if is_subset else [])], self)

    def find_correlated(
        self, workload: Workload | None = None, bits: int = MAX_SUM_BITS
    ) -> tuple[Mechanism, NoiseScheme]:
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
        finest = self.honest * (2 * ROUNDING_MARGIN * clip / (self.gaussian_noise() * self.baseline.l2_clip)) ** 2
        noise = scheme_class().beside_rounding(
            self.participation.window,
            workload,
            clients=self.participation.clients,
            honest=self.honest,
            bits=bits,
            least_squared_mu=finest,
        )
        return fit(model_mechanism("rounding", clip, {"levels": 2}), self, noise), noise

    def _check_window(self) -> None:
        if self.participation.window == 1:
            raise ValueError(
                "min_separation = 1: must be larger with noise = 'correlated', or max_participations = 1; no noise can "
                "be canceled for users who may take part in the next round"
            )

    def question(self, release: Release) -> Question:
        """The question of how private a run of such releases is."""
        return Question.of(release, self.participation, self.threat_model, self.delta)

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
        return gaussian_noise(self.baseline, self.participation, self.threat_model, self.delta, self.epsilon)


class RecordTarget(Target):
    """What is to be reached for records of silos."""

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
    ) -> tuple[Mechanism, NoiseScheme]:
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
        unit = scheme_class().beside(
            1.0, self.participation.window, workload or Workload(self.participation.rounds)
        )  # for integer noise of standard deviation 1
        first = _record_noise(self, unit)
        client_std, steps = first.discrete.scale, first.discrete.steps  # type: ignore[attr-defined]

        def candidate(factor: float) -> tuple[Mechanism, NoiseScheme]:
            return first.with_noise(client_std * factor), unit.scaled(client_std * factor * steps / 2)

        try:
            epsilon_of = lambda factor: self.account(self.release(*candidate(factor))).epsilon  # noqa: E731
            return candidate(least_noise(epsilon_of, self.epsilon, 1.05))
        except UnreachableError:
            raise ValueError(
                f"epsilon = {self.epsilon:g}: correlated noise of records does not reach it here"
            ) from None


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


def gaussian_noise(
    release: Release,
    participation: Participation,
    threat_model: ThreatModel,
    delta: float,
    epsilon: float,
    charges: Charges | None = None,
) -> float:
    """The noise multiplier with which a trusted server's Gaussian reaches ε, by its exact account.

    Dropouts and colluding clients do not matter to a trusted server.

    Args:
        release: Any release; its mechanism and clips do not matter.
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        delta: δ.
        epsilon: ε.
        charges: How often each round was charged; None: every round once, as planned.

    Returns:
        The standard deviation of the noise over the clip of a user or record.
    """
    participation = replace(participation, min_survivors=None)
    threat_model = replace(threat_model, honest_clients=None, honest_fraction=None)
    unit = release.scaled(Gaussian(1.0))
    question = Question.of(unit, participation, threat_model, delta, charges)
    unsampled = unit.sensitivity(question.neighboring) * sqrt(question.releases) / gaussian_mu(epsilon, delta)
    unsampled *= 1 + 1e-9
    if question.is_server and not unit.is_sampled:
        return unsampled

    def epsilon_of(multiplier: float) -> float:
        results = replace(unit, mechanism=Gaussian(multiplier)).results(question)
        return min(result.epsilon for result in results)

    return least_noise(epsilon_of, epsilon, unsampled / 4, 1 - 1e-6)


def fit(first: Mechanism, target: Target, noise: NoiseScheme | None = None, *, interior: bool = False) -> Mechanism:
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


def _estimated_noise(first: Mechanism, minimum: float, target: Target, noise: NoiseScheme | None) -> float:
    """The noise beyond the least with which a mechanism reaches a target if all noise were Gaussian."""
    if first.vector_mechanism is not None:  # its noise does not depend on the clip
        return 0.1
    question = target.question(target.release(first, noise))
    needed = (
        question.release.sensitivity(question.neighboring) / target.baseline.privacy_unit_clip / target.gaussian_noise()
    )
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
    deviation = sqrt(float(mechanism.discrete.variance(0.0)) * target.honest) / target.baseline.privacy_unit_clip
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
    variance = (target.gaussian_noise() * target.baseline.l2_clip) ** 2 / target.honest  # of one client's coordinate
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
        levels=16,  # four bits
        bits=MAX_SUM_BITS,
        clients=target.participation.clients,
        typical=target.baseline.l2_clip / clip / sqrt(target.baseline.dim),
        deviation=target.gaussian_noise() * target.baseline.privacy_unit_clip / clip,
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
    noise = scheme_class().beside(0.5, window, Workload(target.participation.rounds))  # of rounding, in steps
    needed = target.gaussian_noise() * noise.estimated_mu(window, 0.5) / 2
    rounding_std = (
        target.coordinate_clip / target.baseline.l2_clip * sqrt(target.honest)
    )  # of rounding to the ends of the clip
    return needed > ROUNDING_MARGIN * rounding_std


def _record_noise(target: Target, noise: NoiseScheme | None = None) -> Mechanism:
    """Integer noise of silos before it is adjusted, in steps so fine that rounding adds hardly any
    noise; correlated noise is given for integer noise of standard deviation 1."""
    clip, clients = target.coordinate_clip, target.participation.clients
    total_std = target.gaussian_noise() * target.baseline.privacy_unit_clip / clip
    client_std = total_std / sqrt(target.honest)
    options: dict[str, Any] = {}
    if noise is not None:
        client_std *= noise.estimated_mu(target.participation.window, 1.0)
        options = {"ratio": noise.added_std, "widest": noise.max_std}
    steps, bits = integer_grid(
        clients, clients, client_std, total_std, MAX_SUM_BITS, is_single=target.honest == 1, **options
    )
    return model_mechanism("discrete-gaussian", clip, {"steps": steps, "bits": bits, "scale": client_std})
