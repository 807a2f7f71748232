"""The unit of privacy of a plan: users, or with a `[records]` table the records of silos."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from rqm._util.checks import Count, FractionOrOne, Positive, check_fields
from rqm.accounting.participation import Sampling
from rqm.core.base import BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean

if TYPE_CHECKING:
    from rqm.config.plan import Plan


class Users:
    """The unit of privacy of a plan without records: a user, who is a client."""

    mean_class: ClassVar[type[BaseMean]] = PrivateMean
    takes_turns: ClassVar[bool] = True
    """Whether a round's clients take turns if participations must be separated."""
    sampling: ClassVar[Sampling] = "uniform"
    """How clients are sampled by default, unless participations must be separated."""
    threat_model: ClassVar[dict[str, Any]] = {}
    """Values of the threat model that differ from its defaults."""

    @property
    def mean_arguments(self) -> dict[str, Any]:
        """Arguments of the private mean that a plan does not have besides."""
        return {}

    def clients_of(self, users: int) -> int:
        """The number of clients that a number of users are merged into."""
        return users

    def decoded_scale(self, survivors: int) -> float:
        """The factor for a decoded mean."""
        return 1.0

    def merged(self, clients: Any) -> Any:
        """The clients' data, merged into silos."""
        return clients

    def check(self, plan: "Plan") -> None:
        """Refuse what cannot be combined with this unit.

        Args:
            plan: The plan.

        Raises:
            ValueError: If a value cannot be combined.
        """
        is_separated = plan.noise is not None or plan.participation.min_separation > 1
        if plan.participation.sampling == "uniform" and is_separated:
            raise ValueError(
                "sampling = 'uniform': must be 'fixed-order' with min_separation and with correlated noise, for which "
                "users take turns"
            )


@final
@dataclass(frozen=True)
class Records(Users):
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

    mean_class: ClassVar[type[BaseMean]] = PrivateRecordMean
    takes_turns: ClassVar[bool] = False  # silos are in every round
    sampling: ClassVar[Sampling] = "available"
    threat_model: ClassVar[dict[str, Any]] = {"unit": "record", "neighboring": "add-or-remove-one"}

    clip: Positive
    batch: Positive
    sampling_rate: FractionOrOne | None = None
    silos: Count | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        check_fields(self, "records.")

    def to_dict(self) -> dict[str, Any]:
        """The values that are not None."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def mean_arguments(self) -> dict[str, Any]:
        """The clip of a record and how records are sampled."""
        return {"record_clip": self.clip, "sampling_rate": self.sampling_rate}

    def clients_of(self, users: int) -> int:
        """The number of silos."""
        return self.silos or users

    def decoded_scale(self, survivors: int) -> float:
        """The sum of records is divided by a public number of records."""
        return survivors / self.batch

    def merged(self, clients: Any) -> Any:
        """The data of the silos."""
        return clients if self.silos is None else clients.merge(self.silos)

    def check(self, plan: "Plan") -> None:
        """Refuse what cannot be combined with records."""
        participation = plan.participation
        for name in ("population", "max_participations"):
            value = getattr(participation, name)
            if value is not None:
                raise ValueError(f"{name} = {value}: must not be given with [records]: silos are in every round")
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
