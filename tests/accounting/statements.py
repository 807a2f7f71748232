"""Random statements of single releases and runs, each with what an adversary attains (`attacks.py`)."""

from collections.abc import Callable
from itertools import product
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

import rqm
from rqm import Gaussian, Participation, ThreatModel
from rqm.accounting.accountant import account
from rqm.accounting.release import Release
from rqm.bounds import Bound, PrivacyProfile, epsilon
from rqm.certify.privacy_loss import coordinates_profile
from tests.accounting import attacks
from tests.accounting.attacks import Choice, Client
from tests.accounting.random_mechanisms import additive, affine, bit, levelled, log_uniform, one_of, trials

TOLERANCE = 1e-9
MAX_OUTCOMES = 2e5
"""Outcomes of all releases together: more choices are not looked at."""


class Statement(NamedTuple):
    """What the library states, what is attained, and of what."""

    stated: float
    attained: float
    text: str

    def is_broken(self, shrinkage=0.0):
        """Whether a statement that is smaller by this fraction is below what is attained."""
        return self.stated * (1 - shrinkage) < self.attained * (1 - TOLERANCE) - 1e-12


# -- inputs ----------------------------------------------------------------------------------------


def vectors(rng, dim, budget, neighboring, count):
    """Pairs of vectors within a budget, in units of the clip: opposite, along one axis or all, and at random."""
    axis, flat = np.eye(dim)[0], np.ones(dim) / dim**0.5
    pairs = []
    for index in range(count):
        x = [axis, flat][index] if index < 2 else rng.normal(size=dim)
        y = -x if index < 2 or index % 3 else rng.normal(size=dim)
        length = budget if index < 4 else budget * rng.uniform(0.5, 1, 2)[:, None]
        pair = np.array([x, y]) / np.linalg.norm([x, y], axis=1)[:, None] * length
        pair = np.clip(pair, -1, 1)
        if neighboring == "zero-out":
            pair[1] = 0
        pairs.append(pair)
    return pairs


def pairs_of_pmfs(rng, client, honest, dim, budget, neighboring, count=8):
    """Both pmfs of whole releases, for random vectors and all others at the ends, or at random."""
    crowds = client.crowds(honest - 1)
    pairs = []
    for index, (x, y) in enumerate(vectors(rng, dim, budget, neighboring, count)):
        for crowd in crowds if index < 2 or dim == 1 else [crowds[rng.integers(len(crowds))]]:
            others = np.tile(crowd[:, None], (1, dim))
            if index > 2 and honest > 1:
                others = rng.uniform(-1, 1, (honest - 1, dim))
            pairs.append((client.release([x, *others]), client.release([y, *others])))
    return pairs


def climbed(rng, score, start, project, steps=12, size=0.2):
    """A better point near by, one random move at a time."""
    best, at = score(start), start
    for _ in range(steps):
        candidate = project(at + size * rng.normal(size=np.shape(at)))
        value = score(candidate)
        best, at = (value, candidate) if value > best else (best, at)
        size *= 0.85
    return best


def random_delta(rng):
    """δ, from negligible to large."""
    return log_uniform(rng, 1e-12, 0.1)


def attained(stages, eps, limit, profile=attacks.delta):
    """ε of releases with these probabilities and pairs of pmfs: the most telling ones if many are combined."""
    count, choices = len(stages), []
    candidates = [eps, eps / max(count, 1), 0.0] if isfinite(eps) else [1.0, 5.0]
    for cohorts in stages:
        parts = [(weight, Choice(pairs)) for weight, pairs in cohorts]
        if count > 1:
            outcomes = sum(choice.p.shape[1] for _, choice in parts)
            max_coordinates = int(np.clip(MAX_OUTCOMES ** (1 / count) / outcomes, 2, 6))
            parts = [(weight, choice.best(candidates, max_coordinates)) for weight, choice in parts]
        choices.append(parts)
    return attacks.smallest_epsilon(lambda at: profile(choices, at), limit)


# -- one release -----------------------------------------------------------------------------------


