"""The protocol: double masking (Bonawitz et al. 2017) on a sparse graph (Bell et al. 2020), as pure state machines.

    client                                   server
    keys()             KEYS       →          receive, advance
    share(…)           ←  PARTIES            everybody's public keys, of whom the client draws its neighbours
    share(…)           SHARES     →          both secrets, shared among the neighbours, encrypted
    mask(…, values)    ←  INBOX
    mask(…, values)    MASKED     →          values + own mask ± a mask for every neighbour, modulo 2**b
    acknowledge(…)     ←  SURVIVORS          who is in the sum, which neighbours are lost
    acknowledge(…)     ACKS       →          to all neighbours in the sum, or signed for all: I was told that set
    reveal(…)          ←  PROOF
    reveal(…)          REVEAL     →          a share of each neighbour's one secret; never of both
                                             finish: the sum

Bytes in, bytes out; no input or output of their own, and no clock: whoever drives the server decides when a stage is
over, and clients that have not answered by then are lost. See ``docs/protocol.md``.
"""

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import final

from rqm._util.checks import shown, whole
from rqm.secagg import masking, sharing, wire
from rqm.secagg.errors import ProtocolError
from rqm.secagg.masking import KEY
from rqm.secagg.roster import IDENTITY, SIGNATURE, Roster

MAX_CLIENTS = 2**31


