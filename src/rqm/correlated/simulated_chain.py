"""Correlated noise of all clients of a simulated run, round after round.

A chain of rounds adds noise in each round and cancels most of it in the next one. The training loop
holds one of the classes here and does not depend on which noise there is.
"""

from collections.abc import Sequence
from typing import Any, final

from rqm.correlated.scheme import NoiseScheme, NoiseState
from rqm.randomness import SecureRandom, SeededRandom

TRANSIENT_STREAM = 7
"""The stream of a run's seed from which correlated noise is drawn."""


class IndependentChain:
    """Independent noise: nothing is added to a sum of messages, and nothing is canceled."""

    def apply(self, total: Any, round_index: int, survivors: Sequence[int], settling: Sequence[int]) -> None:
        """Add the noise of a round to its sum, and cancel the previous round's.

        Args:
            total: The sum of a round's messages, a torch tensor, which is changed in place.
            round_index: The round, from 0.
            survivors: The clients in the sum.
            settling: The clients of the previous round whose noise this sum cancels, in their order
                there.
        """

    def apply_to_message(self, message: Any, round_index: int, position: int, cohort: Any) -> None:
        """Add one client's noise to its message, for rounds with the real protocol.

        Args:
            message: The client's integers, a torch tensor, which is changed in place.
            round_index: The round, from 0.
            position: The client's position among the survivors.
            cohort: The round's `survivors` and `settling` clients.
        """

    def restart(self) -> None:
        """Begin anew after a discarded round: its noise is never canceled."""

    def secret(self, round_index: int) -> Any | None:
        """The noise that a round cancels if it cannot be drawn again; it must be kept secret."""
        return None

    def restore(self, round_index: int, noise: Any) -> None:
        """Cancel the noise that `secret` returned in a round.

        Args:
            round_index: The round.
            noise: The noise, a torch tensor.

        Raises:
            ValueError: If the noise has the wrong shape.
        """


@final
class CorrelatedChain(IndependentChain):
    """Correlated noise, which each client cancels one round after it was added.

    Users settle by a second message. The noise of users who drop out before is recovered, so a sum
    cancels the noise of all survivors of the previous round. Silos settle in their next message; a
    silo that drops out leaves its noise in the model and begins anew.

    Args:
        noise: The correlated noise.
        template: A torch tensor of 32-bit integers, of the shape of a sum.
        seed: The seed of the run.
        is_secure: Whether noise is drawn with secure randomness, so that it cannot be drawn again.
        silos: The number of silos; None: clients are users.
        clients_at_once: Users whose noise is drawn together, more than one on a GPU.
    """

    def __init__(
        self,
        noise: NoiseScheme,
        template: Any,
        seed: int,
        *,
        is_secure: bool = False,
        silos: int | None = None,
        clients_at_once: int = 1,
    ) -> None:
        self.noise, self.template, self.seed, self.is_secure = noise, template, seed, is_secure
        self.silos, self.clients_at_once = silos, clients_at_once
        self._pending: dict[int, Any] = {}  # by the round that cancels it: a row for all users, or for each silo

    def apply(self, total: Any, round_index: int, survivors: Sequence[int], settling: Sequence[int]) -> None:
        """See `IndependentChain`."""
        pending = self._pending.pop(round_index, None)
        self._pending.clear()  # noise is canceled once or never
        if pending is None and not self.is_secure:
            _, pending = self._draw(round_index - 1, settling)
        if settling and pending is not None:
            total -= pending[[0] if self.silos is None else list(settling)].sum(dim=0, dtype=total.dtype)
        added, self._pending[round_index + 1] = self._draw(round_index, survivors)
        total += added

    def apply_to_message(self, message: Any, round_index: int, position: int, cohort: Any) -> None:
        """See `IndependentChain`."""
        client = cohort.survivors[position]
        message += self.state_of(round_index, position if self.silos is None else client).added
        if self.silos is not None and client in cohort.settling:
            message -= self.state_of(round_index - 1, client).canceled

    def state_of(self, round_index: int, client: int, clients: int = 1) -> NoiseState:
        """The noise of one client in a round, or of several that are drawn together.

        Args:
            round_index: The round, from 0.
            client: The number of a silo, or the position of the first user among the survivors.
            clients: Number of clients.

        Returns:
            The sum of their noise, as tensors.
        """
        seeded = SeededRandom(self.seed, TRANSIENT_STREAM, round_index, client)
        return self.noise.sample_sum(clients, self.template, SecureRandom() if self.is_secure else seeded)

    def restart(self) -> None:
        """See `IndependentChain`."""
        self._pending.clear()

    def secret(self, round_index: int) -> Any | None:
        """See `IndependentChain`."""
        return self._pending.get(round_index) if self.is_secure else None

    def restore(self, round_index: int, noise: Any) -> None:
        """See `IndependentChain`."""
        shape = (self.silos or 1, len(self.template))
        if tuple(noise.shape) != shape:
            raise ValueError(f"the noise has shape {tuple(noise.shape)}: must be {shape}")
        self._pending = {round_index: noise.to(self.template.device)}

    def _draw(self, round_index: int, clients: Sequence[int]) -> tuple[Any, Any]:
        """The noise that clients add, and the rows that they cancel."""
        length = len(self.template)
        added, canceled = self.template.new_zeros(length), self.template.new_zeros((self.silos or 1, length))
        for start in range(0, len(clients), self.clients_at_once):
            count = min(self.clients_at_once, len(clients) - start)
            state = self.state_of(round_index, start if self.silos is None else clients[start], count)
            added += state.added
            canceled[0 if self.silos is None else clients[start]] += state.canceled
        return added, canceled
