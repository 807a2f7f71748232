"""`Mechanism`: the interface of all mechanisms.

Accounting, calibration, the adviser, audits and training ask the mechanism, and never which class it has. So a new
mechanism is one file: a frozen dataclass, its options with their help texts, and `register`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import cos, pi
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from rqm._util.checks import known_keys, shown, whole

if TYPE_CHECKING:
    from rqm.bounds import Bound, Neighboring
    from rqm.mechanisms.discrete import DiscreteMechanism
    from rqm.randomness import SecureRandom, SeededRandom


def option(default: Any, words: str, *, flag: bool = True) -> Any:
    """A dataclass field with a help text.

    Args:
        default: Its default.
        words: What it means.
        flag: Whether the command line offers it.

    Returns:
        The field.
    """
    return field(default=default, metadata={"help": words, "flag": flag})


@dataclass(frozen=True)
class Option:
    """An option of a mechanism, as the command line and the documents show it."""

    name: str
    help: str
    default: Any
    type: type
    required: bool = False


Schedule = Literal["constant", "linear", "cosine"]


def rate_factor(schedule: Schedule, round_index: int, rounds: int) -> float:
    """The factor on a server's learning rate in one round.

    Args:
        schedule: "constant" for the factor 1; "linear" or "cosine" for a fall from 1 to zero.
        round_index: The round, from 0.
        rounds: Number of rounds of the run.

    Returns:
        The factor, from 0 to 1.
    """
    fraction = round_index / rounds
    return {"constant": 1.0, "linear": 1 - fraction, "cosine": (1 + cos(pi * fraction)) / 2}[schedule]


@dataclass(frozen=True)
class Correlation:
    """How a trusted server's noise is correlated over rounds (see `rqm.correlated.factorization`).

    Attributes:
        bands: Rounds over which noise is correlated, the round itself included.
        momentum: Momentum of the server that the bands are optimized for.
        schedule: Schedule of its learning rate.
    """

    bands: int
    momentum: float
    schedule: Schedule


@dataclass(frozen=True)
class ProposalRequest:
    """What the adviser asks mechanisms to propose something for.

    Attributes:
        levels: The largest number of outcomes of a coordinate.
        bits: The largest number of bits of a coordinate of a sum.
        clients: Clients of a sum.
        typical: The largest mean of a coordinate over clients, in clips.
        deviation: Standard deviation of the noise in the sum, in clips.
        pure: Whether a single client needs pure differential privacy.
        options: Options with given values. A proposal chooses the others.
    """

    levels: int
    bits: int
    clients: int
    typical: float
    deviation: float
    pure: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class VectorMechanism(Protocol):
    """A mechanism that encodes whole vectors, in units of the L2 clip."""

    def encode(self, row: Any, source: "SecureRandom | SeededRandom") -> Any:
        """One client's message.

        Args:
            row: The vector, of length 1 at most.
            source: The source of randomness.
        """

    def encode_rows(self, rows: Any, source: "SecureRandom | SeededRandom") -> Any:
        """The messages of clients, a row each.

        Args:
            rows: Their vectors, of length 1 at most.
            source: The source of randomness.
        """

    def encode_sum(self, rows: Any, source: "SecureRandom | SeededRandom", out: Any, threads: int | None = None) -> Any:
        """Add the messages of clients to a sum.

        Args:
            rows: Their vectors, of length 1 at most.
            source: The source of randomness.
            out: The sum, 32-bit integers, which is changed in place.
            threads: CPU threads; None: all processors.
        """

    def variance(self, slots: int) -> float:
        """The largest variance of a decoded value of one message with this many integers."""


class Mechanism(ABC):
    """What clients do to the coordinates of their clipped vectors before these are summed: a frozen dataclass.

    Subclasses override attributes with values or with properties.
    """

    kind: ClassVar[str]
    """The name in plans and on the command line."""
    has_integer_messages: ClassVar[bool] = False
    """Whether clients send integers, which secure aggregation can add up, or floats."""
    adds_noise: ClassVar[bool] = True
    """Whether there is noise."""
    needs_l2_clip: ClassVar[bool] = False
    """Whether the noise is in units of the L2 clip."""
    for_models: ClassVar[Mapping[str, Any]] = {}
    """Options that suit a whole model better than the defaults."""
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Parameters whose ε an audit can reach, by name. Empty: the defaults."""
    trusted_server: ClassVar[bool] = False
    """Whether the noise is added by a server that sees every vector."""
    is_local: ClassVar[bool] = False
    """Whether the guarantee counts only on a client's own noise, so that no secure sum is needed."""
    differing_integers: ClassVar[int] = 1
    """Integers of a message that depend on a client's data, if fewer than all; else 1."""
    gaussian_multiplier: ClassVar[float | None] = None
    """Standard deviation of exactly Gaussian noise in what the adversary sees, over the L2 clip; None: not Gaussian."""
    correlation: ClassVar[Correlation | None] = None
    """How a trusted server's noise is correlated over rounds; None: it is independent."""
    vector_mechanism: ClassVar["VectorMechanism | None"] = None
    """The mechanism itself if it encodes whole vectors, in units of the L2 clip; None: it encodes coordinates."""
    min_noise: ClassVar[float | None] = None
    """The smallest `amount` of `with_noise` that calibration considers; None: the noise cannot be adjusted."""

    # -- messages -----------------------------------------------------------------------------

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of one coordinate of one client, before secure aggregation."""

    @property
    def label(self) -> str:
        """A short name for plots."""
        return self.kind

    @property
    def discrete(self) -> "DiscreteMechanism":
        """The mechanism of one integer; the mechanism itself unless it encodes whole vectors.

        Raises:
            TypeError: If clients send floats.
        """
        raise TypeError(
            f"{type(self).__name__} sends floats, not integers: it has no pmf, and serves as a baseline only"
        )

    def message_length(self, coordinates: int) -> int:
        """The number of integers of a message with this many coordinates."""
        return coordinates

    def message_bits(self, slots: int) -> int:
        """Bits of one client's message with this many integers, before secure aggregation."""
        return slots * self.bits

    def reduce_to_worst_case(self, dim: int, l2_clip: float) -> tuple["Mechanism", int, float]:
        """The worst case of two neighboring vectors, which is what is accounted for.

        Args:
            dim: Integers of a message.
            l2_clip: L2 bound of a client's vector.

        Returns:
            The mechanism of the integers that differ, their number, and their L2 bound.
        """
        return self, dim, l2_clip

    def own_bound(self, dim: int, l2_clip: float, neighboring: "Neighboring", honest: int) -> "Bound | None":
        """A certificate of the mechanism's own for one release, beside those of `rqm.certify`.

        Args:
            dim: Integers of a message.
            l2_clip: L2 bound of a client's vector.
            neighboring: The neighboring relation.
            honest: Number of honest clients in the sum.

        Returns:
            The bound; None if there is no such certificate.
        """
        return None

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options that the command line offers, by name. `clip` is none: privacy is stated in units of it."""
        return options_of(cls)

    # -- noise --------------------------------------------------------------------------------

    @property
    def min_noise_of_small_cohorts(self) -> float | None:
        """Like `min_noise`, with pmfs that take longer to certify: for few clients only."""
        return self.min_noise

    def with_noise(self, amount: float) -> Self:
        """The same mechanism with another amount of noise. More noise is more private."""
        raise TypeError(f"mechanism = {self.kind}: has no noise to adjust")

    @classmethod
    def proposals(cls, ask: ProposalRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        """Candidates for the adviser: names, and options whose noise the adviser then adjusts."""
        yield from ()

    # -- sums of floats -----------------------------------------------------------------------

    def clip_messages(self, rows: Any) -> Any:
        """What clients send who send floats, without randomness."""
        return rows

    def sample_messages(self, rows: Any, rng: "SecureRandom | SeededRandom") -> Any:
        """The messages of clients that send floats.

        Args:
            rows: Their vectors, a row each.
            rng: The source of randomness; used by local mechanisms only.

        Returns:
            The messages, a row each.
        """
        return self.clip_messages(rows)

    def sum_noise_std(self, clients: int) -> float:
        """Standard deviation of the noise in a sum of floats, in units of the L2 clip."""
        return 0.0

    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """An unbiased estimate of the mean of all inputs.

        Args:
            z_sum: The sum of the messages.
            clients: Number of messages.
            check: Whether to check that these clients can have sent this sum. All sums of floats are possible.

        Returns:
            The mean, in the array library of the sum.
        """
        return z_sum / whole("clients", clients, 1)

    # -- dictionaries -------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The mechanism's name and parameters, ready for JSON or TOML."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {"mechanism": self.kind, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The mechanism that `to_dict` described."""
        parameters = {key: value for key, value in values.items() if key != "mechanism"}
        kind = values.get("mechanism", cls.kind)
        if kind != cls.kind:
            raise ValueError(f"mechanism = {shown(kind)}: must be {cls.kind!r} here")
        known_keys(parameters, [entry.name for entry in fields(cls)], "mechanism.")  # type: ignore[arg-type]
        return cls(**parameters)

    def with_parameters(self, **values: Any) -> Self:
        """The same mechanism with other values of some parameters."""
        mechanism: Self = replace(self, **values)  # type: ignore[type-var]
        return mechanism


def mechanism_of(value: object) -> Mechanism:
    """The value, if it is a mechanism; else a `TypeError`."""
    if not isinstance(value, Mechanism):
        raise TypeError(f"mechanism = {shown(value)}: must be a mechanism, such as rqm.RQM() or rqm.PBM()")
    return value


def options_of(made: type) -> dict[str, Option]:
    """The options that the command line offers for a dataclass with `option` fields."""
    scalars = {"int": int, "float": float, "bool": bool}
    options = {}
    for entry in fields(made):
        if entry.metadata.get("flag"):
            type_name = entry.type if isinstance(entry.type, str) else getattr(entry.type, "__name__", "")
            parsed = scalars.get(type_name, str)
            options[entry.name] = Option(entry.name, entry.metadata["help"], entry.default, parsed)
    return options
