"""Noise that is taken back one round later: who still owes it, and what becomes of those who are gone by then.

A client of the first kind draws its noise from a secret, and shares that among the others of its kind when it shares
its masks. In the next round those who were in the sum are of the second kind: they send their noise, negated. The
others of them are found on the list that all acknowledge, and only for these a share is given: the server then takes
their noise back itself. A secret of a client that is there stays one.
"""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self, final

from cryptography.exceptions import InvalidTag

from rqm.secagg import masking, sharing
from rqm.secagg.errors import ProtocolError
from rqm.secagg.masking import KEY, NONCE, PROMISE, SECRET
from rqm.secagg.roster import IDENTITY

if TYPE_CHECKING:
    from rqm.secagg.protocol import Params

SEALED = PROMISE + NONCE + SECRET + 16
"""Bytes of one share under authenticated encryption, after the promise of it."""


def name_of(digest: bytes, parties: bytes, agreed: bytes) -> bytes:
    """What tells a sum from all others: its round, who took part, who is in it."""
    return sha256(b"rqm follows" + digest + parties + agreed).digest()


def dealt(secret: bytes, holders: Iterable[int], threshold: int) -> dict[int, bytes]:
    """A share for each holder; any ``threshold`` of them give the secret. The point of a client is its number + 1."""
    who = sorted(holders)
    random = os.urandom((threshold - 1) * len(secret))
    return dict(zip(who, sharing.split(secret, [v + 1 for v in who], threshold, random), strict=True))


def sealed(key: bytes, share: bytes, context: bytes) -> bytes:
    """A share for one holder, and the promise by which everybody will know it again."""
    return masking.promise(share) + masking.encrypt(key, share, context)


def opened(key: bytes, found: Any, context: bytes) -> bytes:
    """The share; empty if it cannot be opened, or is not the one that was promised."""
    try:
        share = masking.decrypt(key, found[PROMISE:], context)
    except InvalidTag:
        return b""
    return share if masking.promise(share) == bytes(found[:PROMISE]) else b""


def owners(params: "Params", parties: Mapping[int, Any]) -> dict[int, bytes]:
    """Who they are whose keys these are, where a roster knows them."""
    return {u: bytes(keys[2 * KEY : 2 * KEY + IDENTITY]) for u, keys in parties.items() if params.roster}


@final
@dataclass(frozen=True)
class Held:
    """What a client keeps of a sum that it is in: secret, for the one round that follows it.

    ``name`` is the sum's, ``place`` the client's own among those in it, ``after`` what the round that follows must be
    about, ``secret`` that of its noise, ``shares`` those of the others' secrets by their place, ``owners`` who the
    others are by their place, if a roster says so. ``fingerprint`` tells the client of that round from all others.
    """

    name: bytes
    place: int
    after: bytes
    secret: bytes = field(repr=False)
    shares: Mapping[int, bytes] = field(repr=False)
    members: int
    fingerprint: str
    owners: Mapping[int, bytes] = field(default_factory=dict)

    def save(self) -> bytes:
        """The same as bytes: secret, and to be kept where the client is."""
        return json.dumps(
            {
                **{name: getattr(self, name).hex() for name in ("name", "after", "secret")},
                **{name: getattr(self, name) for name in ("place", "members", "fingerprint")},
                **{
                    name: {str(place): value.hex() for place, value in getattr(self, name).items()}
                    for name in ("shares", "owners")
                },
            }
        ).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """What ``save`` gave."""
        try:
            values = json.loads(data)
            for name in ("name", "after", "secret"):
                values[name] = bytes.fromhex(values[name])
            for name in ("shares", "owners"):
                values[name] = {int(place): bytes.fromhex(value) for place, value in values[name].items()}
            return cls(**values)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolError(f"not what a client holds of a round ({type(error).__name__})") from None

    def check_places(self, params: "Params", found: Mapping[int, bytes]) -> None:
        """Refuse others of the second kind than those who were in the sum, each in his own place."""
        for client, owner in found.items():
            if client >= params.first and owner != self.owners.get(client - params.first):
                raise ProtocolError(f"client {client} was not in the sum that this round follows, in that place")

    def of_lost(self, there: Iterable[int]) -> list[tuple[int, bytes]]:
        """Shares of the secrets of all who were in the sum and are not ``there`` now, by their places."""
        present = set(there)
        return [(u, self.shares[u]) for u in range(self.members) if u not in present and self.shares.get(u)]


def followed(held: Held | None, params: "Params", number: int) -> Held:
    """What a client of the second kind holds of the very sum that the round follows; refused if it is another."""
    if held is None:
        raise ProtocolError("this client was in no sum that a round could follow")
    if held.name != params.follows or held.after != params.about:
        raise ProtocolError("a round that does not follow the sum which this client was in")
    if held.place != number - params.first or held.members != params.second:
        raise ProtocolError("this client was in that sum in another place, or among others")
    return held


@final
@dataclass(frozen=True)
class Owed:
    """What the server keeps of a sum whose noise the next round takes back.

    ``members`` are the numbers of those in it, in order: a place is an index of it. ``seals`` and ``promises`` bind
    them to their secrets and to the shares that they dealt.
    """

    name: bytes
    members: tuple[int, ...]
    threshold: int
    seals: Mapping[int, bytes]
    promises: Mapping[int, Mapping[int, bytes]]

    def check(self, holder: int, shares: Mapping[int, Any], gone: Iterable[int]) -> None:
        """Refuse shares, by place, that the holder (by place, too) was not dealt, or of clients who are not gone."""
        lost = set(gone)
        for u, share in shares.items():
            if u not in lost:
                raise ProtocolError(f"a share of the noise of client {u} of the round before, who is there")
            if masking.promise(bytes(share)) != self.promises[self.members[u]].get(self.members[holder]):
                raise ProtocolError(f"a share of the noise of client {u} of the round before that was not dealt")

    def join(self, place: int, shares: Mapping[int, bytes]) -> bytes | None:
        """The secret of a client who is gone, from shares by their holders' places; None if they do not give it."""
        points = [(self.members[holder] + 1, share) for holder, share in shares.items()]
        if len(points) < self.threshold:
            return None
        secret = sharing.join(points, self.threshold)
        return secret if sha256(secret).digest() == self.seals[self.members[place]] else None