def divergence(rng):
    """D_α of a coordinate among some clients."""
    mech, clients = one_of(rng, levelled, levelled, affine, trials, additive), int(rng.integers(1, 5))
    alpha = float(rng.choice([1, 1.5, 2, 2.5, 4, 8, 32, inf]))
    client, largest = Client(mech), 0.0
    stated = rqm.renyi(mech, alpha, clients, distribution="sampled").upper
    for crowd in client.crowds(clients - 1):
        pmfs = np.array([client.summed([u, *crowd]) for u in client.breakpoints])
        values = attacks.renyi(pmfs[:, None], pmfs, alpha)
        if values.max() > largest:
            largest, worst = float(values.max()), crowd
    if clients > 1 and rng.random() < 0.3:

        def score(inputs):
            return float(attacks.renyi(client.summed(inputs[1:]), client.summed([inputs[0], *inputs[2:]]), alpha))

        start = np.array([-1.0, 1.0, *worst])
        largest = max(largest, climbed(rng, score, start, lambda v: np.clip(v, -1, 1), 6))
    return Statement(stated, largest, f"renyi({mech}, {alpha}, {clients})")


def vector_divergence(rng):
    """D_α of a whole vector."""
    mech, honest, dim = one_of(rng, affine, affine, trials, additive), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    alpha, neighboring = float(rng.choice([1.25, 2, 3, 5, 16, 64])), str(rng.choice(["replace-one", "zero-out"]))
    budget = float(rng.choice([0.3, 1.0, dim**0.5, rng.uniform(0.1, 2)]))
    release = Release(mech, dim, budget * mech.clip)
    stated = float(release.rdp([alpha], neighboring, honest).values[0])
    client = Client(mech)
    crowds = client.crowds(honest - 1)
    sums = [client.summed(crowd) for crowd in crowds[:: max(1, len(crowds) // 6)] + crowds[-1:]]

    def score(pair):
        total = 0.0
        for u, v in pair.T:
            p, q = (np.array([client.plus(client.pmf(w), base) for base in sums]) for w in (u, v))
            total += max(float(attacks.renyi(p, q, alpha).max()), float(attacks.renyi(q, p, alpha).max()))
        return total

    def project(pair):
        pair = pair * np.minimum(1, budget / np.maximum(np.linalg.norm(pair, axis=1), 1e-12))[:, None]
        return np.clip(pair * [[1], [neighboring == "replace-one"]], -1, 1)

    starts = vectors(rng, dim, budget, neighboring, 5)
    scores = [score(pair) for pair in starts]
    best = max(scores)
    if rng.random() < 0.3:
        best = max(best, climbed(rng, score, starts[int(np.argmax(scores))], project, 8))
    return Statement(stated, best, f"{release}.rdp({alpha}, {neighboring}, {honest})")


def vector_mu(rng, kinds=(affine, affine, trials, additive)):
    """μ of a whole vector, except for its failure probability."""
    mech, honest, dim = one_of(rng, *kinds), int(rng.integers(1, 6)), int(rng.choice([1, 1, 2]))
    neighboring = str(rng.choice(["replace-one", "replace-one", "zero-out"]))
    failure = float(rng.choice([1e-12, 1e-9, 1e-6, 1e-3, 0.03, 0.2]))
    budget = float(rng.choice([1.0, dim**0.5, rng.uniform(0.1, 2)]))
    release, client = Release(mech, dim, budget * mech.clip), Client(mech)
    stated, largest = release.mu(neighboring, honest, failure), 0.0
    if isfinite(stated):
        pairs = pairs_of_pmfs(rng, client, honest, dim, budget, neighboring, 4)
        choice = Choice(pairs)
        first = {int(choice.ranked(eps)[0]) // 2 for eps in (0.0, stated**2 / 2, stated**2 / 2 + stated)}
        largest = max(attacks.smallest_mu(*pairs[index], failure) for index in first)
    return Statement(stated, largest, f"{release}.mu({neighboring}, {honest}, {failure})")


def additive_mu(rng):
    """μ of additive noise, narrow and wide."""
    return vector_mu(rng, (lambda rng: additive(rng, (3, 6), 0.1),))


def many_coordinates(rng):
    """μ of a vector of many coordinates, by relative entropy: of two pmfs that are μ-GDP it is at most μ²/2."""
    mech, honest = one_of(rng, affine, trials, lambda rng: additive(rng, (5, 8), 1.0)), int(rng.integers(1, 60))
    dim, neighboring = int(rng.choice([16, 256, 4096])), str(rng.choice(["replace-one", "zero-out"]))
    budget, failure = float(rng.uniform(0.2, 1.2) * rng.choice([1.0, 4.0, dim**0.5])), 1e-15
    release, client, largest = Release(mech, dim, budget * mech.clip), Client(mech), 0.0
    stated, ends = release.mu(neighboring, honest, failure), client.breakpoints[[0, -1]]
    sums = [client.summed(ends[[0] * (honest - 1 - high) + [1] * high]) for high in {0, (honest - 1) // 2, honest - 1}]
    for u in [*np.geomspace(0.02, 1, 8), min(1.0, budget / dim**0.5)] if isfinite(stated) else ():
        count = min(dim, int(budget**2 / u**2 * (1 + 1e-12)))
        for base, x in product(sums, (u, -u)):
            p, q = (client.plus(client.pmf(w), base) for w in (x, -x if neighboring == "replace-one" else 0.0))
            is_possible = (p > 0) & (q > 0)
            largest_loss = float(abs(np.log(p[is_possible]) - np.log(q[is_possible])).max())
            divergence = float(attacks.renyi(p[is_possible], q[is_possible], 1))
            entropy = count * divergence - 4 * failure * (1 + count * largest_loss)
            largest = max(largest, entropy)
    return Statement(stated, (2 * largest) ** 0.5, f"{release}.mu({neighboring}, {honest}, {failure})")


# -- runs ------------------------------------------------------------------------------------------


def server(rng, mech=None, dims=(1, 1, 1, 2)):
    """ε against the server: one participation or several, some honest, some lost, a vector replaced or zeroed."""
    mech = mech or one_of(rng, affine, affine, affine, trials, levelled)
    is_small = mech.levels == 2
    dim, clients = int(rng.choice(dims)), int(rng.integers(1, 6 if mech.is_affine or mech.is_modular else 4))
    rounds = int(rng.choice([1, 2, 3] if clients < 4 and dim == 1 and mech.levels <= 8 else [1, 2]))
    participations = int(rng.integers(1, rounds + 1)) if rng.random() < 0.5 else None
    honest = int(rng.integers(1, clients + 1)) if rng.random() < 0.5 else None
    survivors = int(rng.integers(1, clients + 1)) if rng.random() < 0.3 else None
    neighboring = str(rng.choice(["replace-one", "replace-one", "zero-out"]))
    charges = None
    if is_small and rng.random() < 0.3:
        charges = {index: int(rng.integers(0, 3)) for index in range(rounds)}
    participation = Participation(clients, rounds, max_participations=participations, min_survivors=survivors)
    threat, limit = ThreatModel(neighboring=neighboring, honest_clients=honest), random_delta(rng)
    budget = float(rng.choice([dim**0.5, dim**0.5, 1.0, 0.5]))
    counts = sorted((charges or dict.fromkeys(range(rounds), 1)).values(), reverse=True)
    repetitions = sum(counts[:participations])  # the user was in those rounds that were charged most often
    left = max(1, (honest or clients) - (0 if survivors is None else clients - survivors))
    stated = account(Release(mech, dim, budget * mech.clip), participation, threat, limit, charges).epsilon
    pairs = pairs_of_pmfs(rng, Client(mech), left, dim, budget, neighboring, 4)
    attained_epsilon = attained([[(1.0, pairs)]] * repetitions, stated, limit)
    words = f"{mech}, {dim}, {budget}, {participation}, {threat}, {limit}, {charges}"
    return Statement(stated, attained_epsilon, words)


def noisy(rng):
    """ε against the server of additive noise."""
    return server(rng, additive(rng, (3, 5)), (1,))


def coordinates(rng):
    """ε of few coordinates by privacy loss distributions."""
    mech, honest, count = affine(rng), int(rng.integers(1, 5)), int(rng.integers(1, 4))
    limit = random_delta(rng)
    profile = coordinates_profile(mech, honest=honest, coordinates=count, distribution="sampled")
    stated = inf if profile is None else epsilon(Bound(PrivacyProfile(((profile, 1),))), limit)
    pairs = pairs_of_pmfs(rng, Client(mech), honest, 1, 1.0, "replace-one", 3)
    attained_epsilon = attained([[(1.0, pairs)]] * count, stated, limit)
    return Statement(stated, attained_epsilon, f"coordinates_profile({mech}, {honest}, {count}), {limit}")


def fraction(rng, is_repeated=False):
    """ε against the server, where a random number of a round's clients is honest."""
    mech = one_of(rng, bit, affine, lambda rng: additive(rng, (3, 5), 1.0))
    clients, rounds = int(rng.integers(2, 8)), 2 if is_repeated else int(rng.choice([1, 2]))
    population = 2 * 10**8 if rng.random() < 0.05 else int(rng.integers(clients, 40))
    honest = float(rng.choice([rng.uniform(0.1, 1), 1.0], p=[0.95, 0.05]))
    survivors = int(rng.integers(1, clients + 1)) if rng.random() < 0.2 else None
    participation = Participation(clients, 1 if is_repeated else rounds, population, "uniform", min_survivors=survivors)
    threat, limit = ThreatModel(honest_fraction=honest), random_delta(rng)
    charges = {1: rounds} if is_repeated else None
    stated = account(Release(mech, 1, mech.clip), participation, threat, limit, charges).epsilon
    client, dropouts = Client(mech), 0 if survivors is None else clients - survivors
    cohorts = [
        (weight, pairs_of_pmfs(rng, client, max(1, k - dropouts), 1, 1.0, "replace-one", 1))
        for weight, k in attacks.honest_counts(population, max(1, int(honest * population)), clients, is_user_in=True)
    ]
    profile = attacks.delta_of_repeated_round if is_repeated else attacks.delta
    attained_epsilon = attained([cohorts] * rounds, stated, limit, profile)
    return Statement(stated, attained_epsilon, f"{mech}, {participation}, {threat}, {limit}, charges {charges}")


def repeated_round(rng):
    """Against an outsider, where a round was repeated with the same clients."""
    return fraction(rng, is_repeated=True)


def outsider(rng):
    """ε against an adversary who sees models but not who takes part; some users may collude with it."""
    mech = one_of(rng, bit, affine, lambda rng: additive(rng, (3, 4), 1.0))
    population = int(rng.integers(2, 9))
    clients, rounds = int(rng.integers(1, min(population, 4) + 1)), int(rng.choice([1, 2]))
    honest = float(rng.uniform(0.2, 1)) if rng.random() < 0.5 else None
    users = population if honest is None else max(1, int(honest * population))
    neighboring = str(rng.choice(["replace-one", "zero-out"]))
    participation = Participation(clients, rounds, population, "uniform")
    threat, limit = ThreatModel("outsider", neighboring, honest_fraction=honest), random_delta(rng)
    charges = {1: 1, 2: int(rng.integers(0, 3))} if mech.levels == 2 and rng.random() < 0.3 else None
    stated = account(Release(mech, 1, mech.clip), participation, threat, limit, charges).epsilon
    client, stages = Client(mech), []
    ends = [(1.0, -1.0)] if neighboring == "replace-one" else [(1.0, 0.0), (-1.0, 0.0)]
    for repetitions in [1] * rounds if charges is None else filter(None, charges.values()):
        pairs = []
        for pair, high in product(ends, range(users) if rounds == 1 else {0, (users - 1) // 2, users - 1}):
            user_vectors = [np.array([u]) for u in pair]
            others = [np.array([-1.0]), np.array([1.0])]
            arguments = user_vectors, others, high, users, population, clients, repetitions
            pairs.append(attacks.seen_by_outsider(client, *arguments))
        stages.append([(1.0, pairs)])
    attained_epsilon = attained(stages, stated, limit)
    return Statement(stated, attained_epsilon, f"{mech}, {participation}, {threat}, {limit}, {charges}")


def gaussian(rng):
    """ε of the Gaussian itself, by the formula in many digits, or in bins."""
    mech, limit = Gaussian(log_uniform(rng, 0.25, 50), local=bool(rng.random() < 0.3)), random_delta(rng)
    rounds, neighboring = int(rng.integers(1, 40)), str(rng.choice(["replace-one", "zero-out"]))
    mu = (2 if neighboring == "replace-one" else 1) / mech.noise_multiplier
    kind = rng.integers(3)
    if kind < 2:  # how many clients are honest changes nothing
        threat = ThreatModel(neighboring=neighboring, honest_fraction=None if kind == 0 else 0.5)
        participation = Participation(8, rounds) if kind == 0 else Participation(8, rounds, 40, "uniform")
        attained_epsilon = attacks.gaussian_epsilon(mu * rounds**0.5, limit)
    else:
        clients, population, rounds = int(rng.integers(1, 5)), int(rng.integers(5, 50)), int(rng.choice([1, 2]))
        participation, threat = Participation(clients, rounds, population, "uniform"), ThreatModel("outsider")
        rate = clients / population
        if rounds == 1:
            attained_epsilon = attacks.gaussian_epsilon(2 / mech.noise_multiplier, limit, rate)
        else:
            q, p = attacks.in_bins(2 / mech.noise_multiplier, 200)
            attained_epsilon = attained([[(1.0, [(rate * p + (1 - rate) * q, q)])]] * 2, 1.0, limit)
    stated = account(Release(mech, 1, 1.0), participation, threat, limit).epsilon
    return Statement(stated, attained_epsilon, f"{mech}, {participation}, {threat}, {limit}")


def calibrated(rng):
    """ε that a calibration reports of what it returns."""
    kind, options = [
        ("rounding", {"levels": 2}),
        ("rqm", {"levels": 4, "keep": 0.4}),
        ("pbm", {"levels": 3}),
        ("discrete-gaussian", {"steps": 3, "bits": 5}),
    ][int(rng.integers(4))]
    clients, rounds, dim, limit = int(rng.integers(1, 5)), int(rng.choice([1, 2])), 1, log_uniform(rng, 1e-8, 0.05)
    target = log_uniform(rng, 0.3, 8)
    honest = int(rng.integers(1, clients + 1)) if rng.random() < 0.3 else None
    values = {"epsilon": target, "delta": limit, "clients": clients, "rounds": rounds, "dim": dim}
    values |= {"honest_clients": honest, "max_participations": rounds}
    try:
        result = rqm.calibrate(kind, **values, **options)
    except ValueError:  # this mechanism does not reach it
        return calibrated(rng)
    pairs = pairs_of_pmfs(rng, Client(result.mechanism), honest or clients, 1, 1.0, "replace-one", 2)
    true = attained([[(1.0, pairs)]] * rounds, result.epsilon, limit)
    return Statement(min(result.epsilon, target), true, f"{result.mechanism}: {values}")


KINDS: dict[str, tuple[Callable[[np.random.Generator], Statement], float]] = {
    "D of a coordinate": (divergence, 0.12),
    "D of a vector": (vector_divergence, 0.12),
    "μ of a vector": (vector_mu, 0.12),
    "μ of additive noise": (additive_mu, 0.10),
    "ε, server": (server, 0.12),
    "ε, server, additive": (noisy, 0.08),
    "ε, few coordinates": (coordinates, 0.08),
    "ε, a fraction honest": (fraction, 0.06),
    "ε, a repeated round": (repeated_round, 0.04),
    "ε, outsider": (outsider, 0.08),
    "ε, Gaussian": (gaussian, 0.05),
    "ε, calibrated": (calibrated, 0.03),
    "μ of many coordinates": (many_coordinates, 0.05),
}
"""Each with its share of all statements."""
