"""Random private means with all options crossed, each with what an adversary attains (`attacks.py`).

What is stated is the guarantee of a `PrivateMean`, with everything that it is assembled from: clip, rotation, a choice
of coordinates, dropouts, colluding clients, sampling, correlated noise, records. What is attained is enumerated from
the vectors that the private mean really encodes, in each round with that round's rotation and choice.
"""

from collections.abc import Callable
from math import isfinite

import numpy as np

from rqm import CorrelatedNoise, Participation, PrivateMean, PrivateRecordMean, StochasticRounding, ThreatModel
from rqm.mechanisms.additive import DiscreteGaussian
from tests.accounting import attacks
from tests.accounting.attacks import Client
from tests.accounting.random_mechanisms import additive, bit, levelled, log_uniform, one_of, trials, wide
from tests.accounting.statements import Statement, attained, random_delta
from tests.core.exact import encoded_rows

EASY = (bit, bit, wide, trials, lambda rng: additive(rng, (3, 5), 1.0))
FEW_OUTCOMES = 600
"""Outcomes of a round up to which two participations are enumerated."""
MAX_VIEWS = 3e5
"""Outcomes of a whole run with correlated noise, at most."""


# -- private means ---------------------------------------------------------------------------------


def random_shape(rng, mech):
    """Dimension, rotation, choice of coordinates and clip; more coordinates where a coordinate has few outcomes."""
    max_clients = 4 if mech.levels == 2 else 2
    kind = int(rng.integers(4))
    if kind == 0 or mech.levels > 16:
        dim, rotate, coordinates = 1, bool(rng.random() < 0.5), None
    elif kind == 1:
        dim, rotate, coordinates = 2, False, None
    elif kind == 2:
        dim, rotate, coordinates = int(rng.integers(2, max_clients + 1)), True, None
    else:
        dim, rotate, coordinates = int(rng.integers(2, 9)), True, int(rng.integers(1, min(max_clients, 2) + 1))
    budget = float(rng.choice([1.0, (coordinates or dim) ** 0.5, rng.uniform(0.3, 1.5)]))
    return {"dim": dim, "rotate": rotate, "coordinates": coordinates, "l2_clip": budget * mech.clip}


def random_turns(rng, rounds):
    """How often a user takes part in a run."""
    if rounds > 1 and rng.random() < 0.5:
        return {"max_participations": int(rng.integers(1, rounds + 1))}
    return {"min_separation": 2} if rounds > 1 and rng.random() < 0.3 else {}


def participations(participation):
    """Rounds of a user who takes part as often as possible."""
    return list(range(0, participation.rounds, participation.min_separation))[: participation.limit]


def maybe(rng, probability, value):
    return value if rng.random() < probability else None


# -- what is encoded -------------------------------------------------------------------------------


def encoded(mean, x, round_index):
    """The coordinates that are sent for a vector, in units of their clip."""
    row = encoded_rows(mean, np.array([x], dtype=np.float64), round_index)[0]
    return np.clip(row / mean.mechanism.clip, -1, 1)


def directions(rng, mean, round_index):
    """Vectors at the L2 clip: along an axis, what is sent as a corner, and at random."""
    corner = mean.transform(round_index).inverse(np.ones(mean.coordinates))
    for x in (np.eye(mean.dim)[0], corner, rng.normal(size=mean.dim)):
        if (length := np.linalg.norm(x)) > 1e-9:
            yield x / length * mean.l2_clip


def neighbors(rng, mean, round_index):
    """Pairs of the user's vectors, each with two vectors of other users, as they are encoded."""
    for x in directions(rng, mean, round_index):
        neighbor = np.zeros(mean.dim) if mean.threat_model.neighboring == "zero-out" else -x
        u, low, v = (encoded(mean, vector, round_index) for vector in (x, -x, neighbor))
        yield (u, v), (low, u)


