"""What a malicious server could try, one test each."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from rqm.secagg import Client, Identity, Params, ProtocolError, Roster, Server, masking, wire
from rqm.secagg.wire import Kind
from tests.secagg.rounds import PARAMS, STEPS, VALUES, Round


def neighbours(round_, to=0):
    """The entries of the message that lists the neighbours' keys, to be tampered with."""
    body = wire.unframe(round_.inbox[to], Kind.PARTIES, round_.params.digest)
    return {u: bytes(keys) for u, keys in wire.read_entries(body, round_.params.keys_size, 5)[0].items()}


def shares(round_, to):
    """The entries of the message that hands a client its neighbours' shares."""
    found, _ = wire.read_entries(wire.unframe(round_.inbox[to], Kind.INBOX, PARAMS.digest), masking.DEALT, 5)
    return {u: bytes(part) for u, part in found.items()}


def refuses(match):
    return pytest.raises(ProtocolError, match=match)


def keys():
    return masking.public(X25519PrivateKey.generate()) + masking.public(X25519PrivateKey.generate())


# -- keys -------------------------------------------------------------------------------------


def test_duplicate_keys():
    round_ = Round(Kind.PARTIES)
    found = neighbours(round_)
    found[2] = found[1]
    with refuses("client 2 has a key that somebody has already"):
        round_.send(Kind.PARTIES, wire.entries(found.items()))


def test_one_key_for_both_uses():
    round_ = Round(Kind.PARTIES)
    found = neighbours(round_)
    found[2] = found[2][:32] * 2
    with refuses("client 2 has a key that somebody has already"):
        round_.send(Kind.PARTIES, wire.entries(found.items()))


def test_reflected_keys():
    round_ = Round(Kind.PARTIES)
    found = neighbours(round_)
    found[3] = found[0]  # the client's own
    with refuses("client 3 has a key that somebody has already"):
        round_.send(Kind.PARTIES, wire.entries(found.items()))


@pytest.mark.parametrize("own", [None, bytes(range(64))])
def test_a_client_that_is_not_there_or_with_other_keys(own):
    round_ = Round(Kind.PARTIES)
    found = {u: part for u, part in {**neighbours(round_), 0: own}.items() if part}
    with refuses("not among those who take part, or with other keys"):
        round_.send(Kind.PARTIES, wire.entries(found.items()))


def test_keys_without_a_secret():
    for place in (0, 32):
        round_ = Round(Kind.PARTIES)
        found = neighbours(round_)
        broken = found[1][:place] + bytes(32) + found[1][place + 32 :]
        with refuses("client 1 sent a public key that gives no secret"):
            round_.send(Kind.PARTIES, wire.entries({**found, 1: broken}.items()))


@pytest.mark.parametrize("which", [0, 32])
def test_keys_written_in_a_second_way(which):
    """X25519 does not look at the highest bit: with it set, a key is the same and looks different."""
    round_ = Round(Kind.PARTIES)
    found = neighbours(round_)
    both, own = bytearray(found[3]), bytearray(found[0])
    both[which : which + 32] = own[which : which + 32]
    both[which + 31] |= 0x80
    with refuses("client 3 sent a public key that is written in a second way"):
        round_.send(Kind.PARTIES, wire.entries({**found, 3: bytes(both)}.items()))


def test_keys_that_their_owner_has_not_signed():
    identities = [Identity(bytes([u]) * 32) for u in range(5)]
    roster = Roster.of(one.public for one in identities)
    params = Params(clients=5, count=3, levels=16, round=b"one", threshold=3, roster=roster.hash)
    server, parties = Server(params, roster), [Client(params, u, identities[u], roster) for u in range(5)]
    sent = [client.keys() for client in parties]
    for message in sent:
        server.receive(message)
    body = wire.unframe(server.advance()[0], Kind.PARTIES, params.digest)
    found = {u: bytes(part) for u, part in wire.read_entries(body, params.keys_size, 5)[0].items()}
    swapped = {**found, 1: keys() + found[1][64:]}
    with refuses("keys of client 1 are not signed by client 1"):
        parties[0].share(wire.frame(Kind.PARTIES, params.digest, 0, wire.entries(swapped.items())))

    def played(by, number):
        """Keys that somebody offers in the place of a client."""
        both = keys()
        return both + by.sign(b"rqm keys" + params.digest + wire.number(number) + both)

    for by, reason in {
        Identity(b"x" * 32): "client 3 is not in the roster",
        identities[4]: "client 4 is somebody who takes part already",  # a corrupt node that plays another one, too
        identities[2]: "client 3 is somebody who takes part already .or this client itself",
    }.items():
        own = server_message(params, {**found, 3: played(by, 3)}, to=2)
        with refuses(reason):
            Client.load(params, parties[2].save(), identities[2], roster).share(own)
    other = Params(clients=5, count=3, levels=16, round=b"two", threshold=3, roster=roster.hash)
    replayed = Client(params, 1, identities[1], roster).keys()
    with refuses("keys of client 1 are not signed"):  # signed, but for another round
        Server(other, roster).receive(wire.frame(Kind.KEYS, other.digest, 1, replayed[45:]))
    twice = Server(params, roster)
    twice.receive(wire.frame(Kind.KEYS, params.digest, 1, played(identities[1], 1)))
    with refuses("client 2 is somebody who takes part already"):
        twice.receive(wire.frame(Kind.KEYS, params.digest, 2, played(identities[1], 2)))
    with pytest.raises(ValueError, match="identity"):
        Client(params, 0)


