"""The unit of privacy of a plan: users, or with a `[records]` table the records of silos."""

from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, final

from rqm._util.checks import real, whole
from rqm.accounting.participation import Sampling
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean

if TYPE_CHECKING:
    from rqm.config.plan import Plan

AnyMean = TypeVar("AnyMean", PrivateMean, PrivateRecordMean)


class MergeableClients(Protocol):
    """Data of clients that can be merged."""

    def merge(self, silos: int, /) -> Self:
        """The same data, of fewer clients."""


AnyClients = TypeVar("AnyClients", bound=MergeableClients)


@final
@dataclass(frozen=True)
class Records:
    """How silos clip, sample and sum the gradients of their records.

    Attributes:
        clip: L2 clip of each record's gradient (C). A silo sends the sum, within the plan's L2 clip.
        batch: The public number by which the server divides the sum: about the records of a round.
        sampling_rate: The probability with which a silo includes a record in a round (Poisson sampling). None: with
            the plan's `min_separation` records are taken in a fixed order of that many batches, one per round; else all
            of them in every round. In add-or-remove-one each record draws its own batch, so that no record moves
            another.
        silos: The number of silos that users of the data are merged into; None: each user is one.
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
        """The values that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    takes_turns: ClassVar[bool] = False
    """Whether a round's clients take turns if participations must be separated; silos are in every round."""

    def clients_of(self, users: int) -> int:
        """The number of clients that a number of users are merged into."""
        return self.silos or users

    def decoded_scale(self, survivors: int) -> float:
        """The factor for a decoded mean of silos: the sum of records is divided by a public number of records."""
        return survivors / self.batch

    def merged(self, clients: AnyClients) -> AnyClients:
        """The clients' data, merged into silos."""
        return clients if self.silos is None else clients.merge(self.silos)

    def check(self, plan: "Plan") -> None:
        """Refuse what cannot be combined with records.

        Args:
            plan: The plan.

        Raises:
            ValueError: If a value cannot be combined.
        """
        participation = plan.participation
        for name in ("population", "max_participations"):
            value = getattr(participation, name)
            if value is not None:
                raise ValueError(f"{name} = {value}: must not be given with [records]: silos are in every round")
        if participation.min_separation > 1 and self.sampling_rate is not None:
            raise ValueError(
                f"min_separation = {participation.min_separation}: must come without records.sampling_rate: sampled, "
                "or in a fixed order"
            )
        if plan.noise is not None and participation.min_separation == 1:
            raise ValueError(
                "min_separation = 1: must be larger with correlated noise: the number of batches of a fixed order"
            )
        if plan.client.work != "gradient":
            raise ValueError(
                f"client.work = {plan.client.work!r}: must be 'gradient' with [records], clipped one by one"
            )
        if plan.noise is not None and self.silos not in (None, participation.clients):
            raise ValueError(f"clients = {participation.clients}: must be all {self.silos} silos with correlated noise")
        if plan.adapt is not None:
            raise ValueError("adapt: must not be given with [records]: the clip of a record stays")
        if plan.delta is None:
            raise ValueError(
                "delta = None: must be given with [records]: well below one over the number of all records"
            )

    def check_order(self, plan: "Plan") -> None:
        """Silos take part in any order."""

    def private_mean(self, arguments: dict[str, Any]) -> PrivateRecordMean:
        """The private mean of a plan with records.

        Args:
            arguments: What the plan says besides.

        Returns:
            The private mean.
        """
        mean: PrivateRecordMean = _cached_mean(
            PrivateRecordMean, **arguments, record_clip=self.clip, sampling_rate=self.sampling_rate
        )
        return mean

    def defaults(self, is_ordered: bool) -> tuple[Sampling, dict[str, Any]]:
        """Defaults of a plan with records.

        Args:
            is_ordered: Whether participations are separated.

        Returns:
            The sampling of silos, and values of the threat model.
        """
        sampling: Sampling = "fixed-order" if is_ordered else "available"
        return sampling, {"unit": "record", "neighboring": "add-or-remove-one"}


@final
class Users:
    """The unit of privacy of a plan without records: a user, who is a client."""

    takes_turns: ClassVar[bool] = True
    """Whether a round's clients take turns if participations must be separated."""

    def clients_of(self, users: int) -> int:
        """The number of clients: each user is one."""
        return users

    def decoded_scale(self, survivors: int) -> float:
        """The factor for a decoded mean of users: 1."""
        return 1.0

    def merged(self, clients: AnyClients) -> AnyClients:
        """The clients' data as they are."""
        return clients

    def check(self, plan: "Plan") -> None:
        """Users go with everything that a plan may say."""

    def check_order(self, plan: "Plan") -> None:
        """Refuse random samples of users whose participations must be separated.

        Args:
            plan: The plan.

        Raises:
            ValueError: If users are sampled although they must take turns.
        """
        is_separated = plan.noise is not None or plan.participation.min_separation > 1
        if plan.participation.sampling == "uniform" and is_separated:
            raise ValueError(
                "sampling = 'uniform': must be 'fixed-order' with min_separation and with correlated noise, for which "
                "users take turns"
            )

    def private_mean(self, arguments: dict[str, Any]) -> PrivateMean:
        """The private mean of a plan.

        Args:
            arguments: What the plan says.

        Returns:
            The private mean.
        """
        mean: PrivateMean = _cached_mean(PrivateMean, **arguments)
        return mean

    def defaults(self, is_ordered: bool) -> tuple[Sampling, dict[str, Any]]:
        """Defaults of a plan.

        Args:
            is_ordered: Whether participations are separated.

        Returns:
            The sampling of users, and values of the threat model.
        """
        return ("fixed-order" if is_ordered else "uniform"), {}


@lru_cache(maxsize=8)
def _cached_mean(mean_class: type[AnyMean], **values: Any) -> AnyMean:
    """A private mean, the same object for the same values: its certified parts are computed once."""
    return mean_class(**values)
