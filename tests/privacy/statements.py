"""Random statements of every kind, each with what an adversary attains (``attacks.py``)."""

from collections.abc import Callable
from itertools import product
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

import rqm
from rqm import Gaussian
from rqm.privacy.accountant import spent
from rqm.privacy.event import Event
from rqm.privacy.gaussian import vector_gdp
from rqm.privacy.losses import composed_epsilon
from rqm.privacy.setting import Setting
from rqm.privacy.vector import vector_rdp
from tests.privacy import attacks
from tests.privacy.attacked import additive, affine, bit, levelled, log_uniform, one_of, trials
from tests.privacy.attacks import Choice, Client

TOLERANCE = 1e-9
MOST = 2e5
"""Outcomes of all releases together: more choices are not looked at."""


class Statement(NamedTuple):
    """What the library states, what is attained, and of what."""

    stated: float
    attained: float
    what: str

    def broken(self, mistake=1.0):
        return self.stated * mistake < self.attained * (1 - TOLERANCE) - 1e-12


# -- inputs ----------------------------------------------------------------------------------------


def vectors(rng, dim, budget, neighbours, count):
    """Pairs of vectors within a budget, in units of the clip: opposite, along one axis or all, and at random."""
    axis, flat = np.eye(dim)[0], np.ones(dim) / dim**0.5
    found = []
    for turn in range(count):
        x = [axis, flat][turn] if turn < 2 else rng.normal(size=dim)
        y = -x if turn < 2 or turn % 3 else rng.normal(size=dim)
        length = budget if turn < 4 else budget * rng.uniform(0.5, 1, 2)[:, None]
        pair = np.array([x, y]) / np.linalg.norm([x, y], axis=1)[:, None] * length
        pair = np.clip(pair, -1, 1)
        if neighbours == "zero-out":
            pair[1] = 0
        found.append(pair)
    return found


def pairs_of_laws(rng, client, honest, dim, budget, neighbours, count=8):
    """Both laws of whole releases, for random vectors and all others at the ends, or at random."""
    crowds = client.crowds(honest - 1)
    found = []
    for turn, (x, y) in enumerate(vectors(rng, dim, budget, neighbours, count)):
        for crowd in crowds if turn < 2 or dim == 1 else [crowds[rng.integers(len(crowds))]]:
            others = [crowd] * dim
            if turn > 2 and honest > 1:
                others = rng.uniform(-1, 1, (dim, honest - 1))
            found.append((client.release(x, others), client.release(y, others)))
    return found


def climbed(rng, score, start, project, turns=12, size=0.2):
    """A better point near by, one random move at a time."""
    best, at = score(start), start
    for _ in range(turns):
        moved = project(at + size * rng.normal(size=np.shape(at)))
        now = score(moved)
        best, at = (now, moved) if now > best else (best, at)
        size *= 0.85
    return best


# -- kinds of statements ---------------------------------------------------------------------------


def divergence(rng):
    """D_α of a coordinate among some clients."""
    mech, clients = one_of(rng, levelled, levelled, affine, trials, additive), int(rng.integers(1, 5))
    alpha = float(rng.choice([1, 1.5, 2, 2.5, 4, 8, 32, inf]))
    client, found = Client(mech), 0.0
    stated = rqm.renyi(mech, alpha, clients, law="sampled").upper
    for crowd in client.crowds(clients - 1):
        laws = np.array([client.summed([u, *crowd]) for u in client.knots])
        values = attacks.renyi(laws[:, None], laws, alpha)
        if values.max() > found:
            found, worst = float(values.max()), crowd
    if clients > 1 and rng.random() < 0.3:

        def score(inputs):
            return float(attacks.renyi(client.summed(inputs[1:]), client.summed([inputs[0], *inputs[2:]]), alpha))

        start = np.array([-1.0, 1.0, *worst])
        found = max(found, climbed(rng, score, start, lambda v: np.clip(v, -1, 1), 6))
    return Statement(stated, found, f"renyi({mech}, {alpha}, {clients})")