def pairs_among(rng, mean, client, honest, round_index):
    """Both pmfs of a round's release by some honest clients."""
    pairs = []
    for (u, v), ends in neighbors(rng, mean, round_index):
        for high in {0, (honest - 1) // 2, honest - 1}:
            others = [ends[1]] * high + [ends[0]] * (honest - 1 - high)
            pairs.append((client.release([u, *others]), client.release([v, *others])))
    return pairs


def state(mean, delta, charges=None):
    """The ε that is stated."""
    return mean.guarantee(delta, charges).epsilon


def enumerated(mean, stages, delta, charges=None):
    """The statement of a private mean, and what is attained in these stages."""
    stated = state(mean, delta, charges)
    return Statement(
        stated, attained(stages, stated, delta) if isfinite(stated) else 0.0, f"{mean}, {delta}, {charges}"
    )


# -- kinds -----------------------------------------------------------------------------------------


def server(rng):
    """Against the server, with a number of honest clients."""
    mech = one_of(rng, *EASY, levelled)
    clients, rounds = int(rng.integers(1, 4 if mech.levels > 8 else 5)), int(rng.choice([1, 1, 2, 3]))
    shape = random_shape(rng, mech)
    if mech.levels > 8 or shape["dim"] > 1:
        rounds = min(rounds, 2)
    survivors = maybe(rng, 0.4, int(rng.integers(1, clients + 1)))
    participation = Participation(clients, rounds, min_survivors=survivors, **random_turns(rng, rounds))
    threat = ThreatModel(
        neighboring=str(rng.choice(["replace-one", "zero-out"])),
        honest_clients=maybe(rng, 0.5, int(rng.integers(1, clients + 1))),
    )
    seed = int(rng.integers(100))
    mean = PrivateMean(mechanism=mech, participation=participation, threat_model=threat, seed=seed, **shape)
    client, honest = Client(mech), max(1, (threat.honest_clients or clients) - participation.dropouts)
    stages = [[(1.0, pairs_among(rng, mean, client, honest, index))] for index in participations(participation)]
    charges = None
    if len(stages) == 1 and rng.random() < 0.3 and len(stages[0][0][1][0][0]) <= FEW_OUTCOMES:  # one round, done again
        stages, charges = stages * 2, {0: 2}
    return enumerated(mean, stages, random_delta(rng), charges)


def honest_fraction(rng):
    """Against the server, with an honest fraction of the population."""
    mech = one_of(rng, *EASY)
    clients, rounds = int(rng.integers(1, 5)), int(rng.choice([1, 1, 2]))
    population = int(rng.integers(clients, 30))
    survivors = maybe(rng, 0.3, int(rng.integers(1, clients + 1)))
    turns = {} if rounds == 1 else {"max_participations": int(rng.integers(1, rounds + 1))}
    participation = Participation(clients, rounds, population, "uniform", min_survivors=survivors, **turns)
    neighboring, honest = str(rng.choice(["replace-one", "zero-out"])), float(rng.uniform(0.1, 1))
    mean = PrivateMean(
        mechanism=mech,
        participation=participation,
        threat_model=ThreatModel(neighboring=neighboring, honest_fraction=honest),
        seed=int(rng.integers(100)),
        **random_shape(rng, mech),
    )
    client, users = Client(mech), max(1, int(honest * population))
    counts = attacks.honest_counts(population, users, clients, is_user_in=True)
    stages = [
        [(weight, pairs_among(rng, mean, client, max(1, k - participation.dropouts), index)) for weight, k in counts]
        for index in participations(participation)
    ]
    return enumerated(mean, stages, random_delta(rng))


def outsider(rng, is_fraction=False):
    """Against an outsider; with dropouts it knows who takes part."""
    mech = one_of(rng, *EASY)
    population = int(rng.integers(1, 8))
    clients, rounds = int(rng.integers(1, min(population, 3) + 1)), int(rng.choice([1, 1, 2]))
    honest = float(rng.uniform(0.2, 1)) if is_fraction else None
    survivors = maybe(rng, 0.3, int(rng.integers(1, clients + 1)))
    participation = Participation(clients, rounds, population, "uniform", min_survivors=survivors)
    neighboring = str(rng.choice(["replace-one", "zero-out"]))
    mean = PrivateMean(
        mechanism=mech,
        participation=participation,
        threat_model=ThreatModel("outsider", neighboring, honest_fraction=honest),
        seed=int(rng.integers(100)),
        **random_shape(rng, mech),
    )
    client, users = Client(mech), population if honest is None else max(1, int(honest * population))
    stages = []
    for index in range(rounds):
        if participation.dropouts:  # that nobody drops out shows that the user takes part
            rate = clients / population
            counts = attacks.honest_counts(population, users, clients, is_user_in=True)
            cohorts = [
                (rate * weight, pairs_among(rng, mean, client, max(1, k - participation.dropouts), index))
                for weight, k in counts
            ]
            stages.append([*cohorts, (1 - rate, [(np.ones(1), np.ones(1))])])
            continue
        pairs = []
        for pair, ends in neighbors(rng, mean, index):
            for high in range(users) if rounds == 1 and mean.coordinates == 1 else {0, users - 1}:
                pairs.append(attacks.seen_by_outsider(client, pair, ends, high, users, population, clients))
        stages.append([(1.0, pairs)])
    return enumerated(mean, stages, random_delta(rng))


def outsider_and_colluders(rng):
    """Against an outsider with whom a fraction of the population colludes."""
    return outsider(rng, is_fraction=True)


def correlated(rng):
    """Correlated noise of users, against the server: everything that it sees of a whole run."""
    mech = StochasticRounding(levels=2, margin=log_uniform(rng, 0.05, 20))
    clients, rounds = int(rng.integers(1, 4)), int(rng.choice([2, 2, 3]))
    with_residual = rounds == 2 and rng.random() < 0.3
    noise = CorrelatedNoise(0.5, 0.5, 2) if with_residual else CorrelatedNoise(float(rng.uniform(0.5, 1.2)))
    turns = {"max_participations": 1} if rng.random() < 0.5 else {"min_separation": int(rng.integers(2, rounds + 1))}
    participation = Participation(
        clients,
        rounds,
        sampling="fixed-order",
        min_survivors=maybe(rng, 0.3, int(rng.integers(1, clients + 1))),
        **turns,
    )
    threat = ThreatModel(
        neighboring=str(rng.choice(["replace-one", "zero-out"])),
        honest_clients=maybe(rng, 0.5, int(rng.integers(1, clients + 1))),
    )
    dim = 2 if rounds == 2 and not with_residual and rng.random() < 0.3 else 1
    mean = PrivateMean(
        dim=dim,
        rotate=bool(rng.random() < 0.5),
        l2_clip=float(rng.choice([1.0, dim**0.5, 0.6])),
        mechanism=mech,
        participation=participation,
        threat_model=threat,
        noise=noise,
        seed=int(rng.integers(100)),
    )
    if mean.modulus ** (rounds * dim) > MAX_VIEWS:
        return correlated(rng)
    delta = random_delta(rng)
    stated, honest = state(mean, delta), max(1, (threat.honest_clients or clients) - participation.dropouts)
    return Statement(stated, of_whole_runs(rng, mean, honest, honest, delta), f"{mean}, {delta}")


def of_whole_runs(rng, mean, honest, canceling, delta, pairs_of_round=None):
    """ε of all sums of a run with correlated noise: the user is in its rounds, others in all of them.

    Args:
        rng: A generator of numpy.
        mean: A private mean with correlated noise.
        honest: Honest clients of a round.
        canceling: How many of them are there in the next round to cancel their noise; that of the others stays.
        delta: δ.
        pairs_of_round: Pairs of vectors, each with two vectors of others; None: those of users.
    """
    client, taken, largest = Client(mean.mechanism), participations(mean.participation), 0.0
    noise, staying = attacks.joint_noise(mean.noise, canceling), attacks.added_pmf(mean.noise, honest - canceling)
    own_pairs = pairs_of_round or neighbors(rng, mean, 0)  # the rotation stays the same
    for (u, v), ends in own_pairs:
        for high in {0, honest // 2, honest}:
            worlds = []
            for message in (u, v):
                joint = np.ones(1)
                for j in range(mean.coordinates):
                    others = [ends[1][j]] * high + [ends[0][j]] * (honest - high)
                    sums = [
                        np.convolve(client.summed([message[j], *others[1:]] if index in taken else others), staying)
                        for index in range(mean.participation.rounds)
                    ]
                    views = attacks.seen_of_correlated(sums, noise, mean.modulus)
                    joint = np.multiply.outer(joint, views).ravel()
                worlds.append(joint)
            largest = max(largest, attained([[(1.0, [worlds])]], 1.0, delta))
    return largest


# -- records ---------------------------------------------------------------------------------------


def record_pairs(rng, mean, round_index):
    """Sums of a silo's records with and without one of them, or with another one, as they are encoded."""
    for x in directions(rng, mean, round_index):
        record = x / np.linalg.norm(x) * mean.record_clip
        is_replaced = mean.threat_model.neighboring == "replace-one"
        start = -record if is_replaced else -record * float(rng.choice([0.0, 0.5]))
        end = record if is_replaced else start + record
        u, v, low, high = (encoded(mean, vector, round_index) for vector in (end, start, -x, x))
        yield (u, v), (low, high)


def record_mean(rng, mech, participation, **values):
    """A private mean of silos."""
    shape = random_shape(rng, mech) | {"coordinates": None}
    shape["dim"] = min(shape["dim"], 2)
    clip = float(rng.uniform(0.2, 1.0)) * mech.clip
    shape["l2_clip"] = max(shape["l2_clip"], 2 * clip)
    honest = maybe(rng, 0.5, int(rng.integers(1, participation.clients + 1)))
    neighboring = values.pop("neighboring", None) or str(rng.choice(["replace-one", "add-or-remove-one"]))
    return PrivateRecordMean(
        mechanism=mech,
        participation=participation,
        threat_model=ThreatModel(neighboring=neighboring, unit="record", honest_clients=honest),
        record_clip=clip,
        delta=1e-5,
        seed=int(rng.integers(100)),
        **shape,
        **values,
    )


def records(rng, is_sampled=False):
    """A record of a silo, against the server: in every round, in a fixed order, or in Poisson samples."""
    mech = one_of(rng, bit, lambda rng: additive(rng, (3, 6), 1.0), lambda rng: additive(rng, (3, 6), 1.0))
    clients, rounds = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2]))
    turns = {} if is_sampled else random_turns(rng, rounds)
    survivors = maybe(rng, 0.3, int(rng.integers(1, clients + 1)))
    participation = Participation(clients, rounds, min_survivors=survivors, **turns)
    rate = float(rng.choice([0.02, 0.3, 0.9])) if is_sampled else None
    sampled = {"sampling_rate": rate, "neighboring": "add-or-remove-one"} if is_sampled else {}
    try:
        mean = record_mean(rng, mech, participation, **sampled)
    except ValueError:  # a record's clip is less than a step of the mechanism
        return records(rng, is_sampled)
    client, honest = Client(mech), max(1, (mean.threat_model.honest_clients or clients) - participation.dropouts)
    stages = []
    for index in participations(participation):
        pairs = []
        for (u, v), ends in record_pairs(rng, mean, index):
            for high in {0, honest - 1}:
                others = [ends[1]] * high + [ends[0]] * (honest - 1 - high)
                with_record, without = (client.release([message, *others]) for message in (u, v))
                if rate is not None:
                    with_record = rate * with_record + (1 - rate) * without
                pairs.append((with_record, without))
        stages.append([(1.0, pairs)])
    return enumerated(mean, stages, log_uniform(rng, 1e-8, 0.1))


