"""``Mechanism``: what every mechanism is, and what it can tell about itself.

Whoever accounts, calibrates, advises, audits, trains or prints asks the mechanism, and nobody asks which one it is. So
a new mechanism is one file: a frozen dataclass, its options with their help, and ``register``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

from rqm._util.checks import known_keys, shown
from rqm._util.schedules import Schedule

if TYPE_CHECKING:
    from rqm.mechanisms.channel import Channel
    from rqm.mechanisms.vqsgd import VQSGD
    from rqm.randomness import SecureRandom, SeededRandom


def option(default: Any, words: str, *, flag: bool = True) -> Any:
    """A field of a mechanism: its default, and what it means. Without ``flag`` the command line does not offer it."""
    return field(default=default, metadata={"help": words, "flag": flag})


@dataclass(frozen=True)
class Option:
    """One option of a mechanism, as a command line or a document shows it."""

    name: str
    help: str
    default: Any
    type: type
    required: bool = False


@dataclass(frozen=True)
class Correlation:
    """Noise of a round is taken back over ``bands`` rounds, itself included, as suits a server's steps.

    These are with ``momentum`` and rates of a ``schedule``. See ``rqm.correlated.factorization``.
    """

    bands: int
    momentum: float
    schedule: Schedule


@dataclass(frozen=True)
class Ask:
    """What the adviser asks mechanisms to propose something for.

    Up to ``levels`` outcomes a coordinate; a sum over ``clients`` whose mean is up to ``typical`` and whose noise has
    the deviation ``deviation``, both in units of clip. ``pure``: one client alone, by pure differential privacy.
    ``options`` are those that are given: a proposal may choose the others.
    """

    levels: int
    bits: int
    clients: int
    typical: float
    deviation: float
    pure: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class Mechanism(ABC):
    """What clients do to the coordinates of their clipped vectors before these are summed: a frozen dataclass.

    ``kind`` is its name. ``integers``: clients send levels that a secure aggregator can add up (a ``Channel``), else
    floats. ``private``: there is noise. ``needs_l2_clip``: the noise is in units of it.
    """

    kind: ClassVar[str]
    integers: ClassVar[bool] = False
    private: ClassVar[bool] = True
    needs_l2_clip: ClassVar[bool] = False
    for_models: ClassVar[Mapping[str, Any]] = {}
    """Options that suit a whole model better than the defaults."""
    examples: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """By name: parameters whose ε a measurement can reach, for audits. None: the defaults."""

    # -- what it tells about itself -----------------------------------------------------------

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits that carry one coordinate of one client, before secure aggregation."""

    @property
    def label(self) -> str:
        """A short name for a plot."""
        return self.kind

    @property
    def trusted_server(self) -> bool:
        """Whether the noise is added by a server who sees every vector."""
        return False

    @property
    def hides_alone(self) -> bool:
        """Whether a client's own noise is all that is counted on, so that nobody need be trusted to sum."""
        return False

    @property
    def channel(self) -> "Channel":
        """The mechanism itself, if it sends integers; whoever needs a law asks for this."""
        raise TypeError(
            f"{type(self).__name__} sends floats, not integers: it has no law, and is there to compare with"
        )

    @property
    def whole(self) -> "VQSGD | None":
        """The mechanism itself, if it encodes a vector as a whole, in units of its L2 clip; else every coordinate."""
        return None

    def slots(self, coordinates: int) -> int:
        """Integers that are sent for so many coordinates."""
        return coordinates

    def message_bits(self, slots: int) -> int:
        """Bits of one client's message of so many integers, before secure aggregation."""
        return slots * self.bits

    @property
    def differing(self) -> int:
        """How many integers of a message a client's data can change, where that is less than all of them; else 1."""
        return 1

    def told(self, dim: int, l2_clip: float) -> tuple["Mechanism", int, float]:
        """What the accountant accounts for: the mechanism of that which differs, how much of it, and its L2 bound."""
        return self, dim, l2_clip

    @property
    def gaussian_multiplier(self) -> float | None:
        """If the noise is exactly Gaussian: its deviation in what an observer sees, over the L2 clip."""
        return None

    @property
    def correlation(self) -> Correlation | None:
        """How a trusted server's noise is correlated over the rounds; None: it is independent."""
        return None

    @classmethod
    def options(cls) -> dict[str, Option]:
        """What a command line offers, by name; ``clip`` is not among them: privacy is told in units of it."""
        return options_of(cls)

    # -- how its noise grows ------------------------------------------------------------------

    @property
    def least_noise(self) -> float | None:
        """The least ``amount`` for ``with_noise``, below which calibration does not go; None: nothing to adjust."""
        return None

    @property
    def finest_noise(self) -> float | None:
        """The same where each law takes longer to certify: for few clients only."""
        return self.least_noise

    def with_noise(self, amount: float) -> Self:
        """The same with another amount of noise: the larger, the noisier, and the more private."""
        raise TypeError(f"mechanism = {self.kind}: has no noise to adjust")

    @classmethod
    def proposals(cls, ask: Ask) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the adviser should try: names, and options whose noise it then adjusts."""
        yield from ()

    # -- sums of floats -----------------------------------------------------------------------

    def clipped(self, rows: Any) -> Any:
        """What clients who send floats send for these rows."""
        return rows

    def sends(self, rows: Any, rng: "SecureRandom | SeededRandom") -> Any:
        """The same where it is drawn at random."""
        return self.clipped(rows)

    def on_sum(self, clients: int) -> float:
        """The deviation of the noise that is added to a sum of floats, in units of the L2 clip."""
        return 0.0

    @abstractmethod
    def decode(self, z_sum: Any, clients: int, *, check: bool = True) -> Any:
        """The mean of ``clients`` inputs, unbiased, from the sum of what they sent.

        ``check=False`` is for a caller who knows that the sum is one that these clients can have sent.
        """

    # -- to and from a plain dict -------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters and the mechanism's name, ready for JSON or TOML."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return {"mechanism": self.kind, **values}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the mechanism that ``to_dict`` described."""
        values = dict(values)
        kind = values.pop("mechanism", cls.kind)
        if kind != cls.kind:
            raise ValueError(f"mechanism = {shown(kind)}: must be {cls.kind!r} here")
        known_keys(values, [one.name for one in fields(cls)], "mechanism.")  # type: ignore[arg-type]
        return cls(**values)

    def changed(self, **values: Any) -> Self:
        """The same with other values."""
        made: Self = replace(self, **values)  # type: ignore[type-var]
        return made


def mechanism_of(value: object) -> Mechanism:
    """The value, if it is a mechanism, or raise."""
    if not isinstance(value, Mechanism):
        raise TypeError(f"mechanism = {shown(value)}: must be a mechanism, such as rqm.RQM() or rqm.PBM()")
    return value


def options_of(made: type) -> dict[str, Option]:
    """What a command line offers of a dataclass whose fields are options."""
    kinds = get_type_hints(made)
    return {
        one.name: Option(one.name, one.metadata["help"], one.default, _plain(kinds[one.name]))
        for one in fields(made)
        if one.metadata.get("flag")
    }


def _plain(kind: Any) -> type:
    """What a command line parses: a number, or text."""
    return kind if kind in (int, float, bool) else str