def server_message(params, found, to):
    return wire.frame(Kind.PARTIES, params.digest, to, wire.entries(found.items()))


# -- numbers ----------------------------------------------------------------------------------


def test_too_few_participants():
    round_ = Round(Kind.PARTIES)
    found = {u: part for u, part in neighbours(round_).items() if u < 3}
    with refuses("3 participants: must be 4 to 5"):
        round_.send(Kind.PARTIES, wire.entries(found.items()))
    few = Params(clients=5, count=3, levels=16, round=b"one", threshold=4, minimum=4)
    again = Round(Kind.PARTIES, few)
    with refuses("3 neighbours: must be at least 4"):
        again.send(Kind.PARTIES, wire.entries(list(neighbours(again).items())[:4]))


def test_too_few_shares():
    round_ = Round(Kind.INBOX)
    found = {u: part for u, part in shares(round_, 0).items() if u < 3}
    with refuses("2 neighbours have shared their secrets: must be at least 3"):
        round_.send(Kind.INBOX, wire.entries(found.items()), wire.clients([]))


def told(round_, alive, lost=(), to=0, everybody=None):
    """The message that says who is in the sum, with the tags that clients have made."""
    tags = round_.server._tags
    everybody = {to, *alive} if everybody is None else everybody
    body = (
        wire.pack_set(everybody, 5),
        wire.entries((u, bytes(tags[u][to])) for u in alive),
        wire.entries((u, b"") for u in lost),
    )
    return round_.send(Kind.SURVIVORS, *body, to=to)


def test_too_few_in_the_sum():
    with refuses("2 neighbours are in the sum: must be at least 3"):
        told(Round(Kind.SURVIVORS), [1, 2], [3, 4])
    strict = Params(clients=5, count=3, levels=16, round=b"one", threshold=3, minimum=5)
    with refuses("a sum of 4 clients: must be of at least 5"):
        told(Round(Kind.SURVIVORS, strict), [1, 2, 3], [4])


def test_a_sum_of_fewer_than_was_said():
    """The number in the sum is that of a set that must fit what each client is told of its neighbours."""
    with refuses("the set of all clients in the sum does not fit"):
        told(Round(Kind.SURVIVORS), [1, 2, 3], [4], everybody={0, 1, 2, 3, 4})
    with refuses("the set of all clients in the sum does not fit"):
        told(Round(Kind.SURVIVORS), [1, 2, 3, 4], everybody={1, 2, 3, 4})
    with refuses("a set of clients with more than 5"):
        wire.read_set(memoryview(bytes([255])), 5)


# -- both secrets of one client -----------------------------------------------------------------


def test_overlapping_lists():
    with refuses("client 2 is listed both as in the sum and as lost"):
        told(Round(Kind.SURVIVORS), [1, 2, 3, 4], [2])


def test_lists_that_leave_somebody_out():
    with refuses("not those with whom this client has masks"):
        told(Round(Kind.SURVIVORS), [1, 2, 3])


def acknowledgements(message):
    return wire.read_entries(wire.unframe(message, Kind.ACKS, PARAMS.digest), 16, 5)[0]


def test_two_stories_about_one_client():
    """The server tells some that client 4 is in the sum, others that it is lost: it gets no share of anything."""
    round_ = Round(Kind.SURVIVORS)
    acks = {u: acknowledgements(told(round_, [v for v in range(5) if v != u], to=u)) for u in (0, 1, 4)}
    acks |= {u: acknowledgements(told(round_, [v for v in range(4) if v != u], [4], to=u)) for u in (2, 3)}
    for u in range(5):
        tags = {v: bytes(acks[v][u]) for v in sorted(acks) if v != u and u in acks[v] and (v < 4 or u in (0, 1))}
        with refuses("[12] clients were told"):
            round_.send(Kind.PROOF, wire.entries(tags.items()), to=u)


