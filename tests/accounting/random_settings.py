"""Random settings with explicit mechanisms, and the same with one value changed."""

from dataclasses import fields, replace
from typing import NamedTuple

from rqm import (
    PBM,
    RQM,
    CorrelatedNoise,
    Gaussian,
    Participation,
    PrivateMean,
    PrivateRecordMean,
    StochasticRounding,
    ThreatModel,
)
from rqm.accounting.guarantee import ADVERSARY_TEXTS
from rqm.bounds import EpsilonResult
from rqm.core.base import BaseMean
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.banded import BandedGaussian
from tests.accounting.random_mechanisms import log_uniform

PARTICIPATION = tuple(field.name for field in fields(Participation))
THREAT_MODEL = tuple(field.name for field in fields(ThreatModel))
FIELDS = PARTICIPATION + THREAT_MODEL
DELTA = 1e-6


class Printed(NamedTuple):
    """What a guarantee says besides its numbers."""

    unit: str
    neighboring: str
    adversary: str
    assumptions: frozenset[str]


def printed(mean: BaseMean, result: EpsilonResult) -> Printed:
    """The words of the headline, and the texts of all assumptions."""
    threat = mean.threat_model
    is_trusted = mean.mechanism.trusted_server
    adversary = "anyone" if is_trusted else ADVERSARY_TEXTS[threat.adversary, threat.unit]
    texts = frozenset(assumption.text(threat.unit) for assumption in result.bound.assumptions)
    return Printed(threat.unit, threat.neighboring, adversary, texts)


# -- mechanisms ------------------------------------------------------------------------------------


def wide_rounding(rng, dim):
    return StochasticRounding(clip=min(1.0, 4 / dim**0.5), levels=2, margin=log_uniform(rng, 2, 60))


def wide_rqm(rng, dim):
    return RQM(clip=min(1.0, 4 / dim**0.5), levels=4, margin=log_uniform(rng, 3, 60), keep=float(rng.uniform(0.2, 0.8)))


def trials(rng, dim):
    return PBM(clip=min(1.0, 4 / dim**0.5), levels=4, theta=log_uniform(rng, 0.01, 0.3))


def discrete_gaussian(rng, dim):
    clip = min(1.0, 4 / dim**0.5)
    return DiscreteGaussian(clip=clip, scale=log_uniform(rng, 0.5, 8), steps=7, bits=10)


def gaussian(rng, _):
    return Gaussian(log_uniform(rng, 0.5, 30), local=bool(rng.random() < 0.3))


def trusted_gaussian(rng, _):
    return Gaussian(log_uniform(rng, 0.5, 30))


def banded_gaussian(rng, _):
    return BandedGaussian(log_uniform(rng, 0.5, 30), bands=int(rng.integers(2, 5)))


# -- settings --------------------------------------------------------------------------------------


def random_turns(rng, rounds):
    """How often a user takes part."""
    turns = {}
    if rounds > 1 and rng.random() < 0.5:
        turns["max_participations"] = int(rng.integers(1, rounds + 1))
    return turns


def maybe(rng, probability, value):
    return value if rng.random() < probability else None


def user_setting(rng):
    """Users, with independent noise."""
    dim, clients, rounds = int(rng.choice([1, 16, 256, 1024])), int(rng.integers(2, 60)), int(rng.integers(1, 40))
    make = rng.choice([wide_rounding, wide_rqm, trials, discrete_gaussian, gaussian, banded_gaussian])
    population, separation = int(clients * rng.integers(2, 50)), 1
    is_outsider = make is not banded_gaussian and bool(rng.random() < 0.4)
    is_fraction = make is not banded_gaussian and bool(rng.random() < 0.3)
    if is_fraction and make is not gaussian:  # else the losses of some coordinates are composed for every cohort
        clients, dim, make = (
            min(clients, 10),
            int(rng.choice([1, 1024])),
            rng.choice([wide_rounding, discrete_gaussian]),
        )
    if make in (trials, wide_rqm):
        clients, dim = min(clients, 8), min(dim, 16)
    if is_outsider and make is not gaussian:
        dim = 1 if make in (trials, wide_rqm) else int(rng.choice([1, 1024]))
    turns = {} if is_outsider else random_turns(rng, rounds)
    if not (is_outsider or is_fraction) and (make is banded_gaussian or rng.random() < 0.4):
        separation = int(rng.integers(2, 12))
        population *= 12
    mechanism = make(rng, dim)
    if make is banded_gaussian and mechanism.bands > separation:
        mechanism = replace(mechanism, bands=separation)
    is_uniform = is_outsider or is_fraction
    honest = None if is_fraction or is_outsider else maybe(rng, 0.5, int(rng.integers(1, clients + 1)))
    return PrivateMean(
        dim=dim,
        mechanism=mechanism,
        delta=DELTA,
        participation=Participation(
            clients,
            rounds,
            population if is_uniform or rng.random() < 0.5 else None,
            "uniform" if is_uniform else "available",
            min_separation=separation,
            min_survivors=maybe(rng, 0.3, int(rng.integers(1, clients + 1))),
            **turns,
        ),
        threat_model=ThreatModel(
            adversary="outsider" if is_outsider else "server",
            neighboring=str(rng.choice(["replace-one", "zero-out"])),
            honest_clients=1 if mechanism.is_local and not is_fraction and not is_outsider else honest,
            honest_fraction=float(rng.uniform(0.3, 1)) if is_fraction else None,
        ),
    )


