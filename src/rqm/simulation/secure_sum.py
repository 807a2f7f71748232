"""The sum of a round's messages, which is all that the server sees of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from rqm.config.plan import Plan, SecAgg
from rqm.config.round_parameters import protocol
from rqm.core.base import BaseMean
from rqm.correlated.simulated_chain import CorrelatedChain, IndependentChain
from rqm.randomness import OneEach, SecureRandom, SeededRandom
from rqm.simulation.streams import LOSSES, NOISE, torch_seed

if TYPE_CHECKING:
    from rqm.simulation.client_updates import ClientUpdates
    from rqm.simulation.loop import Cohort

COMPUTING, ENCODING = "gradients", "clip, rotate, encode"
"""Parts of a round, by their names in `metrics.jsonl`."""


@final
@dataclass(frozen=True)
class Revealed:
    """What is known after the messages of a round were added up.

    Attributes:
        total: The sum as the server sees it.
        losses: The clients' losses, which are not released; NaN where a vector was not finite.
        seconds: Seconds of computing and of encoding, by the names in `metrics.jsonl`.
        bytes_up: Bytes that all clients sent in the real protocol.
        time: When the sum was revealed.
    """

    total: Tensor
    losses: Tensor
    seconds: dict[str, float]
    bytes_up: int | None = None
    time: float = field(default_factory=perf_counter)


@final
class MessageSum:
    """Encodes vectors of clients and adds up the messages.

    Args:
        mean: The private mean that encodes.
        round_index: The round, from 0.
        device: The device of the sum.
        seed: The seed of the simulated randomness; None: it is secure.
        first: The position of the first client among the round's survivors. All simulated noise follows from positions.

    Attributes:
        is_exact: Whether messages are integers, so that the order of additions does not matter.
        total: The sum so far.
        seconds: Seconds of encoding, of all threads on average.
    """

    def __init__(
        self, mean: BaseMean, round_index: int, device: torch.device, seed: int | None, first: int = 0
    ) -> None:
        self.mean, self.round_index, self.device, self.seed, self.first = mean, round_index, device, seed, first
        self.is_exact = mean.has_integer_messages
        self.total = torch.zeros(mean.coordinates, dtype=torch.int32 if self.is_exact else torch.float64, device=device)
        self.seconds, self._forks = 0.0, 0

    def add(self, positions: Sequence[int], rows: Any) -> Tensor:
        """Encode vectors and add their messages.

        Args:
            positions: The clients' positions, counted from the first client's.
            rows: Their vectors, as `PrivateMean.add_messages` takes them.

        Returns:
            Which of the vectors were finite. The others send an encoding of zero.
        """
        start = perf_counter()
        is_finite = self._add(positions, rows)
        self.seconds += perf_counter() - start
        return is_finite

    def _add(self, positions: Sequence[int], rows: Any) -> Tensor:
        source: Any = self._source(positions[0])
        if len(positions) > 1 and not self.total.is_cuda:  # a GPU encodes a group of clients with one stream
            if not self.is_exact or self.mean.mechanism.vector_mechanism is not None:
                parts = [self._add([position], rows[row : row + 1]) for row, position in enumerate(positions)]
                return torch.cat(parts)
            if self.seed is not None:
                source = OneEach(self._source(position) for position in positions)
        is_finite: Tensor = self.mean.add_messages(rows, self.total, source, round_index=self.round_index)
        return is_finite

    def _source(self, position: int) -> Any:
        if self.seed is None:
            return SecureRandom()
        return SeededRandom(self.seed, NOISE, self.round_index, self.first + position)

    def fork(self) -> "MessageSum":
        """An empty sum for another thread."""
        self._forks += 1
        return MessageSum(self.mean, self.round_index, self.device, self.seed, self.first)

    def merge(self, messages: "MessageSum") -> None:
        """Add a sum that `fork` returned."""
        self.total += messages.total
        self.seconds += messages.seconds / self._forks


class SecureSum(ABC):
    """Lets clients compute and encode their vectors, and reveals nothing but the sum.

    Args:
        plan: The plan of the run.
        mean: The private mean.
        device: The device of the sum.
        is_secure: Whether messages are encoded with secure randomness instead of the plan's seed.
        clients_at_once: Clients whose correlated noise is drawn together.
    """

    def __init__(
        self, plan: Plan, mean: BaseMean, device: torch.device, *, is_secure: bool = False, clients_at_once: int = 1
    ) -> None:
        self.plan, self.mean, self.device, self.is_secure = plan, mean, device, is_secure
        if is_secure and mean.is_private and not mean.has_integer_messages:
            raise ValueError(f"mechanism = {plan.mechanism.kind!r}: must be one that sends integers, or give a seed")
        if is_secure and mean.noise is not None and plan.secagg == "real":
            raise ValueError("secagg = 'real': must come with a seed where noise is correlated")
        self.server_noise = mean.server_noise(lambda round_index: torch_seed(plan.seed, NOISE, round_index))
        self.chain = IndependentChain()
        if mean.noise is not None and mean.has_integer_messages:
            self.chain = CorrelatedChain(
                mean.noise,
                self.messages(0).total,
                plan.seed,
                is_secure=is_secure,
                silos=None if mean.has_second_message else plan.participation.clients,
                clients_at_once=clients_at_once,
            )

    def messages(self, round_index: int, first: int = 0) -> MessageSum:
        """An empty sum of the messages of a round, from the survivor at a position on."""
        return MessageSum(self.mean, round_index, self.device, None if self.is_secure else self.plan.seed, first)

    @abstractmethod
    def reveal(self, updates: "ClientUpdates", cohort: "Cohort") -> Revealed | None:
        """The sum of the messages of a cohort's survivors.

        Args:
            updates: Computes the clients' vectors.
            cohort: The clients.

        Returns:
            The sum, or None if the protocol was aborted.
        """


@final
class IdealSum(SecureSum):
    """Adds up messages in the clear. The result is that of the real protocol."""

    def reveal(self, updates: "ClientUpdates", cohort: "Cohort") -> Revealed | None:
        """See `SecureSum`."""
        start, round_index = perf_counter(), cohort.round_index
        messages = self.messages(round_index)
        updates.begin_round(round_index)
        losses = updates.encode(cohort.survivors, round_index, messages)
        computing = perf_counter() - start - messages.seconds
        self.chain.apply(messages.total, round_index, cohort.survivors, cohort.settling)
        total = self.mean.reveal(messages.total, len(cohort.survivors), self.server_noise, round_index=round_index)
        seconds = {COMPUTING: computing, ENCODING: perf_counter() - start - computing}
        return Revealed(total, losses, seconds)


@final
class ProtocolSum(SecureSum):
    """The real protocol, with all parties in this process. No client's integers leave it without a mask."""

    def reveal(self, updates: "ClientUpdates", cohort: "Cohort") -> Revealed | None:
        """See `SecureSum`. Clients that drop out do so at a random stage before they send their masked vector."""
        from rqm.secagg import Aborted, new_round  # noqa: PLC0415 (a bare GPU machine has no ciphers)
        from rqm.secagg.local import aggregate  # noqa: PLC0415
        from rqm.secagg.wire import STAGES  # noqa: PLC0415

        round_index, clients = cohort.round_index, len(cohort.clients)
        positions = {client: position for position, client in enumerate(cohort.survivors)}
        losses: dict[int, Tensor] = {}
        seconds = {COMPUTING: 0.0, ENCODING: 0.0}
        updates.begin_round(round_index)

        def message(party: int) -> Any:
            """A client's integers; parties beyond the cohort settle the noise of the previous round."""
            if party >= clients:
                return -self._canceled(round_index, party - clients) % self.mean.modulus
            position, start = positions[cohort.clients[party]], perf_counter()
            messages = self.messages(round_index, position)
            losses[position] = updates.encode([cohort.clients[party]], round_index, messages)
            seconds[COMPUTING] += perf_counter() - start - messages.seconds
            seconds[ENCODING] += messages.seconds
            self.chain.apply_to_message(messages.total, round_index, position, cohort)
            return np.asarray(messages.total.cpu()) % self.mean.modulus

        dropped = [party for party, client in enumerate(cohort.clients) if client not in positions]
        stages = np.random.default_rng([self.plan.seed, LOSSES, round_index, 1]).integers(0, 3, len(dropped))
        silent = {party: STAGES[stage] for party, stage in zip(dropped, stages, strict=True)}
        silent |= {clients + index: STAGES[0] for index in cohort.unsettled}
        settling = len(cohort.settling) if self.mean.has_second_message else 0
        try:
            params = protocol(self.plan, updates.values.numel(), new_round(), second=settling)
            total, survivors, cost = aggregate(params, message, silent)
        except Aborted:
            if self.mean.noise is not None:  # the next round would cancel noise that no sum contains
                raise
            return None
        assert survivors == [party for party in range(params.clients) if party not in silent]
        for index in cohort.unsettled:  # in a deployment the others' shares give these clients' secrets
            total = (total - self._canceled(round_index, index)) % self.mean.modulus
        ordered = torch.cat([losses[position] for position in range(len(positions))])
        return Revealed(torch.from_numpy(total.astype(np.int32)).to(self.device), ordered, seconds, cost.bytes_up)

    def _canceled(self, round_index: int, position: int) -> Any:
        """The noise that a survivor of the previous round cancels in this one."""
        assert isinstance(self.chain, CorrelatedChain)
        state = self.chain.state_of(round_index - 1, position)
        return np.asarray(state.canceled.cpu()).astype(np.int64)


SECURE_SUMS: dict[SecAgg, type[SecureSum]] = {"ideal": IdealSum, "real": ProtocolSum}
"""The implementations by their name in a plan."""
