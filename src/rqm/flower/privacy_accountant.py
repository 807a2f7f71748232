"""A privacy accountant with Flower's interface, for mechanisms that send integers.

Flower's own accountant is for Gaussian noise at a trusted server. Here an event is one secure sum of encoded
vectors: the event says what was released, and the accountant what that costs, as in dp-accounting.

| sampling method | neighboring relation | adversary |
|---|---|---|
| no-amplification | a user's vector is zeroed out (Flower calls it add-or-remove-one) | the server |
| without-replacement | one user is replaced by another | an outsider, who does not see who takes part |
"""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, final

from flwr.serverapp import PrivacyConfig, PrivacySpent, SamplingMethod

from rqm._util.checks import real, whole
from rqm.accounting.accountant import account_together
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.release import Release
from rqm.bounds import EpsilonResult
from rqm.mechanisms.base import Mechanism, mechanism_of
from rqm.registry import mechanism_from_dict

STATE_FORMAT = 1


@final
@dataclass(frozen=True)
class DiscreteEvent:
    """One round: the secure sum of clients' vectors.

    Attributes:
        mechanism: The mechanism, one that sends integers.
        honest_clients: The fewest honest clients in the sum.
        dim: Coordinates of a vector.
        l2_clip: The largest L2 norm of a vector.
        sample_size: Clients of the round.
        population_size: The users that they are drawn from.
    """

    mechanism: Mechanism
    honest_clients: int
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
        whole("honest_clients", self.honest_clients, 1, self.sample_size)
        Release(self.mechanism, self.dim, self.l2_clip)


@final
class DiscreteAccountant:
    """The (ε, δ) of many events; implements Flower's `PrivacyAccountant`. Every ε is certified.

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
        """Begin without events; Poisson sampling is refused."""
        if config.sampling_method == SamplingMethod.POISSON:
            raise ValueError(
                "sampling_method = poisson: must be without-replacement or no-amplification; a secure sum has a fixed "
                "number of clients"
            )
        self._config, self._events = config, Counter[DiscreteEvent]()
        is_sampled = config.sampling_method == SamplingMethod.WITHOUT_REPLACEMENT
        self._threat_model = ThreatModel("outsider", "replace-one") if is_sampled else ThreatModel("server", "zero-out")

    @property
    def config(self) -> PrivacyConfig:
        """The configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of releases so far."""
        return self._events.total()

    def compose(self, event: DiscreteEvent, count: int = 1) -> None:
        """Add identical releases.

        Args:
            event: The release.
            count: How often it happened, at least 1.

        Raises:
            ValueError: If no certificate is known for it, or its population is not the configuration's.
        """
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
        _, participation, threat_model = self._release(event, count)
        threat_model.check(participation)
        return self._events + Counter({event: count})

    def _release(self, event: DiscreteEvent, count: int) -> tuple[Release, Participation, ThreatModel]:
        """What identical events release, from whom, and to whom."""
        return (
            Release(event.mechanism, event.dim, event.l2_clip),
            Participation(event.sample_size, count, event.population_size, "uniform"),
            replace(self._threat_model, honest_clients=event.honest_clients),
        )

    def _spent(self, events: Counter[DiscreteEvent], delta: float) -> EpsilonResult:
        real("delta", delta, "above 0 and below 1", 0, 1)
        return account_together([self._release(event, count) for event, count in events.items()], delta)

    def get_epsilon(self, delta: float) -> float:
        """ε of everything so far."""
        return self._spent(self._events, delta).epsilon

    def get_delta(self, epsilon: float) -> float:
        """δ of everything so far, for an ε; at most .1 % above the smallest one."""
        epsilon = real("epsilon", epsilon, "at least 0", -1e-300, float("inf"))
        if not self._events:
            return 0.0
        low, high = 1e-300, 1.0
        while high > low * 1.001:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.get_epsilon(middle) <= epsilon else (middle, high)
        return high

    def get_privacy_spent(self, delta: float | None = None) -> PrivacySpent:
        """ε of everything so far, at a δ that is by default the configuration's."""
        delta = self._config.target_delta if delta is None else delta
        spent = self._spent(self._events, delta)
        return PrivacySpent(spent.epsilon, delta, self.num_releases, f"{spent.accountant}, certified", spent.order)

    def would_exceed(self, event: DiscreteEvent, max_epsilon: float | None = None, count: int = 1) -> bool:
        """Whether another event would exceed a limit.

        Args:
            event: The release.
            max_epsilon: The limit on ε; None: the configuration's.
            count: How often it would happen.

        Returns:
            Whether ε would be larger than the limit, at the configuration's δ.

        Raises:
            ValueError: If there is no limit.
        """
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise ValueError("max_epsilon = None: must be given here or in the configuration")
        return self._spent(self._with(event, count), self._config.target_delta).epsilon > limit

    def state_dict(self) -> dict[str, object]:
        """All events, as plain values."""
        return {
            "format": STATE_FORMAT,
            "events": [
                {**vars(event), "mechanism": event.mechanism.to_dict(), "count": count}
                for event, count in self._events.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all events by those of a `state_dict`; costs are computed again."""
        if state.get("format") != STATE_FORMAT:
            raise ValueError(f"format = {state.get('format')}: must be {STATE_FORMAT}")
        loaded = DiscreteAccountant(self._config)
        for entry in state["events"]:
            values = dict(entry)
            count, mechanism = values.pop("count"), mechanism_from_dict(values.pop("mechanism"))
            loaded.compose(DiscreteEvent(mechanism, **values), count)
        self._events = loaded._events
