"""The sum of a round's messages: as an ideal aggregator would reveal it, or by the true protocol."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, final

import numpy as np
import torch

from rqm.core.base import BaseMean
from rqm.correlated.noise import CorrelatedNoise
from rqm.plan.plan import Plan, SecAgg
from rqm.plan.protocol import protocol
from rqm.randomness import OneEach, SecureRandom, SeededRandom
from rqm.training.client_updates import ALL, ClientUpdates
from rqm.training.clock import Clock
from rqm.training.participants import NOBODY, Before
from rqm.training.streams import LOSSES, NOISE, TRANSIENT, generator, number


@final
@dataclass(frozen=True)
class Collected:
    """The ``total`` of all messages, as it is revealed; and of the simulation alone, not released: clients' ``losses``.

    A loss is NaN where the client's gradient was not finite. ``bytes_up`` are what clients sent in the true protocol.
    """

    total: torch.Tensor
    losses: torch.Tensor
    bytes_up: int | None = None


class Sharing(Protocol):
    """Other processes that take their share of a round's clients."""

    def deal(self, staying: list[int], turn: int) -> slice:
        """Tell them of a round; return which groups of clients are one's own."""

    def add_up(self, total: torch.Tensor, losses: torch.Tensor) -> None:
        """Add what they have found, in place."""


class Aggregator(ABC):
    """Lets clients work, encodes what they send, and reveals nothing but the sum.

    The noise follows from the plan's seed, unless it is ``secure``: then from the operating system's words alone.
    """

    held: tuple[int, torch.Tensor] | None = None
    """The last round's number, and its transient noise, summed; of silos, a row each. If it is secure, nobody can draw
    it again."""

    def __init__(
        self, plan: Plan, mean: BaseMean, updates: ClientUpdates, clock: Clock, *, secure: bool = False
    ) -> None:
        self.plan, self.mean, self.updates, self.clock, self.secure = plan, mean, updates, clock, secure
        if secure and mean.is_private and not mean.has_integer_messages:
            raise ValueError(f"mechanism = {plan.mechanism.kind!r}: must be one that sends integers, or give a seed")
        if secure and mean.noise is not None and plan.secagg == "real":
            raise ValueError("secagg = 'real': must come with a seed where noise cancels")
        self.server_noise = mean.server_noise(lambda turn: number(plan.seed, NOISE, turn))

    def _source(self, stream: int, turn: int, place: int) -> SecureRandom | SeededRandom:
        return SecureRandom() if self.secure else SeededRandom(self.plan.seed, stream, turn, place)

    @abstractmethod
    def collect(self, chosen: list[int], staying: list[int], turn: int, before: Before = NOBODY) -> Collected | None:
        """The sum over those of the ``chosen`` who are ``staying``; None if the protocol was aborted.

        Those of the round ``before`` take back what they added to its sum, if noise cancels.
        """

    def _nothing(self) -> torch.Tensor:
        kind = torch.int32 if self.mean.has_integer_messages else torch.float64
        return torch.zeros(self.mean.coordinates, dtype=kind, device=self.updates.values.device)

    def _own(self, turn: int, silo: int) -> torch.Tensor:
        """One silo's transient noise of a round."""
        added: torch.Tensor = self._noise.sample_sum(1, self._nothing(), self._source(TRANSIENT, turn, silo)).added
        return added

    @property
    def _noise(self) -> CorrelatedNoise:
        assert self.mean.noise is not None
        return self.mean.noise

    def add(self, rows: Any, total: torch.Tensor, turn: int, positions: Sequence[int]) -> torch.Tensor:
        """Encode and add some clients' rows, each with the noise that it has by itself; which rows were finite."""
        if len(positions) > 1 and not rows.is_cuda:
            if not self.mean.has_integer_messages or self.plan.mechanism.vector_mechanism is not None:
                pairs = zip(rows, positions, strict=True)
                return torch.cat([self.add(row[None], total, turn, [position]) for row, position in pairs])
            each = OneEach(SeededRandom(self.plan.seed, NOISE, turn, position) for position in positions)
            source: Any = SecureRandom() if self.secure else each
        else:
            source = self._source(NOISE, turn, positions[0])
        finite: torch.Tensor = self.mean.add_messages(rows, total, source, round_index=turn)
        return finite


