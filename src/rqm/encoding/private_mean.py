"""``PrivateMean``: the one place where clip, rotation, mechanism and guarantee meet.

What is sent and what is promised are read off the same object, so they cannot drift apart: the simulator, Flower, a
user's own loop, the ledger and the reports all use it. Encoding and decoding need NumPy (or torch) alone; only
``guarantee`` asks the accountant.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, fields, replace
from functools import cached_property
from hashlib import sha256
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np

from rqm import kernels
from rqm._util.checks import floats, not_finite, padded, real, shown, sums, whole
from rqm.encoding.choice import Choice, clipped_away_at_most, expected_error, second_clip
from rqm.encoding.memory import Memory, memory, white
from rqm.encoding.records import Gathered, gather, stacked
from rqm.encoding.together import FORMAT, check, find, read, sent
from rqm.encoding.transforms import FLOAT_ROOM, Rotation, prepare, rotation_seed, usable_length, within
from rqm.mechanisms.base import Mechanism, mechanism_of
from rqm.mechanisms.transient import Cancel, Transient, cancel_of
from rqm.privacy.setting import Neighbours, Observer, Setting, Unit, checked_epsilon
from rqm.randomness import SecureRandom, SeededRandom, require, require_secure

if TYPE_CHECKING:
    from rqm.privacy.accountant import Spent
    from rqm.privacy.event import Event
    from rqm.privacy.factorization import Workload
    from rqm.privacy.guarantee import Guarantee

PUBLIC = ("seed", "rounds")
"""What may differ between two that make the same promise for each release."""
LATER = ("separation", "cancel", "coordinates", "record_clip", "record_rate")
"""Written only where it is given: files of before have none."""


@final
@dataclass(frozen=True, kw_only=True)
class PrivateMean:
    """The mean of the clients' vectors, round after round, and what it tells about one of them.

    Every vector of ``dim`` values is scaled to ``l2_clip`` (C) at most, rotated by a public random rotation, encoded
    coordinate by coordinate, and sent as integers of which only the sum over a round's ``clients`` is revealed, modulo
    ``modulus``. Give ``epsilon`` and a mechanism is found for it; or a ``mechanism``, and ε is what it is; or both, and
    a mechanism that promises less is refused. The other values say who takes part and who watches, see ``Setting``.

    With ``cancel`` every client adds transient noise of that deviation to its integers, in steps between two levels,
    and takes it back one round later, by a second message into the next round's sum: the noise of all rounds together
    is then a fraction of what the same ε costs otherwise (``docs/cancel.md``). True finds it, with the mechanism.

    With ``coordinates`` only so many of the rotated ones are sent, a public choice that is drawn anew in every round:
    the noise of the whole is hardly more, and messages are many times shorter (``docs/few-coordinates.md``).

    With ``unit="record"`` clients are silos, and a record is protected: ``encode`` takes the vectors of a silo's
    records, a row each, clips each at ``record_clip``, and sends their sum within ``l2_clip`` (``docs/silos.md``).

    >>> from rqm import SecureRandom
    >>> mean = PrivateMean(epsilon=1, delta=1e-6, clients=1000, dim=50, l2_clip=1.0)
    >>> message = mean.encode(np.ones(50), SecureRandom())  # a client; 64 integers: rotated vectors are padded
    >>> estimate = mean.decode(1000 * message, clients=1000)  # the server, from the sum of all messages
    >>> estimate.shape, mean.guarantee.epsilon <= 1
    ((50,), True)
    """

    dim: int
    clients: int
    epsilon: InitVar[float | None] = None
    mechanism: Mechanism | None = None
    delta: float | None = None
    l2_clip: float | None = 1.0
    rotate: bool = True
    rounds: int = 1
    population: int | None = None
    participations: int | None = None
    honest: int | float | None = None
    survivors: int | None = None
    observer: Observer = "server"
    neighbours: Neighbours = "replace"
    unit: Unit = "user"
    separation: int | None = None
    cancel: Cancel | None = None
    coordinates: int = None  # type: ignore[assignment]  # integers that a client sends; None: all
    record_clip: float | None = None
    record_rate: float | None = None
    seed: int = 0  # of the public rotation, and of the choice of coordinates

    def __post_init__(self, epsilon: float | None) -> None:
        """Validate everything, and find a mechanism if none is given."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("dim", whole("dim", self.dim, 1))
        put("coordinates", sent(self.dim, bool(self.rotate), self.coordinates))
        put("cancel", None if self.cancel is False else cancel_of(self.cancel))
        epsilon = None if epsilon is None else checked_epsilon(epsilon)
        put("seed", whole("seed", self.seed, 0))
        for one in fields(Setting):
            put(one.name, getattr(self.setting, one.name))
        for name in ("l2_clip", "record_clip"):
            if getattr(self, name) is not None:
                put(name, real(name, getattr(self, name), "a positive finite number", 0, inf))
        if not isinstance(self.rotate, bool):
            raise TypeError(f"rotate = {shown(self.rotate)}: must be true or false")
        if self.mechanism is None:
            for name, value in find(self, epsilon).items():
                put(name, value)
        put("coordinates", mechanism_of(self.mechanism).slots(self.coordinates))
        check(self, self._mechanism)
        if epsilon is not None and not self.guarantee.epsilon <= epsilon:
            raise ValueError(f"epsilon = {epsilon:g}: the mechanism gives {self.guarantee.epsilon:.4g}, which is more")

    @cached_property
    def setting(self) -> Setting:
        """Who takes part and who watches."""
        return Setting(**{one.name: getattr(self, one.name) for one in fields(Setting)})

    # -- what is sent -------------------------------------------------------------------------

    @property
    def few(self) -> bool:
        """Whether clients send fewer ``coordinates`` than rotated vectors have: a public choice for each round."""
        return self.coordinates < sent(self.dim, self.rotate, None)

    @property
    def modulus(self) -> int:
        """Sums are taken modulo this power of two."""
        return int(2 ** self._sum_bits(self.clients))

    @property
    def wire_bits(self) -> int | None:
        """Bits of all messages of a participation under secure aggregation, a coordinate; None: floats."""
        return None if not self.integers else self._sum_bits(self.clients) * (2 if self.second else 1)

    def _sum_bits(self, clients: int) -> int:
        channel = self._mechanism.channel
        return self.held.bits(self.clients, self.clients) if self.second else channel.sum_bits(clients)

    @property
    def second(self) -> bool:
        """Whether noise is taken back by a second message; a silo, there in every round, does so in its next one."""
        return self.cancel is not None and self.record_clip is None

    @cached_property
    def held(self) -> Transient:
        """The noise that is taken back."""
        if self.cancel is None:
            raise ValueError("cancel = None: no noise is taken back here")
        return Transient.of(self.cancel)

    @property
    def private(self) -> bool:
        """Whether there is noise at all."""
        return self._mechanism.private

    @property
    def integers(self) -> bool:
        """Whether clients send integers, which a secure aggregator can add up, and not floats."""
        return self._mechanism.integers

    @property
    def _mechanism(self) -> Mechanism:
        assert self.mechanism is not None
        return self.mechanism

    @cached_property
    def length(self) -> float | None:
        """What vectors are scaled to: a little less than C, so that rounding pushes none of them over the budget."""
        if self.l2_clip is None or self.record_clip is not None:  # which no budget on the sum helps
            return self.l2_clip
        return (1 - FLOAT_ROOM) * self.l2_clip if self.few and self.last_length else self.last_length

    @cached_property
    def last_length(self) -> float:
        """The same for what is encoded: of few coordinates, after they were chosen."""
        if not self.integers or self._mechanism.whole is not None:
            return (1 - FLOAT_ROOM) * self.bound
        return usable_length(self._mechanism.channel, self.bound, self.coordinates)

    def gather(self, rows: Any, before: Gathered | None = None) -> Gathered:
        """A silo's records, a row each, clipped and added to those ``before``; for ``encode``."""
        return gather(self, rows, before)

    def rotation(self, turn: int) -> Rotation | None:
        """The public rotation of a round."""
        if not self.rotate:
            return None
        fixed = self.cancel is not None or self._mechanism.correlation is not None  # or noise would not cancel
        return Rotation(self.dim, rotation_seed(self.seed, 0 if fixed else turn))

    def choice(self, turn: int) -> Choice:
        """The public choice of a round, if ``few`` coordinates are sent."""
        return Choice(self.dim, self.coordinates, self.seed, turn)

    def transient(self, rng: object) -> Any:
        """What one client adds to its message of one round, and takes back in the next: integers, its secret."""
        return self.held.draw(self.coordinates, require_secure(rng))

    def take_back(self, transient: Any) -> Any:
        """The second message, for the round after: it holds no input, and is sent once or never."""
        return -self.held.both(self.held.checked(transient, self.coordinates))[1] % self.modulus

    def encode(self, x: Any, rng: object, *, round: int = 0, transient: Any = None) -> Any:
        """One client's message in a round: ``coordinates`` integers below ``modulus``, in the library of ``x``.

        ``x`` holds ``dim`` finite numbers. They come as 64-bit integers, whose sums cannot overflow. What may leave the
        machine rests on ``SecureRandom`` alone; for what stays, see ``simulated``. With ``cancel`` it holds fresh
        ``transient`` noise, and the round after comes a second message: what ``take_back`` makes of the same noise.
        """
        return self._encoded(x, require_secure(rng), round, transient)

    def simulated(self, x: Any, rng: object, *, round: int = 0, transient: Any = None) -> Any:
        """The same from seeded words, for simulations and tests: **not private**, and nothing to send."""
        return self._encoded(x, require(rng), round, transient)

    def _encoded(self, x: Any, source: SecureRandom | SeededRandom, round: int, transient: Any) -> Any:
        channel, turn = self._mechanism.channel, whole("round", round, 0, self.rounds - 1)
        if (transient is None) != (self.cancel is None):
            raise ValueError("transient: must be given where noise is taken back (cancel), and only there")
        x = x if self.record_clip is None else (x if isinstance(x, Gathered) else self.gather(x)).total
        other = kernels.backend(x)
        row = floats("x", x) if other is None else other.finite_floats("x", x).clone()
        if tuple(row.shape) != (self.dim,):
            raise ValueError(f"x has shape {tuple(row.shape)}: must be ({self.dim},)")
        rows, finite = self._prepared(row[None], turn)
        if other is None and not finite[0]:
            raise not_finite("x", row)
        if (vector := self._mechanism.whole) is not None:
            levels = vector.encode(rows[0] / self.bound, source)
        else:
            levels = kernels.encode_long(channel.recipe, self._within(rows)[0], source, keep=row)
        message = levels if other is None else levels.long()
        return message if transient is None else self.held.added(message, transient) % self.modulus

    def _prepared(self, rows: Any, turn: int) -> tuple[Any, Any]:
        """Rows that are clipped, rotated, and of few coordinates clipped again; and which of them were finite."""
        rows, finite = prepare(rows, self.length, self.rotation(turn))
        return (prepare(self.choice(turn).pick(rows), self.last_length, None)[0] if self.few else rows), finite

    def _within(self, rows: Any) -> Any:
        """The same rows; one that breaks the L2 budget, as the encoder will see it, becomes zero. None should."""
        if self.l2_clip is None or self.record_clip is not None:
            return rows
        return within(self._mechanism.channel, rows, self.bound)

    # -- a simulation's clients ---------------------------------------------------------------

    def add(self, rows: Any, total: Any, rng: object, *, round: int) -> Any:
        """Add the messages of many clients, a row of a torch tensor each, to their sum; return which rows were finite.

        The others send an encoding of zero. Baselines add up floats. ``rows`` may be overwritten, nothing is checked,
        and nothing waits for a GPU. Where the unit is a record, a row is what ``gather`` returned.
        """
        rows, finite = self._prepared(rows if self.record_clip is None else stacked(rows), round)
        mech = self._mechanism
        if mech.whole is not None:
            mech.whole.encode_sum(rows / self.bound, require(rng), total, threads=1)
        elif mech.integers:
            mech.channel.encode_sum(self._within(rows), rng, out=total, check=False, threads=1)  # torch's own stay warm
        else:
            total += mech.sends(rows, require(rng)).sum(dim=0, dtype=total.dtype)
        return finite

    def memory(self, seeds: Callable[[int], int]) -> Memory | None:
        """What a trusted server remembers whose noise is correlated, by the seed of every round; or nothing."""
        return None if self.integers else memory(self._mechanism, self.cancel, self.rounds, seeds)

    def revealed(
        self, total: Any, clients: int, seed: int, memory: Memory | None = None, *, round: int | None = None
    ) -> Any:
        """What an aggregator reveals of a sum: channels' modulo a power of two; a trusted server adds its noise.

        One whose noise is correlated also needs its ``memory`` and the number of the round, and no seed.
        """
        mech = self._mechanism
        if mech.integers:
            return total.bitwise_and_(2 ** self._sum_bits(clients) - 1)
        scale = mech.on_sum(clients) * (self.record_clip or self.bound) if self.l2_clip is not None else 0.0
        if (mech.correlation is not None or self.cancel is not None) and (memory is None or round is None):
            raise ValueError("memory = None: must be given, and the round, where the noise is correlated over rounds")
        if scale:
            total += scale * (white(total, seed) if memory is None or round is None else memory.noise(round, total))
        return total

    # -- the server ---------------------------------------------------------------------------

    def decode(self, total: Any, clients: int, *, round: int = 0, check: bool = True) -> Any:
        """The mean of so many clients' vectors, unbiased but for clipping, from the sum of their messages.

        ``check=False`` is for a caller who knows that the sum is one that these clients can have sent.
        """
        turn = whole("round", round, 0, self.rounds - 1)
        clients = whole("clients", clients, self.survivors or self.clients, self.clients)
        total = sums("total", total) if kernels.backend(total) is None else total
        if tuple(total.shape) != (self.coordinates,):
            raise ValueError(f"total has shape {tuple(total.shape)}: must be ({self.coordinates},)")
        if self.second and self.integers:  # what wraps around the modulus is nearest to the middle
            half = self.modulus // 2
            total, check = (total - clients // 2 + half) % self.modulus - half + clients // 2, False
        mean = self._mechanism.decode(total, clients, check=check)
        mean = mean if self._mechanism.whole is None else mean * self.bound
        mean = mean if isinstance(mean, np.ndarray) else mean.float()
        rotation = self.rotation(turn)
        if self.few and rotation is not None:
            return self.choice(turn).inverse(mean[None], rotation)[0]
        return mean if rotation is None else rotation.inverse(mean[None], overwrite=True)[0]

    def error(self, length: float, size: float | None = None) -> float:
        """The mean squared error to be expected of each value that ``decode`` returns, for a mean of this length.

        The clients' vectors have the root mean square length ``size``, by default C. See ``expected_error``.
        """
        return expected_error(self, length, size)

    # -- what is promised ---------------------------------------------------------------------

    @cached_property
    def guarantee(self) -> "Guarantee":
        """What all rounds as planned guarantee to every user, or record, certified."""
        return self.guarantee_of(None)

    def guarantee_of(self, charges: Mapping[int, int] | None, workload: "Workload | None" = None) -> "Guarantee":
        """What releases charged so often in each round guarantee (None: as planned), stepping by ``workload``."""
        from rqm.privacy.guarantee import Chosen, guarantee  # noqa: PLC0415 (takes the compiler)

        k = self.coordinates
        chosen = Chosen(padded(self.dim), second_clip(k), clipped_away_at_most(k)) if self.few else None
        about: dict[str, Any] = {"parameters": self.dim, "under": self.wire_bits, "workload": workload}
        return guarantee(self.event, self.setting, charges, **about, chosen=chosen)

    def spent(self, charges: Mapping[int, int]) -> "Spent":
        """ε of the releases that were charged: the same number, in less time."""
        from rqm.privacy.accountant import spent  # noqa: PLC0415

        return spent(self.event, self.setting, charges)

    @property
    def event(self) -> "Event":
        """What one round releases."""
        from rqm.privacy.event import Event  # noqa: PLC0415

        apart = 1 if self.cancel is None else self.setting.apart
        return Event(self._mechanism, self.coordinates, self.bound, self.cancel, apart, self.record_clip)

    @property
    def bound(self) -> float:
        """The L2 bound of what is encoded: C, of few coordinates the second clip, or what that of every one implies."""
        if self.l2_clip is not None:
            return self.l2_clip * (second_clip(self.coordinates) if self.few else 1)
        return float(self._mechanism.channel.clip * sqrt(self.coordinates))

    @property
    def quick(self) -> bool:
        """Whether ε takes seconds at most: by a law that is affine on the clip, or for not too many clients."""
        from rqm.privacy.worst_case import QUICK_CLIENTS  # noqa: PLC0415

        return self.clients <= QUICK_CLIENTS or not self.event.dear

    # -- to the other side --------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON; the guarantee is not among them, it follows."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        values["coordinates"] = self.coordinates if self.few else None
        values = {name: value for name, value in values.items() if value is not None or name not in LATER}
        return {"private_mean": FORMAT, **values, "mechanism": self._mechanism.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build what ``to_dict`` described."""
        return cls(**read(values, [one.name for one in fields(cls)], LATER))

    def promises(self) -> dict[str, Any]:
        """All that the guarantee of one release rests on: what two sides, or a run and its ledger, must agree on."""
        values = self.to_dict()
        return {name: value for name, value in values.items() if name not in PUBLIC} | {"dim": self.coordinates}

    @property
    def kind(self) -> str:
        """A hash of all that it promises."""
        return sha256(json.dumps(self.promises(), sort_keys=True).encode()).hexdigest()

    def with_(self, **changes: Any) -> Self:
        """The same with some values changed; those that are None stay. With ``epsilon`` it must keep that."""
        asked = changes.pop("epsilon", None)
        few = {"coordinates": self.coordinates if self.few else None}  # all of another dim are others
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, epsilon=asked, **{**few, **given})


def _asked(_: PrivateMean) -> float:
    raise AttributeError("epsilon is only asked for; what is promised is guarantee.epsilon (change values by with_)")


PrivateMean.epsilon = property(_asked)  # type: ignore[attr-defined]
