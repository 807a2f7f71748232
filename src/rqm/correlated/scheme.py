"""The interface of correlated noise: noise with client state, which states what it guarantees.

A client begins the noise of a participation, adds it to its message, and settles one round later what
is canceled. Everything outside this package uses `NoiseScheme` and depends on no scheme's parameters.
A new scheme is a file beside this one and a line in `SCHEMES`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import import_module
from math import ceil, inf, log2
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from rqm import kernels
from rqm._util.checks import known_keys, one_of, real, shown, whole
from rqm.bounds import Bound, Neighboring, Unit
from rqm.mechanisms.base import Mechanism

if TYPE_CHECKING:
    from rqm.correlated.factorization import Workload
    from rqm.correlated.server_noise import Seeds, ServerNoise

SCHEMES = {
    "two-part": "noise.CorrelatedNoise",
}
"""All schemes by name. The first one is used where none is named."""


@final
@dataclass(frozen=True, eq=False)
class NoiseState:
    """The noise of one participation. It is secret. The caller uses it once: for one message and one settlement.

    Attributes:
        added: Integers that are added to the first message.
        canceled: Integers that are subtracted one round later.
    """

    added: Any
    canceled: Any


def check_state(state: object, length: int | None = None) -> NoiseState:
    """Refuse what is not the noise of a vector of this length.

    Args:
        state: The noise.
        length: Number of coordinates; None: any.

    Returns:
        The noise.

    Raises:
        TypeError: If it is no `NoiseState`.
        ValueError: If it has another length, or is zero everywhere.
    """
    if not isinstance(state, NoiseState):
        raise TypeError(f"noise_state = {shown(state)}: must be what begin_noise() returned for this participation")
    length = len(state.added) if length is None else length
    if state.added.shape != (length,) or state.canceled.shape != (length,):
        raise ValueError(
            f"noise_state: has {len(state.added)} coordinates: must have {length}, as begin_noise() of the same mean "
            "returns"
        )
    # A coordinate's noise is zero with probability at most .79, and that of 129 coordinates with 8e-14.
    if length > 128 and not state.added.any():
        raise ValueError("noise_state: is zero everywhere, which noise never is: must be what begin_noise() returned")
    return state


@final
@dataclass(frozen=True)
class Exposure:
    """Participations of one user, or record, and what hides them.

    Attributes:
        unit: "user" or "record".
        honest: Number of honest clients in each of `separation` rounds from a participation on, each of which settles
            its noise.
        separation: Rounds from one participation to the next, at least.
        dim: Number of coordinates.
        sensitivity: The largest L2 distance of neighboring vectors.
        failure: Probability of the outcomes that a bound may leave out.
        count: Number of participations.
        neighboring: The neighboring relation.
    """

    unit: Unit
    honest: int
    separation: int
    dim: int
    sensitivity: float
    failure: float
    count: int = 1
    neighboring: Neighboring = "replace-one"

    def __post_init__(self) -> None:
        """Validate the numbers."""
        for name in ("honest", "separation", "dim", "count"):
            whole(name, getattr(self, name), 1)
        real("sensitivity", self.sensitivity, "a positive finite number", 0, inf)
        real("failure", self.failure, "above 0 and below 1", 0, 1)


class NoiseScheme(ABC):
    """Correlated noise: a frozen dataclass of its parameters.

    For integers the unit is a step between two levels. Where a trusted server adds the noise, it is the L2 clip.
    What its variances and its `bound` state must hold for the integers that are sampled.
    """

    kind: ClassVar[str]
    """The name in `SCHEMES`."""
    max_std: ClassVar[float]
    """The largest `added_std`, in steps, that can be sampled."""

    @staticmethod
    def of(value: Any) -> "NoiseScheme":
        """Build noise from what a file or a caller says.

        Args:
            value: Correlated noise; a table of its attributes and its `scheme`, if that is not the first one; or the
                first attribute of the first scheme alone.

        Returns:
            The noise.

        >>> NoiseScheme.of({"transient_std": 39.2, "residual_std": 2.0, "gain": 49})
        CorrelatedNoise(transient_std=39.2, residual_std=2.0, gain=49)
        """
        if isinstance(value, NoiseScheme):
            return value
        if isinstance(value, Mapping):
            values = {"scheme": next(iter(SCHEMES)), **value}
            one_of("noise.scheme", values["scheme"], list(SCHEMES))
            made = scheme_class(values.pop("scheme"))
            entries = fields(made)  # type: ignore[arg-type]
            needed = [entry.name for entry in entries if entry.default is MISSING]
            known_keys(values, [entry.name for entry in entries], "noise.", needed=needed)
            return made(**values)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"noise = {shown(value)}: must be rqm.CorrelatedNoise(…), a standard deviation, or a table of "
                "transient_std, residual_std and gain"
            )
        return scheme_class()(value)  # type: ignore[call-arg]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON or TOML. The first scheme is not named."""
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return values if self.kind == next(iter(SCHEMES)) else {"scheme": self.kind, **values}

    @abstractmethod
    def check(self, mechanism: Mechanism, unit: Unit) -> None:
        """Refuse a mechanism with which no bound of this noise is known.

        Args:
            mechanism: How each client encodes a coordinate.
            unit: What is protected, a user or a record.

        Raises:
            ValueError: If there is no bound.
        """

    # -- one participation ----------------------------------------------------------------------

    @abstractmethod
    def begin(self, secret: bytes, length: int) -> NoiseState:
        """The noise of one participation, which follows from a secret.

        Store the secret before anything is sent. Use it for one participation only.

        Args:
            secret: 32 bytes. Anyone who is given them computes the same noise.
            length: Number of coordinates.

        Returns:
            The noise that `add` adds and `settle` cancels.
        """

    @abstractmethod
    def sample(self, length: int, source: object) -> NoiseState:
        """The noise of one participation, drawn at random.

        Args:
            length: Number of coordinates.
            source: A `SecureRandom`; a `SeededRandom` in simulations.

        Returns:
            The noise.
        """

    @abstractmethod
    def sample_sum(self, clients: int, template: Any, source: object) -> NoiseState:
        """The sum of the noise of some clients, for simulations.

        Args:
            clients: Number of clients.
            template: A torch tensor of 32-bit integers, of the shape of the sum.
            source: The source of randomness.

        Returns:
            The noise, as tensors.
        """

    def add(self, message: Any, state: NoiseState, modulus: int) -> Any:
        """The first message: a client's integers with its noise.

        Args:
            message: The client's integers, a NumPy array or a torch tensor.
            state: What `begin` or `sample` returned for this participation.
            modulus: The modulus of the sum.

        Returns:
            The message modulo `modulus`, in the array library of `message`.
        """
        values = check_state(state, len(message)).added
        return (message + (values if kernels.backend(message) is None else message.new_tensor(values))) % modulus

    def settle(self, state: NoiseState, modulus: int) -> Any:
        """The second message, for the next round. It holds no input, and is sent once or never.

        Args:
            state: What `begin` or `sample` returned for the participation that it settles.
            modulus: The modulus of the sum.

        Returns:
            The canceled noise modulo `modulus`.
        """
        return -check_state(state).canceled % modulus

    def recover(self, total: Any, secrets: Iterable[bytes], modulus: int) -> Any:
        """Cancel the noise of clients that dropped out before they settled.

        Args:
            total: The sum of the round in which they should have settled.
            secrets: The clients' secrets, which the others' shares give.
            modulus: The modulus of the sum.

        Returns:
            The sum modulo `modulus`.
        """
        for secret in secrets:
            total = (total - self.begin(secret, len(total)).canceled) % modulus
        return total

    def server_noise(self, std: float, seeds: "Seeds") -> "ServerNoise":
        """The noise of a trusted server that adds this noise beside independent Gaussian noise.

        Args:
            std: Standard deviation of the independent noise.
            seeds: The seed of each round's noise.

        Returns:
            The noise, in units of the independent noise.
        """
        raise ValueError(f"noise = {self}: must be added by the clients; it is not known for a trusted server")

    # -- its size -------------------------------------------------------------------------------

    @property
    @abstractmethod
    def added_std(self) -> float:
        """The standard deviation of what is added, as it is stated."""

    @property
    def residual_variance(self) -> float:
        """The variance of what is never canceled, as it is stated."""
        return 0.0

    @property
    @abstractmethod
    def added_variance(self) -> float:
        """The variance of what is added, as it is sampled, in steps²."""

    @property
    @abstractmethod
    def canceled_variance(self) -> float:
        """The variance of what is canceled, in steps²."""

    def sum_bits(self, clients: int, spread: int) -> int:
        """Bits that hold a sum of values, the noise that was added and the noise that is canceled.

        Args:
            clients: Number of clients.
            spread: The largest sum without noise.

        Returns:
            The number of bits; six standard deviations of the noise of a round fit to each side.
        """
        return ceil(log2(spread + 1 + 2 * 6.0 * (2 * clients * self.added_variance) ** 0.5))

    @abstractmethod
    def iterate_std(self, workload: "Workload", independent_std: float) -> float:
        """The root mean square of the noise that a server's iterates contain.

        Args:
            workload: How the server sums noise into its model.
            independent_std: Standard deviation of the independent noise of each round.

        Returns:
            The root mean square over all iterates.
        """

    # -- what it guarantees ---------------------------------------------------------------------

    @abstractmethod
    def estimated_mu(self, separation: int, independent_std: float) -> float:
        """μ of a shift by one unit in one round, if all noise were Gaussian; no bound.

        Args:
            separation: Rounds from one participation to the next, at least.
            independent_std: Standard deviation of the independent noise of each round.

        Returns:
            μ.
        """

    @abstractmethod
    def bound(self, mechanism: Mechanism, exposure: Exposure) -> Bound:
        """What all participations of a user, or record, reveal, for the integers that are sampled.

        Args:
            mechanism: How each client encodes a coordinate.
            exposure: The participations, and the failure probability that the bound may have.

        Returns:
            The bound; its μ is infinite if none is known.

        Raises:
            ValueError: If no bound is known with this mechanism.
        """

    # -- the search for its parameters ------------------------------------------------------------

    @classmethod
    def beside(cls, independent_std: float, separation: int, workload: "Workload") -> Self:
        """The noise that goes best with independent noise, so that the models contain the least noise for the same μ.

        Args:
            independent_std: Standard deviation of the independent noise of each round.
            separation: Rounds from one participation to the next, at least.
            workload: How the server sums noise into its model.

        Returns:
            The noise.
        """
        raise ValueError(f"noise: parameters of the scheme {cls.kind!r} are not searched for; give them")

    @classmethod
    def beside_rounding(
        cls,
        separation: int,
        workload: "Workload",
        *,
        clients: int,
        honest: int,
        bits: int,
        least_squared_mu: float = 0.0,
    ) -> Self:
        """The noise that goes best with rounding to two levels.

        Args:
            separation: Rounds from one participation to the next, at least.
            workload: How the server sums noise into its model.
            clients: Clients in a round.
            honest: Honest clients in each round.
            bits: Bits of a sum, at most.
            least_squared_mu: μ² of a shift by one step that a client's noise must at least allow
                for, as steps cannot be finer.

        Returns:
            The noise.
        """
        return cls.beside(0.5, separation, workload)

    def scaled(self, factor: float) -> Self:
        """The same noise, a number of times as wide."""
        raise ValueError(f"noise: parameters of the scheme {self.kind!r} are not searched for; give them")


def scheme_class(kind: str | None = None) -> type[NoiseScheme]:
    """The class of a scheme.

    Args:
        kind: Its name in `SCHEMES`; None: the first one.

    Returns:
        The class.
    """
    module, _, name = SCHEMES[kind or next(iter(SCHEMES))].rpartition(".")
    made: type[NoiseScheme] = getattr(import_module(f"rqm.correlated.{module}"), name)
    return made
