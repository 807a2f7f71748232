"""A privacy accountant in Flower's shape, for mechanisms that send integers.

Flower's own accounts for Gaussian noise at a trusted server. Here an event is one secure sum of encoded vectors; it
says what was released, the accountant what that costs (as in dp-accounting). Without amplification a user's vector is
zeroed out (the neighbours that Flower calls add-or-remove-one; the number of clients stays, as under secure
aggregation); with sampling without replacement one user is replaced by another.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, final

from flwr.serverapp import PrivacyConfig, PrivacySpent
from flwr.supercore.privacy_accounting import SamplingMethod

from rqm._util.checks import real, whole
from rqm.accounting.accountant import EpsilonResult, account_together
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.bounds import Adversary, Neighboring
from rqm.mechanisms.base import Mechanism, mechanism_of
from rqm.registry import mechanism_from_dict

FORMAT = 1


@final
@dataclass(frozen=True)
class DiscreteEvent:
    """One round: the secure sum of ``honest`` (at least) clients' vectors of ``dim`` coordinates within ``l2_clip``."""

    mechanism: Mechanism
    honest: int
    dim: int
    l2_clip: float
    sample_size: int
    population_size: int

    def __post_init__(self) -> None:
        """Validate every value."""
        if not mechanism_of(self.mechanism).has_integer_messages:
            raise TypeError(f"mechanism = {self.mechanism!r}: must be one that sends integers")
        whole("population_size", self.population_size, 1)
        whole("sample_size", self.sample_size, 1, self.population_size)
        whole("honest", self.honest, 1, self.sample_size)
        Release(self.mechanism, self.dim, self.l2_clip)


@final
class DiscreteAccountant:
    """Cumulative (ε, δ) of discrete events: Flower's ``PrivacyAccountant``. Every ε is certified.

    >>> from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod
    >>> from rqm import StochasticRounding
    >>> relation, sampling = NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION
    >>> accountant = DiscreteAccountant(PrivacyConfig(1e-6, 10**6, relation, sampling))
    >>> event = DiscreteEvent(StochasticRounding(4 / 1024, 30.0, 2), 1000, 2**20, 1.0, 1000, 10**6)
    >>> accountant.compose(event)
    >>> 0.5 < accountant.get_epsilon(1e-6) < 2
    True
    """

    def __init__(self, config: PrivacyConfig) -> None:
        if config.sampling_method == SamplingMethod.POISSON:
            raise ValueError(
                "sampling_method = poisson: must be without-replacement or no-amplification; a secure sum has a fixed "
                "number of clients"
            )
        self._config, self._events = config, Counter[DiscreteEvent]()
        sampled = config.sampling_method == SamplingMethod.WITHOUT_REPLACEMENT
        self._adversary: Adversary = "outsider" if sampled else "server"

    @property
    def config(self) -> PrivacyConfig:
        """The configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of releases so far."""
        return self._events.total()

    def compose(self, event: DiscreteEvent, count: int = 1) -> None:
        """Add one or more identical releases."""
        self._events = self._with(event, count)

    def _with(self, event: DiscreteEvent, count: int) -> Counter[DiscreteEvent]:
        whole("count", count, 1)
        if event.population_size != self._config.population_size:
            raise ValueError(f"population_size = {event.population_size}: must be {self._config.population_size}")
        if not event.mechanism.discrete.uses_l2_norm:
            raise ValueError(
                f"mechanism = {event.mechanism.kind!r}: has levels inside its clip, for which certificates take "
                "minutes; use a wider margin, or fewer levels"
            )
        self._threat_model(event).check(self._participation(event, count))
        return self._events + Counter({event: count})

    def _participation(self, event: DiscreteEvent, count: int) -> Participation:
        return Participation(event.sample_size, count, event.population_size, "uniform")

    def _threat_model(self, event: DiscreteEvent) -> ThreatModel:
        neighboring: Neighboring = "replace-one" if self._adversary == "outsider" else "zero-out"
        return ThreatModel(self._adversary, neighboring, honest_clients=event.honest)

    def _account(self, events: Counter[DiscreteEvent], delta: float) -> EpsilonResult:
        real("delta", delta, "above 0 and below 1", 0, 1)
        parts = [
            (
                Release(event.mechanism, event.dim, event.l2_clip),
                self._participation(event, count),
                self._threat_model(event),
            )
            for event, count in events.items()
        ]
        return account_together(parts, delta)

    def get_epsilon(self, delta: float) -> float:
        """ε of everything so far."""
        return self._account(self._events, delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """δ of everything so far: the smallest, to within a per mille, at which ε is enough."""
        epsilon = real("epsilon", epsilon, "at least 0", -1e-300, float("inf"))
        if not self._events:
            return 0.0
        low, high = 1e-300, 1.0
        while high > low * 1.001:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.get_epsilon(middle) <= epsilon else (middle, high)
        return high

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """Everything so far, in Flower's words."""
        delta = self._config.target_delta if delta is None else delta
        found = self._account(self._events, delta)
        return PrivacySpent(found.epsilon, delta, self.num_releases, f"{found.accountant}, certified", found.order)

    def would_exceed(self, event: DiscreteEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether another event would pass a limit on ε."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon = None: must be given here or in the configuration")
        return self._account(self._with(event, count), self._config.target_delta).epsilon > limit

    def state_dict(self) -> dict[str, object]:
        """All events, as plain values."""
        return {
            "format": FORMAT,
            "events": [
                {**vars(event), "mechanism": event.mechanism.to_dict(), "count": count}
                for event, count in self._events.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what ``state_dict`` gave; the costs are computed anew."""
        if state.get("format") != FORMAT:
            raise ValueError(f"format = {state.get('format')}: must be {FORMAT}")
        fresh = DiscreteAccountant(self._config)
        for line in state["events"]:
            values = dict(line)
            count, mechanism = values.pop("count"), mechanism_from_dict(values.pop("mechanism"))
            fresh.compose(DiscreteEvent(mechanism, **values), count)
        self._events = fresh._events
