"""``calibrate``: the parameters with which a mechanism of a wanted kind reaches a wanted ε."""

from dataclasses import dataclass, replace
from math import floor
from typing import Any, Literal

from rqm._util.checks import padded, real
from rqm.encoding.choice import second_clip
from rqm.encoding.private_mean import PrivateMean
from rqm.encoding.together import sent
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.accountant import gaussian_noise
from rqm.privacy.calibrate import best_fitted, coordinate_clip, proposed
from rqm.privacy.composition import poisson_gaussian_epsilon, smallest
from rqm.privacy.factorization import Workload
from rqm.privacy.guarantee import Guarantee
from rqm.privacy.iterates import gain
from rqm.privacy.setting import Neighbours, Observer, Setting, checked_epsilon
from rqm.privacy.silos import best_in_order


@dataclass(frozen=True)
class Calibration:
    """What reaches the wanted ε. ``noise_multiplier`` is the noise on the sum over the L2 clip.

    Use ``private_mean()``: it clips, rotates and encodes as the guarantee assumes. The ``mechanism`` alone is low
    level: it clips every coordinate, but no vector, and a vector that is too long has a larger ε.
    """

    mechanism: Mechanism
    noise_multiplier: float
    epsilon: float
    guarantee: Guarantee | None
    mean: PrivateMean | None

    def private_mean(self) -> PrivateMean:
        """The object that encodes and decodes with this mechanism, and carries the guarantee."""
        if self.mean is None:
            raise TypeError(
                "add-remove neighbours with Poisson sampling are a trusted server's: no secure sum has them"
            )
        return self.mean


def calibrate(  # noqa: PLR0913 (all that a run is)
    mechanism: str = "rounding",
    *,
    epsilon: float,
    delta: float | None = None,
    clients: int,
    population: int | None = None,
    rounds: int,
    dim: int,
    honest: int | float | None = None,
    survivors: int | None = None,
    neighbours: Neighbours | Literal["add-remove"] = "replace",
    observer: Observer = "server",
    participations: int | None = 1,
    separation: int | None = None,
    l2_clip: float = 1.0,
    coordinates: int | None = None,
    spread: float | None = None,
    **options: Any,
) -> Calibration:
    """Find the margin (or θ, or the noise) with which a run is (ε, δ)-private for every user.

    This is for those who compare mechanisms. Whoever wants one takes ``rqm.PrivateMean(epsilon=…)``, which chooses.

    Vectors of ``dim`` values within ``l2_clip`` (C) are rotated, which pads them to a power of two d; coordinates are
    then clipped at c = ``spread`` · C / √d, by default 4 C / √d and never more than C: few are beyond. If only so many
    ``coordinates`` of them are sent, that is the d here, and their second clip is C (``docs/few-coordinates.md``).
    ``options`` are the mechanism's own: ``levels`` (16) and ``keep`` (0.42) of RQM; ``mechanism="rounding"`` is the
    1-bit mechanism, or with more ``levels`` plain rounding between levels outside the clip; the additive mechanisms
    have ``steps`` between -c and c, and outcomes of ``bits``, which must hold the sum: without these, up to 15 steps
    and as few bits as do. Where no noise reaches ε the error names the best that is possible.
    ``participations`` (and their ``separation``, see ``Setting``) are for the server; before the outsider every round
    counts, and nobody's turns are capped.
    ``neighbours="add-remove"`` is for a trusted server's Gaussian with Poisson sampling.

    >>> found = calibrate("gaussian", epsilon=10, delta=1 / 3400, clients=100, population=3400, rounds=1500, dim=1,
    ...                   neighbours="add-remove", observer="outsider")
    >>> round(found.noise_multiplier, 3)
    0.848
    """
    epsilon = checked_epsilon(epsilon)
    l2_clip = real("l2_clip", l2_clip, "a positive finite number", 0, float("inf"))
    capped = participations if observer == "server" else None
    who: dict[str, Any] = {"clients": clients, "rounds": rounds, "delta": delta, "population": population}
    who |= {"honest": honest, "survivors": survivors, "observer": observer, "participations": capped}
    who |= {"separation": separation}
    if neighbours == "add-remove":
        if mechanism != Gaussian.kind or observer != "outsider":
            raise ValueError(
                "neighbours = 'add-remove': must come with the mechanism gaussian and the observer outsider"
            )
        return _poisson(epsilon, Setting(**who))
    count, setting = sent(dim, True, coordinates), Setting(**who, neighbours=neighbours)
    bound = l2_clip * second_clip(count) if count < padded(dim) else l2_clip
    clip = coordinate_clip(bound, count, spread)
    firsts = proposed(mechanism, options, epsilon, setting, dim=count, l2_clip=bound, clip=clip)
    found = best_fitted(firsts, epsilon, setting, dim=count, l2_clip=bound)
    mean = PrivateMean(mechanism=found, dim=dim, l2_clip=l2_clip, coordinates=count, **who, neighbours=neighbours)
    reached = mean.guarantee
    return Calibration(found, reached.noise_multiplier, reached.epsilon, reached, mean)


