"""The guarantee of a run: ε at δ with its bound and all of its assumptions, and every text about it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import exp, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from rqm._util.checks import FloatArray, real
from rqm._util.text import many
from rqm.accounting.accountant import Question, account
from rqm.accounting.calibration import gaussian_noise
from rqm.accounting.participation import Charges, Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.bounds import (
    MAX_FINITE_EPSILON,
    Assumption,
    Bound,
    GdpMu,
    compose,
    epsilon,
    loss_distribution,
    profile_claim,
    profile_of,
    smallest_mu,
)
from rqm.correlated.factorization import Workload, banded
from rqm.correlated.iterates import iterate_noise

USELESS_EPSILON = 100
"""An ε beyond this is no meaningful protection."""
ADVERSARY_TEXTS = {
    ("server", "user"): "the server",
    ("server", "record"): "the server and other silos",
    ("outsider", "user"): "an outsider who sees every model but not who takes part",
}


class CoordinateSubset(NamedTuple):
    """A public choice of coordinates.

    Attributes:
        total: How many coordinates it is chosen from.
        second_clip: The clip after the choice over the first one.
        clipped_away: The part of a vector that the second clip takes at most, on average.
    """

    total: int
    second_clip: float
    clipped_away: float


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(ε, δ)-differential privacy over a whole run, certified for all inputs of all clients.

    Attributes:
        epsilon: ε.
        delta: δ.
        bound: The bound that gave ε, with its failure probability and assumptions.
        accountant: The kind of bound: "gaussian", "pld", "rdp" (at `order`) or "pure".
        order: The Rényi order, or None.
        release: What one round reveals.
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        charged: How often each round was charged; None: every round once, as planned.
        parameters: Parameters of the model.
        bits_under_secagg: Bits of one coordinate under secure aggregation, all messages together;
            None: clients send floats.
        workload: How the server sums noise into its model; None: momentum 0.9 and a rate that
            falls to zero.
        subset: The public choice of coordinates, if fewer are sent.
        runs: The guarantees of the runs, where this one covers several. The other attributes are
            those of the first run.
    """

    epsilon: float
    delta: float
    bound: Bound
    accountant: str
    order: float | None
    release: Release
    participation: Participation
    threat_model: ThreatModel
    charged: Charges | None
    parameters: int
    bits_under_secagg: int | None
    workload: Workload | None = None
    subset: CoordinateSubset | None = None
    runs: "tuple[Guarantee, ...]" = ()
    certified: ClassVar[bool] = True

    # -- what follows from the release --------------------------------------------------------

    @cached_property
    def _question(self) -> Question:
        return Question.of(self.release, self.participation, self.threat_model, self.delta, self.charged)

    @property
    def participations(self) -> int:
        """The most releases that one user, or record, is part of."""
        if self.runs:
            return sum(run.participations for run in self.runs)
        return self._question.releases if self._question.counts else 0

    @property
    def charges(self) -> int:
        """Releases that were charged, or are planned."""
        if self.runs:
            return sum(run.charges for run in self.runs)
        return self._question.charges

    @property
    def dim(self) -> int:
        """Coordinates that a client sends."""
        return self.release.dim

    @property
    def is_by_trusted_server(self) -> bool:
        """Whether a trusted server adds the noise."""
        return self.release.mechanism.trusted_server

    @property
    def min_honest(self) -> int:
        """The least number of honest clients whose noise is counted on."""
        is_alone = self.release.mechanism.is_local or not self._question.counts
        return 1 if is_alone else self._question.honest

    @cached_property
    def per_coordinate(self) -> float | None:
        """D₂ of one coordinate in one round; None where it does not say how private a round is."""
        return None if self.runs else self.release.per_coordinate(self.threat_model.neighboring, self.min_honest)

    @cached_property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise of the sum over the clip of a user (or record). The L2
        sensitivity is twice the clip where one is replaced."""
        second_clip = 1.0 if self.subset is None else self.subset.second_clip
        return self.release.noise_multiplier(self.participation.clients) * second_clip

    @cached_property
    def noise_std_over_gaussian(self) -> float | None:
        """The noise of the sum over that of a trusted server's Gaussian with the same ε by its exact
        account."""
        mechanism = self.release.mechanism
        second_clip = 1.0 if self.subset is None else self.subset.second_clip
        if self.runs:
            return None
        if mechanism.gaussian_multiplier is not None:
            return self.noise_multiplier / mechanism.gaussian_multiplier
        question, clients = self._question, self.participation.clients
        if self.release.noise is not None:
            relation, window = question.neighboring, question.window
            bound = self.release.correlated_bound(relation, question.honest, window, question.failure)
            assert isinstance(bound.claim, GdpMu)
            return bound.claim.mu / self.release.estimated_mu(relation, clients, window) * second_clip
        if not 0 < self.epsilon < MAX_FINITE_EPSILON:
            return None
        return self.noise_multiplier / self._gaussian_noise()

    def _gaussian_noise(self) -> float:
        """The noise multiplier of a trusted server's Gaussian with the same ε by its exact account."""
        return gaussian_noise(
            self.release, self.participation, self.threat_model, self.delta, self.epsilon, self.charged
        )

    @cached_property
    def correlated_noise_ratio(self) -> float:
        """The noise of the models over that of a trusted server's independent Gaussian noise with the
        same ε."""
        release, clients, rounds = self.release, self.participation.clients, self.participation.rounds
        shape = release.mechanism.correlation
        workload = self.workload or Workload(rounds)
        if shape is not None:
            workload = Workload(rounds, shape.momentum, shape.schedule)
            return banded(workload, shape.bands).over_independent(workload)
        if release.noise is None or not 0 < self.epsilon < MAX_FINITE_EPSILON:
            return 1.0
        unit, independent = 1.0, release.mechanism.sum_noise_std(clients)
        if release.mechanism.has_integer_messages:
            channel = release.mechanism.discrete
            unit = sqrt(clients) * channel.grid.step / release.privacy_unit_clip
            independent = sqrt(float(channel.variance(0.0))) / channel.grid.step
        iterates = release.noise.iterate_std(workload, independent)
        return unit * iterates / iterate_noise(workload).rms(self._gaussian_noise(), 0.0)

    @property
    def bits_per_coordinate(self) -> int:
        """Bits of one coordinate of a message before secure aggregation."""
        return self.release.mechanism.bits

    @property
    def wire_bits_per_parameter(self) -> float | None:
        """Bits under secure aggregation for one parameter of the model; None: clients send floats."""
        if self.bits_under_secagg is None:
            return None
        mechanism, dim = self.release.mechanism, self.release.dim
        message = mechanism.message_bits(dim) if mechanism.is_local else self.bits_under_secagg * dim
        return message / self.parameters

    # -- what follows from the bound ----------------------------------------------------------

    @property
    def mu(self) -> float | None:
        """μ of Gaussian DP, except for the bound's failure probability and 10⁻¹²; None if no finite
        one is known."""
        return smallest_mu(self.bound)

    @property
    def assumptions(self) -> list[Assumption]:
        """The conditions under which the guarantee holds, in a fixed order."""
        return sorted(
            self.bound.assumptions, key=lambda assumption: Assumption.__subclasses__().index(type(assumption))
        )

    def epsilon_at(self, delta: float) -> float:
        """ε of the same bound at another δ.

        Args:
            delta: δ, above 0 and below 1.

        Returns:
            ε; infinite if δ is not larger than the bound's failure probability.
        """
        return epsilon(self.bound, delta)

    def delta_at(self, eps: float) -> float:
        """δ of the same bound at another ε.

        Args:
            eps: ε, at least 0.

        Returns:
            δ, at most 1.
        """
        eps = real("epsilon", eps, "at least 0", 0, float("inf"), closed="[")
        return float(min(1.0, profile_of(self.bound.claim).delta(np.array([eps]))[0] + self.bound.failure))

    def advantage(self, false_positive_rate: float) -> float:
        """The largest true positive rate of an attack on membership, or any other test of two
        neighbors.

        Args:
            false_positive_rate: The attack's false positive rate, from 0 to 1.

        Returns:
            The largest true positive rate that the guarantee allows.
        """
        fpr = real("false_positive_rate", false_positive_rate, "from 0 to 1", 0, 1, closed="[]")
        return float(self.trade_off(np.array([fpr]))[0])

    def trade_off(self, false_positive_rates: FloatArray) -> FloatArray:
        """The largest true positive rate at some false positive rates (the trade-off curve, Dong et
        al. 2022).

        Args:
            false_positive_rates: Values from 0 to 1.

        Returns:
            True positive rates.
        """
        fpr = np.asarray(false_positive_rates, dtype=np.float64)
        claim = self.bound.claim
        if isinstance(claim, GdpMu):
            best = ndtr(ndtri(fpr) + claim.mu)
        else:
            profile = profile_of(claim).delta
            best = np.ones_like(fpr)
            for eps in np.linspace(0, max(1.0, min(2 * self.epsilon, 200)), 200):
                delta = float(profile(np.array([eps]))[0])
                best = np.minimum(best, np.minimum(exp(eps) * fpr + delta, 1 - np.exp(-eps) * (1 - fpr - delta)))
        return np.asarray(np.clip(best + self.bound.failure, fpr, 1))

    def to_pld(self) -> Any:
        """The privacy loss distribution of the bound, as dp_accounting's `PrivacyLossDistribution`.

        The bound's failure probability is not part of it: add it to every δ.

        Returns:
            The distribution.

        Raises:
            ValueError: If the bound is so loose that it has none.
        """
        loss = loss_distribution(profile_claim(self.bound.claim), self.delta)
        if loss is None:
            raise ValueError(f"epsilon = {self.epsilon:.4g}: is too large for a privacy loss distribution")
        return loss

    def to_dp_event(self) -> Any:
        """A dp_accounting event that costs at least as much, for its accountants.

        Returns:
            A `GaussianDpEvent` whose noise multiplier is relative to the sensitivity of this
            guarantee's neighboring relation. The bound's failure probability and 10⁻¹² are not
            part of it: add them to δ.

        Raises:
            ValueError: If no μ of Gaussian DP is known.
        """
        import dp_accounting  # noqa: PLC0415 (takes a second)

        mu = self.mu
        if mu is None:
            raise ValueError(f"epsilon = {self.epsilon:.4g}: comes without a μ of Gaussian DP; see to_pld()")
        return dp_accounting.GaussianDpEvent(1 / mu) if mu else dp_accounting.NoOpDpEvent()

    # -- texts --------------------------------------------------------------------------------

    @property
    def adversary_text(self) -> str:
        """Against whom the guarantee holds."""
        if self.is_by_trusted_server:
            return "anyone who sees only what the server releases"
        return ADVERSARY_TEXTS[self.threat_model.adversary, self.threat_model.unit]

    @property
    def headline(self) -> str:
        """The guarantee in one line."""
        mu = self.mu
        level = f"{self.threat_model.unit}-level ({self.threat_model.neighboring})"
        by_mu = "" if mu is None else f", μ = {mu:.4g}"
        return f"ε = {self.epsilon:.4g}, δ = {self.delta:.3g}{by_mu}, {level}, against {self.adversary_text}"

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence, with all of its assumptions."""
        if self.epsilon > USELESS_EPSILON:
            return f"ε = {self.epsilon:.4g} at δ = {self.delta:.3g}: this is no meaningful protection"
        unit = self.threat_model.unit
        alternative = {
            "replace-one": f"another {unit}'s data in their place",
            "zero-out": "zeros in their place",
            "add-or-remove-one": f"the {unit} left out",
        }[self.threat_model.neighboring]
        conditions = "; ".join(assumption.text(unit) for assumption in self.assumptions)
        return (
            f"Certified for every {unit} (ε = {self.epsilon:.4g}, δ = {self.delta:.3g}): whatever "
            f"{self.adversary_text} computes, no conclusion is more than e^ε = {_odds(self.epsilon)} times as likely "
            f"with the {unit}'s data as with {alternative}, up to an additional probability of δ; "
            f"provided that {conditions}"
        )

    @property
    def remedies(self) -> list[str]:
        """What would make a useless ε smaller."""
        if self.epsilon <= USELESS_EPSILON:
            return []
        participation, remedies = self.participation, []
        if (
            participation.rounds > 1
            and participation.max_participations is None
            and participation.limit == participation.rounds
        ):
            remedies.append("limit how often a user takes part (max_participations), which is every round now")
        if self.per_coordinate is not None and self.per_coordinate * self.dim > USELESS_EPSILON:
            remedies.append("clip vectors in L2, rotate them, and let rqm find the noise (rqm.private_mean(epsilon=…))")
        if not remedies:
            remedies.append("add more noise, or use fewer rounds")
        return remedies

    def __str__(self) -> str:
        """The guarantee, its assumptions and its numbers."""
        unit, participation = self.threat_model.unit, self.participation
        lines = [self.headline, "", "It assumes that:"]
        lines += [f"- {assumption.text(unit)}" for assumption in self.assumptions]
        bound = {
            "gaussian": "Gaussian DP certificate",
            "pld": "privacy loss distributions",
            "rdp": "Rényi divergences",
            "pure": "pure differential privacy",
        }[self.accountant]
        lines += ["", f"Bound: {bound}" + ("" if self.order is None else f", order {self.order:g}")]
        lines.append(
            f"Releases: {many(self.participations, 'participation')} of a {unit} in {many(self.charges, 'round')}"
        )
        if not self.is_by_trusted_server:
            lines.append(f"Noise counted on: that of {self.min_honest:,} of {participation.clients:,} clients")
        lines.append(f"Sent: {many(self.dim, 'coordinate')}" + self._bits())
        if self.subset is not None:
            lines.append(f"Coordinates: a public choice of {self.dim:,} of {self.subset.total:,} in each round")
        if self.per_coordinate is not None:
            lines.append(f"Rényi divergence of order 2 of one coordinate in one round: {self.per_coordinate:.4g}")
        if self.noise_std_over_gaussian is not None:
            lines.append(f"Noise over that of a trusted server's Gaussian: {self.noise_std_over_gaussian:.4f}")
        if self.correlated_noise_ratio != 1:
            lines.append(f"Noise of the models over that of independent noise: {self.correlated_noise_ratio:.4f}")
        lines += [f"This ε is no meaningful protection: {remedy}" for remedy in self.remedies]
        return "\n".join(lines)

    def _bits(self) -> str:
        text = f", {many(self.bits_per_coordinate, 'bit')} each"
        if self.bits_under_secagg is not None:
            text += f", {self.bits_under_secagg} under secure aggregation"
        if self.wire_bits_per_parameter is not None and self.subset is not None:
            text += f" ({many(self.wire_bits_per_parameter, 'bit')} per parameter)"
        return text

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        subset = self.subset or CoordinateSubset(0, 0.0, 0.0)
        return {
            **asdict(self.participation),
            **asdict(self.threat_model),
            **{name: getattr(self, name) for name in _SHOWN},
            "failure": self.bound.failure,
            "assumptions": [
                assumption.to_dict() | {"text": assumption.text(self.threat_model.unit)}
                for assumption in self.assumptions
            ],
            "max_participations": self.participations,
            "rounds": self.charges,
            "trusted_server": self.is_by_trusted_server,
            "record_clip": self.release.record_clip,
            "sampling_rate": self.release.sampling_rate,
            "coordinates_of": subset.total or None,
            "second_clip": subset.second_clip or None,
            "clipped_away": subset.clipped_away or None,
        }


_SHOWN = (
    *("epsilon", "delta", "mu", "accountant", "order", "certified", "headline", "sentence", "min_honest", "dim"),
    *("per_coordinate", "noise_multiplier", "noise_std_over_gaussian", "correlated_noise_ratio"),
    *("bits_per_coordinate", "bits_under_secagg", "wire_bits_per_parameter"),
)


def _odds(eps: float) -> str:
    return f"{exp(eps):,.0f}" if eps >= 5 else f"{exp(eps):.3g}"


def guarantee(
    release: Release,
    participation: Participation,
    threat_model: ThreatModel,
    delta: float,
    charges: Charges | None = None,
    *,
    parameters: int | None = None,
    bits_under_secagg: int | None = None,
    workload: Workload | None = None,
    subset: CoordinateSubset | None = None,
) -> Guarantee:
    """What a run guarantees to every user or record, as planned or for the charges alone.

    Args:
        release: What one round reveals.
        participation: Who takes part.
        threat_model: What is assumed about the adversary.
        delta: δ.
        charges: How often each round was charged; None: as planned.
        parameters: Parameters of the model; None: the number of coordinates that are sent.
        bits_under_secagg: Bits of one coordinate under secure aggregation; None: those of the
            mechanism's sum.
        workload: How the server sums noise into its model; None: momentum 0.9 and a rate that
            falls to zero.
        subset: The public choice of coordinates, if fewer are sent.

    Returns:
        The guarantee.
    """
    result = account(release, participation, threat_model, delta, charges)
    if bits_under_secagg is None and release.mechanism.has_integer_messages:
        bits_under_secagg = release.mechanism.discrete.sum_bits(participation.clients)
    return Guarantee(
        **result._asdict(),
        delta=delta,
        release=release,
        participation=participation,
        threat_model=threat_model,
        charged=charges,
        parameters=parameters or release.dim,
        bits_under_secagg=bits_under_secagg,
        workload=workload,
        subset=subset,
    )


def compose_guarantees(guarantees: Iterable[Guarantee], delta: float | None = None) -> Guarantee:
    """The guarantee of several runs together, each on the same users (adaptive composition).

    Args:
        guarantees: Guarantees with the same unit, neighboring relation and adversary.
        delta: δ of all runs together; None: the largest δ of a run.

    Returns:
        One guarantee; its assumptions are those of all runs.

    Raises:
        ValueError: If there are none, or they protect different units or hold against different
        adversaries.
    """
    parts = list(guarantees)
    if not parts:
        raise ValueError("compose: needs at least one guarantee")
    kinds = {(run.threat_model.unit, run.threat_model.neighboring, run.threat_model.adversary) for run in parts}
    if len(kinds) > 1:
        listed = "; ".join(", ".join(kind) for kind in sorted(kinds))
        raise ValueError(f"compose: runs must have one unit, neighboring relation and adversary, got {listed}")
    total = compose([(run.bound, 1) for run in parts])
    delta = max(run.delta for run in parts) if delta is None else delta
    first = parts[0]
    return replace(
        first,
        epsilon=epsilon(total, delta),
        delta=delta,
        bound=total,
        accountant=first.accountant if len({run.accountant for run in parts}) == 1 else "pld",
        order=None,
        runs=tuple(parts),
    )
