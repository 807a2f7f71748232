"""What `PrivateMean` and `PrivateRecordMean` share: a transform, a quantizer, and a guarantee.

The same object defines the messages and states their guarantee. The simulator, Flower, a user's own
loop, the ledger and the reports all use it. Encoding and decoding need only NumPy (or torch);
only `guarantee` needs the accountant.
"""

import json
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from math import inf, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from rqm import kernels
from rqm._util.checks import floats, not_finite, padded, real, shown, sums, whole
from rqm.accounting.participation import Participation, ThreatModel, default_delta
from rqm.bounds import EpsilonResult
from rqm.core.quantizer import Quantizer, quantizer_for
from rqm.core.transform import (
    FLOAT_ROOM,
    CoordinateChoice,
    Rotation,
    Transform,
    max_clipped_length,
    rotation_seed,
    second_clip,
)
from rqm.correlated.scheme import NoiseScheme, NoiseState, check_state
from rqm.correlated.server_noise import Seeds, ServerNoise, server_noise
from rqm.mechanisms.base import Mechanism, mechanism_of
from rqm.randomness import SecureRandom, SeededRandom, require, require_secure

if TYPE_CHECKING:
    from rqm.accounting.calibration import Target
    from rqm.accounting.guarantee import Guarantee
    from rqm.accounting.release import Release
    from rqm.correlated.factorization import Workload

FORMAT_VERSION = 2
"""The version of `BaseMean.to_dict`."""
PLAIN_FIELDS = ("dim", "l2_clip", "rotate", "record_clip", "sampling_rate", "zero_distance", "delta", "seed")
"""Fields that are numbers or flags."""
MAX_CLIENTS_WITH_INTERIOR_LEVELS = 200
"""The most clients for which ε takes seconds if levels lie inside the clip."""


