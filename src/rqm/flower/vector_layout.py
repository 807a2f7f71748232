"""One vector for all that a client reports in a round: its update, and optionally metrics and a failure count.

All of it is covered by one L2 clip C, and so by one ε. A metric, or the count, is a coordinate that takes a share s
of C²: it lies within ±C√s. The update is clipped to C√(1 − Σs). A client that has nothing to report sends zeros.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf, isnan, sqrt
from typing import Any, NamedTuple, Self, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import known_keys, real, whole

FloatVector = npt.NDArray[np.floating]


@final
@dataclass(frozen=True)
class Metric:
    """A number that each client reports, with public bounds.

    Attributes:
        name: Its name in the app's `MetricRecord`.
        low: The lower bound; smaller values are raised to it.
        high: The upper bound.
        is_evaluation: Whether it measures the received model (from the app's evaluate function), and not training.
    """

    name: str
    low: float
    high: float
    is_evaluation: bool = False

    def __post_init__(self) -> None:
        """Validate the bounds."""
        real(f"{self.name}: low", self.low, "a finite number", -1e300, 1e300)
        real(f"{self.name}: high", self.high, f"a finite number above {self.low:g}", self.low, 1e300)

    def centered(self, value: float) -> float:
        """A value within the bounds as a number from −1 to 1."""
        if not np.isfinite(value):
            raise ValueError(f"{self.name} = {value}: must be finite")
        return 2 * (min(max(value, self.low), self.high) - self.low) / (self.high - self.low) - 1

    def value(self, centered: float) -> float:
        """The inverse of `centered`, also for noisy values beyond ±1."""
        return self.low + (centered + 1) / 2 * (self.high - self.low)


class Report(NamedTuple):
    """What a round's mean says.

    Attributes:
        update: The mean update.
        metrics: The mean of each metric.
        failures: The number of clients whose training failed, with noise; None if it is not counted.
    """

    update: FloatVector
    metrics: dict[Metric, float]
    failures: float | None


@final
@dataclass(frozen=True)
class VectorLayout:
    """How a client packs its report into one vector, and how the server reads the mean of all clients.

    Attributes:
        size: Number of trained values.
        l2_clip: C.
        metrics: The metrics that clients report.
        metric_share: The part of C² that each metric takes.
        failure_share: The part of C² that the failure count takes; 0: failures are not counted.
        weight: The name of the training metric by which updates are weighted; empty: all weigh the same.
        max_weight: The weight that counts fully. A smaller one scales the update down; larger ones are cut.
        mean_weight: A public estimate of the mean weight, by which the sum is divided (McMahan et al. 2018).
    """

    size: int
    l2_clip: float = 1.0
    metrics: tuple[Metric, ...] = ()
    metric_share: float = 0.02
    failure_share: float = 0.0
    weight: str = ""
    max_weight: float = 1.0
    mean_weight: float = 1.0

    def __post_init__(self) -> None:
        """Validate every value."""
        whole("size", self.size, 1)
        for name in ("metric_share", "failure_share"):
            real(name, getattr(self, name), "at least 0 and below 1", 0, 1, closed="[")
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        if not self.update_share >= 0.5:  # or updates are hardly sent
            raise ValueError(
                f"metric_share = {self.metric_share:g}, failure_share = {self.failure_share:g}: with "
                f"{len(self.metrics)} metrics they take {1 - self.update_share:.3g} of the squared clip: must be at "
                "most 0.5"
            )
        real("max_weight", self.max_weight, "a positive finite number", 0, 1e300)
        real(
            "mean_weight", self.mean_weight, f"above 0 and at most {self.max_weight:g}", 0, self.max_weight, closed="]"
        )

    @property
    def update_share(self) -> float:
        """The part of C² that is left for the update."""
        return 1 - len(self.metrics) * self.metric_share - self.failure_share

    @property
    def extras(self) -> int:
        """The number of coordinates beside the update."""
        return len(self.metrics) + (self.failure_share > 0)

    def pack(self, update: FloatVector, metrics: Mapping[Metric, float], weight: float = 1.0) -> FloatVector:
        """A client's vector after training.

        Args:
            update: The change of the trained values.
            metrics: The value of each metric.
            weight: The client's weight, where updates are weighted.

        Returns:
            The vector, within C.

        Raises:
            ValueError: If a value is not finite, or the update has another size.
        """
        finite = np.isfinite(update).sum()
        if update.shape != (self.size,) or finite != self.size:
            raise ValueError(
                f"training returned {update.size} values, of which {finite} are finite: must be {self.size} finite ones"
            )
        largest = float(np.abs(update).max())
        length = largest * float(np.linalg.norm(update / largest)) if largest else 0.0  # squares could overflow
        bound = self.l2_clip * sqrt(self.update_share)
        scale = min(1.0, bound / length) if length else 1.0
        if self.weight:
            if isnan(weight):
                raise ValueError(f"{self.weight} = {weight}: must be a number")
            scale *= min(max(weight, 0.0), self.max_weight) / self.max_weight
        return self._joined(update * scale, [metric.centered(metrics[metric]) for metric in self.metrics], 0.0)

    def pack_failure(self) -> FloatVector:
        """A client's vector if its training failed."""
        return self._joined(np.zeros(self.size), [0.0] * len(self.metrics), 1.0)

    def _joined(self, update: FloatVector, metrics: list[float], failure: float) -> FloatVector:
        unit = self.l2_clip * sqrt(self.metric_share)
        extras = [unit * value for value in metrics]
        if self.failure_share:
            extras.append(self.l2_clip * sqrt(self.failure_share) * failure)
        return np.concatenate([update, extras]).astype(np.float32)

    def read(self, mean: FloatVector, survivors: int) -> Report:
        """What the decoded mean of the clients' vectors says.

        Args:
            mean: The decoded mean.
            survivors: Number of vectors in the sum.

        Returns:
            The mean update, metrics and the number of failures. All of them are noisy.
        """
        update = mean[: self.size] * (self.max_weight / self.mean_weight if self.weight else 1.0)
        extras = mean[self.size :].astype(np.float64)
        metrics = {
            metric: metric.value(float(value) / (self.l2_clip * sqrt(self.metric_share)))
            for metric, value in zip(self.metrics, extras, strict=False)
        }
        failures = None
        if self.failure_share:
            failures = survivors * float(extras[-1]) / (self.l2_clip * sqrt(self.failure_share))
        return Report(update, metrics, failures)

    def extra_noise(self, noise_std: float, survivors: int) -> tuple[dict[Metric, float], float | None]:
        """The standard deviation of the noise of each metric, and of the number of failures.

        Args:
            noise_std: That of a coordinate of the decoded mean.
            survivors: Number of vectors in the sum.

        Returns:
            One for each metric, and that of the number of failures.
        """
        metrics = {
            metric: noise_std / (self.l2_clip * sqrt(self.metric_share)) * (metric.high - metric.low) / 2
            for metric in self.metrics
        }
        failures = survivors * noise_std / (self.l2_clip * sqrt(self.failure_share)) if self.failure_share else None
        return metrics, failures

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build it from what `to_dict` described.

        Raises:
            ValueError: If a value is missing, unknown or not allowed.
        """
        names = list(cls.__dataclass_fields__)
        known_keys(values, names, needed=names)
        metrics = tuple(Metric(**metric) for metric in values["metrics"])
        return cls(**{**values, "metrics": metrics})