def correlated_setting(rng):
    """Users, with correlated noise."""
    dim, clients, rounds = int(rng.choice([1, 64])), int(rng.integers(2, 30)), int(rng.integers(4, 30))
    make = rng.choice([wide_rounding, trusted_gaussian])
    turns = random_turns(rng, rounds)
    return PrivateMean(
        dim=dim,
        mechanism=make(rng, dim),
        delta=DELTA,
        noise=CorrelatedNoise(log_uniform(rng, 2, 20)),
        participation=Participation(
            clients,
            rounds,
            sampling="fixed-order",
            min_separation=int(rng.integers(2, 12)),
            min_survivors=maybe(rng, 0.3, int(rng.integers(1, clients + 1))),
            **turns,
        ),
        threat_model=ThreatModel(
            neighboring=str(rng.choice(["replace-one", "zero-out"])),
            honest_clients=maybe(rng, 0.5, int(rng.integers(1, clients + 1))),
        ),
    )


def record_setting(rng):
    """Records, in every round, in a fixed order or in Poisson samples."""
    dim, clients, rounds = int(rng.choice([1, 16])), int(rng.integers(1, 8)), int(rng.integers(2, 30))
    kind = rng.integers(3)
    mechanism = gaussian(rng, dim) if rng.random() < 0.3 else discrete_gaussian(rng, dim)
    if isinstance(mechanism, Gaussian):
        mechanism = replace(mechanism, local=False)
    separation = int(rng.integers(2, 8)) if kind == 1 else 1
    return PrivateRecordMean(
        dim=dim,
        mechanism=mechanism,
        delta=DELTA,
        l2_clip=4.0,
        record_clip=1.0,
        sampling_rate=float(rng.uniform(0.01, 0.5)) if kind == 2 else None,
        noise=CorrelatedNoise(log_uniform(rng, 2, 20)) if kind == 1 and rng.random() < 0.4 else None,
        participation=Participation(
            clients,
            rounds,
            min_separation=separation,
            min_survivors=maybe(rng, 0.3, int(rng.integers(1, clients + 1))),
            **({} if kind == 2 else random_turns(rng, rounds)),
        ),
        threat_model=ThreatModel(
            unit="record",
            neighboring="add-or-remove-one" if kind == 2 or rng.random() < 0.5 else "replace-one",
            honest_clients=maybe(rng, 0.5, int(rng.integers(1, clients + 1))),
        ),
    )


def random_setting(rng):
    """A private mean of any kind."""
    kind = rng.choice([user_setting, user_setting, user_setting, correlated_setting, record_setting])
    while True:
        try:
            return kind(rng)
        except ValueError:  # values that do not go together
            continue


def other_values(rng, mean, name):
    """Other values of one field, some of which may not go with the rest."""
    participation, threat = mean.participation, mean.threat_model
    return {
        "clients": [participation.clients + 1, 2 * participation.clients],
        "rounds": [participation.rounds + 1, 2 * participation.rounds],
        "population": [2 * (participation.population or participation.clients * 20), None],
        "sampling": ["uniform", "fixed-order", "available"],
        "max_participations": [1, 2, int(rng.integers(1, participation.rounds + 1)), None],
        "min_separation": [1, 2, participation.min_separation + 1, 2 * participation.min_separation],
        "min_survivors": [1, max(1, participation.clients - 1), None],
        "adversary": ["server", "outsider"],
        "neighboring": ["replace-one", "zero-out", "add-or-remove-one"],
        "unit": ["user", "record"],
        "honest_clients": [1, max(1, participation.clients // 2), participation.clients, None],
        "honest_fraction": [0.5, 0.9, 1.0, None],
    }[name] + [getattr(participation if name in PARTICIPATION else threat, name)]


def changed(mean, name, value):
    """The same private mean with one field changed; ValueError if no guarantee is known for it."""
    table = "participation" if name in PARTICIPATION else "threat_model"
    coordinates = mean.coordinates if mean.is_subset else None
    return replace(mean, **{table: replace(getattr(mean, table), **{name: value})}, coordinates=coordinates)