def test_a_neighbour_whose_mask_is_not_in_the_vector():
    """The server gives client 4 the shares of client 0, but not the other way: their mask is not in 0's vector.

    Whoever reveals a share of a client's seed must know that they are linked by a mask; else parts of a sparse graph
    could be summed alone.
    """
    round_ = Round(Kind.INBOX)
    found = {u: part for u, part in shares(round_, 0).items() if u != 4}
    masked = round_.send(Kind.INBOX, wire.entries(found.items()), wire.clients([]))
    with refuses("client 0 has masked its values for others than its neighbours"):  # an honest server would see it
        round_.server.receive(masked)
    body = wire.unframe(masked, Kind.MASKED, PARAMS.digest)[PARAMS.masked_size :]
    tags, _ = wire.read_entries(body, 16, 5)
    round_.server._tags[0] = {**tags, 4: tags[1]}  # the best that a malicious one can pass on
    for u in range(1, 5):
        round_.server.receive(STEPS[Kind.INBOX](round_.clients[u], round_.inbox[u]))
    told(round_, [0, 2, 3, 4], to=1)
    message = told(round_, [0, 1, 2, 3], to=4)  # goes on with the other three, and tells the server about 0
    tags, rest = wire.read_entries(wire.unframe(message, Kind.ACKS, PARAMS.digest), 16, 5)
    assert sorted(tags) == [1, 2, 3]
    assert wire.read_clients(rest, 5)[0] == {0}
    assert round_.clients[4]._held[0] == b""  # and has no share of 0 to give
    strict = Params(clients=5, count=3, levels=16, round=b"one", threshold=4, minimum=5)
    again = Round(Kind.SURVIVORS, strict)
    again.server._tags[0][4] = again.server._tags[0][3]
    with refuses("client 0 has not masked its values with this client's mask; 3 others have: must be at least 4"):
        told(again, [0, 1, 2, 3], to=4)


def test_forged_and_borrowed_acknowledgements():
    round_ = Round(Kind.PROOF, lost={4})
    body = wire.unframe(round_.inbox[0], Kind.PROOF, PARAMS.digest)
    tags = {u: bytes(tag) for u, tag in wire.read_entries(body, 16, 5)[0].items()}
    assert sorted(tags) == [1, 2, 3]
    with refuses("2 clients were told of this sum: must be at least 3 .1 acknowledgements are f"):
        round_.send(Kind.PROOF, wire.entries({**tags, 2: tags[1]}.items()))
    with refuses("not in the sum"):
        Round(Kind.PROOF, lost={4}).send(Kind.PROOF, wire.entries({**tags, 4: tags[1]}.items()))


# -- what clients could try ---------------------------------------------------------------------


def test_the_server_refuses_and_goes_on():
    server, parties = Server(PARAMS), [Client(PARAMS, u) for u in range(5)]
    first = parties[0].keys()
    server.receive(first)
    with refuses("client 0 has sent its KEYS already"):
        server.receive(first)
    with refuses("a message in the name of client 0, sent by client 1"):
        server.receive(first, 1)
    with refuses("client 9: not in this round"):
        server.receive(wire.frame(Kind.KEYS, PARAMS.digest, 9, first[45:]))
    with refuses("client 1 has a key that somebody has already"):
        server.receive(wire.frame(Kind.KEYS, PARAMS.digest, 1, first[45:]))
    with refuses("gives no secret"):
        server.receive(wire.frame(Kind.KEYS, PARAMS.digest, 1, bytes(64)))
    with refuses("a message SHARES where KEYS is due"):
        server.receive(wire.frame(Kind.SHARES, PARAMS.digest, 1))
    for client in parties[1:]:
        server.receive(client.keys())
    server.advance()
    with refuses("keys of 3 bytes|where SHARES is due"):
        server.receive(wire.frame(Kind.KEYS, PARAMS.digest, 1, b"abc"))
    with refuses("not finished: SHARES is due"):
        server.finish()


@pytest.mark.parametrize("count", [1, 2])
def test_shares_that_were_not_dealt_are_found_out(count):
    """Some clients lie about their share of the secret of client 0: they are named; if enough are left, it goes on."""
    round_ = Round(Kind.PROOF)
    for u, data in round_.inbox.items():
        message = bytearray(round_.clients[u].reveal(data))
        if 1 <= u <= count:
            message[45 + 4 + 4] ^= 1  # the first entry: client 0
            with refuses(f"client {u} has revealed a share of client 0 that was not dealt to it"):
                round_.server.receive(bytes(message), u)
            continue
        round_.server.receive(bytes(message), u)
    assert sorted(round_.server.liars) == list(range(1, count + 1))
    if count == 1:
        assert (round_.server.finish() == 5 * VALUES).all()
    else:
        with refuses("2 neighbours of client 0 are left"):  # too few: three are needed
            round_.server.finish()


def test_values_outside_their_range():
    for bad, message in (([0, 1, 16], "contain 16"), ([0, -1, 1], "contain -1")):
        round_ = Round(Kind.INBOX)
        with pytest.raises(ValueError, match=message):
            round_.clients[0].mask(round_.inbox[0], np.array(bad))
        round_.clients[0].mask(round_.inbox[0], VALUES)  # the caller's mistake costs nothing
    with pytest.raises(ValueError, match="must be 3 whole numbers"):
        Round(Kind.INBOX).clients[0].mask(b"", np.zeros(3))
    with pytest.raises(ValueError, match="must be 3 whole numbers"):
        Round(Kind.INBOX).clients[0].mask(b"", np.zeros(4, int))