@final
@dataclass(frozen=True)
class Params:
    """What everybody agrees on before a round. Every message carries a digest of it.

    ``clients`` may take part, numbered from 0; each has ``count`` integers from 0 to ``levels`` − 1, and sums are taken
    modulo 2**``bits`` (by default the fewest that hold clients · (levels − 1); fewer if the values are ``modular``
    themselves). A client draws ``degree`` neighbours (by default all others); ``threshold`` of them together can give
    up one of its two secrets (by default two thirds). No sum of which fewer than ``minimum`` clients have been told is
    revealed. ``round`` must never repeat. With the hash of a ``roster``, keys are signed by those who are in it, each
    once. ``about`` may be a hash of what else they agree on, as how values are encoded. ``security`` finds degree,
    threshold and minimum.

    The last ``second`` of the clients take back what they added to the sum that is named ``follows``: they are of the
    second kind, numbered as they come in that sum. Of either kind at least ``least`` must be in the sum. Those of the
    first kind share the secret behind what they add, if ``holds`` of the others of their kind are to find it again.

    >>> Params(clients=40, count=1_018_174, levels=16, round=b"round 1").bits
    10
    """

    clients: int
    count: int
    levels: int
    round: bytes
    degree: int = 0
    threshold: int = 0
    minimum: int = 0
    bits: int = 0
    roster: bytes = b""
    modular: bool = False
    about: bytes = b""
    second: int = 0
    follows: bytes = b""
    least: int = 0
    holds: int = 0

    def __post_init__(self) -> None:
        def put(name: str, value: int) -> None:
            object.__setattr__(self, name, value)

        put("clients", whole("clients", self.clients, 2, MAX_CLIENTS))
        put("count", whole("count", self.count, 1, 2**31))
        put("levels", whole("levels", self.levels, 2, 2**31))
        if not isinstance(self.round, bytes) or not 1 <= len(self.round) <= 255:
            raise ValueError(f"round = {self.round!r}: must be 1 to 255 bytes, never the same twice")
        for name, value in (("roster", self.roster), ("about", self.about), ("follows", self.follows)):
            if not isinstance(value, bytes) or len(value) not in (0, sha256().digest_size):
                raise ValueError(f"{name} = {shown(value)}: must be a hash of 32 bytes, or empty")
        top = self.clients * (self.levels - 1)
        if top >= 2**32:
            raise ValueError(f"clients · (levels − 1) = {top}: must be below 2**32")
        needed = (self.levels - 1).bit_length() if self.modular else top.bit_length()
        put("bits", whole("bits", self.bits or needed, 1, 32))
        if self.modular and 2**self.bits != self.levels:
            raise ValueError(f"bits = {self.bits}: must be {needed}, the modulus of {self.levels} modular levels")
        if top >= 2**self.bits and not self.modular:
            raise ValueError(f"bits = {self.bits}: must be at least {top.bit_length()}, or sums of {top} wrap around")
        most = min(self.clients - 1, sharing.MAX_SHARES)
        put("degree", whole("degree", self.degree or self.clients - 1, 1, most))
        threshold = self.threshold or 2 * self.degree // 3 + 1
        put("threshold", whole("threshold", threshold, self.degree // 2 + 1, self.degree))
        fewest = max(self.degree, self.clients // 2) + 1 if self.sparse else 2
        put("minimum", whole("minimum", self.minimum or max(fewest, self.threshold + 1), fewest, self.clients))
        self._check_kinds()

    def _check_kinds(self) -> None:
        whole("second", self.second, 0, self.clients - 1)
        whole("least", self.least, 0, self.first if not self.second else min(self.first, self.second))
        whole("holds", self.holds, 0, self.first - 1)
        if self.follows and not self.second:
            raise ValueError("follows: must come with clients of the second kind, who were in that sum")
        if self.holds and self.sparse:
            raise ValueError(f"holds = {self.holds}: must come with all others as neighbours (degree)")

    @property
    def first(self) -> int:
        """How many clients may be of the first kind, who send values of their own."""
        return self.clients - self.second

    @cached_property
    def digest(self) -> bytes:
        """A hash of everything here."""
        numbers = (
            self.clients,
            self.count,
            self.levels,
            self.degree,
            self.threshold,
            self.minimum,
            self.bits,
            bool(self.roster) + 2 * self.modular + 4 * bool(self.about),
        )
        begin = wire.MAGIC + bytes([wire.VERSION]) + struct.pack("<8Q", *numbers)
        if self.second or self.least or self.holds:
            kinds = self.second, self.least, self.holds
            begin += b"kinds" + struct.pack("<3Q", *kinds) + sha256(self.follows).digest()
        return sha256(begin + self.roster + self.about + self.round).digest()

    def short_of(self, there: Collection[int]) -> str:
        """What is wrong with a sum of these clients, of whom too few are of one kind; or nothing."""
        of_first = sum(client < self.first for client in there)
        for count, kind in ((of_first, "first"), (len(there) - of_first, "second")):
            if count < self.least and (kind == "first" or self.second):
                return f"{count} clients of the {kind} kind: must be at least {self.least}"
        return ""

    @property
    def sparse(self) -> bool:
        """Whether clients have fewer neighbours than all others: then they sign, for all, which sum they were told."""
        return self.degree < self.clients - 1

    @property
    def signed(self) -> bool:
        """Whether clients sign: with the key that the roster knows, else with one that they make for the round."""
        return bool(self.roster) or self.sparse

    @property
    def keys_size(self) -> int:
        """Bytes of a client's advertised keys."""
        return 2 * KEY + (IDENTITY + SIGNATURE if self.signed else 0)

    @property
    def masked_size(self) -> int:
        """Bytes of a client's masked vector."""
        from rqm.kernels.packing import packed_size  # noqa: PLC0415 (takes the compiler)

        return packed_size(self.count, self.bits)


def new_round() -> bytes:
    """A name for a round that never repeats."""
    return os.urandom(16)


def pair(one: int, other: int) -> bytes:
    """Two clients, in that order."""
    return struct.pack("<II", one, other)


class Masks:
    """Where masks come from, for both sides of the protocol. Other masks are for audits, which must find out."""

    def pair_key(self, params: Params, secret: bytes, one: int, other: int) -> bytes:
        """The key of the mask that two clients share."""
        return masking.derive(secret, params.digest, b"pair" + pair(min(one, other), max(one, other)), 32)

    def own_key(self, params: Params, secret: bytes, client: int) -> bytes:
        """The key of a client's own mask."""
        return masking.derive(secret, params.digest, b"self" + struct.pack("<I", client), 32)

    def add(self, total: masking.Lanes, key: bytes, sign: int) -> None:
        """Add (or with ``sign`` −1 take away) the mask of a key, in place."""
        masking.add_mask(total, key, sign)


def statement(params: Params, number: int, keys: bytes) -> bytes:
    """What a client signs of its keys."""
    return b"rqm keys" + params.digest + wire.number(number) + keys


def told(params: Params, parties: bytes, everybody: bytes) -> bytes:
    """What a client signs of the sum that it was told of, among whom."""
    return b"rqm sum" + params.digest + parties + everybody


def check_parties(
    params: Params, found: Mapping[int, memoryview], number: int, own: bytes, roster: Roster | None
) -> None:
    """That everybody is there once, client ``number`` with its ``own`` keys among them, and in the roster."""
    if number not in found or bytes(found[number][: len(own)]) != own:
        raise ProtocolError("this client is not among those who take part, or with other keys than its own")
    keys, owners = set[bytes](), set[bytes]()
    for client, body in found.items():
        for key in (bytes(body[:KEY]), bytes(body[KEY : 2 * KEY])):
            if key in keys:
                raise ProtocolError(f"client {client} has a key that somebody has already (reflected or duplicated)")
            keys.add(key)
        owner = bytes(body[2 * KEY : 2 * KEY + IDENTITY])
        if roster is not None and owner not in roster.keys:
            raise ProtocolError(f"client {client} is not in the roster")
        if owner in owners:
            raise ProtocolError(f"client {client} is somebody who takes part already (or this client itself)")
        owners |= {owner} if params.signed else set()
