"""What server and clients agree on: read by both from the run's configuration, none told by the other."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self, final

from rqm._util.checks import known_keys, whole
from rqm.plan.plan import Plan, plan_keys
from rqm.plan.protocol import Link, protocol
from rqm.plan.records import Records
from rqm.plan.sizes import OWN
from rqm.secagg import Params, ProtocolError

if TYPE_CHECKING:
    from rqm.core.base import BaseMean

PREFIX = "rqm."
KEPT = 8
"""Rounds whose parameters, and models whose encoding, a process remembers: in simulations it is many nodes."""


@final
@dataclass(frozen=True)
class Settings:
    """A plan and how it is deployed.

    In a Flower app's ``pyproject.toml`` these are the keys under ``[tool.flwr.app.config.rqm]``: those of a plan
    (``clients``, ``rounds``, ``mechanism``, ``transforms``, ``server``, ``delta``, ``budget_epsilon``, …) and the ones
    here. ``sends`` is what a client's training returns: the trained weights (``update``: their change is sent) or a
    ``gradient``. All clients of a round are neighbours in its secure sum: on any sparser graph whoever draws it, and
    that would be the server, can part some from the others. ``threshold`` of them can together help to unmask.

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
        if self.plan.records is not None:
            self._check_records(self.plan.records)
        if self.plan.adapt is not None or self.plan.client.work in ("fedcomgate", "fedaq"):
            raise ValueError("rqm.adapt, rqm.client.work: must not be given: on Flower an app sends its own vector")
        threat, separation = self.plan.threat_model, self.plan.participation.min_separation
        if self.plan.participation.sampling != "available":
            raise ValueError(
                f"rqm.sampling = {self.plan.participation.sampling!r}: must be 'available' on Flower, whose available "
                "nodes are no random sample of the population"
            )
        if threat.honest_fraction is not None or threat.adversary != "server":
            what = "honest_fraction" if threat.honest_fraction is not None else "adversary"
            raise ValueError(
                f"rqm.{what} = {getattr(threat, what)}: must not be given on Flower: the nodes that are available "
                "are no random sample of the population; give rqm.honest-clients"
            )
        if separation > 1 and self.plan.noise is None:
            raise ValueError(
                f"rqm.min-separation = {separation}: must come with correlated noise (rqm.noise): otherwise nodes take "
                "part whenever they are available"
            )
        if self.plan.noise is not None:
            if self.threshold:
                raise ValueError(
                    f"rqm.threshold = {self.threshold}: must not be given with correlated noise: it follows"
                )
            for link in (Link(b"rqm", 0), Link(b"rqm", 1, self.plan.participation.clients, bytes(32))):
                protocol(self.plan, 1, b"rqm", link=link)  # or says what is wrong with it, with both kinds of clients

    def _check_records(self, records: Records) -> None:
        if self.sends != "gradient":
            raise ValueError(f"rqm.sends = {self.sends!r}: must be 'gradient' where rqm.records is given")
        separation = self.plan.participation.min_separation
        if separation > 1:
            raise ValueError(
                f"rqm.min-separation = {separation}: must not be given on Flower with rqm.records, where a silo "
                "samples its records (rqm.records.sampling-rate), or takes all; a fixed order is for rqm train"
            )

    @classmethod
    def from_run_config(cls, config: Mapping[str, Any]) -> Self:
        """Read the keys that begin with ``rqm.``; an unknown one is an error."""
        values: dict[str, Any] = {}
        for key, value in config.items():
            if key.startswith(PREFIX):
                *outer, last = key.removeprefix(PREFIX).replace("-", "_").split(".")
                table = values
                for name in outer:
                    table = table.setdefault(name, {})
                    if not isinstance(table, dict):
                        raise ValueError(f"{key}: {PREFIX}{name} must be a table, or a value, not both")
                if last in table:
                    raise ValueError(f"{key}: must be given once, with hyphens or with underscores")
                table[last] = value
        own = {f.name: values.pop(f.name) for f in fields(cls) if f.name != "plan" and f.name in values}
        known_keys([_hyphenated(name) for name in values], [_hyphenated(name) for name in plan_keys()], PREFIX)
        try:
            plan = Plan.from_dict({"model": OWN, "sampling": "available", **values})
        except ValueError as error:
            raise ValueError(f"{PREFIX}{error}") from None
        return cls(plan, **own)

    def params(self, dim: int, round_: bytes, roster: bytes = b"", link: Link | None = None) -> Params:
        """The parameters of a round of secure aggregation; with the hash of a roster, a signed one.

        Where noise is taken back the round has a ``link``, its place in a chain of rounds.
        """
        if (link is None) != (self.plan.noise is None):
            raise ProtocolError("a chain of rounds: must be given with correlated noise (rqm.noise), and only there")
        return _params(self, dim, round_, roster, link)

    def mean(self, dim: int) -> "BaseMean":
        """What clients of a model of so many parameters send."""
        return _mean(self, dim)


def _hyphenated(name: str) -> str:
    return name.replace("_", "-")


@lru_cache(maxsize=KEPT)
def _params(settings: Settings, dim: int, round_: bytes, roster: bytes, link: Link | None) -> Params:
    found: Params = protocol(settings.plan, dim, round_, settings.threshold, roster, link=link)
    return found


@lru_cache(maxsize=KEPT)
def _mean(settings: Settings, dim: int) -> "BaseMean":
    return settings.plan.private_mean(dim)
