"""What a malicious server could try, and what each client refuses."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rqm.secagg import Client, Params, ProtocolError, Server, masking, wire
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import IDENTITIES, PARAMS, VALUES, Round, roster_of

REQUESTS = list(Kind)[1::2]
"""The server's messages."""


def refuses(match):
    return pytest.raises(ProtocolError, match=match)


def new_keys():
    return masking.public(X25519PrivateKey.generate()) + masking.public(X25519PrivateKey.generate())


def signed(by, number, params, keys):
    """Keys that an identity advertises as those of a client."""
    return keys + by.sign(params.keys_statement(number, keys))


# -- keys -----------------------------------------------------------------------------------------


def second_encoding(keys, client_keys, start):
    """The client's own key with its highest bit set, which X25519 ignores."""
    return keys[:start] + client_keys[start : start + 31] + bytes([client_keys[start + 31] | 0x80]) + keys[start + 32 :]


KEYS = {
    "duplicate": (lambda parties: {2: parties[1]}, "client 2 has a key or an identity that is in use"),
    "one key for both uses": (
        lambda parties: {2: parties[2][:32] * 2},
        "client 2 has a key or an identity that is in use",
    ),
    "reflected": (lambda parties: {3: parties[0]}, "client 3 has a key or an identity that is in use"),
    "own missing": (lambda parties: {0: None}, "not among those that take part, or with other keys"),
    "own replaced": (lambda parties: {0: bytes(range(64))}, "not among those that take part, or with other keys"),
    "no secret": (lambda parties: {1: bytes(32) + parties[1][32:]}, "client 1 sent a public key that gives no secret"),
    "no mask": (lambda parties: {1: parties[1][:32] + bytes(32)}, "client 1 sent a public key that gives no secret"),
    **{
        f"second encoding at {start}": (
            lambda parties, start=start: {3: second_encoding(parties[3], parties[0], start)},
            "client 3 sent a public key that is not in its canonical encoding",
        )
        for start in (0, 32)
    },
}


@pytest.mark.parametrize("change", KEYS)
def test_bad_keys(change):
    alter, match = KEYS[change]
    round_ = Round(Kind.SHARES)
    (parties,) = round_.fields(Kind.PARTIES)
    parties |= alter(parties)
    with refuses(match):
        round_.send(Kind.PARTIES, {u: keys for u, keys in parties.items() if keys})


SIGNED = replace(PARAMS, roster=roster_of(5).hash)
SIGNERS = {
    "another key": (
        lambda advertised: {1: new_keys() + advertised[1][64:]},
        "keys of client 1 are not signed by client 1",
    ),
    "a stranger": (
        lambda _: {3: signed(IDENTITIES[9], 3, SIGNED, new_keys())},
        "client 3 is not in the roster",
    ),
    "a member twice": (
        lambda _: {3: signed(IDENTITIES[4], 3, SIGNED, new_keys())},
        "client 4 has a key or an identity that is in use",
    ),
    "the client itself": (
        lambda _: {3: signed(IDENTITIES[2], 3, SIGNED, new_keys())},
        "client 3 has a key or an identity that is in use",
    ),
}


@pytest.mark.parametrize("change", SIGNERS)
def test_keys_that_their_owner_has_not_signed(change):
    alter, match = SIGNERS[change]
    roster = roster_of(5)
    clients = {u: Client(SIGNED, u, IDENTITIES[u], roster) for u in range(5)}
    round_ = Round(Kind.SHARES, SIGNED, clients=clients, server=Server(SIGNED, roster))
    (parties,) = round_.fields(Kind.PARTIES, to=2)
    with refuses(match):
        round_.send(Kind.PARTIES, parties | alter(parties), to=2)


