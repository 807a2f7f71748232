"""The ``[records]`` of a plan: clients are silos, and what is protected is a record."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

from rqm._util.checks import real, shown, whole

if TYPE_CHECKING:
    from rqm.plan.plan import Plan


@final
@dataclass(frozen=True)
class Records:
    """Each record's gradient is clipped at ``clip`` (C) in L2, and a silo sends their sum, within the plan's L2 clip.

    The server divides the sum of all silos by ``batch``, a public number: about as many records as a round takes. With
    a ``sampling_rate`` each silo includes every record of a round with that probability, in secret (Poisson sampling).
    With the plan's ``min_separation`` it takes its records in a fixed order of so many batches, one a round; else all
    of them. If records may be added or removed, each of them has its batch by a draw of its own, so that none moves
    another. Users of the data are put together to so many ``silos`` (None: each is one).
    """

    clip: float
    batch: float
    sampling_rate: float | None = None
    silos: int | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("clip", "batch"):
            real(f"records.{name}", getattr(self, name), "a positive finite number", 0, float("inf"))
        if self.sampling_rate is not None:
            real("records.sampling_rate", self.sampling_rate, "above 0 and at most 1", 0, 1, closed="]")
        if self.silos is not None:
            whole("records.silos", self.silos, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return all that is given."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def check_records(plan: "Plan") -> None:
    """Refuse what does not go with records."""
    if plan.records is None:
        return
    if not isinstance(plan.records, Records):
        raise TypeError(f"records = {shown(plan.records)}: must be Records")
    who = plan.participation
    for name in ("population", "max_participations"):
        if getattr(who, name) is not None:
            raise ValueError(
                f"{name} = {getattr(who, name)}: must not be given with [records]: silos are in every round"
            )
    if who.min_separation > 1 and plan.records.sampling_rate is not None:
        raise ValueError(
            f"min_separation = {who.min_separation}: must come without records.sampling_rate: sampled, or in order"
        )
    if plan.noise is not None and who.min_separation == 1:
        raise ValueError("min_separation = 1: must be larger with correlated noise: a fixed order of so many batches")
    if plan.client.work != "gradient":
        raise ValueError(f"client.work = {plan.client.work!r}: must be 'gradient' with [records], clipped one by one")
    if plan.noise is not None and plan.records.silos not in (None, who.clients):
        raise ValueError(f"clients = {who.clients}: must be all {plan.records.silos} silos with correlated noise")
    if plan.adapt is not None:
        raise ValueError("adapt: must not be given with [records]: the clip of a record stays")
    if plan.delta is None:
        raise ValueError("delta = None: must be given with [records]: well below one over the number of all records")