@final
class Messages:
    """The sum of a round's messages, as `ClientUpdates.encode` fills it."""

    def __init__(self, aggregator: Aggregator, turn: int, total: torch.Tensor) -> None:
        self.aggregator, self.turn, self.total = aggregator, turn, total
        self.is_exact = aggregator.mean.has_integer_messages
        self.seconds, self.forks = 0.0, 0

    def add(self, positions: Sequence[int], rows: Any) -> torch.Tensor:
        """See `MessageSum`."""
        start = perf_counter()
        finite = self.aggregator.add(rows, self.total, self.turn, positions)
        self.seconds += perf_counter() - start
        return finite

    def fork(self) -> "Messages":
        """See `MessageSum`."""
        self.forks += 1
        return Messages(self.aggregator, self.turn, torch.zeros_like(self.total))

    def merge(self, other: "Messages") -> None:
        """See `MessageSum`."""
        self.total += other.total
        self.seconds += other.seconds / self.forks


@final
class Ideal(Aggregator):
    """Adds up in the clear, and forgets the parts."""

    sharing: Sharing | None = None
    """Other processes that do a part of the clients."""

    def collect(self, chosen: list[int], staying: list[int], turn: int, before: Before = NOBODY) -> Collected | None:
        """The sum of the encoded gradients, as a secure aggregator reveals it."""
        if self.sharing is None:
            total, losses = self.part(staying, turn)
        else:
            total, losses = self.part(staying, turn, self.sharing.deal(staying, turn))
            self.sharing.add_up(total, losses)
        if self.mean.noise and self.mean.has_integer_messages:
            with self.clock.timed("clip, rotate, encode"):
                if self.mean.has_second_message:
                    self._cancel(total, turn, len(staying), len(before.staying))
                else:
                    self._replace(total, turn, staying, before.there)
        return Collected(self.mean.reveal(total, len(staying), self.server_noise, round_index=turn), losses)

    def part(self, staying: list[int], turn: int, share: slice = ALL) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum over a share of those who stay, and their losses; those of the others are zero."""
        total = self._nothing()
        self.updates.begin_round(turn)
        messages, start = Messages(self, turn, total), perf_counter()
        losses = self.updates.encode(staying, turn, messages, share)
        self.clock.parts["gradients"] += perf_counter() - start - messages.seconds
        self.clock.parts["clip, rotate, encode"] += messages.seconds
        return total, losses

    def _cancel(self, total: torch.Tensor, turn: int, clients: int, before: int) -> None:
        """Add everybody's transient noise, and take back that of the round before: kept, or drawn again.

        What is secure and was not kept stays in: a chain begun anew, as the proof asks of a round that is done again.
        """
        last, self.held = self.held, None  # taken back once, or never
        if before and last is not None and last[0] == turn - 1:
            total -= last[1]
        elif before and not self.secure:
            total -= self._transient(turn - 1, before)[1]
        added, back = self._transient(turn, clients)
        self.held = turn, back
        total += added

    def _replace(self, total: torch.Tensor, turn: int, staying: list[int], before: list[int]) -> None:
        """Add every silo's transient noise, and in the same message take back its own of the round before."""
        last, self.held = self.held, None
        kept = last is not None and last[0] == turn - 1
        for silo in before if kept or not self.secure else []:
            total -= last[1][silo] if kept and last is not None else self._own(turn - 1, silo)
        rows = torch.zeros((self.plan.participation.clients, len(total)), dtype=total.dtype, device=total.device)
        for silo in staying:
            rows[silo] = self._own(turn, silo)
        self.held = turn, rows
        total += rows.sum(dim=0, dtype=total.dtype)

    def _transient(self, turn: int, clients: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What the clients of a round add, and what they take back in the next."""
        added, back = self._nothing(), self._nothing()
        for place in range(0, clients, self.updates.clients_at_once):
            some = min(self.updates.clients_at_once, clients - place)
            state = self._noise.sample_sum(some, added, self._source(TRANSIENT, turn, place))
            added, back = added + state.added, back + state.canceled
        return added, back


@final
class Secure(Aggregator):
    """The true protocol, all parties in this process: no client's levels leave it unmasked."""

    def collect(self, chosen: list[int], staying: list[int], turn: int, before: Before = NOBODY) -> Collected | None:
        """The same sum. Clients who are lost fall silent before they send their masked vector, at some stage."""
        from rqm.secagg import Aborted, new_round  # noqa: PLC0415 (a bare GPU machine has no ciphers)
        from rqm.secagg.local import aggregate  # noqa: PLC0415
        from rqm.secagg.wire import STAGES  # noqa: PLC0415

        losses: dict[int, torch.Tensor] = {}
        places = {client: place for place, client in enumerate(staying)}
        self.updates.begin_round(turn)

        def levels(party: int) -> Any:
            if party >= self.plan.participation.clients:
                return -self._held(turn - 1, party - self.plan.participation.clients)[1] % self.mean.modulus
            place, found = places[chosen[party]], self._nothing()
            with self.clock.timed("gradients"):
                rows, loss = self.updates.vector(chosen[party], turn)
            with self.clock.timed("clip, rotate, encode"):
                finite = self.add(rows, found, turn, [place])
            losses[place] = loss.masked_fill(~finite, torch.nan) if len(loss) else loss
            first = np.asarray(found.cpu())
            if self.mean.noise is None:
                return first % self.mean.modulus
            if self.mean.has_second_message:
                return (first + self._held(turn, place)[0]) % self.mean.modulus
            found += self._own(turn, chosen[party])
            found -= self._own(turn - 1, chosen[party]) if chosen[party] in before.there else 0
            return np.asarray(found.cpu()) % self.mean.modulus

        lost = [party for party, client in enumerate(chosen) if client not in places]
        stages = generator(self.plan.seed, LOSSES, turn, 1).integers(0, 3, size=len(lost))
        silent = {party: STAGES[stage] for party, stage in zip(lost, stages, strict=True)}
        second = before if self.mean.has_second_message else NOBODY  # a silo takes its noise back in its own message
        gone = [place for place, client in enumerate(second.staying) if client in set(second.lost)]
        silent |= {self.plan.participation.clients + place: STAGES[0] for place in gone}
        try:
            params = protocol(self.plan, len(self.updates.values), new_round(), second=len(second.staying))
            total, survivors, cost = aggregate(params, levels, silent)
        except Aborted:
            if self.mean.noise is not None:  # the next round would take back what this one has not revealed
                raise
            return None
        assert survivors == [party for party in range(params.clients) if party not in silent]
        for place in gone:  # whose seeds are at hand in a simulation; else through the shares of the others
            total = (total - self._held(turn - 1, place)[1]) % self.mean.modulus
        revealed = torch.from_numpy(total.astype(np.int32)).to(self.updates.values.device)
        return Collected(revealed, torch.cat([losses[place] for place in sorted(losses)]), cost.bytes_up)

    def _held(self, turn: int, place: int) -> list[Any]:
        """What one client of a round adds, and takes back in the next."""
        state = self._noise.sample_sum(1, self._nothing(), self._source(TRANSIENT, turn, place))
        return [np.asarray(part.cpu()).astype(np.int64) for part in (state.added, state.canceled)]


AGGREGATORS: dict[SecAgg, type[Aggregator]] = {"ideal": Ideal, "real": Secure}
"""By their name in a plan."""
