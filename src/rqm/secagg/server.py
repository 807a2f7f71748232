"""The server of the protocol."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from hashlib import sha256
from random import SystemRandom
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rqm.kernels import word_type
from rqm.secagg import masking, sharing, wire
from rqm.secagg.errors import Aborted, CorruptedRound, ProtocolError, require
from rqm.secagg.masking import COMMITMENT_BYTES, KEY_BYTES
from rqm.secagg.parameters import Params
from rqm.secagg.roster import KeyRegistry, Roster, identity_in, is_signed
from rqm.secagg.settlement import ServerSettlement, sum_name
from rqm.secagg.wire import NO_ENTRIES, Entries, Kind

Bodies = dict[int, list[Any]]
"""The fields of a message for each client."""


class _Deal(NamedTuple):
    """What a client has dealt: hashes of its secrets, and sealed shares of them for other clients."""

    seed_hash: bytes
    shares: Entries
    noise_hash: bytes
    noise_shares: Entries


@final
class Server:
    """The server in one round: `receive` messages, `advance` to the next stage, and `finish` with the sum.

    Who drives the server decides when a stage is over. Clients that have not answered by then drop
    out. What one client sends cannot end the round, unless too few others are left.

    Attributes:
        params: The parameters of the round.
        blamed: A reason for each client that has broken the protocol.
    """

    def __init__(
        self, params: Params, roster: Roster | None = None, *, previous: ServerSettlement | None = None
    ) -> None:
        """Begin a round.

        Args:
            params: The parameters of the round.
            roster: The roster, in rounds with one.
            previous: The settlement of the sum whose noise is settled in this round.
        """
        if (b"" if previous is None else previous.name) != params.previous_sum:
            raise ValueError("previous: must be the settlement of the sum that this round follows")
        if params.roster and (roster is None or roster.hash != params.roster):
            raise ValueError("a signed round: the roster must be given")
        self.params, self._previous = params, previous
        self.blamed: dict[int, str] = {}
        self._stage = Kind.KEYS
        self._expected, self._heard = set(range(params.clients)), set[int]()
        self._registry = KeyRegistry(roster if params.roster else None)
        self._keys: Entries = {}
        self._parties_hash = self._survivors_hash = b""
        self._deals: dict[int, _Deal] = {}
        self._inbox = defaultdict[int, Entries](dict)  # the sealed shares that each client holds
        self._linked: dict[int, set[int]] = {}  # with whom each client has a mask
        self._total = np.zeros(params.count, dtype=word_type(params.bits))
        self._tags: dict[int, Entries] = {}  # of each client in the sum
        self._distrust = defaultdict[int, set[int]](set)  # the neighbors that hold no share of each client
        self._acks: dict[int, Any] = {}
        self._revealed: dict[int, Entries] = {}
        self._noise_shares = defaultdict[int, Entries](dict)  # by index in the previous sum

    # -- results ----------------------------------------------------------------------------------

    @property
    def survivors(self) -> list[int]:
        """The clients in the sum."""
        return sorted(self._tags)

    @property
    def vector_survivors(self) -> list[int]:
        """The clients whose vectors are in the sum."""
        return [client for client in self.survivors if client < self.params.vector_clients]

    @property
    def unsettled(self) -> list[int]:
        """The clients of the previous sum, by index, whose settlement is not in this one."""
        first = self.params.vector_clients
        return [client - first for client in range(first, self.params.clients) if client not in self._tags]

    @property
    def disputes(self) -> list[tuple[int, int]]:
        """Pairs of clients of which one has broken the protocol. Only these two know which.

        The first says that the second has dealt it no valid share, or has not masked for it.
        """
        pairs = ((holder, client) for client, holders in self._distrust.items() for holder in holders)
        return sorted(pair for pair in pairs if self.blamed.keys().isdisjoint(pair))

    def finish(self) -> npt.NDArray[np.int64]:
        """The sum of the survivors' values.

        Raises:
            CorruptedRound: If shares that were dealt do not unmask it.
            Aborted: If too few clients have revealed their shares.
        """
        self._check_last_stage()
        self._check_recoverable(self._revealed)
        digest, total, survivors = self.params.digest, self._total.copy(), self._tags.keys()
        for client, secret in self._recover_secrets().items():  # all of them, or nothing is unmasked
            if client in survivors:
                masking.add_mask(total, masking.own_mask_key(digest, secret, client), -1)
                continue
            private = X25519PrivateKey.from_private_bytes(secret)
            for survivor in self._linked[client] & survivors:
                agreed = masking.agree(private, self._mask_key(survivor), survivor)
                key = masking.pair_mask_key(digest, agreed, client, survivor)
                masking.add_mask(total, key, -1 if survivor < client else 1)
        total &= total.dtype.type(2**self.params.bits - 1)
        return total.astype(np.int64)

    def recovered_secrets(self) -> dict[int, bytes | None]:
        """The noise secrets of the unsettled clients, by index; None if too few shares are left."""
        self._check_last_stage()
        if self._previous is None:
            return {}
        return {index: self._previous.recover(index, self._noise_shares[index]) for index in self.unsettled}

    def settlement(self) -> ServerSettlement:
        """What the next round needs to settle the noise in this sum."""
        members = tuple(self.vector_survivors)
        return ServerSettlement(
            name=sum_name(self.params.digest, self._parties_hash, self._survivors_hash),
            members=members,
            threshold=self.params.noise_threshold,
            secrets={client: self._deals[client].noise_hash for client in members},
            sealed_shares={client: self._deals[client].noise_shares for client in members},
        )

    # -- driving a round --------------------------------------------------------------------------

    def receive(self, data: bytes, sender: int | None = None) -> None:
        """Accept a client's message of the current stage. A message that is refused changes nothing.

        Args:
            data: The message.
            sender: Who has sent it, as authenticated by the transport. Without that, anybody can
                speak in a client's name and corrupt the sum (but learn no more), and no client is blamed.

        Raises:
            ProtocolError: If the message is refused.
        """
        try:
            _, _, client = wire.header(data)
            if sender is not None and client != sender:
                raise ProtocolError(f"a message in the name of client {client}, sent by client {sender}")
            if client not in self._expected:
                raise ProtocolError(f"client {client}: not in this round, or dropped out in an earlier stage")
            fields = self.params.read(data, self._stage, client)
            if client in self._heard:
                raise ProtocolError(f"client {client} has sent its {self._stage.name} already")
            accept: dict[Kind, Callable[..., None]] = {
                Kind.KEYS: self._accept_keys,
                Kind.SHARES: self._accept_shares,
                Kind.MASKED: self._accept_masked,
                Kind.ACKS: self._accept_acks,
                Kind.REVEAL: self._accept_reveal,
            }
            accept[self._stage](client, *fields)
        except ProtocolError as error:
            if sender is not None and sender in self._expected and sender not in self._heard:
                self.blamed[sender] = str(error)
            raise
        self._heard.add(client)

    def advance(self) -> Entries:
        """End the stage.

        Returns:
            The next message for each client that is left.

        Raises:
            Aborted: If too few are left.
            CorruptedRound: If the sum can no longer be unmasked.
        """
        answers = {
            Kind.KEYS: self._send_parties,
            Kind.SHARES: self._send_shares,
            Kind.MASKED: self._send_survivors,
            Kind.ACKS: self._send_proof,
        }
        if self._stage not in answers:
            raise ProtocolError("all messages have been sent: finish")
        clients, kind, digest = sorted(self._heard), Kind(self._stage + 1), self.params.digest
        self.params.check_survivors(clients, f"left after {self._stage.name}", Aborted)
        bodies = answers[self._stage](clients)
        self._expected, self._heard, self._stage = set(bodies), set(), Kind(kind + 1)
        return {client: wire.frame(kind, digest, client, *fields) for client, fields in bodies.items()}

    def _check_last_stage(self) -> None:
        if self._stage != Kind.REVEAL:
            raise ProtocolError(f"not finished: {self._stage.name} is due")

    # -- 1 KEYS, 2 PARTIES ------------------------------------------------------------------------

    def _accept_keys(self, client: int, keys: bytes) -> None:
        self.params.check_signature(client, keys)
        for start in (0, KEY_BYTES):
            masking.agree(X25519PrivateKey.generate(), keys[start : start + KEY_BYTES], client)
        self._registry.add(client, keys)
        self._keys[client] = keys

    def _send_parties(self, clients: list[int]) -> Bodies:
        require(self._degree(), self.params.threshold, "neighbors are there for each client", Aborted)
        everybody = wire.encode(self._keys)
        self._parties_hash = sha256(everybody).digest()
        return {client: [everybody] for client in clients}

    def _degree(self) -> int:
        """How many neighbors each client draws."""
        return min(self.params.degree, len(self._keys) - 1)

    def _mask_key(self, client: int) -> bytes:
        """A client's public key for masks."""
        return self._keys[client][KEY_BYTES : 2 * KEY_BYTES]

    # -- 3 SHARES, 4 INBOX ------------------------------------------------------------------------

    def _accept_shares(
        self,
        client: int,
        seed_hash: bytes,
        shares: Entries,
        noise_hash: bytes = b"",
        noise_shares: Entries = NO_ENTRIES,
    ) -> None:
        if len(shares) != self._degree() or client in shares or not shares.keys() <= self._keys.keys():
            raise ProtocolError(f"client {client} has not shared its secrets with {self._degree()} others in the round")
        others = self._keys.keys() - {client}
        if noise_hash and noise_shares.keys() != others.intersection(range(self.params.vector_clients)):
            raise ProtocolError(f"client {client} has not shared its noise secret with all others that send vectors")
        self._deals[client] = _Deal(seed_hash, shares, noise_hash, noise_shares)
        for holder, sealed in shares.items():
            self._inbox[holder][client] = sealed

    def _send_shares(self, clients: list[int]) -> Bodies:
        drawn = {client: self._deals.keys() & self._deals[client].shares for client in clients}
        sufficient = sum(len(neighbors) >= self.params.threshold for neighbors in drawn.values())
        subject = f"clients have {self.params.threshold} neighbors that have shared their secrets"
        require(sufficient, self.params.minimum, subject, Aborted)  # the others will send no vector
        bodies: Bodies = {}
        for client in clients:
            inbox = self._inbox[client]
            self._linked[client] = drawn[client] | inbox.keys()
            bodies[client] = [inbox, drawn[client] - inbox.keys()]
            if self.params.noise_threshold and client < self.params.vector_clients:
                deals = self._deals.items()
                bodies[client].append(
                    {u: deal.noise_shares[client] for u, deal in deals if client in deal.noise_shares}
                )
        return bodies

    # -- 5 MASKED, 6 SURVIVORS --------------------------------------------------------------------

    def _accept_masked(self, client: int, vector: bytes, tags: Entries, refused: Entries) -> None:
        if tags.keys() != self._linked[client] or not refused.keys() <= self._inbox[client].keys():
            raise ProtocolError(f"client {client} has masked its values for others than its neighbors")
        from rqm.kernels.packing import unpack  # noqa: PLC0415 (takes the compiler)

        self._total += unpack(vector, self.params.bits, self.params.count)
        self._tags[client] = tags
        for peer in refused:
            self._distrust[peer].add(client)

    def _send_survivors(self, clients: list[int]) -> Bodies:
        self._check_recoverable(clients)
        everybody = wire.pack_set(clients, self.params.clients)
        self._survivors_hash = sha256(everybody).digest()
        return {
            client: [
                everybody,
                {peer: self._tags[peer][client] for peer in self._linked[client] & self._tags.keys()},
                self._linked[client] - self._tags.keys(),
            ]
            for client in clients
        }

    # -- 7 ACKS, 8 PROOF --------------------------------------------------------------------------

    def _accept_acks(self, client: int, proof: Any, refused: Entries) -> None:
        linked = self._linked[client] & self._tags.keys()
        if self.params.sparse:
            statement = self.params.sum_statement(self._parties_hash, self._survivors_hash)
            acknowledged = linked - refused.keys()
            if not is_signed(identity_in(self._keys[client]), proof, statement):
                raise ProtocolError(f"client {client} has not signed the sum that it was told of")
        else:
            acknowledged = proof.keys()
        if acknowledged & refused.keys() or acknowledged | refused.keys() != linked:
            raise ProtocolError(f"client {client} has acknowledged others than its neighbors in the sum")
        self._acks[client] = proof
        for peer in refused:
            self._distrust[peer].add(client)

    def _send_proof(self, clients: list[int]) -> Bodies:
        self._check_recoverable(clients)
        if self.params.sparse:
            proof = wire.encode(self._acks)
            return {client: [proof] for client in clients}
        return {
            client: [{peer: tags[client] for peer, tags in self._acks.items() if client in tags}] for client in clients
        }

    # -- 9 REVEAL ---------------------------------------------------------------------------------

    def _accept_reveal(self, client: int, shares: Entries, noise_shares: Entries = NO_ENTRIES) -> None:
        index = client - self.params.vector_clients
        if self._previous is not None:
            self._previous.check(index, noise_shares, self.unsettled)
        if shares.keys() != {dealer for dealer in self._inbox[client] if client not in self._distrust[dealer]}:
            raise ProtocolError(f"client {client} has revealed shares of others than its neighbors")
        for dealer, share in shares.items():
            start = COMMITMENT_BYTES if dealer in self._tags else 0  # of the seed, or of the key of a dropout
            if masking.commitments(share) != self._inbox[client][dealer][start : start + COMMITMENT_BYTES]:
                raise ProtocolError(f"client {client} has revealed a share of client {dealer} that was not dealt to it")
        self._revealed[client] = shares
        for dropout, share in noise_shares.items():
            self._noise_shares[dropout][index] = share

    # -- recovering secrets -----------------------------------------------------------------------

    def _dropouts(self) -> list[int]:
        """The clients whose masks are in the sum, but not their values."""
        missing = self._deals.keys() - self._tags
        return [client for client in missing if not self._linked[client].isdisjoint(self._tags)]

    def _check_recoverable(self, clients: Iterable[int]) -> None:
        """Blame clients if these clients cannot recover a secret because shares of it were refused."""
        present, disputed = set(clients), set[tuple[int, int]]()
        for client in [*self._tags, *self._dropouts()]:
            holders = present.intersection(self._deals[client].shares)
            distrusting = holders & self._distrust[client]
            if len(holders) >= self.params.threshold > len(holders - distrusting):
                disputed |= {(client, holder) for holder in distrusting}
        if disputed:
            blamed = most_disputed(disputed)
            self.blamed |= blamed
            raise CorruptedRound(blamed, proved=False)

    def _recover_secrets(self) -> Entries:
        """The seeds of all clients in the sum, and the private mask keys of the dropouts."""
        secrets = {client: self._recover(client) for client in [*self._tags, *self._dropouts()]}
        wrong = {
            client: f"the shares of client {client} do not give the secret that it committed to"
            for client, secret in secrets.items()
            if not secret
        }
        if wrong:
            self.blamed |= wrong
            raise CorruptedRound(wrong, proved=True)
        return secrets

    def _recover(self, client: int) -> bytes:
        """A secret from its shares; empty if they do not give it. All are as the client dealt them."""
        threshold = self.params.threshold
        shares = [
            (point, self._revealed[holder][client])
            for point, holder in enumerate(self._deals[client].shares, 1)
            if client in self._revealed.get(holder, ())
        ]
        require(len(shares), threshold, f"neighbors of client {client} are left to recover its secret", Aborted)
        for attempt in range(500 if len(shares) > threshold else 1):  # other shares, if some were dealt wrongly
            secret = sharing.join(SystemRandom().sample(shares, threshold) if attempt else shares, threshold)
            if self._is_secret(client, secret):
                if attempt:
                    self.blamed[client] = f"client {client} has dealt shares that do not belong to one secret"
                return secret
        return b""

    def _is_secret(self, client: int, secret: bytes) -> bool:
        """Whether this is the seed of a client in the sum, or the private mask key of a dropout."""
        if client in self._tags:
            return sha256(secret).digest() == self._deals[client].seed_hash
        return masking.public(X25519PrivateKey.from_private_bytes(secret)) == self._mask_key(client)


def most_disputed(disputed: set[tuple[int, int]]) -> dict[int, str]:
    """Clients to leave out, of pairs that contradict each other: those in most disputes, until none is left.

    Two honest clients never contradict each other. So one client that accuses all, or deals wrong
    shares to all, is left out alone. Of two clients with equally many disputes both are.

    Args:
        disputed: Pairs of clients.

    Returns:
        A reason for each client to leave out.
    """
    blamed: dict[int, str] = {}
    while disputed:
        disputes = Counter(client for pair in disputed for client in pair)
        highest = max(disputes.values())
        worst = {client for client, count in disputes.items() if count == highest}
        blamed |= {
            c: f"client {c} and {highest} neighbors contradict each other about its or their shares" for c in worst
        }
        disputed = {pair for pair in disputed if worst.isdisjoint(pair)}
    return blamed
