"""The client of the protocol, and what it refuses."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NoReturn, Self, final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rqm._util.checks import whole
from rqm.secagg import holding, masking, sharing, wire
from rqm.secagg.errors import ProtocolError
from rqm.secagg.graph import degree_of, drawn
from rqm.secagg.holding import SEALED, Held, followed
from rqm.secagg.masking import ACK, DEALT, KEY, SECRET
from rqm.secagg.protocol import Masks, Params, check_parties, pair, statement, told
from rqm.secagg.roster import IDENTITY, SIGNATURE, Identity, Roster, signed, signer
from rqm.secagg.wire import Kind


@final
class Client:
    """One client in one round. A message that breaks the protocol is refused, and so is everything after it."""

    def __init__(
        self,
        params: Params,
        number: int,
        identity: Identity | None = None,
        roster: Roster | None = None,
        *,
        maker: Masks | None = None,
        held: Held | None = None,
        after: bytes = b"",
        secret: bytes = b"",
        own: tuple[bytes, ...] | None = None,
    ) -> None:
        self._maker = maker or Masks()
        self.params, self.number = params, whole("number", number, 0, params.clients - 1)
        later = params.holds and self.number >= params.first
        self._after, self._before = after, followed(held, params, self.number) if later else None
        self.secret = (secret or os.urandom(SECRET)) if params.holds and not later else b""
        self._kept: dict[int, bytes] = {}  # shares of the secrets behind the others' noise, …
        self._owners: dict[int, bytes] = {}  # … and who all are, if that is known
        if params.roster and (identity is None or roster is None or roster.hash != params.roster):
            raise ValueError("a signed round: identity (one's own) and the roster of this round must be given")
        if identity is not None and roster is not None and identity.public not in roster.keys:
            raise ValueError(f"identity = {identity.public.hex()}: must be in the roster")
        own = masking.fresh(IDENTITY if params.sparse and not params.roster else 0) if own is None else own
        channel, pairs, self._seed, self._throwaway = own
        self._channel, self._pairs = map(X25519PrivateKey.from_private_bytes, (channel, pairs))
        self._identity = Identity(self._throwaway) if self._throwaway else identity if params.roster else None
        self._roster = roster if params.roster else None
        self._due: Kind | None = Kind.KEYS
        self._channels: dict[int, bytes] = {}  # what is shared with each neighbour: for messages, …
        self._masks: dict[int, bytes] = {}  # … and for masks
        self._others: dict[int, bytes] = {}  # who takes part: their keys, of those not met yet; then their identities
        self._drawn: set[int] = set()  # the neighbours who hold shares of this client
        self._held: dict[int, bytes] = {}  # those with whom it has masks: their shares, or empty
        self._alive: set[int] = set()
        self._parties, self._agreed = b"", b""

    def save(self) -> bytes:
        """All that this client knows, to be taken up by ``load``: secret, and to be kept where the client is.

        Nobody may go on twice from one state: a second vector under the same masks gives away the difference, and a
        second story about who is lost both secrets. Where a process may die between a message and its saving, write
        down first that the state is spent, and if in doubt be lost.
        """
        state = {
            "digest": self.params.digest.hex(),
            "number": self.number,
            "due": self._due,
            "own": [
                *(key.private_bytes_raw().hex() for key in (self._channel, self._pairs)),
                *(secret.hex() for secret in (self._seed, self._throwaway)),
            ],
            "channels": {str(u): key.hex() for u, key in self._channels.items()},
            "masks": {str(u): key.hex() for u, key in self._masks.items()},
            "held": {str(u): share.hex() for u, share in self._held.items()},
            "others": {str(u): keys.hex() for u, keys in self._others.items()},
            "drawn": sorted(self._drawn),
            "alive": sorted(self._alive),
            "told": [self._parties.hex(), self._agreed.hex()],
            "secret": [self.secret.hex(), self._after.hex()],
            "kept": {str(u): share.hex() for u, share in self._kept.items()},
            "owners": {str(u): owner.hex() for u, owner in self._owners.items()},
        }
        return json.dumps({**state, "check": _check(state)}).encode()

    @classmethod
    def load(
        cls,
        params: Params,
        data: bytes,
        identity: Identity | None = None,
        roster: Roster | None = None,
        *,
        held: Held | None = None,
    ) -> Self:
        """The client that ``save`` described, in the same round; of the second kind with the same that it ``held``."""
        try:
            state = json.loads(data)
            if state.pop("check") != _check(state):
                raise ValueError("it was damaged")
            own = tuple(bytes.fromhex(text) for text in state["own"])
            client = cls(params, state["number"], identity, roster, held=held, own=own)
            if bytes.fromhex(state["digest"]) != params.digest:
                raise ProtocolError("a saved client of another round, or of one with other parameters")
            client._masks, client._channels, client._held, client._others, client._kept, client._owners = (
                {int(u): bytes.fromhex(text) for u, text in state[name].items()}
                for name in ("masks", "channels", "held", "others", "kept", "owners")
            )
            client.secret, client._after = (bytes.fromhex(text) for text in state["secret"])
            client._alive, client._drawn = ({int(u) for u in state[name]} for name in ("alive", "drawn"))
            client._parties, client._agreed = (bytes.fromhex(text) for text in state["told"])
            client._due = None if state["due"] is None else Kind(state["due"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"not a saved client ({type(error).__name__})") from None
        return client

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: two of one client could answer twice under the same masks."""
        raise TypeError("a client of secure aggregation cannot be copied: two would answer under the same masks")

    @property
    def fingerprint(self) -> str:
        """What tells this client's keys, and so its masks, from all others; public."""
        return sha256(masking.public(self._channel) + masking.public(self._pairs)).hexdigest()

    def _open(self, data: bytes, kind: Kind) -> memoryview:
        """Check that this message is due; until all of it has been accepted, nothing else is."""
        self._expect(kind)
        self._due = None
        return wire.unframe(data, kind, self.params.digest, self.number)

    def _expect(self, kind: Kind) -> None:
        if self._due is None:
            raise ProtocolError("this client has refused a message, or is done: it says nothing more in this round")
        if self._due != kind:
            raise ProtocolError(f"{kind.name}: not due, {self._due.name} is")

    def _send(self, kind: Kind, *body: bytes | memoryview, then: Kind | None) -> bytes:
        self._due = then
        return wire.frame(kind, self.params.digest, self.number, *body)

    def _key(self, sender: int, receiver: int, use: bytes) -> bytes:
        other = receiver if sender == self.number else sender
        return masking.derive(self._channels[other], self.params.digest, use + pair(sender, receiver), 32)

    def _context(self, sender: int, receiver: int) -> bytes:
        return self.params.digest + self._parties + pair(sender, receiver)

    def _tag(self, sender: int, receiver: int, use: bytes, about: bytes = b"") -> bytes:
        """A tag that only the two ends of a channel can make."""
        return masking.tag(self._key(sender, receiver, use), self._context(sender, receiver) + about)

    def answer(self, stage: Kind, data: bytes, values: Callable[[], npt.ArrayLike]) -> bytes:
        """This client's message of a stage, from what the server sent; ``values`` gives its integers to be masked."""
        if stage == Kind.KEYS:
            return self.keys()
        if stage == Kind.MASKED:
            self._expect(Kind.INBOX)  # before anything is encoded
            return self.mask(data, values())
        steps = {Kind.SHARES: self.share, Kind.ACKS: self.acknowledge, Kind.REVEAL: self.reveal}
        if stage not in steps:
            raise ProtocolError(f"{stage.name}: not a stage that a client answers")
        return steps[stage](data)

    def keys(self) -> bytes:
        """The public keys of this round."""
        if self._due != Kind.KEYS:
            raise ProtocolError("the keys were sent already")
        body = masking.public(self._channel) + masking.public(self._pairs)
        if self._identity is not None:
            body += self._identity.sign(statement(self.params, self.number, body))
        return self._send(Kind.KEYS, body, then=Kind.PARTIES)

    def share(self, data: bytes) -> bytes:
        """Check who takes part; draw neighbours, and share both secrets among them."""
        params, body = self.params, self._open(data, Kind.PARTIES)
        found, rest = wire.read_entries(body, params.keys_size, params.clients)
        wire.end(rest)
        if not params.minimum <= len(found) <= params.clients:
            raise ProtocolError(f"{len(found)} participants: must be {params.minimum} to {params.clients}")
        wanted = degree_of(len(found), params.degree)
        if wanted < params.threshold:
            raise ProtocolError(f"{wanted} neighbours: must be at least {params.threshold}")
        own = masking.public(self._channel) + masking.public(self._pairs)
        own += b"" if self._identity is None else self._identity.public
        check_parties(params, found, self.number, own, self._roster)
        self._owners = holding.owners(params, found) if params.holds else {}
        if self._before is not None:
            self._before.check_places(params, self._owners)
        self._parties = sha256(body).digest()
        self._others = {client: bytes(keys) for client, keys in found.items() if client != self.number}
        self._drawn = set(drawn(self._others, wanted))
        for client in sorted(self._drawn):
            self._meet(client)
        secrets_, points = self._pairs.private_bytes_raw() + self._seed, range(1, wanted + 1)
        shares = sharing.split(
            secrets_, list(points), params.threshold, os.urandom((params.threshold - 1) * 2 * SECRET)
        )
        sealed = [
            (other, masking.deal(self._key(self.number, other, b"shares"), share, self._context(self.number, other)))
            for other, share in zip(self._channels, shares, strict=True)
        ]
        own = sha256(self._seed).digest()
        return self._send(Kind.SHARES, own, wire.entries(sealed), *self._share_noise(), then=Kind.INBOX)

    def _share_noise(self) -> list[bytes]:
        """The secret behind this client's noise, shared among the others of its kind."""
        if not self.secret:
            return []
        shares = holding.dealt(self.secret, (u for u in self._others if u < self.params.first), self.params.holds)
        found = [
            (u, holding.sealed(self._key(self.number, u, b"noise"), share, self._context(self.number, u)))
            for u, share in shares.items()
        ]
        return [sha256(self.secret).digest(), wire.entries(found)]

    def mask(self, data: bytes, values: npt.ArrayLike) -> bytes:
        """Keep the neighbours' shares; mask the values."""
        params, array = self.params, np.asarray(values)
        if array.shape != (params.count,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"values have shape {array.shape}, dtype {array.dtype}: must be {params.count} whole numbers"
            )
        if array.min() < 0 or array.max() >= params.levels:
            bad = array[(array < 0) | (array >= params.levels)][0]
            raise ValueError(f"values contain {bad}: must lie in 0..{params.levels - 1}")
        found, rest = wire.read_entries(self._open(data, Kind.INBOX), DEALT, params.clients)
        there, rest = wire.read_clients(rest, params.clients)
        noise, rest = wire.read_entries(rest, SEALED, params.first) if self.secret else ({}, rest)
        wire.end(rest)
        if there & found.keys() or not there <= self._drawn:
            raise ProtocolError("clients who are there without a share for this one: must be neighbours that it drew")
        there |= found.keys()
        if len(there & self._drawn) < params.threshold:
            raise ProtocolError(
                f"{len(there & self._drawn)} neighbours have shared their secrets: must be at least {params.threshold}"
            )
        for other in sorted(found.keys() - self._drawn):
            self._meet(other)
        self._held = dict.fromkeys(sorted(there), b"")
        for other, dealt in found.items():
            key = self._key(other, self.number, b"shares")
            self._held[other] = masking.take(key, dealt, self._context(other, self.number)) or b""
        for other in noise.keys() & self._channels.keys():
            key = self._key(other, self.number, b"noise")
            self._kept[other] = holding.opened(key, noise[other], self._context(other, self.number))
        self._others = {other: self._known(keys) for other, keys in self._others.items()}
        bad = [other for other in found if not self._held[other]]
        good = len(there & self._drawn) - len(self._drawn.intersection(bad))
        if good < params.threshold:
            raise ProtocolError(
                f"the shares from client {bad[0]} were altered, or belong to another round or client; those of "
                f"{good} others are good: must be at least {params.threshold}"
            )
        total = array.astype(masking.lane(params.bits))
        self._maker.add(total, self._maker.own_key(params, self._seed, self.number), 1)
        for other in self._held:
            key = self._maker.pair_key(params, self._masks[other], self.number, other)
            self._maker.add(total, key, 1 if self.number < other else -1)
        total &= total.dtype.type(2**params.bits - 1)
        tags = [(other, self._tag(self.number, other, b"masked")) for other in self._held]
        from rqm.kernels.packing import pack  # noqa: PLC0415 (takes the compiler)

        body = pack(total, params.bits).data, wire.entries(tags), wire.clients(bad)
        return self._send(Kind.MASKED, *body, then=Kind.SURVIVORS)

    def acknowledge(self, data: bytes) -> bytes:
        """Hear who is in the sum and which neighbours are lost; tell those who are in that one has heard so."""
        params = self.params
        body = self._open(data, Kind.SURVIVORS)
        everybody, rest = wire.read_set(body, params.clients)
        alive, rest = wire.read_entries(rest, ACK, params.clients)
        lost, rest = wire.read_clients(rest, params.clients)
        wire.end(rest)
        both = alive.keys() & lost
        if both:
            raise ProtocolError(
                f"client {min(both)} is listed both as in the sum and as lost: that asks for both secrets"
            )
        if alive.keys() | lost != self._held.keys():
            raise ProtocolError("the clients in the sum and those lost are not those with whom this client has masks")
        if (
            everybody & self._channels.keys() != alive.keys()
            or self.number not in everybody
            or not everybody <= self._others.keys() | {self.number}
        ):
            raise ProtocolError("the set of all clients in the sum does not fit the list of neighbours in it")
        near = alive.keys() & self._drawn
        if len(near) < params.threshold:
            raise ProtocolError(f"{len(near)} neighbours are in the sum: must be at least {params.threshold}")
        if len(everybody) < params.minimum:
            raise ProtocolError(f"a sum of {len(everybody)} clients: must be of at least {params.minimum}")
        if few := params.short_of(everybody):
            raise ProtocolError(f"a sum of {few}")
        bad = [
            other
            for other, tag in alive.items()
            if not compare_digest(bytes(tag), self._tag(other, self.number, b"masked"))
        ]
        if len(near.difference(bad)) < params.threshold:
            raise ProtocolError(
                f"client {bad[0]} has not masked its values with this client's mask; {len(near.difference(bad))} "
                f"others have: must be at least {params.threshold}"
            )
        for other in bad:
            self._held[other] = b""  # no share is given of a client that no mask links to this one
        self._alive, self._agreed = everybody, sha256(body[: wire.set_size(params.clients)]).digest()
        if params.sparse and self._identity is not None:
            said = self._identity.sign(told(params, self._parties, self._agreed))[IDENTITY:]
        else:
            said = wire.entries(
                (other, self._tag(self.number, other, b"ack", self._agreed)) for other in alive if other not in bad
            )
        return self._send(Kind.ACKS, said, wire.clients(bad), then=Kind.PROOF)

    def reveal(self, data: bytes) -> bytes:
        """If enough others were told of the same sum, give one share for each whose shares this client holds."""
        sparse = self.params.sparse
        size, least = SIGNATURE, self.params.minimum
        if not sparse:  # of the others
            size, least = ACK, max(self.params.threshold, self.params.minimum - 1)
        found, rest = wire.read_entries(self._open(data, Kind.PROOF), size, self.params.clients)
        wire.end(rest)
        if not found.keys() <= (self._alive if sparse else self._alive - {self.number}):
            raise ProtocolError("an acknowledgement from a client that is not in the sum")
        good = sum(self._told_so(other, said) for other, said in found.items())
        if good < least:
            raise ProtocolError(
                f"{good} clients were told of this sum: must be at least {least} ({len(found) - good} acknowledgements "
                "are forged, or for another set)"
            )
        shares = [
            (other, share[SECRET:] if other in self._alive else share[:SECRET])
            for other, share in self._held.items()
            if share
        ]
        body = [wire.entries(shares)]
        if self._before is not None and self.params.holds:
            first = self.params.first
            body.append(wire.entries(self._before.of_lost(u - first for u in self._alive if u >= first)))
        return self._send(Kind.REVEAL, *body, then=None)

    @property
    def held(self) -> Held | None:
        """What is kept for the round that follows, when all is revealed; None if nothing is to be taken back."""
        if not self.secret or self._due is not None or self.number not in self._alive or not self._agreed:
            return None
        members = sorted(u for u in self._alive if u < self.params.first)
        return Held(
            name=holding.name_of(self.params.digest, self._parties, self._agreed),
            place=members.index(self.number),
            after=self._after,
            secret=self.secret,
            shares={place: self._kept[u] for place, u in enumerate(members) if self._kept.get(u)},
            members=len(members),
            fingerprint=self.fingerprint,
            owners={place: self._owners[u] for place, u in enumerate(members) if self._owners},
        )

    def _told_so(self, other: int, said: memoryview) -> bool:
        """Whether somebody was told of the same sum."""
        if not self.params.sparse:
            return compare_digest(bytes(said), self._tag(other, self.number, b"ack", self._agreed))
        own = b"" if self._identity is None else self._identity.public
        owner = own if other == self.number else self._others[other]
        return signed(owner, bytes(said), told(self.params, self._parties, self._agreed))

    def _meet(self, client: int) -> None:
        """Agree on secrets with somebody who takes part, whose keys are his own."""
        body = self._others.get(client)
        if body is None:
            raise ProtocolError(f"client {client} does not take part")
        if self.params.signed:
            signer(body[2 * KEY :], statement(self.params, client, body[: 2 * KEY]), f"client {client}")
        self._channels[client] = masking.agree(self._channel, body[:KEY], f"client {client}")
        self._masks[client] = masking.agree(self._pairs, body[KEY : 2 * KEY], f"client {client}")
        self._others[client] = self._known(body)

    def _known(self, body: bytes) -> bytes:
        """What is kept of somebody's keys: his identity, if that will be needed."""
        if not self.params.sparse:
            return b""
        return body[2 * KEY : 2 * KEY + IDENTITY] if len(body) == self.params.keys_size else body


def _check(state: dict[str, Any]) -> str:
    """What shows that a saved state is whole."""
    return sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