def _poisson(epsilon: float, setting: Setting) -> Calibration:
    """A trusted server's Gaussian with Poisson sampling, users added or removed."""
    assert setting.population is not None
    assert setting.delta is not None
    rate, rounds, delta = setting.clients / setting.population, setting.rounds, setting.delta

    def reached(z: float) -> float:
        return poisson_gaussian_epsilon(z, rate, rounds, delta)

    z = smallest(lambda z: reached(z) <= epsilon, 1.0)
    return Calibration(Gaussian(z), z, reached(z), None, None)


@dataclass(frozen=True)
class Order:
    """How a silo should take its records: what reaches ε with the least noise in the models, and ``why``."""

    mean: PrivateMean
    why: str


def calibrate_records(
    *,
    epsilon: float,
    rate: float,
    rounds: int,
    clients: int,
    dim: int,
    delta: float,
    record_clip: float,
    l2_clip: float,
    workload: Workload | None = None,
    **who: Any,
) -> Order:
    """Records drawn in secret with a chance of ``rate`` a round, or as often in a fixed order, without or with noise
    that is taken back in a silo's next message: the one with the least noise in the server's models.

    For records that are added or removed; the order must then be each record's own (by a hash of it, say), so that one
    more or less moves no other. ``workload`` is how the server steps, by default with momentum 0.9 and a rate that
    falls to zero. ``who`` is what ``PrivateMean`` takes besides: ``honest``, ``survivors``, ``seed``. They are
    compared as a trusted server's Gaussian noise; what is returned is certified.

    >>> silos = {"clients": 4, "dim": 50, "delta": 1e-6, "record_clip": 1.0, "l2_clip": 9.0}
    >>> found = calibrate_records(epsilon=8, rate=0.1, rounds=40, **silos)
    >>> found.mean.separation, found.why.split(":")[0]
    (10, 'A fixed order of 10 batches, with noise that cancels')
    """
    rate = real("rate", rate, "above 0 and at most 1", 0, 1, closed="]")
    both: dict[str, Any] = {"unit": "record", "neighbours": "add-remove", "rounds": rounds, "clients": clients}
    both |= {"dim": dim, "delta": delta, "record_clip": record_clip, "l2_clip": l2_clip} | who
    batches = min(max(1, floor(1 / rate)), rounds)
    setting = Setting(clients=clients, rounds=rounds, delta=delta, unit="record", neighbours="add-remove")
    order = replace(setting, separation=batches)
    drawn, fixed = (
        gaussian_noise(one, checked_epsilon(epsilon)) for one in (replace(setting, record_rate=rate), order)
    )
    noise = {"secret draws": drawn, f"a fixed order of {batches} batches": fixed}
    if order.apart > 1:
        gains = gain(workload or Workload(rounds))
        part = gains.over_independent(order.apart, 1.0, gains.best_ratio(order.apart))
        noise[f"a fixed order of {batches} batches, with noise that cancels"] = part * fixed
    way = min(noise, key=lambda one: noise[one])
    others = ", ".join(f"{one} {value / noise[way]:.2f} times as much" for one, value in noise.items() if one != way)
    why = f"{way[0].upper()}{way[1:]}: the least noise in the models; {others}."
    if way == "secret draws":
        return Order(PrivateMean(**both, epsilon=epsilon, record_rate=rate), why)
    if "cancels" not in way:
        return Order(PrivateMean(**both, epsilon=epsilon, separation=batches), why)
    first = PrivateMean(**both, mechanism=Gaussian(1.0), separation=batches)  # who takes part, and the coordinates
    clips = {"l2_clip": first.bound, "record_clip": float(record_clip)}
    mech, held = best_in_order(epsilon, first.setting, dim=first.coordinates, **clips, workload=workload)
    return Order(PrivateMean(**both, epsilon=epsilon, mechanism=mech, cancel=held, separation=batches), why)
