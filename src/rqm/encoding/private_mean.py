"""`PrivateMean`: encodes vectors, decodes their sum, and states what that guarantees.

What is sent and what is guaranteed are read off the same object. The simulator, Flower, a user's
own loop, the ledger and the reports all use it. Encoding and decoding need only NumPy (or torch);
only `guarantee` needs the accountant.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from hashlib import sha256
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from rqm import kernels
from rqm._util.checks import floats, known_keys, not_finite, padded, real, shown, sums, whole
from rqm.accounting.participation import Participation, ThreatModel, default_delta
from rqm.correlated.noise import CorrelatedNoise
from rqm.encoding.checks import check_mean
from rqm.encoding.choice import Choice, clipped_away_at_most, expected_error, second_clip
from rqm.encoding.memory import Memory, memory, white
from rqm.encoding.records import Gathered, gather, stacked
from rqm.encoding.transforms import FLOAT_ROOM, Rotation, prepare, rotation_seed, usable_length, within
from rqm.mechanisms.base import Mechanism, mechanism_of
from rqm.randomness import SecureRandom, SeededRandom, require, require_secure
from rqm.registry import mechanism_from_dict

if TYPE_CHECKING:
    from rqm.accounting.accountant import EpsilonResult
    from rqm.accounting.guarantee import Guarantee
    from rqm.accounting.release import Release
    from rqm.correlated.factorization import Workload

FORMAT = 2
"""The format of `PrivateMean.to_dict`."""
PUBLIC = ("seed", "rounds")
"""Values that may differ between two private means with the same guarantee for each release."""
QUICK_CLIENTS = 200
"""Clients up to which certificates take seconds where several levels lie inside the clip."""


@final
@dataclass(frozen=True, kw_only=True)
class PrivateMean:
    """The mean of the clients' vectors, round after round, and what it reveals about one of them.

    Every vector of `dim` values is scaled to `l2_clip` (C) at most, rotated by a public random
    rotation, encoded coordinate by coordinate, and sent as integers of which only the sum over a
    round's clients is revealed, modulo `modulus`. The function `rqm.private_mean` finds a
    mechanism for a given ε.

    Attributes:
        dim: Values of a vector.
        mechanism: How a coordinate is encoded.
        participation: Who takes part and when.
        threat_model: What is assumed about the adversary.
        l2_clip: C; None: only coordinates are clipped.
        rotate: Whether vectors are rotated, which pads them to a power of two.
        noise: Correlated noise that each client adds to its integers, in steps between two
            levels, and cancels one round later by a second message (docs/cancel.md). None: noise
            is independent.
        coordinates: How many of the rotated coordinates are sent, a public choice for each round
            (docs/few-coordinates.md); None: all.
        record_clip: Where the unit is a record, the L2 clip of each record's vector: a silo sends
            their sum (docs/silos.md).
        sampling_rate: The probability with which a silo includes a record in a round (Poisson
            sampling); None: all.
        zero_distance: L2 distance of a vector from that of a zero update, over C, where a zero
            update sends something.
        delta: The δ of `guarantee` if none is given; None: 10⁻⁵, or one over the population if
            that is less.
        seed: Seed of the public rotation and of the choice of coordinates.

    >>> from rqm import Participation, StochasticRounding, SecureRandom
    >>> who = Participation(clients=1000)
    >>> mean = PrivateMean(dim=50, mechanism=StochasticRounding(clip=0.5, margin=3.0, levels=2), participation=who)
    >>> message = mean.encode(np.ones(50), SecureRandom())  # a client; 64 integers: rotated vectors are padded
    >>> estimate = mean.decode(1000 * message, 1000)  # the server, from the sum of all messages
    >>> estimate.shape, round(mean.guarantee(1e-6).epsilon, 2)
    ((50,), 0.12)
    """

    dim: int
    mechanism: Mechanism
    participation: Participation
    threat_model: ThreatModel = field(default_factory=ThreatModel)
    l2_clip: float | None = 1.0
    rotate: bool = True
    noise: CorrelatedNoise | None = None
    coordinates: int = None  # type: ignore[assignment]
    record_clip: float | None = None
    sampling_rate: float | None = None
    zero_distance: float = 1.0
    delta: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate everything."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("dim", whole("dim", self.dim, 1))
        if not isinstance(self.rotate, bool):
            raise TypeError(f"rotate = {shown(self.rotate)}: must be true or false")
        for name, kind in (("participation", Participation), ("threat_model", ThreatModel)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} = {shown(getattr(self, name))}: must be a rqm.{kind.__name__}")
        put(
            "coordinates",
            mechanism_of(self.mechanism).message_length(sent_coordinates(self.dim, self.rotate, self.coordinates)),
        )
        put("seed", whole("seed", self.seed, 0))
        for name in ("l2_clip", "record_clip"):
            if getattr(self, name) is not None:
                put(name, real(name, getattr(self, name), "a positive finite number", 0, inf))
        if self.sampling_rate is not None:
            put("sampling_rate", real("sampling_rate", self.sampling_rate, "above 0 and at most 1", 0, 1, closed="]"))
        if self.threat_model.unit == "record" and self.delta is None:
            raise ValueError("delta = None: must be given for records: well below one over the number of all of them")
        delta = default_delta(self.participation.population) if self.delta is None else self.delta
        put("delta", real("delta", delta, "above 0 and below 1", 0, 1))
        if self.noise is not None:
            put("noise", CorrelatedNoise.of(self.noise))
        check_mean(self)

    # -- what is sent -------------------------------------------------------------------------

    @property
    def is_subset(self) -> bool:
        """Whether clients send fewer coordinates than rotated vectors have."""
        return self.coordinates < sent_coordinates(self.dim, self.rotate, None)

    @property
    def modulus(self) -> int:
        """Sums are taken modulo this power of two."""
        return int(2 ** self._sum_bits(self.participation.clients))

    @property
    def wire_bits(self) -> int | None:
        """Bits of all messages of a participation under secure aggregation, per coordinate; None:
        floats."""
        if not self.has_integer_messages:
            return None
        return self._sum_bits(self.participation.clients) * (2 if self.has_second_message else 1)

    def _sum_bits(self, clients: int) -> int:
        if self.noise is not None and self.has_second_message:
            return self.noise.sum_bits(self.participation.clients, self.participation.clients)
        bits: int = self.mechanism.discrete.sum_bits(clients)
        return bits

    @property
    def has_second_message(self) -> bool:
        """Whether noise is canceled by a second message; a silo, present in every round, does so in
        its next one."""
        return self.noise is not None and self.record_clip is None

    @property
    def is_private(self) -> bool:
        """Whether there is noise at all."""
        return self.mechanism.adds_noise

    @property
    def has_integer_messages(self) -> bool:
        """Whether clients send integers, which a secure aggregator can add up, and not floats."""
        return self.mechanism.has_integer_messages

    @cached_property
    def length(self) -> float | None:
        """What vectors are scaled to: a little less than C, so that rounding pushes none of them
        over the bound."""
        if self.l2_clip is None or self.record_clip is not None:
            return self.l2_clip
        return (1 - FLOAT_ROOM) * self.l2_clip if self.is_subset and self.encoded_length else self.encoded_length

    @cached_property
    def encoded_length(self) -> float:
        """The same for what is encoded: of a choice of coordinates, after they were chosen."""
        if not self.has_integer_messages or self.mechanism.vector_mechanism is not None:
            return (1 - FLOAT_ROOM) * self.bound
        return usable_length(self.mechanism.discrete, self.bound, self.coordinates)

    @property
    def bound(self) -> float:
        """The L2 bound of what is encoded: C, after a choice of coordinates the second clip, or what
        c implies."""
        if self.l2_clip is not None:
            return self.l2_clip * (second_clip(self.coordinates) if self.is_subset else 1)
        return float(self.mechanism.discrete.clip * sqrt(self.coordinates))

    def gather(self, rows: Any, before: Gathered | None = None) -> Gathered:
        """A silo's records, clipped and summed, for `encode`.

        Args:
            rows: Vectors of records, one row each.
            before: Records that were gathered before.

        Returns:
            The sum over all of them.
        """
        return gather(self, rows, before)

    def rotation(self, round_index: int) -> Rotation | None:
        """The public rotation of a round, the same in all rounds if noise is correlated."""
        if not self.rotate:
            return None
        is_fixed = self.noise is not None or self.mechanism.correlation is not None  # or noise would not cancel
        return Rotation(self.dim, rotation_seed(self.seed, 0 if is_fixed else round_index))

    def choice(self, round_index: int) -> Choice:
        """The public choice of coordinates of a round, if only some are sent."""
        return Choice(self.dim, self.coordinates, self.seed, round_index)

    def _correlated_noise(self) -> CorrelatedNoise:
        if self.noise is None:
            raise ValueError("noise = None: noise is independent here, and nothing is canceled")
        return self.noise

    def transient(self, rng: object) -> Any:
        """What a client adds to its message of one round and cancels in the next: integers, its
        secret.

        Args:
            rng: A `SecureRandom`.

        Returns:
            The integers.
        """
        return self._correlated_noise().draw(self.coordinates, require_secure(rng))

    def settle(self, transient: Any) -> Any:
        """The second message, for the next round: it holds no input, and is sent once or never.

        Args:
            transient: What `transient` returned.

        Returns:
            Integers below `modulus`.
        """
        noise = self._correlated_noise()
        return -noise.canceled(noise.checked(transient, self.coordinates)) % self.modulus

    def encode(self, x: Any, rng: object, *, round_index: int = 0, transient: Any = None) -> Any:
        """One client's message in a round.

        Args:
            x: `dim` finite numbers, a NumPy array or a torch tensor; for records, what `gather`
                returned, or rows.
            rng: A `SecureRandom`.
            round_index: The round, from 0.
            transient: With correlated noise, what `transient` returned for this round.

        Returns:
            `coordinates` integers below `modulus`, in the library of `x`.

        Raises:
            TypeError: If the randomness is not secure. ValueError: If `x` has the wrong shape or
            is not finite.
        """
        return self._encoded(x, require_secure(rng), round_index, transient)

    def simulated(self, x: Any, rng: object, *, round_index: int = 0, transient: Any = None) -> Any:
        """The same with seeded randomness, for simulations and tests: **not private**, and nothing
        to send.

        Args:
            x: See `encode`.
            rng: A `SeededRandom` or a `SecureRandom`.
            round_index: See `encode`.
            transient: See `encode`.

        Returns:
            See `encode`.
        """
        return self._encoded(x, require(rng), round_index, transient)

    def _encoded(self, x: Any, source: SecureRandom | SeededRandom, round_index: int, transient: Any) -> Any:
        channel, index = self.mechanism.discrete, whole("round_index", round_index, 0, self.participation.rounds - 1)
        if (transient is None) != (self.noise is None):
            raise ValueError("transient: must be given with correlated noise, and only there")
        x = x if self.record_clip is None else (x if isinstance(x, Gathered) else self.gather(x)).total
        other = kernels.backend(x)
        row = floats("x", x) if other is None else other.finite_floats("x", x).clone()
        if tuple(row.shape) != (self.dim,):
            raise ValueError(f"x has shape {tuple(row.shape)}: must be ({self.dim},)")
        rows, finite = self._prepared(row[None], index)
        if other is None and not finite[0]:
            raise not_finite("x", row)
        if (vector := self.mechanism.vector_mechanism) is not None:
            levels = vector.encode(rows[0] / self.bound, source)
        else:
            levels = kernels.encode_long(channel.sampler, self._within(rows)[0], source, keep=row)
        message = levels if other is None else levels.long()
        return message if self.noise is None else self.noise.added_to(message, transient) % self.modulus

    def _prepared(self, rows: Any, round_index: int) -> tuple[Any, Any]:
        """Rows that are clipped, rotated, and after a choice of coordinates clipped again; and which
        were finite."""
        rows, finite = prepare(rows, self.length, self.rotation(round_index))
        if self.is_subset:
            rows = prepare(self.choice(round_index).pick(rows), self.encoded_length, None)[0]
        return rows, finite

    def _within(self, rows: Any) -> Any:
        """The same rows; one that breaks the L2 bound, as the encoder will see it, becomes zero.
        None should."""
        if self.l2_clip is None or self.record_clip is not None:
            return rows
        return within(self.mechanism.discrete, rows, self.bound)

    # -- a simulation's clients ---------------------------------------------------------------

    def add(self, rows: Any, total: Any, rng: object, *, round_index: int) -> Any:
        """Add the messages of many clients to their sum; baselines add up floats.

        Nothing is checked and nothing waits for a GPU. A row that is not finite sends an encoding
        of zero.

        Args:
            rows: A torch tensor with one vector a row, which may be overwritten; for records,
                what `gather` returned.
            total: The sum, which is changed in place.
            rng: The source of randomness.
            round_index: The round, from 0.

        Returns:
            Which rows were finite.
        """
        rows, finite = self._prepared(rows if self.record_clip is None else stacked(rows), round_index)
        mechanism = self.mechanism
        if mechanism.vector_mechanism is not None:
            mechanism.vector_mechanism.encode_sum(rows / self.bound, require(rng), total, threads=1)
        elif mechanism.has_integer_messages:  # with one thread, so that torch's own stay warm
            mechanism.discrete.encode_sum(self._within(rows), rng, out=total, check=False, threads=1)
        else:
            total += mechanism.sample_messages(rows, require(rng)).sum(dim=0, dtype=total.dtype)
        return finite

    def memory(self, seeds: Callable[[int], int]) -> Memory | None:
        """What a trusted server remembers whose noise is correlated, by the seed of every round; or
        nothing."""
        if self.has_integer_messages:
            return None
        return memory(self.mechanism, self.noise, self.participation.rounds, seeds)

    def revealed(
        self, total: Any, clients: int, seed: int, memory: Memory | None = None, *, round_index: int | None = None
    ) -> Any:
        """What an aggregator reveals of a sum: integers modulo a power of two; a trusted server adds
        its noise.

        Args:
            total: The sum, which is changed in place.
            clients: Clients in the sum.
            seed: Seed of a trusted server's independent noise.
            memory: What a trusted server remembers whose noise is correlated.
            round_index: The round, where noise is correlated.

        Returns:
            The sum as it is revealed.
        """
        mechanism = self.mechanism
        if mechanism.has_integer_messages:
            return total.bitwise_and_(2 ** self._sum_bits(clients) - 1)
        scale = mechanism.sum_noise_std(clients) * (self.record_clip or self.bound) if self.l2_clip is not None else 0.0
        is_correlated = mechanism.correlation is not None or self.noise is not None
        if is_correlated and (memory is None or round_index is None):
            raise ValueError("memory = None: must be given, with the round, where noise is correlated over rounds")
        if scale:
            noise = white(total, seed) if memory is None or round_index is None else memory.noise(round_index, total)
            total += scale * noise
        return total

    # -- the server ---------------------------------------------------------------------------

    def decode(self, total: Any, survivors: int, *, round_index: int = 0, check: bool = True) -> Any:
        """The mean of the clients' vectors, unbiased but for clipping, from the sum of their
        messages.

        Args:
            total: The sum, `coordinates` integers.
            survivors: How many clients are in the sum.
            round_index: The round, from 0.
            check: Whether to refuse a sum that these clients cannot have sent.

        Returns:
            `dim` floats, in the library of `total`.

        Raises:
            ValueError: If the sum has the wrong shape, or too few clients, or cannot have been
            sent.
        """
        index, who = whole("round_index", round_index, 0, self.participation.rounds - 1), self.participation
        survivors = whole("survivors", survivors, who.min_survivors or who.clients, who.clients)
        total = sums("total", total) if kernels.backend(total) is None else total
        if tuple(total.shape) != (self.coordinates,):
            raise ValueError(f"total has shape {tuple(total.shape)}: must be ({self.coordinates},)")
        if self.has_second_message and self.has_integer_messages:  # the representative nearest to the center
            half = self.modulus // 2
            total, check = (total - survivors // 2 + half) % self.modulus - half + survivors // 2, False
        mean = self.mechanism.decode(total, survivors, check=check)
        mean = mean if self.mechanism.vector_mechanism is None else mean * self.bound
        mean = mean if isinstance(mean, np.ndarray) else mean.float()
        rotation = self.rotation(index)
        if self.is_subset and rotation is not None:
            return self.choice(index).inverse(mean[None], rotation)[0]
        return mean if rotation is None else rotation.inverse(mean[None], overwrite=True)[0]

    def error(self, length: float, size: float | None = None) -> float:
        """The expected squared error of each value that `decode` returns.

        Args:
            length: The length of the mean.
            size: The root mean square length of the clients' vectors; None: C.

        Returns:
            The error. See `expected_error` for what it leaves out.
        """
        return expected_error(self, length, size)

    # -- what is guaranteed -------------------------------------------------------------------

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
            workload: How the server sums noise into its model, for the noise that is left in it.

        Returns:
            The guarantee.
        """
        from rqm.accounting.guarantee import CoordinateSubset, guarantee  # noqa: PLC0415 (takes the compiler)

        count, subset = self.coordinates, None
        if self.is_subset:
            subset = CoordinateSubset(padded(self.dim), second_clip(count), clipped_away_at_most(count))
        return guarantee(
            self.release,
            self.participation,
            self.threat_model,
            self._delta(delta),
            charges,
            parameters=self.dim,
            bits_under_secagg=self.wire_bits,
            workload=workload,
            subset=subset,
        )

    def account(self, charges: Mapping[int, int] | None = None, delta: float | None = None) -> "EpsilonResult":
        """ε of all rounds, or of those that were charged: the number of `guarantee`, in less time.

        Args:
            charges: How often each round was charged; None: as planned.
            delta: δ; None: the one of this object.

        Returns:
            ε and the bound that gave it.
        """
        from rqm.accounting.accountant import account  # noqa: PLC0415 (takes the compiler)

        return account(self.release, self.participation, self.threat_model, self._delta(delta), charges)

    def _delta(self, delta: float | None) -> float:
        assert self.delta is not None
        return self.delta if delta is None else delta

    @property
    def release(self) -> "Release":
        """What one round reveals."""
        from rqm.accounting.release import Release  # noqa: PLC0415 (takes the compiler)

        return Release(
            self.mechanism,
            self.coordinates,
            self.bound,
            self.noise,
            self.record_clip,
            self.sampling_rate,
            2.0 if self.is_subset and self.zero_distance > 1 else self.zero_distance,  # a choice scales both vectors
        )

    @property
    def is_quick(self) -> bool:
        """Whether ε takes seconds at most."""
        return self.participation.clients <= QUICK_CLIENTS or not self.release.has_interior_levels

    # -- to and from plain values ---------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON; the guarantee follows from them."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _TABLES}
        values["coordinates"] = self.coordinates if self.is_subset else None
        return {
            "private_mean": FORMAT,
            **values,
            **asdict(self.participation),
            **asdict(self.threat_model),
            "noise": None if self.noise is None else self.noise.to_dict(),
            "mechanism": self.mechanism.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build what `to_dict` described.

        Args:
            values: All values.

        Returns:
            The private mean.

        Raises:
            ValueError: If a value is missing or unknown, or the format is another.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"private_mean = {shown(values)}: must be a table of names and values")
        values = dict(values)
        if values.pop("private_mean", None) != FORMAT:
            raise ValueError(f"private_mean: must be {FORMAT}, the format that this version reads")
        names = {kind: [one.name for one in fields(kind)] for kind in (Participation, ThreatModel, cls)}
        own = [name for name in names[cls] if name not in ("participation", "threat_model")]
        known = [*own, *names[Participation], *names[ThreatModel]]
        known_keys(values, known, needed=known)
        parts = {kind: {name: values.pop(name) for name in names[kind]} for kind in (Participation, ThreatModel)}
        noise = values.pop("noise")
        return cls(
            **values | {"mechanism": mechanism_from_dict(values["mechanism"])},
            noise=None if noise is None else CorrelatedNoise.of(noise),
            participation=Participation(**parts[Participation]),
            threat_model=ThreatModel(**parts[ThreatModel]),
        )

    def promises(self) -> dict[str, Any]:
        """All that the guarantee of one release rests on: what two sides, or a run and its ledger,
        must agree on."""
        values = self.to_dict()
        return {name: value for name, value in values.items() if name not in PUBLIC} | {"dim": self.coordinates}

    @property
    def kind(self) -> str:
        """A hash of `promises`."""
        return sha256(json.dumps(self.promises(), sort_keys=True).encode()).hexdigest()

    def replaced(self, **changes: Any) -> Self:
        """The same with some values changed, those of its participation and threat model included.

        Args:
            **changes: New values; those that are None stay.

        Returns:
            The changed private mean.
        """
        given = {name: value for name, value in changes.items() if value is not None}
        for table in ("participation", "threat_model"):
            inside = {one.name for one in fields(getattr(self, table))} & given.keys()
            if {"honest_clients", "honest_fraction"} & inside:
                given.setdefault("honest_clients", None)
                given.setdefault("honest_fraction", None)
                inside |= {"honest_clients", "honest_fraction"}
            if inside:
                given[table] = replace(getattr(self, table), **{name: given.pop(name) for name in inside})
        return replace(self, **{"coordinates": self.coordinates if self.is_subset else None, **given})


_TABLES = ("participation", "threat_model", "noise", "mechanism")


def sent_coordinates(dim: int, rotate: bool, coordinates: int | None) -> int:
    """How many integers a client sends: as many as are asked for, or all, padded if vectors are
    rotated.

    Args:
        dim: Values of a vector.
        rotate: Whether vectors are rotated.
        coordinates: How many are asked for, or None.

    Returns:
        The number.
    """
    most = padded(dim) if rotate else dim
    return most if coordinates is None else whole("coordinates", coordinates, 1, most)