def sampled_records(rng):
    """A record in Poisson samples."""
    return records(rng, is_sampled=True)


def correlated_records(rng):
    """A record in a fixed order of batches with correlated noise: everything that the server sees of a run."""
    mech = DiscreteGaussian(scale=log_uniform(rng, 1.0, 4.0), steps=int(rng.choice([1, 3])), bits=4)
    clients, rounds = int(rng.integers(1, 4)), int(rng.choice([2, 3]))
    participation = Participation(
        clients,
        rounds,
        sampling="fixed-order",
        min_separation=int(rng.integers(2, rounds + 1)),
        min_survivors=maybe(rng, 0.2, int(rng.integers(1, clients + 1))),
    )
    noise = CorrelatedNoise(float(rng.uniform(0.5, 2.0)))
    try:
        mean = record_mean(rng, mech, participation, noise=noise)
    except ValueError:
        return correlated_records(rng)
    if mean.coordinates > 1 or mean.modulus**rounds > MAX_VIEWS:
        return correlated_records(rng)
    delta = log_uniform(rng, 1e-8, 0.1)
    honest = mean.threat_model.honest_clients or clients
    present, canceling = max(1, honest - participation.dropouts), max(1, honest - 2 * participation.dropouts)
    pairs = list(record_pairs(rng, mean, 0))
    largest = of_whole_runs(rng, mean, present, canceling, delta, pairs)
    return Statement(state(mean, delta), largest, f"{mean}, {delta}")


KINDS: dict[str, tuple[Callable[[np.random.Generator], Statement], float]] = {
    "server": (server, 0.25),
    "server, honest fraction": (honest_fraction, 0.15),
    "outsider": (outsider, 0.15),
    "outsider, honest fraction": (outsider_and_colluders, 0.1),
    "correlated noise": (correlated, 0.1),
    "records": (records, 0.1),
    "records, Poisson sampling": (sampled_records, 0.1),
    "records, correlated noise": (correlated_records, 0.05),
}
"""Each with its share of all statements."""