def test_the_server_checks_signatures():
    roster, next_round = roster_of(5), replace(SIGNED, round=b"two")
    replayed = Client(SIGNED, 1, IDENTITIES[1], roster).answer(Kind.KEYS)
    with refuses("keys of client 1 are not signed"):  # signed, but for another round
        Server(next_round, roster).receive(wire.frame(Kind.KEYS, next_round.digest, 1, replayed[45:]))
    server = Server(SIGNED, roster)
    server.receive(wire.frame(Kind.KEYS, SIGNED.digest, 1, signed(IDENTITIES[1], 1, SIGNED, new_keys())))
    with refuses("client 2 has a key or an identity that is in use"):
        server.receive(wire.frame(Kind.KEYS, SIGNED.digest, 2, signed(IDENTITIES[1], 2, SIGNED, new_keys())))
    with refuses("client 3 is not in the roster"):
        server.receive(wire.frame(Kind.KEYS, SIGNED.digest, 3, signed(IDENTITIES[9], 3, SIGNED, new_keys())))


def test_one_round_with_two_plans():
    """The others use less noise in a round of the same name: their keys are signed for that, and not for this."""
    roster = roster_of(5)
    private, noisy = (replace(SIGNED, context=bytes([plan]) * 32) for plan in (1, 2))
    clients = {u: Client(private if u == 0 else noisy, u, IDENTITIES[u], roster) for u in range(5)}
    parties = {u: client.answer(Kind.KEYS)[45:] for u, client in clients.items()}
    with refuses("keys of client 1 are not signed"):
        clients[0].answer(Kind.SHARES, wire.frame(Kind.PARTIES, private.digest, 0, parties))


# -- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("minimum", "threshold", "left", "match"),
    [
        (0, 3, 3, "3 clients take part: must be at least 4"),
        (4, 4, 4, "3 neighbors can be drawn: must be at least 4"),
    ],
)
def test_too_few_participants(minimum, threshold, left, match):
    round_ = Round(Kind.SHARES, replace(PARAMS, threshold=threshold, minimum=minimum))
    (parties,) = round_.fields(Kind.PARTIES)
    with refuses(match):
        round_.send(Kind.PARTIES, {u: parties[u] for u in range(left)})


def test_too_few_shares():
    round_ = Round(Kind.MASKED)
    sealed, _ = round_.fields(Kind.INBOX)
    with refuses("2 neighbors have shared their secrets.*: must be at least 3"):
        round_.send(Kind.INBOX, {u: sealed[u] for u in (1, 2)}, [])


EIGHT = Params(clients=8, count=3, levels=16, round=b"eight", threshold=4, minimum=4)


@pytest.mark.parametrize("sender", [0, 7], ids=["the client itself", "nobody that takes part"])
def test_shares_from_other_senders(sender):
    round_ = Round(Kind.MASKED, EIGHT, clients={u: Client(EIGHT, u) for u in range(6)})
    sealed, _ = round_.fields(Kind.INBOX)
    with refuses(f"client {sender}: not another client that takes part"):
        round_.send(Kind.INBOX, sealed | {sender: sealed[1]}, [])


@pytest.mark.parametrize("listed", [1, 7], ids=["has shared", "takes no part"])
def test_clients_without_shares_must_be_neighbors(listed):
    round_ = Round(Kind.MASKED, EIGHT, clients={u: Client(EIGHT, u) for u in range(6)})
    with refuses("clients without a share for this one: must be neighbors that it has drawn"):
        round_.send(Kind.INBOX, round_.fields(Kind.INBOX)[0], [listed])


def survivors_message(round_, survivors, dropouts=(), to=0, everybody=None):
    """The fields of a message that says whose vectors are in the sum, with the tags that clients have made."""
    tags = {u: round_.server._tags[u][to] for u in survivors}
    everybody = {to, *survivors} if everybody is None else everybody
    return wire.pack_set(everybody, round_.params.clients), tags, dropouts


SUMS = {
    "too few neighbors": ([1, 2], [3, 4], None, {}, "2 neighbors are in the sum .*: must be at least 3"),
    "too few clients": ([1, 2, 3], [4], None, {"minimum": 5}, "4 clients are in the sum: must be at least 5"),
    "a larger set": ([1, 2, 3], [4], {0, 1, 2, 3, 4}, {}, "the set of all clients in the sum does not fit"),
    "without the client": ([1, 2, 3, 4], [], {1, 2, 3, 4}, {}, "the set of all clients in the sum does not fit"),
    "both at once": ([1, 2, 3, 4], [2], None, {}, "client 2 is listed as in the sum and as a dropout"),
    "neither": ([1, 2, 3], [], None, {}, "not those with whom this client has masks"),
}


