"""The ``[records]`` of a plan: clients are silos, and what is protected is a record."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, final, get_args

from rqm._util.checks import one_of, real, shown, whole

if TYPE_CHECKING:
    from rqm.plan.plan import Plan

Changed = Literal["add-remove", "replace"]


@final
@dataclass(frozen=True)
class Records:
    """Each record's gradient is clipped at ``clip`` (C) in L2, and a silo sends their sum, within the plan's L2 clip.

    The server divides the sum of all silos by ``batch``, a public number: about as many records as a round takes. With
    a ``rate`` each silo draws every round's records in secret, each with that chance; with ``batches`` it takes them
    in a fixed order, one in so many a round; else all of them. If records may be added or removed, each of them has
    its batch by a throw of its own, so that none moves another. Users of the data are put together to so many
    ``silos`` (None: each is one).
    """

    clip: float
    batch: float
    rate: float | None = None
    batches: int | None = None
    silos: int | None = None
    neighbours: Changed = "add-remove"

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("clip", "batch"):
            real(f"records.{name}", getattr(self, name), "a positive finite number", 0, float("inf"))
        if self.rate is not None:
            real("records.rate", self.rate, "above 0 and at most 1", 0, 1, closed="]")
        for name in ("batches", "silos"):
            if getattr(self, name) is not None:
                whole(f"records.{name}", getattr(self, name), 1)
        one_of("records.neighbours", self.neighbours, get_args(Changed))
        if self.batches is not None and self.rate is not None:
            raise ValueError(f"records.batches = {self.batches}: must come without records.rate: drawn, or in order")

    def of_mean(self) -> dict[str, Any]:
        """What it says of a private mean."""
        return {
            "unit": "record",
            "record_clip": self.clip,
            "record_rate": self.rate,
            "separation": self.batches,
            "neighbours": self.neighbours,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all that is given."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def check_records(plan: "Plan") -> None:
    """Refuse what does not go with records."""
    if plan.records is None:
        return
    if not isinstance(plan.records, Records):
        raise TypeError(f"records = {shown(plan.records)}: must be Records")
    for name in ("population", "participations", "separation"):
        if getattr(plan, name) is not None:
            raise ValueError(f"{name} = {getattr(plan, name)}: must not be given with [records]: silos take every turn")
    if plan.cancel is not None and plan.records.batches is None:
        raise ValueError("records.batches = None: must be given where noise cancels (cancel): a fixed order of so many")
    if plan.client.work != "gradient":
        raise ValueError(f"client.work = {plan.client.work!r}: must be 'gradient' with [records], clipped one by one")
    if plan.cancel is not None and plan.records.silos not in (None, plan.clients):
        raise ValueError(
            f"clients = {plan.clients}: must be all {plan.records.silos} silos where noise cancels (cancel)"
        )
    if plan.adapt is not None:
        raise ValueError("adapt: must not be given with [records]: the clip of a record stays")
    if plan.delta is None:
        raise ValueError("delta = None: must be given with [records]: well below one over the number of all records")
