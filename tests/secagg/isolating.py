"""A hundred clients of whom eighty must stay: rounds with dropouts at any stage, and a server that isolates a clique.

    python -m tests.secagg.isolating 1000

prints how many rounds of each ended with a sum, and what a server could learn of a clique's values from all messages.
"""

import json
import sys
from random import Random

import numpy as np

from rqm import RQM, Participation
from rqm.config.plan import Plan
from rqm.config.round_parameters import protocol
from rqm.kernels.packing import unpack
from rqm.secagg import Aborted, new_round, wire
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind
from tests.secagg.rounds import Round

CLIENTS, SURVIVORS, CLIQUE, COUNT = 100, 80, 23, 512
PLAN = Plan(
    participation=Participation(CLIENTS, 100, sampling="uniform", min_survivors=SURVIVORS), mechanism=RQM(clip=0.5)
)


def draw_values(chance):
    """Everybody's values."""
    return np.random.default_rng(chance.randrange(2**32)).integers(0, 16, (CLIENTS, COUNT))


def round_with_dropouts(chance):
    """Whether a round ends with the exact sum of all who do not drop out before they send their vector."""
    values = draw_values(chance)
    dropouts = {u: chance.choice(STAGES) for u in chance.sample(range(CLIENTS), chance.randint(0, 20))}
    try:
        total, survivors, _ = aggregate(protocol(PLAN, COUNT, new_round()), lambda u: values[u], dropouts)
    except Aborted:
        return False
    expected = [u for u in range(CLIENTS) if dropouts.get(u, Kind.ACKS) > Kind.MASKED]
    return survivors == expected and bool((total == values[expected].sum(axis=0)).all())


def restrict(fields, kind, clique, padding):
    """The fields of a message with the clique in it alone; a set of clients is padded with some who are not."""

    def inside(entries):
        return {u: data for u, data in entries.items() if u in clique}

    if kind == Kind.SURVIVORS:
        _, tags, dropouts = fields
        return wire.pack_set(clique | padding, CLIENTS), inside(tags), (dropouts.keys() | tags.keys()) - clique
    return [inside(entries) for entries in fields]


def isolated_round(chance):
    """A server that from some stage on serves a clique alone: how many reveal shares, and what their vectors tell."""
    params, values = protocol(PLAN, COUNT, new_round()), draw_values(chance)
    clique, begin = set(chance.sample(range(CLIENTS), CLIQUE)), chance.choice(list(Kind)[1::2])
    padding = set(range(CLIENTS)) - clique if chance.random() < 0.5 else set()
    round_, vectors, revealed = Round(params=params, values=values), {}, 0
    for stage in STAGES:
        answers = round_.answers(stage)
        if stage == Kind.MASKED:
            masked = {u: params.read(answer, stage, u)[0] for u, answer in answers.items()}
            vectors = {u: unpack(data, params.bits, COUNT).astype(np.int64) for u, data in masked.items()}
        for u, answer in answers.items():
            round_.server.receive(answer, u)
        if stage == Kind.REVEAL:
            revealed = len(answers)
            break
        try:
            inbox = round_.server.advance()
        except Aborted:
            break
        kind = Kind(stage + 1)
        if kind >= begin:
            fields = {u: restrict(params.read(inbox[u], kind, u), kind, clique, padding) for u in clique & inbox.keys()}
            inbox = {u: wire.frame(kind, params.digest, u, *fields[u]) for u in fields}
        round_.inbox = inbox
    return revealed, correlation(vectors, values, clique, 2**params.bits)


def correlation(vectors, values, clique, modulus):
    """Of the clique's true sum, and of one client's values, with what was sent of them; times √d, 0 if nothing was."""
    senders = sorted(clique & vectors.keys())
    if not senders:
        return 0.0, 0.0
    masked_sum = sum(vectors[u] for u in senders) % modulus
    pairs = (values[senders].sum(axis=0), masked_sum), (values[senders[0]], vectors[senders[0]])
    of_sum, of_client = (float(np.corrcoef(true, masked)[0, 1] * COUNT**0.5) for true, masked in pairs)
    return of_sum, of_client


def main(rounds, seed=0):
    """A number of rounds of each kind."""
    chance = Random(seed)
    ended = sum(round_with_dropouts(chance) for _ in range(rounds))
    attacks = [isolated_round(chance) for _ in range(rounds)]
    correlations = np.array([pair for _, pair in attacks if any(pair)])
    names = "of_a_cliques_sum", "of_a_client"
    return {
        "rounds": rounds,
        "ended_with_up_to_20_dropouts": ended,
        "attacks_that_got_shares": sum(revealed > 0 for revealed, _ in attacks),
        "attacks_that_got_vectors": len(correlations),
        "correlation_times_root_d": {
            name: [float(column.mean()), float(column.std())]
            for name, column in zip(names, correlations.T, strict=False)
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1])), indent=1))