@pytest.mark.parametrize("case", SUMS)
def test_bad_sums(case):
    survivors, dropouts, everybody, change, match = SUMS[case]
    round_ = Round(Kind.ACKS, replace(PARAMS, **change))
    with refuses(match):
        round_.send(Kind.SURVIVORS, *survivors_message(round_, survivors, dropouts, everybody=everybody))


def test_clients_that_take_no_part_are_in_no_sum():
    params = Params(clients=6, count=3, levels=16, round=b"few", threshold=3, minimum=5)
    round_ = Round(Kind.ACKS, params, clients={u: Client(params, u) for u in range(5)})
    with refuses("set of all clients in the sum does not fit"):
        round_.send(Kind.SURVIVORS, *survivors_message(round_, [1, 2, 3], [4], everybody={0, 1, 2, 3, 5}))


# -- both secrets of one client -------------------------------------------------------------------


def test_two_stories_about_one_client():
    """The server tells some that client 4 is in the sum, others that it dropped out: it gets no share of anything."""
    round_, acks = Round(Kind.ACKS), {}
    for u in range(5):
        is_in = u in (0, 1, 4)
        survivors = [v for v in range(5 if is_in else 4) if v != u]
        acks[u], _ = round_.send(
            Kind.SURVIVORS, *survivors_message(round_, survivors, [] if is_in else [4], to=u), to=u
        )
    for u in range(5):
        tags = {v: acks[v][u] for v in acks if u in acks[v] and (v < 4 or u in (0, 1))}
        with refuses("[12] clients were told"):
            round_.send(Kind.PROOF, tags, to=u)


def test_a_neighbor_whose_mask_is_not_in_the_vector():
    """The server gives client 4 the shares of client 0, but not the reverse: their mask is not in 0's vector.

    A client that reveals a share of another's seed must know that a mask links them; otherwise
    parts of a sparse graph could be summed alone.
    """
    round_ = Round(Kind.MASKED)
    sealed, _ = round_.fields(Kind.INBOX)
    vector, tags, refused = round_.send(Kind.INBOX, {u: sealed[u] for u in (1, 2, 3)}, [])
    with refuses("client 0 has masked its values for others than its neighbors"):  # an honest server would see it
        round_.server.receive(wire.frame(Kind.MASKED, PARAMS.digest, 0, vector, tags, refused))
    for u in range(1, 5):
        round_.server.receive(round_.clients[u].answer(Kind.MASKED, round_.inbox[u], lambda: VALUES))
    round_.server._tags[0] = {**tags, 4: tags[1]}  # the best that a malicious one can pass on
    round_.send(Kind.SURVIVORS, *survivors_message(round_, [0, 2, 3, 4], to=1), to=1)
    acknowledged, refused = round_.send(Kind.SURVIVORS, *survivors_message(round_, [0, 1, 2, 3], to=4), to=4)
    assert list(acknowledged) == [1, 2, 3]  # it goes on with the other three, and tells the server about 0
    assert list(refused) == [0]
    assert round_.clients[4]._shares[0] == b""  # and has no share of 0 to reveal
    strict = Round(Kind.ACKS, replace(PARAMS, threshold=4, minimum=5))
    strict.server._tags[0][4] = strict.server._tags[0][3]
    with refuses(r"3 neighbors are in the sum and have masked .* \(not \[0\]\): must be at least 4"):
        strict.send(Kind.SURVIVORS, *survivors_message(strict, [0, 1, 2, 3], to=4), to=4)


