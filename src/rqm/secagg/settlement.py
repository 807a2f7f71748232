"""Settlement: correlated noise that the clients of a sum cancel in the next round.

A client derives its noise from a noise secret, and shares that among the other clients that send
vectors. In the next round each client of the sum sends its settlement, which cancels the noise. For
clients that dropped out, the others reveal their shares, and the server recovers the noise itself.
The secret of a client that settles stays secret. See `docs/protocol.md`.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Self, final

from rqm.secagg import sharing, wire
from rqm.secagg.errors import ProtocolError
from rqm.secagg.masking import COMMITMENT_BYTES, commitments
from rqm.secagg.parameters import Params
from rqm.secagg.roster import identity_in
from rqm.secagg.wire import Entries


def sum_name(digest: bytes, parties_hash: bytes, survivors_hash: bytes) -> bytes:
    """The name of a sum, which no other sum has.

    Args:
        digest: The digest of the round's parameters.
        parties_hash: The hash of the clients that took part, with their keys.
        survivors_hash: The hash of the clients whose vectors are in the sum.

    Returns:
        32 bytes.
    """
    return sha256(b"rqm follows" + digest + parties_hash + survivors_hash).digest()


@final
@dataclass(frozen=True)
class ClientSettlement:
    """What a client of a sum keeps for the next round. It is secret.

    Attributes:
        name: The name of the sum.
        index: The client's index among the clients of the sum, which names it in the next round.
        next_context: What `Params.context` must be in the next round.
        noise_secret: The secret that the client's noise was derived from.
        shares: Shares of the other clients' noise secrets, by index.
        members: Number of clients of the sum.
        fingerprint: The fingerprint of `Client`, to mark the noise as settled.
        owners: The identities of the clients, by index, if there is a roster.
    """

    name: bytes
    index: int
    next_context: bytes
    noise_secret: bytes = field(repr=False)
    shares: Entries = field(repr=False)
    members: int
    fingerprint: str
    owners: Entries

    def save(self) -> bytes:
        """The settlement as bytes; as secret as itself."""
        return wire.dump_state(asdict(self))

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Undo `save`."""
        return cls(**wire.load_state(data, cls, "a client's saved settlement"))

    def check_round(self, params: Params, number: int) -> None:
        """Refuse to settle in any round but the one that follows the sum.

        Args:
            params: The parameters of the round.
            number: The client's number in it.

        Raises:
            ProtocolError: If the round follows another sum, or the number is not this client's.
        """
        if self.name != params.previous_sum or self.next_context != params.context:
            raise ProtocolError("a round that does not follow the sum which this client was in")
        if self.index != number - params.vector_clients or self.members != params.settling_clients:
            raise ProtocolError("this client was in that sum under another index, or among others")

    def check_owners(self, params: Params, parties: Entries) -> None:
        """Refuse settling clients that were not in the sum under their index.

        Args:
            params: The parameters of the round.
            parties: What each client of the round advertises, by number.

        Raises:
            ProtocolError: If an identity differs from that in the sum.
        """
        for client, advertised in parties.items():
            index = client - params.vector_clients
            if index >= 0 and identity_in(advertised) != self.owners.get(index, b""):
                raise ProtocolError(f"client {client} was not in the sum that this round follows, under that index")

    def shares_of_dropouts(self, settled: Collection[int]) -> Entries:
        """Shares of the noise secrets of all clients of the sum but those that have settled, by index."""
        return {index: share for index, share in self.shares.items() if index not in settled}


@final
@dataclass(frozen=True)
class ServerSettlement:
    """What the server keeps of a sum for the next round.

    Attributes:
        name: The name of the sum.
        members: The numbers of the clients of the sum, in order; their positions are the indices.
        threshold: How many shares recover a noise secret.
        secrets: The hash of each client's noise secret, by number.
        sealed_shares: The shares of it that each client has dealt, with commitments to them.
    """

    name: bytes
    members: tuple[int, ...]
    threshold: int
    secrets: Entries
    sealed_shares: Mapping[int, Entries]

    def check(self, holder: int, shares: Entries, dropouts: Collection[int]) -> None:
        """Refuse shares that the holder must not reveal, or that were not dealt to it.

        Args:
            holder: The index of the client that reveals them.
            shares: Shares of noise secrets, by index.
            dropouts: The indices of the clients that have not settled.
        """
        for index, share in shares.items():
            if index not in dropouts:
                raise ProtocolError(f"a share of the noise of client {index} of the previous round, which has settled")
            sealed = self.sealed_shares[self.members[index]].get(self.members[holder], b"")
            if commitments(share) != sealed[:COMMITMENT_BYTES]:
                raise ProtocolError(f"a share of the noise of client {index} of the previous round that was not dealt")

    def recover(self, index: int, shares: Entries) -> bytes | None:
        """A noise secret.

        Args:
            index: The index of a client that has not settled.
            shares: Shares of its secret, by the index of their holders.

        Returns:
            The secret; None if too few shares are left, or if they do not give it.
        """
        points = [(self.members[holder] + 1, share) for holder, share in shares.items()]
        if len(points) < self.threshold:
            return None
        secret = sharing.join(points, self.threshold)
        return secret if sha256(secret).digest() == self.secrets[self.members[index]] else None
