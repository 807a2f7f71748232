"""Neighbors that clients draw: exact sums whoever drops out, and none for a server that separates clients."""

from random import Random

import numpy as np
import pytest

from rqm.secagg import Client, Params, ProtocolError, security, wire
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import IDENTITIES, Round, roster_of
from tests.secagg.test_malicious import refuses, signed

N, MINIMUM = 24, 20
SPARSE = Params(clients=N, count=4, levels=16, round=b"sparse", degree=8, threshold=5, minimum=MINIMUM)


def values(u):
    return np.array([u % 16, 15, 0, 7 * u % 16])


def sparse_round(until):
    return Round(until, SPARSE, values=values(1))


def check_sum(params, dropouts, **options):
    """The survivors of a round, whose sum must be right."""
    total, survivors, _ = aggregate(params, values, dropouts, **options)
    assert (total == sum(values(u) for u in survivors)).all()
    return survivors


@pytest.mark.parametrize("roster", [None, roster_of(N)], ids=["keys for the occasion", "a roster"])
def test_exact_sums_whoever_drops_out(roster):
    params = Params(N, 4, 16, b"lost", 10, 6, MINIMUM, roster=roster.hash if roster else b"")
    options = {"identities": IDENTITIES, "roster": roster} if roster else {}
    for seed in range(6):
        chance = Random(seed)
        dropouts = {u: chance.choice(STAGES) for u in chance.sample(range(N), seed % 5)}
        survivors = check_sum(params, dropouts, **options)
        assert survivors == [u for u in range(N) if dropouts.get(u, Kind.ACKS) > Kind.MASKED]


@pytest.mark.slow
def test_three_hundred_clients_with_the_derived_numbers():
    degree, threshold, minimum = security(300, 285, 15)
    params, chance = Params(300, 4, 16, b"three hundred", degree, threshold, minimum), Random(0)
    for _ in range(3):
        dropouts = {u: chance.choice(STAGES) for u in chance.sample(range(300), 300 - minimum)}
        assert len(check_sum(params, dropouts)) >= minimum


def test_neighbors_are_drawn_anew_by_each_client():
    answers = sparse_round(Kind.SHARES).answers(Kind.SHARES)
    drawn = {u: frozenset(SPARSE.read(message, Kind.SHARES, u)[1]) for u, message in answers.items()}
    assert all(len(neighbors) == 8 and u not in neighbors for u, neighbors in drawn.items())
    assert len(set(drawn.values())) > N - 3


def test_nobody_else_signs_for_a_client():
    round_ = sparse_round(Kind.SHARES)
    (parties,) = round_.fields(Kind.PARTIES, to=3)
    parties[3] = signed(IDENTITIES[9], 3, SPARSE, parties[3][:64])
    with refuses("with other keys than its own"):
        round_.send(Kind.PARTIES, parties, to=3)


def test_a_clique_is_not_served():
    """The server hands on the shares within a clique only, and says that the others dropped out."""
    round_, clique, altered = sparse_round(Kind.MASKED), set(range(9)), {}
    for u in clique:
        sealed = {v: data for v, data in round_.fields(Kind.INBOX, u)[0].items() if v in clique}
        without = (clique & round_.clients[u]._drawn) - sealed.keys()
        altered[u] = round_.frame(Kind.INBOX, sealed, without, to=u)
    masked = clique & round_.answers(Kind.MASKED, altered).keys()  # they have drawn enough from it, by chance
    assert all("neighbors have shared their secrets" in round_.refused[u] for u in clique - masked)
    assert len(masked) < 9


def nothing_is_revealed(round_, groups):
    """Whatever signatures are shown to those who have signed one sum."""
    for answers, clients in groups:
        proof = {u: SPARSE.read(message, Kind.ACKS, u)[0] for u, message in answers.items()}
        for u in clients:
            with pytest.raises(
                ProtocolError, match=r"\d+ clients were told of this sum .*: must be at least 20|not due"
            ):
                round_.clients[u].answer(Kind.REVEAL, round_.frame(Kind.PROOF, proof, to=u))


def announce(round_, everybody):
    """What the server says to each client of a sum of its choice, with the tags that were made."""
    tags, linked = round_.server._tags, round_.server._linked
    return {
        u: round_.frame(
            Kind.SURVIVORS,
            wire.pack_set(everybody(u), N),
            {v: tags[v][u] if v in tags else bytes(16) for v in linked[u] & everybody(u)},
            linked[u] - everybody(u),
            to=u,
        )
        for u in range(N)
    }


def test_different_stories_about_who_takes_part():
    """Half of the clients get another one's keys under a number: no share of one half can be opened by the other."""
    round_ = sparse_round(Kind.SHARES)
    stranger = SPARSE.read(Client(SPARSE, 5).answer(Kind.KEYS), Kind.KEYS, 5)[0]
    changed = round_.fields(Kind.PARTIES)[0] | {5: stranger}
    round_.step(Kind.SHARES, altered={u: round_.frame(Kind.PARTIES, changed, to=u) for u in range(12, N)})
    for message in round_.answers(Kind.MASKED).values():
        round_.server.receive(message)
    assert not any(share for u in range(12) for v, share in round_.clients[u]._shares.items() if v >= 12)
    answers = round_.answers(Kind.ACKS, announce(round_, lambda _: set(range(N))))
    assert len(round_.refused) > 4  # too many tags of the others do not fit
    nothing_is_revealed(round_, [(answers, range(12)), (answers, range(12, N))])


def test_two_sums_are_told():
    """Each has too few who signed it: two sums have more clients in common than may be corrupt."""
    round_ = sparse_round(Kind.ACKS)
    answers = round_.answers(Kind.ACKS, announce(round_, lambda u: set(range(N if u >= 10 else N - 4))))
    nothing_is_revealed(round_, [(answers, range(10, N))])
    assert {u for u in answers if u < 10}  # some went along
    nothing_is_revealed(round_, [({u: answers[u] for u in answers if u < N - 4}, range(10))])


def test_signatures_that_are_borrowed_or_forged():
    round_ = sparse_round(Kind.REVEAL)
    (proofs,) = round_.fields(Kind.PROOF)
    assert len(proofs) == N
    with refuses(r"19 clients were told of this sum .5 acknowledg.*: must be at least 20"):
        round_.send(Kind.PROOF, {u: proofs[u if u < MINIMUM - 1 else 0] for u in proofs})


def test_the_server_checks_signatures_of_the_sum():
    round_ = sparse_round(Kind.ACKS)
    _, refused = SPARSE.read(round_.answers(Kind.ACKS)[0], Kind.ACKS, 0)
    with refuses("client 0 has not signed the sum that it was told of"):
        round_.server.receive(wire.frame(Kind.ACKS, SPARSE.digest, 0, bytes(64), refused), 0)