@pytest.mark.parametrize(
    ("forged", "match"),
    [
        (2, "2 clients were told of this sum .1 acknowledgements are forged, .*: must be at least 3"),
        (4, "not in the sum"),
    ],
)
def test_forged_and_borrowed_acknowledgements(forged, match):
    round_ = Round(Kind.REVEAL, dropouts={4})
    (tags,) = round_.fields(Kind.PROOF)
    assert list(tags) == [1, 2, 3]
    with refuses(match):
        round_.send(Kind.PROOF, tags | {forged: tags[1]})


# -- replays --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", REQUESTS)
def test_messages_twice_of_another_round_or_for_another_client(kind):
    round_, stage = Round(Kind(kind + 1)), Kind(kind + 1)
    for data, match in (
        (Round(stage, replace(PARAMS, round=b"two")).inbox[0], "a message of another round"),
        (round_.inbox[1], "a message for client 1: this is client 0"),
    ):
        with refuses(match):
            Round(stage).clients[0].answer(stage, data, lambda: VALUES)
    round_.answers(stage)
    with refuses("not due"):
        round_.clients[0].answer(stage, round_.inbox[0], lambda: VALUES)


def test_nothing_is_encoded_before_it_is_due():
    with refuses("MASKED: not due, SHARES is"):
        Round(Kind.SHARES).clients[0].answer(Kind.MASKED, b"", lambda: pytest.fail("encoded"))


def test_shares_of_another_run_of_the_same_round():
    with refuses(r"0 neighbors have shared .* \(not \[1, 2, 3, 4\], whose shares were altered"):
        Round(Kind.MASKED).clients[0].answer(Kind.MASKED, Round(Kind.MASKED).inbox[0], lambda: VALUES)


def test_shares_that_were_meant_for_another_client():
    round_ = Round(Kind.MASKED)
    sealed, misdirected = (round_.fields(Kind.INBOX, to)[0] for to in (0, 1))
    _, _, refused = round_.send(Kind.INBOX, sealed | {2: misdirected[2]}, [])
    assert list(refused) == [2]
    again = Round(Kind.MASKED)
    sealed, misdirected = (again.fields(Kind.INBOX, to)[0] for to in (0, 1))
    with refuses(r"2 neighbors have shared their secrets \(not \[2, 3\], whose shares were altered"):
        again.send(Kind.INBOX, sealed | {2: misdirected[2], 3: misdirected[3]}, [])


def test_keys_of_an_earlier_run_of_the_same_round():
    """Signed, of clients that dropped out then, so that the server has their mask keys: they acknowledge nothing."""
    roster, live, ghosts = roster_of(8), range(5), range(5, 7)
    params = Params(clients=8, count=3, levels=16, round=b"one", threshold=4, minimum=7, roster=roster.hash)
    round_ = Round(
        params=params,
        clients={u: Client(params, u, IDENTITIES[u], roster) for u in (*live, *ghosts)},
        server=Server(params, roster),
    )
    parties = {u: message[45:] for u, message in round_.answers(Kind.KEYS).items()}

    def answers(kind, fields, index):
        """A field of each client's answer, with one entry for each other client."""
        field = {u: round_.send(kind, *fields(u), to=u)[index] for u in live}
        return lambda u: {v: field[v][u] for v in live if v != u}

    shares = answers(Kind.PARTIES, lambda _: [parties], 1)
    tags = answers(Kind.INBOX, lambda u: [shares(u), ghosts], 1)
    forged = dict.fromkeys(ghosts, bytes(16))
    acks = answers(Kind.SURVIVORS, lambda u: [wire.pack_set([*live, *ghosts], 8), tags(u) | forged, []], 0)
    with refuses("4 clients were told of this sum .*: must be at least 6"):
        round_.send(Kind.PROOF, acks(0))


# -- the end --------------------------------------------------------------------------------------


def test_a_client_says_nothing_after_a_refusal():
    round_ = Round(Kind.SHARES)
    with refuses("at least 45"):
        round_.clients[0].answer(Kind.SHARES, b"")
    for stage in STAGES:
        with refuses("nothing .this client is done, or has refused a message. is"):
            round_.clients[0].answer(stage, round_.inbox[0], lambda: VALUES)
