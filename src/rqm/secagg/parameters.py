"""The public parameters of a round, the fields of its messages, and the statements that clients sign."""

import os
import struct
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, final

from rqm._util.checks import shown, whole
from rqm.secagg import wire
from rqm.secagg.errors import ProtocolError, require
from rqm.secagg.masking import KEY_BYTES, SECRET_BYTES, TAG_BYTES, sealed_bytes
from rqm.secagg.roster import IDENTITY_BYTES, SIGNATURE_BYTES, identity_in, is_signed
from rqm.secagg.sharing import MAX_SHARES
from rqm.secagg.wire import Kind


@final
@dataclass(frozen=True)
class Params:
    """The public parameters of a round, which all clients and the server agree on.

    Every message carries a digest of them. `security` computes degree, threshold and minimum.

    A round may have two kinds of clients: those that send vectors, and those that only send the
    settlement of their noise in an earlier sum (see `rqm.secagg.settlement`). The latter have the
    last numbers, in the order of that sum.

    Attributes:
        clients: Clients that may take part, numbered from 0.
        count: Integers of each client.
        levels: The integers are from 0 to `levels` − 1.
        round: The round's name, 1 to 255 bytes. No name must occur twice.
        degree: Neighbors that a client draws; 0: all others.
        threshold: Neighbors that together recover one of a client's two secrets; 0: two thirds.
        minimum: Clients reveal no sum unless this many have acknowledged it; 0: `threshold` + 1, or
            more where neighbors are drawn.
        bits: Sums are taken modulo 2**`bits`; 0: the fewest bits that hold clients · (levels − 1).
        roster: The hash of a roster: keys must be signed by identities in it. Empty: no roster.
        modular: Whether the integers are modular, so that sums may wrap around.
        context: A hash of all else that clients agree on, such as how values are encoded.
        settling_clients: Clients that only send a settlement.
        previous_sum: The name of the sum that those clients were in.
        min_per_kind: Clients of each kind that a sum needs.
        noise_threshold: Clients that together recover a noise secret; 0: it is not shared.

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
    context: bytes = b""
    settling_clients: int = 0
    previous_sum: bytes = b""
    min_per_kind: int = 0
    noise_threshold: int = 0

    def __post_init__(self) -> None:
        """Validate every value, and compute those that are 0."""

        def check(name: str, value: int, low: int, high: int) -> None:
            object.__setattr__(self, name, whole(name, value, low, high))

        check("clients", self.clients, 2, 2**31)
        check("count", self.count, 1, 2**31)
        check("levels", self.levels, 2, 2**31)
        if not isinstance(self.round, bytes) or not 1 <= len(self.round) <= 255:
            raise ValueError(f"round = {self.round!r}: must be 1 to 255 bytes, never the same twice")
        for name in ("roster", "context", "previous_sum"):
            value = getattr(self, name)
            if not isinstance(value, bytes) or len(value) not in (0, 32):
                raise ValueError(f"{name} = {shown(value)}: must be a hash of 32 bytes, or empty")
        max_sum = self.clients * (self.levels - 1)
        if max_sum >= 2**32:
            raise ValueError(f"clients · (levels − 1) = {max_sum}: must be below 2**32")
        sufficient = (self.levels - 1 if self.modular else max_sum).bit_length()
        check("bits", self.bits or sufficient, 1, 32)
        if self.modular and 2**self.bits != self.levels:
            raise ValueError(f"bits = {self.bits}: must be {sufficient}, the modulus of {self.levels} modular levels")
        if not self.modular and self.bits < sufficient:
            raise ValueError(f"bits = {self.bits}: must be at least {sufficient}, or sums of {max_sum} wrap around")
        others = self.clients - 1
        check("degree", self.degree or others, 1, min(others, MAX_SHARES))
        check("threshold", self.threshold or 2 * self.degree // 3 + 1, self.degree // 2 + 1, self.degree)
        lowest = max(self.degree, self.clients // 2) + 1 if self.sparse else 2
        check("minimum", self.minimum or max(lowest, self.threshold + 1), lowest, self.clients)
        check("settling_clients", self.settling_clients, 0, others)
        check("noise_threshold", self.noise_threshold, 0, self.vector_clients - 1)
        smaller_kind = min(self.vector_clients, self.settling_clients or self.clients)
        check("min_per_kind", self.min_per_kind, 0, smaller_kind)
        if bool(self.previous_sum) != bool(self.settling_clients and self.noise_threshold):
            raise ValueError("previous_sum: must come with settling_clients, who were in it, and noise_threshold")
        if self.noise_threshold and self.sparse:
            raise ValueError(
                f"noise_threshold = {self.noise_threshold}: must come with all others as neighbors (degree)"
            )

    # -- values derived from the parameters -------------------------------------------------------

    @property
    def vector_clients(self) -> int:
        """How many clients may send vectors. Those with higher numbers only send a settlement."""
        return self.clients - self.settling_clients

    @property
    def sparse(self) -> bool:
        """Whether clients have fewer neighbors than all others. Then they sign whose vectors are in the sum."""
        return self.degree < self.clients - 1

    @property
    def signed(self) -> bool:
        """Whether clients sign: with the key in the roster, or else with one that they make for the round."""
        return bool(self.roster) or self.sparse

    @property
    def keys_size(self) -> int:
        """Bytes of a client's advertised keys."""
        return 2 * KEY_BYTES + (IDENTITY_BYTES + SIGNATURE_BYTES if self.signed else 0)

    @property
    def masked_size(self) -> int:
        """Bytes of a client's masked vector."""
        from rqm.kernels.packing import packed_size  # noqa: PLC0415 (takes the compiler)

        return packed_size(self.count, self.bits)

    @cached_property
    def digest(self) -> bytes:
        """A hash of all parameters."""
        flags = bool(self.roster) + 2 * self.modular + 4 * bool(self.context)
        sizes = (self.clients, self.count, self.levels, self.degree, self.threshold, self.minimum, self.bits, flags)
        text = wire.MAGIC + bytes([wire.VERSION]) + struct.pack("<8Q", *sizes)
        if self.settling_clients or self.min_per_kind or self.noise_threshold:
            kinds = self.settling_clients, self.min_per_kind, self.noise_threshold
            text += b"kinds" + struct.pack("<3Q", *kinds) + sha256(self.previous_sum).digest()
        return sha256(text + self.roster + self.context + self.round).digest()

    def check_survivors(self, clients: Collection[int], where: str, error: type[ProtocolError] = ProtocolError) -> None:
        """Refuse a sum of too few clients, in all or of one kind.

        Args:
            clients: The clients that are left.
            where: Where they are left, for the error.
            error: What to raise.
        """
        vectors = sum(client < self.vector_clients for client in clients)
        require(len(clients), self.minimum, f"clients are {where}", error)
        require(vectors, self.min_per_kind, f"clients that send vectors are {where}", error)
        if self.settling_clients:
            require(len(clients) - vectors, self.min_per_kind, f"clients that settle are {where}", error)

    # -- messages ---------------------------------------------------------------------------------

    def read(self, data: bytes, kind: Kind, client: int) -> list[Any]:
        """The fields of a message.

        Args:
            data: The message.
            kind: The kind that is due.
            client: The client that sends or receives it.

        Returns:
            The fields.

        Raises:
            ProtocolError: If it is another message, or damaged.
        """
        values: list[Any] = []
        body = wire.unframe(data, kind, self.digest, client)
        for size, clients in self._fields[client < self.vector_clients][kind]:
            value, body = wire.read_entries(body, size, clients) if clients else wire.read_bytes(body, size)
            values.append(value)
        if len(body):
            raise ProtocolError(f"a message has {len(body)} bytes too many")
        return values

    @cached_property
    def _fields(self) -> tuple[dict[Kind, list[tuple[int, int]]], ...]:
        """The fields of each message: bytes as (size, 0), a list of clients as (size of each, clients).

        They are given for clients that settle and for those that send vectors. `docs/protocol.md` has a table of what
        they hold.
        """
        clients, proof = self.clients, SIGNATURE_BYTES if self.sparse else TAG_BYTES
        secret, sealed, tags, listed = (SECRET_BYTES, 0), (sealed_bytes(2), clients), (TAG_BYTES, clients), (0, clients)
        fields = {
            Kind.KEYS: [(self.keys_size, 0)],
            Kind.PARTIES: [(self.keys_size, clients)],
            Kind.SHARES: [secret, sealed],
            Kind.INBOX: [sealed, listed],
            Kind.MASKED: [(self.masked_size, 0), tags, listed],
            Kind.SURVIVORS: [(-(-clients // 8), 0), tags, listed],
            Kind.ACKS: [(proof, 0 if self.sparse else clients), listed],
            Kind.PROOF: [(proof, clients)],
            Kind.REVEAL: [(SECRET_BYTES, clients)],
        }
        if not self.noise_threshold:
            return fields, fields
        noise, revealed = [secret, (sealed_bytes(1), self.vector_clients)], [(SECRET_BYTES, self.settling_clients)]
        vectors = {Kind.SHARES: fields[Kind.SHARES] + noise, Kind.INBOX: fields[Kind.INBOX] + noise[1:]}
        return fields | {Kind.REVEAL: fields[Kind.REVEAL] + revealed}, fields | vectors

    # -- signatures -------------------------------------------------------------------------------

    def keys_statement(self, client: int, keys: bytes) -> bytes:
        """The text that a client signs: these are its public keys.

        Args:
            client: The client's number in the round.
            keys: Both public keys, 64 bytes.

        Returns:
            The text, which differs between rounds.
        """
        return b"rqm keys" + self.digest + wire.number(client) + keys

    def check_signature(self, client: int, advertised: bytes) -> None:
        """In signed rounds, refuse advertised keys that are not signed by the identity after them.

        Args:
            client: The client's number in the round.
            advertised: Both public keys, the identity and its signature.

        Raises:
            ProtocolError: If the signature is not that of the identity.
        """
        if not self.signed:
            return
        keys, signature = advertised[: 2 * KEY_BYTES], advertised[2 * KEY_BYTES + IDENTITY_BYTES :]
        if not is_signed(identity_in(advertised), signature, self.keys_statement(client, keys)):
            raise ProtocolError(f"the keys of client {client} are not signed by client {client}")

    def sum_statement(self, parties_hash: bytes, survivors_hash: bytes) -> bytes:
        """The text that a client signs before it helps to unmask a sum.

        Args:
            parties_hash: The hash of the clients that take part, with their keys.
            survivors_hash: The hash of the clients whose vectors are in the sum.

        Returns:
            The text, which differs between rounds.
        """
        return b"rqm sum" + self.digest + parties_hash + survivors_hash


def new_round() -> bytes:
    """A new name for a round."""
    return os.urandom(16)
