"""The client of the protocol, and what it refuses."""

import os
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import Any, NoReturn, Self, final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rqm._util.checks import whole
from rqm.secagg import masking, sharing, wire
from rqm.secagg.errors import ProtocolError, require
from rqm.secagg.graph import draw_neighbors
from rqm.secagg.masking import KEY_BYTES, SECRET_BYTES
from rqm.secagg.parameters import Params
from rqm.secagg.roster import IDENTITY_BYTES, Identity, KeyRegistry, Roster, identity_in, is_signed
from rqm.secagg.settlement import ClientSettlement, sum_name
from rqm.secagg.wire import NO_ENTRIES, Entries, Field, Kind

Fields = list[Field]


@final
class Client:
    """One client in one round. A message that breaks the protocol is refused, and so are all after it."""

    # The state, which `save` writes down.
    _digest: bytes  # of the parameters
    number: int
    stage: int  # the message that is due next; 0 after the last one, or after a refusal
    noise_secret: bytes  # to derive the client's noise from; empty if noise secrets are not shared
    _next_context: bytes
    _private: bytes  # two private keys, the seed of the own mask, and an identity for this round if one is needed
    _parties: Entries  # what all clients advertised; later only their identities
    _parties_hash: bytes
    _drawn: set[int]  # the neighbors that hold this client's shares
    _keys: Entries  # agreed with each neighbor: one to derive keys for messages from, and that of the mask
    _shares: Entries  # of those with whom it has a mask; empty if they have dealt none, or no valid ones
    _noise_shares: Entries
    _survivors: set[int]
    _survivors_hash: bytes

    def __init__(
        self,
        params: Params,
        number: int,
        identity: Identity | None = None,
        roster: Roster | None = None,
        *,
        previous: ClientSettlement | None = None,
        next_context: bytes = b"",
        noise_secret: bytes = b"",
    ) -> None:
        """Begin a round.

        Args:
            params: The parameters of the round.
            number: The client's number.
            identity: The client's own identity, in rounds with a roster.
            roster: The roster, in such rounds.
            previous: The settlement of the previous sum, if this client only sends that.
            next_context: What `Params.context` must be in the round that settles this one's noise.
            noise_secret: 32 bytes for simulations; otherwise the operating system draws them.
        """
        for name, kind in wire.state_types(Client).items():
            setattr(self, name, kind())
        self.params, self.number, self.stage = params, whole("number", number, 0, params.clients - 1), int(Kind.KEYS)
        self._digest, self._previous, self._next_context = params.digest, None, next_context
        if params.noise_threshold and number < params.vector_clients:
            self.noise_secret = noise_secret or os.urandom(SECRET_BYTES)
        elif params.noise_threshold:
            if previous is None:
                raise ProtocolError("this client was in no sum that a round could follow")
            previous.check_round(params, number)
            self._previous = previous
        if params.roster and (identity is None or roster is None or roster.hash != params.roster):
            raise ValueError("a signed round: identity (one's own) and the roster of this round must be given")
        if identity is not None and roster is not None and identity.public not in roster.keys:
            raise ValueError(f"identity = {identity.public.hex()}: must be in the roster")
        self._roster, self._identity = (roster, identity) if params.roster else (None, None)
        ephemeral = IDENTITY_BYTES if params.sparse and not params.roster else 0
        self._private = os.urandom(3 * SECRET_BYTES + ephemeral)
        self._use_keys()

    def _use_keys(self) -> None:
        """Compute all that follows from the private keys."""
        channel, mask, self._seed, ephemeral = (self._private[start : start + 32] for start in (0, 32, 64, 96))
        self._channel_key, self._mask_key = map(X25519PrivateKey.from_private_bytes, (channel, mask))
        self._identity = Identity(ephemeral) if ephemeral else self._identity
        self._advertised = masking.public(self._channel_key) + masking.public(self._mask_key)
        if self._identity is not None:
            self._advertised += self._identity.sign(self.params.keys_statement(self.number, self._advertised))

    # -- state ------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """The state of this client: secret, to be kept where the client is.

        No state may be used twice. A second vector under the same masks reveals the difference, and
        a second list of dropouts both secrets. Where a process may die between an answer and its
        saving, first write down that the state is spent, and drop out if in doubt.
        """
        return wire.dump_state({name: getattr(self, name) for name in wire.state_types(Client)})

    @classmethod
    def load(
        cls,
        params: Params,
        data: bytes,
        identity: Identity | None = None,
        roster: Roster | None = None,
        *,
        previous: ClientSettlement | None = None,
    ) -> Self:
        """Undo `save`, in the same round.

        Args:
            params: The parameters of the round.
            data: The saved state.
            identity: As for the client that was saved.
            roster: Likewise.
            previous: Likewise.

        Returns:
            The client.

        Raises:
            ProtocolError: If the state is damaged, or of another round.
        """
        state = wire.load_state(data, cls, "a saved client")
        if state["_digest"] != params.digest:
            raise ProtocolError("a saved client of another round, or of one with other parameters")
        client = cls(params, state["number"], identity, roster, previous=previous)
        for name, value in state.items():
            setattr(client, name, value)
        client._use_keys()
        return client

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: two copies could answer twice under the same masks."""
        raise TypeError("a client of secure aggregation cannot be copied: two would answer under the same masks")

    @property
    def fingerprint(self) -> str:
        """A public name of this client's keys, and so of its masks, which no other client has."""
        return sha256(self._advertised[: 2 * KEY_BYTES]).hexdigest()

    @property
    def settlement(self) -> ClientSettlement | None:
        """What the next round needs to settle this client's noise; None until the end, or without such noise."""
        if not self.noise_secret or self.stage or not self._survivors_hash:
            return None
        members = sorted(client for client in self._survivors if client < self.params.vector_clients)
        shares, owners = self._noise_shares, self._parties
        return ClientSettlement(
            name=sum_name(self._digest, self._parties_hash, self._survivors_hash),
            index=members.index(self.number),
            next_context=self._next_context,
            noise_secret=self.noise_secret,
            shares={index: shares[client] for index, client in enumerate(members) if shares.get(client)},
            members=len(members),
            fingerprint=self.fingerprint,
            owners={index: owners[client] for index, client in enumerate(members) if owners[client]},
        )

    # -- messages ---------------------------------------------------------------------------------

    def answer(self, stage: Kind, data: bytes = b"", values: Callable[[], npt.ArrayLike] = tuple) -> bytes:
        """The client's message of a stage.

        Args:
            stage: The stage; they come in the order of `wire.STAGES`.
            data: What the server sent; nothing in the first stage.
            values: Returns the client's integers. It is called in the stage `MASKED` only.

        Returns:
            The message.

        Raises:
            ProtocolError: If the stage is not due, or if the server breaks the protocol.
            ValueError: If the integers are out of range. They may be given again.
        """
        if stage != self.stage:
            due = Kind(self.stage).name if self.stage else "nothing (this client is done, or has refused a message)"
            raise ProtocolError(f"{stage.name}: not due, {due} is")
        steps: dict[Kind, Callable[..., Fields]] = {
            Kind.KEYS: lambda: [self._advertised],
            Kind.SHARES: self._share,
            Kind.MASKED: self._mask,
            Kind.ACKS: self._acknowledge,
            Kind.REVEAL: self._reveal,
        }
        received = [self._words(values())] if stage == Kind.MASKED else []
        self.stage = 0  # until all of the message has been accepted
        if stage != Kind.KEYS:
            received += self.params.read(data, Kind(stage - 1), self.number)
        fields = steps[stage](*received)
        self.stage = stage + 2 if stage < Kind.REVEAL else 0
        return wire.frame(stage, self._digest, self.number, *fields)

    def _share(self, parties: Entries) -> Fields:
        """Check who takes part, draw neighbors, and share both secrets among them; and the noise secret."""
        params, degree = self.params, min(self.params.degree, len(parties) - 1)
        require(len(parties), params.minimum, "clients take part")
        require(degree, params.threshold, "neighbors can be drawn")
        if parties.get(self.number) != self._advertised:
            raise ProtocolError("this client is not among those that take part, or with other keys than its own")
        registry = KeyRegistry(self._roster)
        for client, advertised in parties.items():
            registry.add(client, advertised)
        if self._previous is not None:
            self._previous.check_owners(params, parties)
        self._parties, self._parties_hash = parties, sha256(wire.encode(parties)).digest()
        drawn = draw_neighbors(parties.keys() - {self.number}, degree)
        self._drawn = set(drawn)
        for client in drawn:
            self._meet(client)
        secrets = self._private[SECRET_BYTES : 3 * SECRET_BYTES]  # of masks with others, and of the own mask
        sealed = self._deal(secrets, drawn, range(1, degree + 1), params.threshold, b"shares")
        if not self.noise_secret:
            return [sha256(self._seed).digest(), sealed]
        holders = [client for client in drawn if client < params.vector_clients]
        points = [client + 1 for client in holders]
        sealed_noise = self._deal(self.noise_secret, holders, points, params.noise_threshold, b"noise")
        return [sha256(self._seed).digest(), sealed, sha256(self.noise_secret).digest(), sealed_noise]

    def _mask(
        self, total: npt.NDArray[Any], sealed: Entries, without_shares: Entries, sealed_noise: Entries = NO_ENTRIES
    ) -> Fields:
        """Open the neighbors' shares, and mask the values."""
        params = self.params
        linked = sealed.keys() | without_shares.keys()
        if sealed.keys() & without_shares.keys() or not without_shares.keys() <= self._drawn:
            raise ProtocolError("clients without a share for this one: must be neighbors that it has drawn")
        for client in sorted(sealed.keys() - self._drawn):
            self._meet(client)
        self._shares = dict.fromkeys(sorted(linked), b"") | self._open(sealed, 2, b"shares")
        self._noise_shares = self._open(sealed_noise, 1, b"noise")
        self._parties = {client: identity_in(advertised) for client, advertised in self._parties.items()}
        refused = [client for client in sealed if not self._shares[client]]
        require(
            len((linked & self._drawn).difference(refused)),
            params.threshold,
            f"neighbors have shared their secrets (not {refused}, whose shares were altered, or belong to another "
            "round or client)",
        )
        masking.add_mask(total, masking.own_mask_key(self._digest, self._seed, self.number), 1)
        for client in self._shares:
            masking.add_mask(total, self._keys[client][SECRET_BYTES:], 1 if self.number < client else -1)
        total &= total.dtype.type(2**params.bits - 1)
        from rqm.kernels.packing import pack  # noqa: PLC0415 (takes the compiler)

        return [pack(total, params.bits).data, self._tags(self._shares, b"masked"), refused]

    def _acknowledge(self, everybody: bytes, tags: Entries, dropouts: Entries) -> Fields:
        """Check whose vectors are in the sum, and tell those clients that this one was told so."""
        params, survivors = self.params, wire.unpack_set(everybody, self.params.clients)
        if contradictory := tags.keys() & dropouts.keys():
            raise ProtocolError(
                f"client {min(contradictory)} is listed as in the sum and as a dropout: that asks for both secrets"
            )
        if tags.keys() | dropouts.keys() != self._shares.keys():
            raise ProtocolError("the clients in the sum and the dropouts are not those with whom this client has masks")
        is_consistent = survivors & self._keys.keys() == tags.keys() and survivors <= self._parties.keys()
        if not is_consistent or self.number not in survivors:
            raise ProtocolError("the set of all clients in the sum does not fit the list of neighbors in it")
        linked = [client for client, tag in tags.items() if self._is_tag(tag, client, b"masked")]
        refused = sorted(tags.keys() - set(linked))
        require(
            len(self._drawn.intersection(linked)),
            params.threshold,
            f"neighbors are in the sum and have masked their values with this client's mask (not {refused})",
        )
        params.check_survivors(survivors, "in the sum")
        for client in refused:
            self._shares[client] = b""  # no share is revealed of a client that no mask links to this one
        self._survivors, self._survivors_hash = survivors, sha256(everybody).digest()
        if params.sparse and self._identity is not None:
            statement = params.sum_statement(self._parties_hash, self._survivors_hash)
            return [self._identity.sign(statement)[IDENTITY_BYTES:], refused]
        return [self._tags(linked, b"ack"), refused]

    def _reveal(self, acknowledgements: Entries) -> Fields:
        """If enough clients were told of the same sum, reveal one share of each client whose shares this one has."""
        params, others = self.params, self._survivors - {self.number}
        if not acknowledgements.keys() <= (self._survivors if params.sparse else others):
            raise ProtocolError("an acknowledgement from a client that is not in the sum")
        valid = sum(self._acknowledges(client, proof) for client, proof in acknowledgements.items())
        require(
            valid,
            params.minimum if params.sparse else max(params.threshold, params.minimum - 1),
            f"clients were told of this sum ({len(acknowledgements) - valid} acknowledgements are forged, or for "
            "another set)",
        )
        fields: Fields = [
            {
                client: shares[SECRET_BYTES:] if client in self._survivors else shares[:SECRET_BYTES]
                for client, shares in self._shares.items()
                if shares
            }
        ]
        if self._previous is not None:
            first = params.vector_clients
            settled = {client - first for client in self._survivors if client >= first}
            fields.append(self._previous.shares_of_dropouts(settled))
        return fields

    # -- neighbors --------------------------------------------------------------------------------

    def _meet(self, client: int) -> None:
        """Agree on secrets with another client, whose keys are its own."""
        advertised = self._parties.get(client)
        if advertised is None or client == self.number:
            raise ProtocolError(f"client {client}: not another client that takes part")
        self.params.check_signature(client, advertised)
        channel_secret = masking.agree(self._channel_key, advertised[:KEY_BYTES], client)
        mask_secret = masking.agree(self._mask_key, advertised[KEY_BYTES : 2 * KEY_BYTES], client)
        mask_key = masking.pair_mask_key(self._digest, mask_secret, self.number, client)
        self._keys[client] = masking.extract(channel_secret, self._digest) + mask_key

    def _channel(self, sender: int, receiver: int, use: bytes) -> tuple[bytes, bytes]:
        """The key for one use between two clients, of which this is one, and the context it is bound to.

        The context has the hash of the survivors as soon as this client has acknowledged them.
        """
        key = self._keys[receiver if sender == self.number else sender][:SECRET_BYTES]
        ends = wire.number(sender) + wire.number(receiver)
        context = self._digest + self._parties_hash + ends + self._survivors_hash
        return masking.expand(key, use + ends), context

    def _deal(self, secret: bytes, holders: list[int], points: Sequence[int], threshold: int, use: bytes) -> Entries:
        """Sealed shares of a secret for its holders, each at its point."""
        shares = sharing.split(secret, points, threshold, os.urandom((threshold - 1) * len(secret)))
        return {
            client: masking.seal(share, *self._channel(self.number, client, use))
            for client, share in zip(holders, shares, strict=True)
        }

    def _open(self, sealed: Entries, shares: int, use: bytes) -> Entries:
        """The shares that were dealt to this client by others; empty if they cannot be opened."""
        return {
            client: masking.unseal(data, shares, *self._channel(client, self.number, use))
            for client, data in sealed.items()
            if client in self._keys
        }

    def _is_tag(self, tag: bytes, sender: int, use: bytes) -> bool:
        """Whether a tag is by another client, for this one."""
        return compare_digest(tag, masking.tag(*self._channel(sender, self.number, use)))

    def _tags(self, receivers: Iterable[int], use: bytes) -> Entries:
        """A tag for each of these clients, which only it and this one can make."""
        return {client: masking.tag(*self._channel(self.number, client, use)) for client in receivers}

    def _acknowledges(self, client: int, proof: bytes) -> bool:
        """Whether a client was told of the same sum."""
        if not self.params.sparse:
            return self._is_tag(proof, client, b"ack")
        return is_signed(
            self._parties[client], proof, self.params.sum_statement(self._parties_hash, self._survivors_hash)
        )

    def _words(self, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """A copy of the integers in words, if they are as the parameters say."""
        from rqm.kernels.packing import to_words  # noqa: PLC0415 (takes the compiler)

        array, params = np.asarray(values), self.params
        if array.shape != (params.count,) or array.dtype.kind not in "iu":
            raise ValueError(
                f"values have shape {array.shape}, dtype {array.dtype}: must be {params.count} whole numbers"
            )
        return np.array(to_words(array, params.levels, params.bits))