@dataclass(frozen=True, kw_only=True)
class BaseMean(ABC):
    """The mean of the clients' vectors, round after round, and what it reveals.

    Attributes: see `PrivateMean`.
    """

    unit: ClassVar[str]
    """The unit of privacy: "user" or "record"."""
    sums_records: ClassVar[bool]
    """Whether a client's vector is the sum of its records' clipped vectors."""
    record_clip: ClassVar[float | None] = None
    sampling_rate: ClassVar[float | None] = None

    dim: int
    mechanism: Mechanism
    participation: Participation
    threat_model: ThreatModel
    l2_clip: float | None = 1.0
    rotate: bool = True
    noise: NoiseScheme | None = None
    coordinates: int = None  # type: ignore[assignment]  # None: all; resolved at construction
    zero_distance: float = 1.0
    delta: float = None  # type: ignore[assignment]  # None: by `_default_delta`; resolved at construction
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate everything."""
        if not isinstance(self.rotate, bool):
            raise TypeError(f"rotate = {shown(self.rotate)}: must be true or false")
        for name, expected in (("participation", Participation), ("threat_model", ThreatModel)):
            if not isinstance(getattr(self, name), expected):
                raise TypeError(f"{name} = {shown(getattr(self, name))}: must be a rqm.{expected.__name__}")
        if self.threat_model.unit != self.unit:
            raise ValueError(
                f"unit = {self.threat_model.unit!r}: must be {self.unit!r} for a {type(self).__name__}; "
                "rqm.PrivateMean is for users, rqm.PrivateRecordMean for records"
            )
        dim = whole("dim", self.dim, 1)
        count = sent_coordinates(dim, self.rotate, self.coordinates)
        values = {
            "dim": dim,
            "coordinates": mechanism_of(self.mechanism).message_length(count),
            "seed": whole("seed", self.seed, 0),
            "delta": real(
                "delta", self._default_delta() if self.delta is None else self.delta, "above 0 and below 1", 0, 1
            ),
            "noise": None if self.noise is None else NoiseScheme.of(self.noise),
        }
        for name in ("l2_clip", "record_clip"):
            if (clip := getattr(self, name)) is not None:
                values[name] = real(name, clip, "a positive finite number", 0, inf)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self.threat_model.check(self.participation)
        self._check()

    def _default_delta(self) -> float:
        """δ where none is given."""
        return default_delta(self.participation.population)

    def _check(self) -> None:
        """Refuse a combination that has no guarantee, or that cannot be encoded."""
        mechanism = self.mechanism
        self.threat_model.check_mechanism(mechanism, self.noise, self.participation)
        if self.is_subset and (self.l2_clip is None or not self.rotate):
            raise ValueError(
                f"coordinates = {self.coordinates}: must come with an L2 clip and a rotation, so that all "
                "coordinates are alike"
            )
        if self.is_subset and (self.noise is not None or mechanism.correlation is not None):
            raise ValueError(
                f"coordinates = {self.coordinates}: must not be given with correlated noise, as every round "
                "chooses other coordinates"
            )
        if mechanism.has_integer_messages and self.modulus > 2**31:  # sums are signed
            raise ValueError(
                f"clients = {self.participation.clients}: a sum of messages of {mechanism.discrete.levels} levels "
                "does not fit 31 bits: must be fewer clients, or fewer levels"
            )
        if mechanism.vector_mechanism is not None and (self.is_subset or self.noise is not None):
            raise ValueError(
                f"mechanism = {mechanism.kind!r}: must come without correlated noise, and with all coordinates"
            )
        if mechanism.needs_l2_clip and self.l2_clip is None:
            raise ValueError(f"l2_clip = None: must be given for the mechanism {mechanism.kind}, whose noise it scales")

    # -- messages -----------------------------------------------------------------------------

    @property
    def is_private(self) -> bool:
        """Whether there is noise at all."""
        return self.mechanism.adds_noise

    @property
    def has_integer_messages(self) -> bool:
        """Whether clients send integers, which a secure aggregator can add up, and not floats."""
        return self.mechanism.has_integer_messages

    @property
    def is_subset(self) -> bool:
        """Whether clients send fewer coordinates than rotated vectors have."""
        return self.coordinates < sent_coordinates(self.dim, self.rotate, None)

    @property
    def has_second_message(self) -> bool:
        """Whether noise is canceled by a message of its own in the next round."""
        return False

    @property
    def modulus(self) -> int:
        """Sums are taken modulo this power of two."""
        return int(2 ** self._sum_bits(self.participation.clients))

    @property
    def wire_bits(self) -> int | None:
        """Bits of a participation's messages under secure aggregation, per coordinate; None: floats."""
        if not self.mechanism.has_integer_messages:
            return None
        return self._sum_bits(self.participation.clients) * (2 if self.has_second_message else 1)

    def _sum_bits(self, clients: int) -> int:
        if self.noise is not None and self.has_second_message:
            return self.noise.sum_bits(self.participation.clients, self.participation.clients)
        return self.mechanism.discrete.sum_bits(clients)

    @property
    def l2_bound(self) -> float:
        """The L2 bound of what is encoded: C, the second clip after a choice of coordinates, or c√k without C."""
        if self.l2_clip is None:
            return float(self.mechanism.discrete.clip * sqrt(self.coordinates))
        return self.l2_clip * (second_clip(self.coordinates) if self.is_subset else 1)

    @property
    def sensitivity_clip(self) -> float:
        """The L2 clip that bounds what one unit of privacy contributes."""
        return self.l2_bound

    @cached_property
    def quantizer(self) -> Quantizer:
        """How transformed vectors become messages."""
        is_unbounded = self.l2_clip is None and not self.mechanism.has_integer_messages
        bound = inf if is_unbounded else self.l2_bound
        return quantizer_for(self.mechanism, self.coordinates, bound, checks_length=self.l2_clip is not None)

    @property
    def max_length(self) -> float | None:
        """The L2 norm that vectors are scaled down to before they are rotated; None: they are not clipped."""
        if self.l2_clip is None:
            return None
        length = self.quantizer.max_length
        return (1 - FLOAT_ROOM) * self.l2_clip if self.is_subset else length

    def transform(self, round_index: int = 0) -> Transform:
        """The public transform of a round.

        With correlated noise all rounds have the same rotation, or noise would not cancel.

        Args:
            round_index: The round, from 0.

        Returns:
            The transform.
        """
        rotation = None
        if self.rotate:
            is_fixed = self.noise is not None or self.mechanism.correlation is not None
            rotation = Rotation(self.dim, rotation_seed(self.seed, 0 if is_fixed else round_index))
        if not self.is_subset:
            return Transform(self.max_length, rotation)
        choice = CoordinateChoice(self.dim, self.coordinates, self.seed, round_index)
        return Transform(self.max_length, rotation, choice, self.quantizer.max_length)

    # -- the client ---------------------------------------------------------------------------

    def begin_noise(self, source: object) -> NoiseState:
        """Draw the correlated noise of one participation. It is the client's secret and single-use.

        Args:
            source: A `SecureRandom`.

        Returns:
            The noise, for `encode` and `settle`.
        """
        return self._correlated_noise().sample(self.coordinates, require_secure(source))

    def settle(self, noise_state: NoiseState) -> Any:
        """The second message, for the next round. It holds no input, and is sent once or never.

        Args:
            noise_state: What `begin_noise` returned for the participation that it settles.

        Returns:
            Integers below `modulus`.
        """
        noise = self._correlated_noise()
        return noise.settle(check_state(noise_state, self.coordinates), self.modulus)

    def _correlated_noise(self) -> NoiseScheme:
        if self.noise is None:
            raise ValueError(
                "noise = None: must be rqm.CorrelatedNoise(…) to begin and settle noise; independent noise has no state"
            )
        return self.noise

    def encode(
        self, vector: Any, source: object, *, round_index: int = 0, noise_state: NoiseState | None = None
    ) -> Any:
        """One client's message in a round.

        Args:
            vector: `dim` finite numbers, a NumPy array or a torch tensor. A `PrivateRecordMean`
                takes what `sum_records` returned, or the records' vectors as rows.
            source: A `SecureRandom`.
            round_index: The round, from 0.
            noise_state: With correlated noise, what `begin_noise` returned for this participation.

        Returns:
            `coordinates` integers below `modulus`, in the array library of `vector`.

        Raises:
            TypeError: If the randomness is not secure, or the mechanism sends floats.
            ValueError: If the vector has the wrong shape or is not finite.
        """
        return self._encode(vector, require_secure(source), round_index, noise_state)

    def encode_simulated(
        self, vector: Any, source: object, *, round_index: int = 0, noise_state: NoiseState | None = None
    ) -> Any:
        """`encode` with seeded randomness, for simulations and tests: **not private**.

        Args:
            vector: See `encode`.
            source: A `SeededRandom` or a `SecureRandom`.
            round_index: See `encode`.
            noise_state: See `encode`.

        Returns:
            See `encode`.
        """
        return self._encode(vector, require(source), round_index, noise_state)

    def _encode(
        self, vector: Any, source: SecureRandom | SeededRandom, round_index: int, noise_state: NoiseState | None
    ) -> Any:
        _ = self.mechanism.discrete  # only integers may leave a client
        index = whole("round_index", round_index, 0, self.participation.rounds - 1)
        if (noise_state is None) != (self.noise is None):
            raise ValueError(
                f"noise_state = {shown(noise_state)}: must be what begin_noise() returned with correlated noise, and "
                "None without"
            )
        vector = self._client_vector(vector)
        backend = kernels.backend(vector)
        row = floats("x", vector) if backend is None else backend.finite_floats("x", vector).clone()
        if tuple(row.shape) != (self.dim,):
            raise ValueError(f"x has shape {tuple(row.shape)}: must be ({self.dim},)")
        rows, finite = self.transform(index).forward(row[None])
        if backend is None and not finite[0]:
            raise not_finite("x", row)
        levels = self.quantizer.encode(rows, source, keep=row)
        message = levels if backend is None else levels.long()
        if self.noise is None or noise_state is None:
            return message
        return self.noise.add(message, noise_state, self.modulus)

    def _client_vector(self, vector: Any) -> Any:
        """The vector of a client."""
        return vector

    def add_messages(self, rows: Any, total: Any, source: object, *, round_index: int) -> Any:
        """Add the messages of many simulated clients to their sum; baselines add up floats.

        Nothing is checked and nothing waits for a GPU. A row that is not finite sends an encoding
        of zero.

        Args:
            rows: A torch tensor with one vector a row, which may be overwritten. A
                `PrivateRecordMean` takes a sequence of what `sum_records` returned.
            total: The sum, which is changed in place.
            source: The source of randomness.
            round_index: The round, from 0.

        Returns:
            Which rows were finite.
        """
        rows, finite = self.transform(round_index).forward(self._client_rows(rows))
        self.quantizer.add_messages(rows, total, source)
        return finite

    def _client_rows(self, rows: Any) -> Any:
        """The vectors of clients, a row each."""
        return rows

    # -- the server ---------------------------------------------------------------------------

    def server_noise(self, seeds: Seeds) -> ServerNoise | None:
        """The noise of a trusted server, for baselines in simulations.

        Args:
            seeds: The seed of each round's noise.

        Returns:
            The noise; None if clients send integers.
        """
        if self.mechanism.has_integer_messages:
            return None
        return server_noise(self.mechanism, self.noise, self.participation.rounds, seeds)

    def reveal(self, total: Any, clients: int, noise: ServerNoise | None, *, round_index: int) -> Any:
        """What an aggregator reveals of a sum: integers modulo a power of two, or floats with a server's noise.

        Args:
            total: The sum, which is changed in place.
            clients: Clients in the sum.
            noise: What `server_noise` returned.
            round_index: The round, from 0.

        Returns:
            The sum as it is revealed.
        """
        if self.mechanism.has_integer_messages:
            return total.bitwise_and_(2 ** self._sum_bits(clients) - 1)
        std = self.mechanism.sum_noise_std(clients)
        if not std:
            return total
        if noise is None:
            raise ValueError(
                f"noise = None: must be what server_noise() returned, as {self.mechanism.kind} leaves its noise "
                "to the server"
            )
        total += std * self.sensitivity_clip * noise.sample(round_index, total)
        return total

    def decode(self, total: Any, survivors: int, *, round_index: int = 0, check: bool = True) -> Any:
        """The mean of the clients' vectors from the sum of their messages, unbiased but for clipping.

        Args:
            total: The sum, `coordinates` integers.
            survivors: How many clients are in the sum.
            round_index: The round, from 0.
            check: Whether to refuse a sum that these clients cannot have sent.

        Returns:
            `dim` floats, in the array library of `total`.

        Raises:
            ValueError: If the sum has the wrong shape or too few clients, or cannot have been sent.
        """
        participation = self.participation
        index = whole("round_index", round_index, 0, participation.rounds - 1)
        min_survivors = participation.min_survivors or participation.clients
        survivors = whole("survivors", survivors, min_survivors, participation.clients)
        total = sums("total", total) if kernels.backend(total) is None else total
        if tuple(total.shape) != (self.coordinates,):
            raise ValueError(f"total has shape {tuple(total.shape)}: must be ({self.coordinates},)")
        if self.has_second_message and self.mechanism.has_integer_messages:  # the representative nearest to the center
            half = self.modulus // 2
            total, check = (total - survivors // 2 + half) % self.modulus - half + survivors // 2, False
        mean = self.quantizer.decode(total, survivors, check=check)
        return self.transform(index).inverse(mean if isinstance(mean, np.ndarray) else mean.float())

    def expected_error(self, length: float, client_length: float | None = None) -> float:
        """The expected squared error of each value that `decode` returns.

        It adds up the error of the choice of coordinates and that of the noise. Rotated
        coordinates are assumed to be Gaussian. Errors of clipping, and of sums that wrap around,
        are left out.

        Args:
            length: The L2 norm of the mean.
            client_length: The root mean square of the L2 norms of the clients' vectors; None: C.

        Returns:
            The error.
        """
        if self.l2_clip is None or not self.rotate:
            raise ValueError(
                f"expected_error: is not known for l2_clip = {self.l2_clip} and rotate = {self.rotate}: vectors must "
                "be clipped in L2 and rotated"
            )
        mechanism, clients = self.mechanism, self.participation.clients
        choice = choice_error(self.coordinates, padded(self.dim), length)
        if not mechanism.has_integer_messages:
            return choice + (mechanism.sum_noise_std(clients) * self.sensitivity_clip / clients) ** 2
        coordinate = (self.l2_clip if client_length is None else client_length) / sqrt(self.coordinates)
        quantiles = np.array([NormalDist().inv_cdf((index + 0.5) / 1000) for index in range(1000)])
        return choice + float(mechanism.discrete.variance(coordinate * quantiles).mean()) / clients

    # -- what is guaranteed -------------------------------------------------------------------

    @property
    def release(self) -> "Release":
        """What one round reveals."""
        from rqm.accounting.release import Release  # noqa: PLC0415 (takes the compiler)

        # A choice of coordinates scales both vectors.
        zero_distance = 2.0 if self.is_subset and self.zero_distance > 1 else self.zero_distance
        return Release(self.mechanism, self.coordinates, self.l2_bound, self.noise, zero_distance)

    def target(self, epsilon: float) -> "Target":
        """What a search for a mechanism has to reach.

        Args:
            epsilon: ε of all rounds together.

        Returns:
            The target, with everything but the mechanism and its noise.
        """
        from rqm.accounting.calibration import Target  # noqa: PLC0415 (takes the compiler)

        return Target(epsilon, self.delta, self.participation, self.threat_model, self.release)

    @property
    def is_accounted_in_seconds(self) -> bool:
        """Whether ε takes seconds at most."""
        return self.participation.clients <= MAX_CLIENTS_WITH_INTERIOR_LEVELS or not self.release.has_interior_levels

    def guarantee(
        self,
        delta: float | None = None,
        charges: Mapping[int, int] | None = None,
        *,
        workload: "Workload | None" = None,
    ) -> "Guarantee":
        """What all rounds guarantee to every user or record, certified.

        Args:
            delta: δ; None: the one of this object.
            charges: How often each round was charged; None: every round once, as planned.
            workload: How the server sums noise into its model. With it, the guarantee states the
                noise that is left in the model.

        Returns:
            The guarantee.
        """
        from rqm.accounting.guarantee import CoordinateSubset, guarantee  # noqa: PLC0415 (takes the compiler)

        count, subset = self.coordinates, None
        if self.is_subset:
            subset = CoordinateSubset(padded(self.dim), second_clip(count), max_clipped_length(count))
        return guarantee(
            self.release,
            self.participation,
            self.threat_model,
            self.delta if delta is None else delta,
            charges,
            parameters=self.dim,
            bits_under_secagg=self.wire_bits,
            workload=workload,
            subset=subset,
        )

    def account(self, charges: Mapping[int, int] | None = None, delta: float | None = None) -> EpsilonResult:
        """ε of all rounds, or of those that were charged: the number of `guarantee`, in less time.

        Args:
            charges: How often each round was charged; None: as planned.
            delta: δ; None: the one of this object.

        Returns:
            ε and the bound that gave it.
        """
        from rqm.accounting.accountant import account  # noqa: PLC0415 (takes the compiler)

        return account(
            self.release, self.participation, self.threat_model, self.delta if delta is None else delta, charges
        )

    # -- to and from plain values ---------------------------------------------------------------

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any]) -> Self:
        """Build a private mean from the fields of all classes; those of other classes must be None."""
        names = {entry.name for entry in fields(cls)}
        for name, value in arguments.items():
            if name not in names and value is not None:
                raise ValueError(f"{name} = {shown(value)}: must not be given with unit = {cls.unit!r}")
        return cls(**{name: value for name, value in arguments.items() if name in names})

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; the guarantee follows from them."""
        return {
            "private_mean": FORMAT_VERSION,
            **{name: getattr(self, name) for name in PLAIN_FIELDS},
            "coordinates": self.coordinates if self.is_subset else None,
            **asdict(self.participation),
            **asdict(self.threat_model),
            "noise": None if self.noise is None else self.noise.to_dict(),
            "mechanism": self.mechanism.to_dict(),
        }

    def privacy_parameters(self) -> dict[str, Any]:
        """The values that the guarantee of one release depends on. Client, server and ledger must agree on them."""
        values = self.to_dict()
        return {name: value for name, value in values.items() if name not in ("seed", "rounds")} | {
            "dim": self.coordinates
        }

    @property
    def fingerprint(self) -> str:
        """A hash of `privacy_parameters`."""
        return sha256(json.dumps(self.privacy_parameters(), sort_keys=True).encode()).hexdigest()

    def with_values(self, **changes: Any) -> Self:
        """The same with some values changed, those of its participation and threat model included.

        Args:
            **changes: New values. Those that are None stay.

        Returns:
            The changed private mean.
        """
        values = {name: value for name, value in changes.items() if value is not None}
        if "honest_clients" in values or "honest_fraction" in values:  # one replaces the other
            values = {"honest_clients": None, "honest_fraction": None} | values
        for table in ("participation", "threat_model"):
            current = getattr(self, table)
            names = {entry.name for entry in fields(current)} & values.keys()
            if names:
                values[table] = replace(current, **{name: values.pop(name) for name in names})
        return replace(self, **{"coordinates": self.coordinates if self.is_subset else None, **values})


def sent_coordinates(dim: int, rotate: bool, coordinates: int | None) -> int:
    """How many coordinates a client encodes.

    Args:
        dim: Values of a vector.
        rotate: Whether vectors are rotated, which pads them to a power of two.
        coordinates: How many of them are sent; None: all.

    Returns:
        The number.
    """
    available = padded(dim) if rotate else dim
    return available if coordinates is None else whole("coordinates", coordinates, 1, available)


def choice_error(count: int, total: int, length: float) -> float:
    """The mean squared error that a choice of coordinates adds to each value of a decoded mean.

    Args:
        count: Coordinates that are chosen.
        total: Coordinates of a rotated vector.
        length: The L2 norm of the mean.

    Returns:
        The added error.
    """
    return (total / count - 1) * length**2 / total
