"""The settings of a run: the table `[tool.flwr.app.config.rqm]` of a Flower app. Only the server reads it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf, sqrt
from typing import Any, Self, final

from rqm._util.checks import known_keys, real, shown, whole
from rqm.accounting.participation import default_delta
from rqm.bounds import Bound, Neighboring, compose, epsilon, gaussian_epsilon, gaussian_mu, smallest_mu
from rqm.core.base import BaseMean
from rqm.core.search import Noise, private_mean, private_record_mean
from rqm.correlated.scheme import NoiseScheme
from rqm.flower.shared_plan import SharedPlan
from rqm.flower.vector_layout import Metric, VectorLayout
from rqm.mechanisms.base import Mechanism
from rqm.registry import mechanism_from_dict

KEY_PREFIX = "rqm."
ROUNDS_KEY = "num-server-rounds"
"""The key of Flower's templates with the number of rounds."""


class BudgetSpentError(RuntimeError):
    """The users of a federation have spent their ε."""


@final
@dataclass(frozen=True)
class Settings:
    """What the operator of a run chooses. Keys of the table have hyphens for underscores.

    Attributes:
        epsilon: ε of a user over all runs of the federation together; where `record_clip` is given, of a record.
        clients: Clients in a round.
        rounds: Number of rounds.
        delta: δ.
        l2_clip: L2 clip of an update; of a silo's sum where `record_clip` is given.
        min_survivors: Rounds that end with fewer clients are discarded, and stay charged; None: all clients.
        honest_clients: Clients of every round that follow the protocol; None: all.
        max_participations: The most rounds that a node takes part in; None: all.
        min_separation: The least number of rounds from one participation of a node to the next.
        neighboring: See `rqm.ThreatModel`; None: "replace-one", for records "add-or-remove-one".
        noise: "independent" or "correlated"; a `CorrelatedNoise` where a mechanism is given.
        mechanism: A mechanism with its parameters; None: the one with the least noise that reaches ε.
        coordinates: How many rotated coordinates are sent; None: all.
        record_clip: L2 clip of each record's gradient. Clients are then silos, and a record is protected.
        sampling_rate: The probability with which a silo includes a record in a round.
        records_per_round: The public number by which the sum of records' gradients is divided.
        weight: The name of the app's metric by which updates are weighted, such as "num-examples".
        max_weight: The weight that counts fully; larger ones are cut.
        mean_weight: A public estimate of the mean weight; None: `max_weight`.
        train_metrics: Metrics of training that are reported under ε, with public bounds: `{loss = "[0, 5]"}`.
        eval_metrics: Metrics of the received model, from the app's evaluate function.
        metric_share: The part of the squared clip that each metric takes.
        failure_share: The part of it that the count of failed clients takes; 0: failures are not counted.
        federation: A name for those who are protected; empty: the app's publisher and name.
        stage_timeout: Seconds that the server waits for keys and shares.
        dry_run: Whether only simulated nodes take part, and no ledger is kept.
        threshold: How many neighbors recover a secret; 0: it follows from `min_survivors`.
        seed: Seed of the public rotation.

    >>> config = {"rqm.epsilon": 8.0, "rqm.clients": 50, "rqm.min-survivors": 40, "num-server-rounds": 3, "lr": 0.1}
    >>> settings = Settings.from_run_config(config)
    >>> settings.rounds, settings.min_survivors
    (3, 40)
    """

    epsilon: float
    clients: int
    rounds: int
    delta: float | None = None
    l2_clip: float = 1.0
    min_survivors: int | None = None
    honest_clients: int | None = None
    max_participations: int | None = None
    min_separation: int = 1
    neighboring: Neighboring | None = None
    noise: Noise = "independent"
    mechanism: Mechanism | None = None
    coordinates: int | None = None
    record_clip: float | None = None
    sampling_rate: float | None = None
    records_per_round: float | None = None
    weight: str = ""
    max_weight: float = 1.0
    mean_weight: float | None = None
    train_metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    eval_metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    metric_share: float = 0.02
    failure_share: float | None = None
    federation: str = ""
    stage_timeout: float = 60.0
    dry_run: bool = False
    threshold: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate what the private mean and the plan do not."""
        real("rqm.epsilon", self.epsilon, "a positive finite number", 0, inf)
        real("rqm.stage-timeout", self.stage_timeout, "a positive finite number of seconds", 0, inf)
        whole("rqm.clients", self.clients, 2)
        if not isinstance(self.dry_run, bool):
            raise TypeError(f"rqm.dry-run = {shown(self.dry_run)}: must be true or false")
        for name in ("weight", "federation"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"rqm.{name} = {shown(getattr(self, name))}: must be a text")
        if self.record_clip is None and (self.sampling_rate, self.records_per_round) != (None, None):
            raise ValueError("rqm.sampling-rate, rqm.records-per-round: must come with rqm.record-clip")
        if self.record_clip is not None and (self.records_per_round is None or self.delta is None):
            raise ValueError(
                "rqm.record-clip: must come with rqm.records-per-round, a public number that sums are divided by, and "
                "with rqm.delta, well below one over the number of all records"
            )
        if self.weight and self.max_weight == 1:
            raise ValueError("rqm.max-weight: must be given with rqm.weight: larger weights are cut")

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the keys that begin with `rqm.`.

        Args:
            config: The run's configuration, `context.run_config`. Names may have hyphens or underscores.

        Returns:
            The settings.

        Raises:
            ValueError: If a key is unknown, missing, given twice, or has a value that is not allowed.
        """
        values: dict[str, Any] = {}
        for key, value in config.items():
            if key.startswith(KEY_PREFIX):
                _insert(values, key, value)
        names = [entry.name.replace("_", "-") for entry in fields(cls)]
        known_keys([name.replace("_", "-") for name in values], names, KEY_PREFIX, needed=["epsilon", "clients"])
        if "rounds" not in values:
            if ROUNDS_KEY not in config:
                raise ValueError(f"{KEY_PREFIX}rounds: must be given, or {ROUNDS_KEY} in the app's configuration")
            values["rounds"] = config[ROUNDS_KEY]
        for name in ("train_metrics", "eval_metrics"):
            if name in values:
                if not isinstance(values[name], dict):
                    raise ValueError(
                        f"{KEY_PREFIX}{name.replace('_', '-')} = {shown(values[name])}: must be a table of metrics and "
                        "their bounds"
                    )
                values[name] = {metric: _bounds(name, metric, text) for metric, text in values[name].items()}
        if "mechanism" in values:
            values["mechanism"] = mechanism_from_dict(values["mechanism"])
        if not isinstance(values.get("noise", ""), str):
            values["noise"] = NoiseScheme.of(values["noise"])
        return cls(**values)

    def layout(self, size: int) -> VectorLayout:
        """How a client's report makes one vector.

        Args:
            size: Number of trained values.

        Returns:
            The layout.
        """
        metrics = [
            Metric(name, float(low), float(high), is_evaluation)
            for declared, is_evaluation in ((self.train_metrics, False), (self.eval_metrics, True))
            for name, (low, high) in declared.items()
        ]
        failure_share = self.failure_share
        if failure_share is None:
            failure_share = 0.02 if self.record_clip is None else 0.0
        return VectorLayout(
            size,
            self.l2_clip,
            tuple(metrics),
            self.metric_share,
            failure_share,
            self.weight,
            self.max_weight,
            self.max_weight if self.mean_weight is None else self.mean_weight,
        )

    def plan(self, trained: tuple[str, ...], size: int, earlier: Bound | None = None) -> SharedPlan:
        """Derive the plan of a run: the mechanism with the least noise that reaches ε, and everything else.

        Args:
            trained: The names of the arrays that are trained.
            size: Number of trained values.
            earlier: What earlier runs of the federation have spent.

        Returns:
            The plan. Together with `earlier` it guarantees `epsilon`.

        Raises:
            BudgetSpentError: If `earlier` leaves nothing for another run.
            ValueError: If no mechanism reaches ε.
        """
        layout = self.layout(size)
        target = self if earlier is None else replace(self, epsilon=self._remaining(earlier))
        for _ in range(20):
            mean = target._mean(layout)
            if earlier is None or composed_epsilon(mean.account().bound, earlier, mean) <= self.epsilon:
                return SharedPlan(mean, trained, layout, self.threshold, self.dry_run)
            target = replace(target, epsilon=0.98 * target.epsilon)
        raise BudgetSpentError(f"epsilon = {self.epsilon:g}: earlier runs leave nothing of it")

    def _mean(self, layout: VectorLayout) -> BaseMean:
        """What clients send."""
        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in (
                *("clients", "rounds", "epsilon", "l2_clip", "min_survivors", "honest_clients", "max_participations"),
                *("min_separation", "noise", "mechanism", "seed"),
            )
        }
        values["dim"] = layout.size + layout.extras
        if self.neighboring is not None:
            values["neighboring"] = self.neighboring
        if self.record_clip is None:
            return private_mean(**values, delta=self._delta, coordinates=self.coordinates)
        return private_record_mean(
            **values, delta=self._delta, record_clip=self.record_clip, sampling_rate=self.sampling_rate
        )

    @property
    def _delta(self) -> float:
        return default_delta(None) if self.delta is None else self.delta

    def _remaining(self, earlier: Bound) -> float:
        """An estimate of the ε that is left: μ of Gaussian DP composes by squares."""
        total, spent = gaussian_mu(self.epsilon, self._delta), smallest_mu(earlier)
        if epsilon(earlier, self._delta) >= self.epsilon or spent is None or spent >= total:
            raise BudgetSpentError(
                f"epsilon = {self.epsilon:g}: earlier runs have spent {epsilon(earlier, self._delta):.4g} of it: raise "
                "rqm.epsilon, or give another rqm.federation if other users take part"
            )
        remaining = gaussian_epsilon(sqrt(total**2 - spent**2), self._delta)
        if remaining < 0.1 * self.epsilon:  # a run with so much noise would learn nothing
            raise BudgetSpentError(
                f"epsilon = {self.epsilon:g}: earlier runs leave {remaining:.3g} of it, too little for a run: raise "
                "rqm.epsilon, or give another rqm.federation if other users take part"
            )
        return remaining


