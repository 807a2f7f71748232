"""What the server and the nodes of a run agree on, and what a request consists of. Nothing here needs torch or Flower.

The server derives the plan once, from its settings and the model, and sends it with every message. A node checks it
against its own policy, and never derives it again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from math import sqrt
from typing import Self, final

from rqm._util.checks import known_keys, shown, whole
from rqm._util.files import parse_table
from rqm.config.round_parameters import Link, secure_sum_parameters
from rqm.core.base import BaseMean
from rqm.core.from_dict import mean_from_dict
from rqm.flower.vector_layout import VectorLayout
from rqm.secagg import Params, ProtocolError
from rqm.secagg.wire import Kind

PLAN_FORMAT = 1
"""The version of `SharedPlan.to_json`, and of the messages of a run."""


@final
@dataclass(frozen=True)
class SharedPlan:
    """A run on Flower.

    Attributes:
        mean: What clients send, and what that guarantees.
        trained: The names of the arrays that are sent, in their order.
        layout: How updates, metrics and the failure count make one vector.
        threshold: How many neighbors recover a secret; 0: it follows from the number of survivors. All clients of a
            round are neighbors up to 128, because a server that draws a sparser graph could isolate some.
        is_dry_run: Whether only simulated nodes may take part, and nothing is charged for good.
    """

    mean: BaseMean
    trained: tuple[str, ...]
    layout: VectorLayout
    threshold: int = 0
    is_dry_run: bool = False

    def __post_init__(self) -> None:
        """Validate every value, and whether each kind of round has safe parameters."""
        whole("threshold", self.threshold, 0)
        if self.mean.dim != self.layout.size + self.layout.extras:
            raise ValueError(f"dim = {self.mean.dim}: must be {self.layout.size + self.layout.extras}")
        if not self.mean.has_integer_messages or self.mean.l2_clip is None:
            raise ValueError("mechanism: must be one that sends integers, with an L2 clip")
        if not self.mean.sums_records and self.layout.l2_clip != self.mean.l2_clip:
            raise ValueError(f"layout: l2_clip = {self.layout.l2_clip}: must be {self.mean.l2_clip}")
        if self.mean.sums_records and self.layout.extras:
            raise ValueError("metrics, failure_share: must not be given where records of silos are protected")
        participation, threat_model = self.mean.participation, self.mean.threat_model
        if participation.sampling == "uniform" or threat_model.adversary != "server":
            raise ValueError(
                "adversary, honest_fraction: must not be given on Flower, whose available nodes are no random sample "
                "of the population; give honest_clients"
            )
        if participation.min_separation > 1 and self.mean.noise is None:
            raise ValueError(
                f"min_separation = {participation.min_separation}: must come with noise = 'correlated'; otherwise "
                "nodes take part whenever they are available"
            )
        whole("clients", participation.clients, 2)
        links: list[Link | None] = [None]
        if self.mean.noise is not None:
            links = [Link(b"rqm", 0), Link(b"rqm", 1, participation.clients, bytes(32))]
        for link in links:
            self.params(b"rqm", link=link)

    @property
    def clients(self) -> int:
        """The number of clients in a round."""
        return self.mean.participation.clients

    @property
    def min_survivors(self) -> int:
        """The fewest vectors in a sum that is revealed."""
        return self.mean.participation.min_survivors or self.clients

    @property
    def survivors_that_unmask(self) -> int:
        """The fewest clients that can end a round in which others were lost after they had shared their keys."""
        link = None if self.mean.noise is None else Link(b"rqm", 0)
        return self.params(b"rqm", link=link).threshold + 1

    @property
    def noise_over_clip(self) -> float:
        """The norm of the noise in a round's mean update over the clip of an update."""
        layout = self.layout
        scale = layout.max_weight / layout.mean_weight if layout.weight else 1.0
        return scale * sqrt(self.mean.expected_error(0.0) * layout.size) / layout.l2_clip

    def params(self, round_name: bytes, roster_hash: bytes = b"", link: Link | None = None) -> Params:
        """The parameters of a round of secure aggregation.

        Args:
            round_name: The name of the secure sum.
            roster_hash: The hash of the roster, where nodes sign their keys.
            link: The position in a chain of rounds, with correlated noise and only then.

        Returns:
            The parameters. They contain the plan's fingerprint, so clients of one sum have the same plan.

        Raises:
            ProtocolError: If there is a link without correlated noise, or none with it.
        """
        if (link is None) != (self.mean.noise is None):
            raise ProtocolError("a chain of rounds: must be given with correlated noise, and only there")
        return _params(self, round_name, roster_hash, link)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything."""
        return sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """Everything as text."""
        values = {
            "plan_format": PLAN_FORMAT,
            "mean": self.mean.to_dict(),
            "trained": list(self.trained),
            "layout": self.layout.to_dict(),
            "threshold": self.threshold,
            "dry_run": self.is_dry_run,
        }
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Any sender can have made it.

        Raises:
            ValueError: If a value is missing, unknown or not allowed, or the format is another.
        """
        limit = 2**24  # names of arrays take most of a plan
        if len(text) > limit:
            raise ValueError(f"plan: has {len(text)} characters: must be at most {limit}")
        values = parse_table(text)
        if (version := values.pop("plan_format", None)) != PLAN_FORMAT:
            raise ValueError(
                f"plan_format = {shown(version)}: must be {PLAN_FORMAT}: the server and the nodes of a run need the "
                "same version of rqm"
            )
        names = ["mean", "trained", "layout", "threshold", "dry_run"]
        known_keys(values, names, needed=names)
        trained = values["trained"]
        if not isinstance(trained, list) or not all(isinstance(name, str) for name in trained):
            raise ValueError(f"trained = {shown(trained)}: must be a list of names")
        if not isinstance(values["layout"], Mapping) or not isinstance(values["dry_run"], bool):
            raise ValueError("layout, dry_run: must be a table, and true or false")
        return cls(
            mean_from_dict(values["mean"]),
            tuple(trained),
            VectorLayout.from_dict(values["layout"]),
            values["threshold"],
            values["dry_run"],
        )


@lru_cache(maxsize=4)
def read_plan(text: str) -> SharedPlan:
    """`SharedPlan.from_json`, the same object for the same text: a simulation has many nodes in one process."""
    return SharedPlan.from_json(text)


@lru_cache(maxsize=8)
def _params(plan: SharedPlan, round_name: bytes, roster_hash: bytes, link: Link | None) -> Params:
    params: Params = secure_sum_parameters(
        plan.mean,
        round_name,
        plan.mean.participation.min_survivors,
        threshold=plan.threshold,
        roster=roster_hash,
        link=link,
        fingerprint=plan.fingerprint,
    )
    return params


@final
@dataclass(frozen=True)
class Request:
    """What the server asks of one client.

    Attributes:
        stage: The message that is asked for, one of `rqm.secagg.wire.STAGES`.
        round_name: The name of the secure sum; each attempt at a round has its own.
        round_index: The round of the run, from 0.
        client: The client's number in the secure sum.
        message: The message of the protocol's server.
        link: The position in the chain of rounds, with correlated noise.
    """

    stage: Kind
    round_name: bytes
    round_index: int
    client: int
    message: bytes
    link: Link | None = None
