"""A hundred clients of whom eighty must stay: rounds with losses at any stage, and with a server that parts a clique.

    python -m tests.secagg.isolating 1000

prints how many rounds of each ended with a sum, and what a server could tell of a clique's values from all it was sent.
"""

import json
import sys
from random import Random

import numpy as np

from rqm import RQM, Participation
from rqm.kernels.packing import unpack
from rqm.plan.plan import Plan
from rqm.plan.protocol import protocol
from rqm.secagg import Aborted, Client, Server, masking, new_round, wire
from rqm.secagg.errors import ProtocolError
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind

CLIENTS, SURVIVORS, CLIQUE, COUNT = 100, 80, 23, 512
PLAN = Plan(
    participation=Participation(CLIENTS, 100, sampling="uniform", min_survivors=SURVIVORS), mechanism=RQM(clip=0.5)
)


def parameters():
    """As a plan's clients make them for themselves."""
    return protocol(PLAN, COUNT, new_round())


def drawn(chance):
    """Everybody's values."""
    return np.random.default_rng(chance.randrange(2**32)).integers(0, 16, (CLIENTS, COUNT))


def with_losses(chance):
    """Whether a round ends with the exact sum of all who are not lost before they send their vector."""
    z, lost = drawn(chance), {u: chance.choice(STAGES) for u in chance.sample(range(CLIENTS), chance.randint(0, 20))}
    try:
        total, survivors, _ = aggregate(parameters(), lambda u: z[u], lost)
    except Aborted:
        return False
    there = [u for u in range(CLIENTS) if lost.get(u) not in (Kind.KEYS, Kind.SHARES, Kind.MASKED)]
    return survivors == there and bool((total == z[there].sum(axis=0)).all())


def told(kind, body, params, clique, padded):
    """A message of the server with the clique in it alone; a set of clients is padded with those who are not."""
    n = params.clients
    if kind == Kind.PARTIES:
        found, _ = wire.read_entries(body, params.keys_size, n)
        return wire.entries((u, bytes(part)) for u, part in found.items() if u in clique)
    if kind == Kind.INBOX:
        found, rest = wire.read_entries(body, masking.DEALT, n)
        there, _ = wire.read_clients(rest, n)
        return wire.entries((u, bytes(p)) for u, p in found.items() if u in clique) + wire.clients(
            sorted(there & clique)
        )
    if kind == Kind.SURVIVORS:
        _, rest = wire.read_set(body, n)
        alive, rest = wire.read_entries(rest, masking.ACK, n)
        lost, _ = wire.read_clients(rest, n)
        near = {u: bytes(tag) for u, tag in alive.items() if u in clique}
        gone = sorted((lost | alive.keys()) - clique)
        return wire.pack_set(clique | padded, n) + wire.entries(near.items()) + wire.clients(gone)
    found, _ = wire.read_entries(body, masking.ACK, n)
    return wire.entries((u, bytes(tag)) for u, tag in found.items() if u in clique)


def isolated(chance):
    """A server that from some stage on serves a clique alone: whether shares are revealed, and all that it was sent."""
    params, z = parameters(), drawn(chance)
    clique, begin = set(chance.sample(range(CLIENTS), CLIQUE)), chance.choice(list(Kind)[1::2])
    padded = set(range(CLIENTS)) - clique if chance.random() < 0.5 else set()
    clients, server = {u: Client(params, u) for u in range(CLIENTS)}, Server(params)
    inbox, kind, vectors, revealed = dict.fromkeys(clients, b""), Kind.PARTIES, {}, 0
    for stage in STAGES:
        for u, data in inbox.items():
            try:
                answer = clients[u].answer(stage, data, lambda u=u: z[u])
            except ProtocolError:
                continue
            if stage == Kind.MASKED:
                body = memoryview(answer)[wire.HEADER.size :][: params.masked_size]
                vectors[u] = unpack(body, params.bits, params.count).astype(np.int64)
            revealed += stage == Kind.REVEAL
            server.receive(answer)
        if stage == Kind.REVEAL:
            break
        try:
            inbox, kind = server.advance(), Kind(stage + 1)
        except Aborted:
            break
        if kind >= begin:
            bodies = {u: wire.unframe(data, kind, params.digest) for u, data in inbox.items() if u in clique}
            inbox = {
                u: wire.frame(kind, params.digest, u, told(kind, body, params, clique, padded))
                for u, body in bodies.items()
            }
    return revealed, correlation(vectors, z, clique, 2**params.bits)


def correlation(vectors, z, clique, modulus):
    """Of the clique's true sum, and of one client's values, with what was sent of them; times √d, 0 if nothing was."""
    there = sorted(clique & vectors.keys())
    if not there:
        return 0.0, 0.0
    sent = sum(vectors[u] for u in there) % modulus
    pairs = (z[there].sum(axis=0), sent), (z[there[0]], vectors[there[0]])
    both, alone = (float(np.corrcoef(a, b)[0, 1] * COUNT**0.5) for a, b in pairs)
    return both, alone


def main(rounds, seed=0):
    """Both kinds of rounds, so many of each."""
    chance = Random(seed)
    ended = sum(with_losses(chance) for _ in range(rounds))
    attacks = [isolated(chance) for _ in range(rounds)]
    seen = np.array([found for _, found in attacks if any(found)])
    return {
        "rounds": rounds,
        "ended_with_up_to_20_lost": ended,
        "attacks_that_got_shares": sum(revealed > 0 for revealed, _ in attacks),
        "attacks_that_got_vectors": len(seen),
        "correlation_times_root_d": {
            "of_a_cliques_sum": [float(seen[:, 0].mean()), float(seen[:, 0].std())],
            "of_a_client": [float(seen[:, 1].mean()), float(seen[:, 1].std())],
        }
        if len(seen)
        else None,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1])), indent=1))