def vector_divergence(rng):
    """D_α of a whole vector."""
    mech, honest, dim = one_of(rng, affine, affine, trials, additive), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    alpha, neighbours = float(rng.choice([1.25, 2, 3, 5, 16, 64])), str(rng.choice(["replace", "zero-out"]))
    budget = float(rng.choice([0.3, 1.0, dim**0.5, rng.uniform(0.1, 2)]))
    told = {"honest": honest, "dim": dim, "l2_clip": budget * mech.clip, "neighbours": neighbours}
    stated = float(vector_rdp(mech, [alpha], law="sampled", **told)[0])
    client = Client(mech)
    crowds = client.crowds(honest - 1)
    bases = [client.summed(crowd) for crowd in crowds[:: max(1, len(crowds) // 6)] + crowds[-1:]]

    def score(pair):
        total = 0.0
        for u, v in pair.T:
            p, q = (np.array([client.plus(client.law(w), base) for base in bases]) for w in (u, v))
            total += max(float(attacks.renyi(p, q, alpha).max()), float(attacks.renyi(q, p, alpha).max()))
        return total

    def project(pair):
        pair = pair * np.minimum(1, budget / np.maximum(np.linalg.norm(pair, axis=1), 1e-12))[:, None]
        return np.clip(pair * [[1], [neighbours == "replace"]], -1, 1)

    starts = vectors(rng, dim, budget, neighbours, 5)
    scores = [score(pair) for pair in starts]
    best = max(scores)
    if rng.random() < 0.3:
        best = max(best, climbed(rng, score, starts[int(np.argmax(scores))], project, 8))
    return Statement(stated, best, f"vector_rdp({mech}, {alpha}, {told})")


def vector_tradeoff(rng, kinds=(affine, affine, trials, additive)):
    """μ of a whole vector, but for what is lost."""
    mech, honest, dim = one_of(rng, *kinds), int(rng.integers(1, 6)), int(rng.choice([1, 1, 2]))
    neighbours = str(rng.choice(["replace", "replace", "zero-out"]))
    lost = float(rng.choice([1e-12, 1e-9, 1e-6, 1e-3, 0.03, 0.2]))
    budget = float(rng.choice([1.0, dim**0.5, rng.uniform(0.1, 2)]))
    told = {"honest": honest, "dim": dim, "l2_clip": budget * mech.clip, "neighbours": neighbours, "lost": lost}
    stated, client = vector_gdp(mech, law="sampled", **told), Client(mech)
    found = 0.0
    if isfinite(stated):
        pairs = pairs_of_laws(rng, client, honest, dim, budget, neighbours, 4)
        choice = Choice(pairs)
        first = {int(choice.ranked(epsilon)[0]) // 2 for epsilon in (0.0, stated**2 / 2, stated**2 / 2 + stated)}
        found = max(attacks.told_apart(*pairs[place], lost) for place in first)
    return Statement(stated, found, f"vector_gdp({mech}, {told})")


def additive_tradeoff(rng):
    """μ of additive noise, narrow and wide."""
    return vector_tradeoff(rng, (lambda rng: additive(rng, (3, 6), 0.1),))


def many_coordinates(rng):
    """μ of a vector of many coordinates, by relative entropy: of two laws that are μ-GDP it is at most μ²/2."""
    mech, honest = one_of(rng, affine, trials, lambda rng: additive(rng, (5, 8), 1.0)), int(rng.integers(1, 60))
    dim, neighbours = int(rng.choice([16, 256, 4096])), str(rng.choice(["replace", "zero-out"]))
    budget, lost = float(rng.uniform(0.2, 1.2) * rng.choice([1.0, 4.0, dim**0.5])), 1e-15
    told = {"honest": honest, "dim": dim, "l2_clip": budget * mech.clip, "neighbours": neighbours, "lost": lost}
    stated, client, most = vector_gdp(mech, law="sampled", **told), Client(mech), 0.0
    ends = client.knots[[0, -1]]
    bases = [client.summed(ends[[0] * (honest - 1 - high) + [1] * high]) for high in {0, (honest - 1) // 2, honest - 1}]
    for u in [*np.geomspace(0.02, 1, 8), min(1.0, budget / dim**0.5)] if isfinite(stated) else ():
        count = min(dim, int(budget**2 / u**2 * (1 + 1e-12)))
        for base, x in product(bases, (u, -u)):
            p, q = (client.plus(client.law(w), base) for w in (x, -x if neighbours == "replace" else 0.0))
            seen = (p > 0) & (q > 0)
            far = float(abs(np.log(p[seen]) - np.log(q[seen])).max())
            most = max(most, count * float(attacks.renyi(p[seen], q[seen], 1)) - 4 * lost * (1 + count * far))
    return Statement(stated, (2 * most) ** 0.5, f"vector_gdp({mech}, {told})")


def spread_of(rng):
    """δ, from what nobody would notice to what everybody would."""
    return log_uniform(rng, 1e-12, 0.1)


def server(rng, mech=None, dims=(1, 1, 1, 2)):
    """ε against the server: one participation or several, some honest, some lost, a vector replaced or zeroed."""
    mech = mech or one_of(rng, affine, affine, affine, trials, levelled)
    small = mech.levels == 2
    dim, clients = int(rng.choice(dims)), int(rng.integers(1, 6 if mech.affine or mech.modular else 4))
    rounds = int(rng.choice([1, 2, 3] if clients < 4 and dim == 1 and mech.levels <= 8 else [1, 2]))
    participations = int(rng.integers(1, rounds + 1)) if rng.random() < 0.5 else None
    honest = int(rng.integers(1, clients + 1)) if rng.random() < 0.5 else None
    survivors = int(rng.integers(1, clients + 1)) if rng.random() < 0.3 else None
    neighbours = str(rng.choice(["replace", "replace", "zero-out"]))
    charges = {turn: int(rng.integers(0, 3)) for turn in range(rounds)} if small and rng.random() < 0.3 else None
    setting = Setting(clients, rounds, spread_of(rng), None, "server", participations, neighbours, honest, survivors)
    budget = float(rng.choice([dim**0.5, dim**0.5, 1.0, 0.5]))
    done = sorted((charges or dict.fromkeys(range(rounds), 1)).values(), reverse=True)
    times = sum(done[:participations])  # the user was in those rounds that were done most often
    left = max(1, (honest or clients) - (0 if survivors is None else clients - survivors))
    stated = spent(Event(mech, dim, budget * mech.clip), setting, charges)
    pairs = pairs_of_laws(rng, Client(mech), left, dim, budget, neighbours, 4)
    found = attained([[(1.0, pairs)]] * times, stated.epsilon, setting.delta)
    return Statement(stated.epsilon, found, f"{stated}: {mech}, {dim}, {budget}, {setting}, {charges}")


def attained(stages, epsilon, limit, profile=attacks.delta):
    """ε of releases with these chances and pairs of laws: the most telling ones if many are to be combined."""
    count, choices = len(stages), []
    near = [epsilon, epsilon / max(count, 1), 0.0] if isfinite(epsilon) else [1.0, 5.0]
    for crowds in stages:
        parts = [(chance, Choice(pairs)) for chance, pairs in crowds]
        if count > 1:
            outcomes = sum(choice.p.shape[1] for _, choice in parts)
            most = int(np.clip(MOST ** (1 / count) / outcomes, 2, 6))
            parts = [(chance, choice.best(near, most)) for chance, choice in parts]
        choices.append(parts)
    return attacks.smallest_epsilon(lambda at: profile(choices, at), limit)


def noisy(rng):
    """ε against the server of additive noise."""
    return server(rng, additive(rng, (3, 5)), (1,))


def coordinates(rng):
    """ε of few coordinates by privacy loss distributions."""
    mech, honest, count = affine(rng), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    limit = spread_of(rng)
    stated = composed_epsilon(mech, honest=honest, releases=count, delta=limit, law="sampled")
    pairs = pairs_of_laws(rng, Client(mech), honest, 1, 1.0, "replace", 3)
    found = attained([[(1.0, pairs)]] * count, stated, limit)
    return Statement(stated, found, f"composed_epsilon({mech}, {honest}, {count}, {limit})")


def fraction(rng, again=False):
    """ε against the server, of whose clients a random number is honest."""
    mech = one_of(rng, bit, affine, lambda rng: additive(rng, (3, 5), 1.0))
    clients, rounds = int(rng.integers(2, 8)), 2 if again else int(rng.choice([1, 2]))
    population = 2 * 10**8 if rng.random() < 0.05 else int(rng.integers(clients, 40))
    share, survivors = (
        float(rng.choice([rng.uniform(0.1, 1), 1.0], p=[0.95, 0.05])),
        int(rng.integers(1, clients + 1)) if rng.random() < 0.2 else None,
    )
    setting = Setting(clients, 1 if again else rounds, spread_of(rng), population, honest=share, survivors=survivors)
    charges = {1: rounds} if again else None
    stated = spent(Event(mech, 1, mech.clip), setting, charges)
    client, gone = Client(mech), 0 if survivors is None else clients - survivors
    crowds = [
        (chance, pairs_of_laws(rng, client, max(1, k - gone), 1, 1.0, "replace", 1))
        for chance, k in attacks.drawn(population, max(1, int(share * population)), clients, True)
    ]
    profile = attacks.together if again else attacks.delta
    found = attained([crowds] * rounds, stated.epsilon, setting.delta, profile)
    return Statement(stated.epsilon, found, f"{stated}: {mech}, {setting}, charges {charges}")


def interrupted(rng):
    """The same where a round was done again, with the same clients."""
    return fraction(rng, True)


def outsider(rng):
    """ε against who sees models but not who took part; some users may tell what they know."""
    mech = one_of(rng, bit, affine, lambda rng: additive(rng, (3, 4), 1.0))
    population = int(rng.integers(2, 9))
    clients, rounds = int(rng.integers(1, min(population, 4) + 1)), int(rng.choice([1, 2]))
    share = float(rng.uniform(0.2, 1)) if rng.random() < 0.5 else None
    users = population if share is None else max(1, int(share * population))
    neighbours = str(rng.choice(["replace", "zero-out"]))
    setting = Setting(clients, rounds, spread_of(rng), population, "outsider", None, neighbours, share)
    charges = {1: 1, 2: int(rng.integers(0, 3))} if mech.levels == 2 and rng.random() < 0.3 else None
    stated = spent(Event(mech, 1, mech.clip), setting, charges)
    client, stages = Client(mech), []
    ends = [(1.0, -1.0)] if neighbours == "replace" else [(1.0, 0.0), (-1.0, 0.0)]
    for times in [1] * rounds if charges is None else filter(None, charges.values()):
        pairs = []
        for pair, high in product(ends, range(users) if rounds == 1 else {0, (users - 1) // 2, users - 1}):
            rest = [1.0] * high + [-1.0] * (users - 1 - high)
            pairs.append(attacks.seen_by_an_outsider(client, pair, rest, population, clients, times))
        stages.append([(1.0, pairs)])
    found = attained(stages, stated.epsilon, setting.delta)
    return Statement(stated.epsilon, found, f"{stated}: {mech}, {setting}, {charges}")


def gaussian(rng):
    """ε of the Gaussian itself, by the formula in many digits, or in bins."""
    mech, limit = Gaussian(log_uniform(rng, 0.25, 50), local=bool(rng.random() < 0.3)), spread_of(rng)
    rounds, neighbours = int(rng.integers(1, 40)), str(rng.choice(["replace", "zero-out"]))
    mu = (2 if neighbours == "replace" else 1) / mech.noise_multiplier
    way = rng.integers(3)
    if way < 2:  # to know how many are honest changes nothing
        share, population = (None, None) if way == 0 else (0.5, 40)
        setting = Setting(8, rounds, limit, population, neighbours=neighbours, honest=share)
        found = attacks.gaussian_epsilon(mu * rounds**0.5, limit)
    else:
        clients, population, rounds = int(rng.integers(1, 5)), int(rng.integers(5, 50)), int(rng.choice([1, 2]))
        setting, rate = Setting(clients, rounds, limit, population, "outsider"), clients / population
        if rounds == 1:
            found = attacks.gaussian_epsilon(2 / mech.noise_multiplier, limit, rate)
        else:
            q, p = attacks.in_bins(2 / mech.noise_multiplier, 200)
            found = attained([[(1.0, [(rate * p + (1 - rate) * q, q)])]] * 2, 1.0, limit)
    stated = spent(Event(mech, 1, 1.0), setting)
    return Statement(stated.epsilon, found, f"{stated}: {mech}, {setting}")


def calibrated(rng):
    """ε that a calibration reports of what it returns."""
    kind, options = [
        ("rounding", {"levels": 2}),
        ("rqm", {"levels": 4, "keep": 0.4}),
        ("pbm", {"levels": 3}),
        ("discrete-gaussian", {"steps": 3, "bits": 5}),
    ][int(rng.integers(4))]
    clients, rounds, dim, limit = int(rng.integers(1, 5)), int(rng.choice([1, 2])), 1, log_uniform(rng, 1e-8, 0.05)
    asked = log_uniform(rng, 0.3, 8)
    honest = int(rng.integers(1, clients + 1)) if rng.random() < 0.3 else None
    told = {"epsilon": asked, "delta": limit, "clients": clients, "rounds": rounds, "dim": dim, "honest": honest}
    try:
        found = rqm.calibrate(kind, participations=rounds, **told, **options)
    except ValueError:  # it is not reached here
        return calibrated(rng)
    pairs = pairs_of_laws(rng, Client(found.mechanism), honest or clients, 1, 1.0, "replace", 2)
    true = attained([[(1.0, pairs)]] * rounds, found.epsilon, limit)
    return Statement(min(found.epsilon, asked), true, f"{found.mechanism}: {told}")


KINDS: dict[str, tuple[Callable[[np.random.Generator], Statement], float]] = {
    "D of a coordinate": (divergence, 0.12),
    "D of a vector": (vector_divergence, 0.12),
    "μ of a vector": (vector_tradeoff, 0.12),
    "μ of additive noise": (additive_tradeoff, 0.10),
    "ε, server": (server, 0.12),
    "ε, server, additive": (noisy, 0.08),
    "ε, few coordinates": (coordinates, 0.08),
    "ε, a fraction honest": (fraction, 0.06),
    "ε, a round done again": (interrupted, 0.04),
    "ε, outsider": (outsider, 0.08),
    "ε, Gaussian": (gaussian, 0.05),
    "ε, calibrated": (calibrated, 0.03),
    "μ of many coordinates": (many_coordinates, 0.05),
}
"""Each with its share of all statements."""