def composed_epsilon(bound: Bound, earlier: Bound, mean: BaseMean) -> float:
    """ε of a run and of earlier ones together, at the run's δ."""
    assert mean.delta is not None
    return epsilon(compose([(bound, 1), (earlier, 1)]), mean.delta)


def _insert(values: dict[str, Any], key: str, value: Any) -> None:
    """Put the value of a dotted key into nested tables. Names of metrics stay as they are."""
    *outer, last = key.removeprefix(KEY_PREFIX).split(".")
    outer = [name.replace("-", "_") for name in outer]
    if not outer or not outer[0].endswith("_metrics"):
        last = last.replace("-", "_")
    table = values
    for name in outer:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"{key}: {KEY_PREFIX}{name} must be a table, or a value, not both")
    if last in table:
        raise ValueError(f"{key}: must be given once, with hyphens or with underscores")
    table[last] = value


def _bounds(table: str, metric: str, value: Any) -> tuple[float, float]:
    """The public bounds of a metric; a list, or its text, since Flower's configuration has no lists."""
    name = f"{KEY_PREFIX}{table.replace('_', '-')}.{metric}"
    try:
        low, high = json.loads(value) if isinstance(value, str) else value
        return real(name, low, "a number", -1e300, 1e300), real(name, high, "a number", -1e300, 1e300)
    except (ValueError, TypeError):
        raise ValueError(f'{name} = {shown(value)}: must be its bounds, such as "[0, 5]"') from None
