"""The server of the protocol."""

from collections.abc import Callable, Iterable
from hashlib import sha256
from random import SystemRandom
from typing import final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rqm.secagg import masking, sharing, wire
from rqm.secagg.errors import Aborted, ProtocolError, Spoiled, likely
from rqm.secagg.graph import degree_of
from rqm.secagg.holding import SEALED, Owed, name_of
from rqm.secagg.masking import ACK, DEALT, KEY, PROMISE, SECRET
from rqm.secagg.protocol import Masks, Params, statement, told
from rqm.secagg.roster import IDENTITY, SIGNATURE, Roster, signed, signer
from rqm.secagg.wire import Kind

TRIES = 500
"""How often other shares are chosen to find a secret of which some were dealt wrongly."""


@final
class Server:
    """The server in one round: give it messages by ``receive``, end a stage by ``advance``, and at last ``finish``.

    What one client sends cannot end the round, unless too few others are left. ``liars`` names those who have broken
    the protocol, and how; ``disputes`` are pairs (who, whom) of which one has: nobody but they can tell which. A round
    that can no longer be unmasked, since somebody has dealt wrong shares, is Spoiled: begin another without him.
    """

    def __init__(
        self, params: Params, roster: Roster | None = None, *, maker: Masks | None = None, owed: Owed | None = None
    ) -> None:
        if (b"" if owed is None else owed.name) != params.follows:
            raise ValueError("owed: must be what is owed of the sum that this round follows")
        if params.roster and (roster is None or roster.hash != params.roster):
            raise ValueError("a signed round: the roster must be given")
        self._maker, self._before = maker or Masks(), owed
        self._noise: dict[int, tuple[bytes, dict[int, memoryview]]] = {}  # seals, and shares of the secrets behind it
        self._found: dict[int, dict[int, bytes]] = {}  # by place in the sum before: shares of who is gone
        self.params, self._roster = params, roster if params.roster else None
        self._owners: set[bytes] = set()
        self._due = Kind.KEYS
        self._keys: dict[int, bytes] = {}
        self._known: set[bytes] = set()
        self._parties, self._agreed = b"", b""
        self._graph: dict[int, list[int]] = {}  # the neighbours that each has drawn, who hold its shares
        self._dealers: dict[int, list[int]] = {}  # those whose shares each holds
        self._linked: dict[int, list[int]] = {}  # those with whom each has a mask
        self._seals: dict[int, bytes] = {}
        self._shares: dict[int, dict[int, memoryview]] = {}
        self._tags: dict[int, dict[int, memoryview]] = {}
        self._acks: dict[int, dict[int, memoryview]] = {}
        self._said: dict[int, bytes] = {}
        self._revealed: dict[int, dict[int, memoryview]] = {}
        self._promises: dict[int, dict[int, bytes]] = {}
        self._distrust: dict[int, set[int]] = {}  # of whom these neighbours hold no share
        self.liars: dict[int, str] = {}
        self._total = np.zeros(params.count, dtype=masking.lane(params.bits))
        self._heard: set[int] = set()
        self._expected = set(range(params.clients))
        self._in_sum: list[int] = []
        self._alive: frozenset[int] = frozenset()

    @property
    def survivors(self) -> list[int]:
        """The clients whose values are in the sum."""
        return list(self._in_sum)

    @property
    def disputes(self) -> list[tuple[int, int]]:
        """Who says of whom that he was dealt no good share, or not masked for: one of each two lies."""
        named = self.liars.keys()
        return sorted((v, u) for u, some in self._distrust.items() for v in some if u not in named and v not in named)

    def receive(self, data: bytes, sender: int | None = None) -> None:
        """Take a client's message of the current stage. A message that is refused changes nothing.

        ``sender`` is who the transport says has sent it. Without that anybody can speak in a client's name, and spoil
        the sum (though not learn more), and nobody is named for what he sends.
        """
        try:
            self._receive(data, sender)
        except ProtocolError as error:
            if sender is not None and sender in self._expected and sender not in self._heard:
                self.liars[sender] = str(error)
            raise

    def _receive(self, data: bytes, sender: int | None) -> None:
        data = bytes(data) if isinstance(data, bytearray | memoryview) else data  # nobody shall change it later
        _, client = wire.sender(data)
        if sender is not None and client != sender:
            raise ProtocolError(f"a message in the name of client {client}, sent by client {sender}")
        if client not in self._expected:
            raise ProtocolError(f"client {client}: not in this round, or lost in an earlier stage")
        body = wire.unframe(data, self._due, self.params.digest)
        if client in self._heard:
            raise ProtocolError(f"client {client} has sent its {self._due.name} already")
        {
            Kind.KEYS: self._take_keys,
            Kind.SHARES: self._take_shares,
            Kind.MASKED: self._take_masked,
            Kind.ACKS: self._take_acks,
            Kind.REVEAL: self._take_shares_of_others,
        }[self._due](client, body)
        self._heard.add(client)

    def advance(self) -> dict[int, bytes]:
        """End the stage; return the next message for every client who is still there."""
        here = sorted(self._heard)
        stage = self._due
        answers = {
            Kind.KEYS: self._answer_keys,
            Kind.SHARES: self._answer_shares,
            Kind.MASKED: self._answer_masked,
            Kind.ACKS: self._answer_acks,
        }
        if stage not in answers:
            raise ProtocolError("all messages have been sent: finish")
        if len(here) < self.params.minimum:
            raise Aborted(f"{len(here)} clients are left after {stage.name}: must be at least {self.params.minimum}")
        if few := self.params.short_of(here):
            raise Aborted(f"after {stage.name} there are {few}")
        found = answers[stage](here)
        self._expected, self._heard, self._due = set(found), set(), Kind(stage + 2)
        return {client: wire.frame(Kind(stage + 1), self.params.digest, client, body) for client, body in found.items()}

    def finish(self) -> npt.NDArray[np.int64]:
        """The sum of the survivors' values."""
        if self._due != Kind.REVEAL:
            raise ProtocolError(f"not finished: {self._due.name} is due")
        self._still_shared(self._revealed)
        params, total = self.params, self._total.copy()
        alive = self._alive
        lost = [u for u in self._seals if u not in alive and not alive.isdisjoint(self._linked[u])]
        secrets_ = self._secrets(lost)  # all of them, or nothing is unmasked
        for u in self._in_sum:
            self._maker.add(total, self._maker.own_key(params, secrets_[u], u), -1)
        for u in lost:
            private = X25519PrivateKey.from_private_bytes(secrets_[u])
            for v in alive.intersection(self._linked[u]):
                secret = masking.agree(private, self._keys[v][KEY : 2 * KEY], f"client {v}")
                self._maker.add(total, self._maker.pair_key(params, secret, u, v), -1 if v < u else 1)
        total &= total.dtype.type(2**params.bits - 1)
        return total.astype(np.int64)

    def _secrets(self, lost: list[int]) -> dict[int, bytes]:
        """The seed of everyone in the sum, the key of everyone who was lost."""

        def is_seed(u: int, secret: bytes) -> bool:
            return sha256(secret).digest() == self._seals[u]

        def is_key(u: int, secret: bytes) -> bool:
            return masking.public(X25519PrivateKey.from_private_bytes(secret)) == self._keys[u][KEY : 2 * KEY]

        found = {u: self._join(u, is_seed) for u in self._in_sum} | {u: self._join(u, is_key) for u in lost}
        spoilt = {
            u: f"the shares of client {u} do not give the secret that it committed to"
            for u, secret in found.items()
            if secret is None
        }
        if spoilt:
            self.liars |= spoilt
            raise Spoiled(spoilt, proved=True)
        return {u: secret for u, secret in found.items() if secret is not None}

    def _join(self, u: int, fits: Callable[[int, bytes], bool]) -> bytes | None:
        """The secret of a client from its shares. All are those that it dealt: if some do not fit, it has lied."""
        shares = [
            (point, bytes(self._revealed[v][u]))
            for point, v in enumerate(self._graph[u], 1)
            if u in self._revealed.get(v, ())
        ]
        threshold = self.params.threshold
        if len(shares) < threshold:
            raise Aborted(f"{len(shares)} neighbours of client {u} are left: must be at least {threshold} to unmask")
        for turn in range(TRIES if len(shares) > threshold else 1):
            secret = sharing.join(SystemRandom().sample(shares, threshold) if turn else shares, threshold)
            if fits(u, secret):
                if turn:
                    self.liars[u] = f"client {u} has dealt shares that do not belong to one secret"
                return secret
        return None

    def _still_shared(self, here: Iterable[int]) -> None:
        """Whether the secrets of everybody can be joined by those who are here; else who is to blame for it."""
        there, doubted = set(here), set[tuple[int, int]]()
        for u in self._seals:
            holders = there.intersection(self._graph[u])
            if u not in self._alive and self._alive.isdisjoint(self._linked[u]):
                continue
            against = holders & self._distrust.get(u, set())
            if len(holders) >= self.params.threshold > len(holders - against):
                doubted |= {(u, v) for v in against}
        if doubted:
            found = likely(doubted)
            self.liars |= found
            raise Spoiled(found, proved=False)

    # -- what clients send ----------------------------------------------------------------------

    def _take_keys(self, client: int, body: memoryview) -> None:
        if len(body) != self.params.keys_size:
            raise ProtocolError(f"keys of {len(body)} bytes: must have {self.params.keys_size}")
        owner = b""
        if self.params.signed:
            text = statement(self.params, client, bytes(body[: 2 * KEY]))
            verify = signer if self._roster is None else self._roster.verify
            owner = verify(body[2 * KEY :], text, f"client {client}")
            if owner in self._owners:
                raise ProtocolError(f"client {client} is somebody who takes part already")
        both = bytes(body[:KEY]), bytes(body[KEY : 2 * KEY])
        for key in both:
            masking.agree(X25519PrivateKey.generate(), key, f"client {client}")
        if both[0] == both[1] or not self._known.isdisjoint(both):
            raise ProtocolError(f"client {client} has a key that somebody has already")
        self._known.update(both)
        self._owners.add(owner)
        self._keys[client] = bytes(body)

    def _take_shares(self, client: int, body: memoryview) -> None:
        seal, found = bytes(body[:SECRET]), body[SECRET:]
        shares, rest = wire.read_entries(found, DEALT, self.params.clients)
        if self.params.holds and client < self.params.first:
            rest = self._take_noise(client, rest)
        wire.end(rest)
        wanted = degree_of(len(self._keys), self.params.degree)
        if len(shares) != wanted or client in shares or not shares.keys() <= self._keys.keys():
            raise ProtocolError(f"client {client} has not shared its secrets with {wanted} others who take part")
        self._seals[client], self._shares[client], self._graph[client] = seal, shares, list(shares)

    def _take_noise(self, client: int, body: memoryview) -> memoryview:
        """The shares of the secret behind a client's noise, and what comes after them."""
        seal, found = bytes(body[:SECRET]), body[SECRET:]
        shares, rest = wire.read_entries(found, SEALED, self.params.first)
        if list(shares) != [v for v in sorted(self._keys) if v < self.params.first and v != client]:
            raise ProtocolError(f"client {client} has not shared what is behind its noise with all others of its kind")
        self._noise[client] = seal, shares
        return rest

    def _take_masked(self, client: int, body: memoryview) -> None:
        size = self.params.masked_size
        if len(body) < size:
            raise ProtocolError(f"a masked vector of {len(body)} bytes: must have {size}")
        tags, rest = wire.read_entries(body[size:], ACK, self.params.clients)
        against, rest = wire.read_clients(rest, self.params.clients)
        wire.end(rest)
        if list(tags) != self._linked[client] or not against.issubset(self._dealers[client]):
            raise ProtocolError(f"client {client} has masked its values for others than its neighbours")
        from rqm.kernels.packing import unpack  # noqa: PLC0415 (takes the compiler)

        self._total += unpack(body[:size], self.params.bits, self.params.count)
        self._tags[client] = tags
        self._in_sum.append(client)
        self._hears_against(client, against)

    def _take_acks(self, client: int, body: memoryview) -> None:
        said, tags, rest = bytes(body[:SIGNATURE]), dict[int, memoryview](), body[SIGNATURE:]
        if not self.params.sparse:
            tags, rest = wire.read_entries(body, ACK, self.params.clients)
        against, rest = wire.read_clients(rest, self.params.clients)
        wire.end(rest)
        near = [v for v in self._linked[client] if v in self._alive]
        if self.params.sparse:
            owner = self._keys[client][2 * KEY : 2 * KEY + IDENTITY]
            if not signed(owner, said, told(self.params, self._parties, self._agreed)):
                raise ProtocolError(f"client {client} has not signed the sum that it was told of")
            good = against.issubset(near)
        else:
            good = not against & tags.keys() and sorted(against | tags.keys()) == near
        if not good:
            raise ProtocolError(f"client {client} has acknowledged others than its neighbours in the sum")
        self._acks[client], self._said[client] = tags, said
        self._hears_against(client, against)

    def _hears_against(self, client: int, others: set[int]) -> None:
        for other in others:
            self._distrust.setdefault(other, set()).add(client)

    def _take_shares_of_others(self, client: int, body: memoryview) -> None:
        shares, rest = wire.read_entries(body, SECRET, self.params.clients)
        noise: dict[int, memoryview] = {}
        if self.params.holds and self._before is not None and client >= self.params.first:
            noise, rest = wire.read_entries(rest, SECRET, self.params.second)
            self._before.check(client - self.params.first, noise, self.gone)
        wire.end(rest)
        if list(shares) != [u for u in self._dealers[client] if client not in self._distrust.get(u, ())]:
            raise ProtocolError(f"client {client} has revealed shares of others than its neighbours")
        for u, share in shares.items():
            promises = self._promises[u][client]
            due = promises[PROMISE:] if u in self._alive else promises[:PROMISE]
            if masking.promise(bytes(share)) != due:
                raise ProtocolError(f"client {client} has revealed a share of client {u} that was not dealt to it")
        self._revealed[client] = shares
        for u, share in noise.items():
            self._found.setdefault(u, {})[client - self.params.first] = bytes(share)

    # -- noise that is taken back ---------------------------------------------------------------

    @property
    def gone(self) -> list[int]:
        """Who was in the sum that this round follows, by place, and has not taken back its noise in this one."""
        return [u for u in range(self.params.second) if u + self.params.first not in self._alive]

    @property
    def firsts(self) -> list[int]:
        """The clients in the sum whose own values it holds."""
        return [u for u in self._in_sum if u < self.params.first]

    def secrets(self) -> dict[int, bytes | None]:
        """What is behind the noise of everybody who is ``gone``; None if too few have given their shares of it."""
        if self._due != Kind.REVEAL:
            raise ProtocolError(f"not finished: {self._due.name} is due")
        before = self._before
        return {} if before is None else {u: before.join(u, self._found.get(u, {})) for u in self.gone}

    def owed(self) -> Owed:
        """What the next round needs to take back the noise in this sum."""
        members = tuple(sorted(self.firsts))
        return Owed(
            name=name_of(self.params.digest, self._parties, self._agreed),
            members=members,
            threshold=self.params.holds,
            seals={u: self._noise[u][0] for u in members},
            promises={
                u: {v: bytes(part[:PROMISE]) for v, part in self._noise[u][1].items() if v in self._alive}
                for u in members
            },
        )

    # -- what it answers ------------------------------------------------------------------------

    def _answer_keys(self, here: list[int]) -> dict[int, bytes]:
        if degree_of(len(here), self.params.degree) < self.params.threshold:
            raise Aborted(f"{len(here)} clients sent keys: too few for {self.params.threshold} neighbours each")
        everybody = wire.entries((v, self._keys[v]) for v in here)
        self._parties = sha256(everybody).digest()
        return dict.fromkeys(here, everybody)

    def _answer_shares(self, here: list[int]) -> dict[int, bytes]:
        drew: dict[int, list[int]] = {u: [] for u in self._keys}
        for u in here:
            for v in self._graph[u]:
                drew[v].append(u)
        self._dealers = {u: drew[u] for u in here}
        there = {u: [v for v in self._graph[u] if v in self._seals] for u in here}
        enough = sum(len(some) >= self.params.threshold for some in there.values())
        if enough < self.params.minimum:  # the others will send no vector
            raise Aborted(
                f"{enough} clients have {self.params.threshold} neighbours who have shared their secrets: must be at "
                f"least {self.params.minimum}"
            )
        self._linked = {u: sorted({*drew[u], *there[u]}) for u in here}
        return {
            u: wire.entries((v, bytes(self._shares[v][u])) for v in drew[u])
            + wire.clients(v for v in there[u] if u not in self._shares[v])
            + self._noise_for(u)
            for u in here
        }

    def _noise_for(self, client: int) -> bytes:
        """What the others of its kind have dealt to a client of the first kind."""
        if not self.params.holds or client >= self.params.first:
            return b""
        return wire.entries((v, bytes(shares[client])) for v, (_, shares) in sorted(self._noise.items()) if v != client)

    def _answer_masked(self, here: list[int]) -> dict[int, bytes]:
        self._promises = {
            u: {v: bytes(part[: 2 * PROMISE]) for v, part in shares.items()} for u, shares in self._shares.items()
        }
        self._shares, self._in_sum, self._alive = {}, here, frozenset(here)
        self._still_shared(here)
        everybody, found = wire.pack_set(here, self.params.clients), {}
        self._agreed = sha256(everybody).digest()
        for u in here:
            known = self._linked[u]
            alive = wire.entries((v, bytes(self._tags[v][u])) for v in known if v in self._alive)
            found[u] = everybody + alive + wire.clients(v for v in known if v not in self._alive)
        return found

    def _answer_acks(self, here: list[int]) -> dict[int, bytes]:
        self._still_shared(here)
        if self.params.sparse:
            return dict.fromkeys(here, wire.entries((v, self._said[v]) for v in here))
        return {
            u: wire.entries((v, bytes(self._acks[v][u])) for v in self._graph[u] if u in self._acks.get(v, ()))
            for u in here
        }
