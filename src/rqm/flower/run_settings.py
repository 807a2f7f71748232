"""What the server and the clients of a run agree on: the settings, and what a request consists of.

Each reads the settings from the run's configuration. Nothing here needs torch or Flower.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self, final

from rqm._util.checks import known_keys, whole
from rqm.config.model_sizes import OWN
from rqm.config.plan import Plan, plan_keys
from rqm.config.round_parameters import Link, protocol
from rqm.secagg import Params, ProtocolError
from rqm.secagg.wire import Kind

if TYPE_CHECKING:
    from rqm.core.base import BaseMean

KEY_PREFIX = "rqm."
CACHED_ROUNDS = 8
"""Rounds whose parameters a process keeps: a simulation has many nodes in one process."""


@final
@dataclass(frozen=True)
class Settings:
    """A plan, and how it is deployed on Flower.

    In a Flower app's `pyproject.toml` these are the keys under `[tool.flwr.app.config.rqm]`: the plan's (`clients`,
    `rounds`, `mechanism`, `transforms`, `server`, `delta`, `budget-epsilon`, …) and those below.

    Attributes:
        plan: The plan.
        sends: What a client's training returns: "update" (the trained weights, whose difference to the received ones
            is sent) or "gradient".
        threshold: How many neighbors recover a secret; 0: it follows from the plan. On Flower all clients of a
            round are neighbors up to 128, because a server that draws a sparser graph could isolate some.

    >>> settings = Settings.from_run_config({"rqm.clients": 10, "rqm.mechanism.mechanism": "rqm", "lr": 0.1})
    >>> settings.plan.participation.clients, settings.sends
    (10, 'update')
    """

    plan: Plan
    sends: Literal["update", "gradient"] = "update"
    threshold: int = 0

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.plan.mechanism.has_integer_messages:
            raise ValueError("rqm.mechanism: must be one that sends integers (rqm, pbm, rounding)")
        if self.sends not in ("update", "gradient"):
            raise ValueError(f"rqm.sends = {self.sends!r}: must be update or gradient")
        whole("rqm.clients", self.plan.participation.clients, 2)
        if self.plan.adapt is not None or self.plan.client.work in ("fedcomgate", "fedaq"):
            raise ValueError("rqm.adapt, rqm.client.work: must not be given: on Flower an app sends its own vector")
        self._check_population()
        self._check_separation()
        if self.plan.noise is not None:
            self._check_correlated_noise()

    def _check_population(self) -> None:
        """Refuse what relies on a random sample of the population, which Flower's available nodes are not."""
        threat_model = self.plan.threat_model
        if self.plan.participation.sampling != "available":
            raise ValueError(
                f"rqm.sampling = {self.plan.participation.sampling!r}: must be 'available' on Flower, whose available "
                "nodes are no random sample of the population"
            )
        if threat_model.honest_fraction is not None or threat_model.adversary != "server":
            name = "honest_fraction" if threat_model.honest_fraction is not None else "adversary"
            raise ValueError(
                f"rqm.{name} = {getattr(threat_model, name)}: must not be given on Flower: the available nodes are no "
                "random sample of the population; give rqm.honest-clients"
            )

    def _check_separation(self) -> None:
        """Refuse a separation that is not enforced, and records whose sum is not sent as a gradient."""
        separation, records = self.plan.participation.min_separation, self.plan.records
        if records is not None and self.sends != "gradient":
            raise ValueError(f"rqm.sends = {self.sends!r}: must be 'gradient' where rqm.records is given")
        if separation > 1 and records is not None:
            raise ValueError(
                f"rqm.min-separation = {separation}: must not be given on Flower with rqm.records, where a silo "
                "samples its records (rqm.records.sampling-rate), or takes all; a fixed order is for rqm train"
            )
        if separation > 1 and self.plan.noise is None:
            raise ValueError(
                f"rqm.min-separation = {separation}: must come with correlated noise (rqm.noise): otherwise nodes take "
                "part whenever they are available"
            )

    def _check_correlated_noise(self) -> None:
        """Refuse correlated noise for which one of the two kinds of rounds has no safe parameters."""
        if self.threshold:
            raise ValueError(f"rqm.threshold = {self.threshold}: must not be given with correlated noise: it follows")
        for link in (Link(b"rqm", 0), Link(b"rqm", 1, self.plan.participation.clients, bytes(32))):
            protocol(self.plan, 1, b"rqm", link=link)

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the keys that begin with `rqm.`.

        Args:
            config: The run's configuration, `context.run_config`. Names may have hyphens or underscores.

        Returns:
            The settings.

        Raises:
            ValueError: If a key is unknown, given twice, or has a value that is not allowed.
        """
        values: dict[str, Any] = {}
        for key, value in config.items():
            if key.startswith(KEY_PREFIX):
                _insert(values, key, value)
        names = [field.name for field in fields(cls) if field.name != "plan"]
        deployment = {name: values.pop(name) for name in names if name in values}
        known_keys([_hyphenated(name) for name in values], [_hyphenated(name) for name in plan_keys()], KEY_PREFIX)
        try:
            plan = Plan.from_dict({"model": OWN, "sampling": "available", **values})
        except ValueError as error:
            raise ValueError(f"{KEY_PREFIX}{error}") from None
        return cls(plan, **deployment)

    @property
    def min_survivors(self) -> int:
        """The fewest vectors in a sum that is revealed."""
        return self.plan.participation.min_survivors or self.plan.participation.clients

    def params(self, dim: int, round_name: bytes, roster_hash: bytes = b"", link: Link | None = None) -> Params:
        """The parameters of a round of secure aggregation.

        Args:
            dim: Parameters of the model.
            round_name: The name of the secure sum.
            roster_hash: The hash of the roster, where nodes sign their keys.
            link: The position in a chain of rounds, with correlated noise and only then.

        Returns:
            The parameters.

        Raises:
            ProtocolError: If there is a link without correlated noise, or none with it.
        """
        if (link is None) != (self.plan.noise is None):
            raise ProtocolError("a chain of rounds: must be given with correlated noise (rqm.noise), and only there")
        return _params(self, dim, round_name, roster_hash, link)

    def mean(self, dim: int) -> "BaseMean":
        """What clients send, for a model with `dim` parameters."""
        return self.plan.private_mean(dim)


@final
@dataclass(frozen=True)
class Request:
    """What the server asks of one client.

    Attributes:
        stage: The message that is asked for, one of `rqm.secagg.wire.STAGES`.
        round_name: The name of the secure sum; each attempt at a round has its own.
        round_index: The round of the run, from 0.
        dim: Parameters of the model.
        client: The client's number in the secure sum.
        message: The message of the protocol's server.
        link: The position in the chain of rounds, with correlated noise.
    """

    stage: Kind
    round_name: bytes
    round_index: int
    dim: int
    client: int
    message: bytes
    link: Link | None = None


def _insert(values: dict[str, Any], key: str, value: Any) -> None:
    """Put the value of a dotted key into nested tables."""
    *outer, last = key.removeprefix(KEY_PREFIX).replace("-", "_").split(".")
    table = values
    for name in outer:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise ValueError(f"{key}: {KEY_PREFIX}{name} must be a table, or a value, not both")
    if last in table:
        raise ValueError(f"{key}: must be given once, with hyphens or with underscores")
    table[last] = value


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


@lru_cache(maxsize=CACHED_ROUNDS)
def _params(settings: Settings, dim: int, round_name: bytes, roster_hash: bytes, link: Link | None) -> Params:
    params: Params = protocol(settings.plan, dim, round_name, settings.threshold, roster_hash, link=link)
    return params
