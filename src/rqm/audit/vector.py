"""How much does the sum of whole vectors leak, measured? A lower confidence bound on ε, from samples.

Two vectors of one client differ in some coordinates, all others hold the same (``audit/attained.py`` tries several);
the rest of the coordinates tells nothing. The adversary knows the laws, and adds up how much each coordinate's sum
speaks for either vector. The client's own message comes from the encoder. So do all others' where that is affordable;
else their sums, which are the same for both vectors, are drawn from their exact law, rounded to 2⁻⁴⁰.

An event is chosen on the laws, before anything is drawn: that the sum speaks for one of the vectors by so much at
least. How often it is seen bounds P from below, its probability under that vector, and Q from above, under the other.
Where one coordinate differs, it is *counted* at δ itself: ε ≥ log((P − δ) / Q). Of many that cannot be: at δ = 10⁻⁶
hardly anything would be seen. But what is certified of many is that they are no easier to *tell apart* than N(0, 1) and
N(μ, 1): no event has Φ⁻¹(P) − Φ⁻¹(Q) > μ. So whatever event is looked at bounds μ from below, and of skewed laws one
far from the middle tells most; that is told as the ε of such a Gaussian at δ. It is measured in the claim's own
currency (as Nasr et al. 2023, "Tight auditing of differentially private machine learning"): it is an ε at δ only of
releases that are as Gaussian as the claim says.

The certificate says nothing of outcomes far out, of a probability ``lost`` of δ/1000 in all: what holds is that
P ≤ Φ(Φ⁻¹(Q) + μ) + lost. So bounds on probabilities are kept within δ and 1 − δ, where that moves μ by 0.001 at most.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtri

from rqm import kernels
from rqm._util.checks import FloatArray, real, whole
from rqm.audit.attained import Pair, pairs, thresholds
from rqm.audit.sampler import checked_confidence
from rqm.bounds import gaussian_epsilon
from rqm.kernels.integer_sampler import TABLE_BITS, IntegerSampler, grid_sampler
from rqm.mechanisms.channel import Channel
from rqm.randomness import SecureRandom, SeededRandom

EFFORT = 1_000_000_000
"""Messages, about, that are drawn in all."""
ROUNDS = 20_000
"""Draws of either vector, at least."""
ENOUGH = {"counted": 40_000_000, "told apart": 100_000}
"""Draws of either vector that are to be affordable before others' messages are drawn one by one."""
SAME = 1e-9
"""Events that differ by no more in what they are worth hold the same outcomes."""
AT_ONCE = 2**17
"""Coordinates that are drawn at a time: they stay in the cache."""

Source = SecureRandom | SeededRandom
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VectorAudit:
    """What is claimed of a whole release at δ, and what was measured with ``confidence``; one client's vector replaced.

    ``way`` is "counted" or "told apart", by so many ``rounds`` of each vector. ``coordinates`` of ``size`` clips were
    turned over, all others held ``others`` clips; ``encoded`` says whether their messages came from the encoder, too,
    or their sums from the law.
    """

    claimed: float
    measured: float
    delta: float
    confidence: float
    contradicted: bool
    way: str
    rounds: int
    coordinates: int
    size: float
    others: float
    clients: int
    encoded: bool

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def audit_vector(
    mech: Channel,
    claimed: float,
    *,
    clients: int,
    dim: int,
    l2_clip: float,
    delta: float,
    gaussian: bool = True,
    confidence: float = 0.99,
    effort: int = EFFORT,
    rng: Source | None = None,
) -> VectorAudit:
    """Measure ε of the sum over ``clients`` of vectors of ``dim`` coordinates within ``l2_clip``, as claimed at δ.

    ``gaussian``: what is claimed of a vector is by a Gaussian certificate (``Guarantee.accountant``). What is claimed
    in another way says nothing of μ, and is contradicted only by what is counted.

    >>> from rqm import PBM
    >>> found = audit_vector(PBM(theta=0.05), 4.5, clients=10, dim=64, l2_clip=2.0, delta=1e-5, effort=10**6)
    >>> found.way, found.coordinates, found.contradicted
    ('told apart', 4, False)
    """
    clients, dim = whole("clients", clients, 1), whole("dim", dim, 1)
    delta = real("delta", delta, "strictly between 0 and 1", 0, 1)
    confidence, rng, effort = checked_confidence(confidence), rng or SecureRandom(), whole("effort", effort, 100_000)
    error = 1 - confidence
    every = list(pairs(mech, clients, dim, l2_clip))
    most = max(2 * effort // ROUNDS, min(pair.count for pair in every))  # of many coordinates each takes its time
    tried = [
        _event(pair, way, high, *_affordable(pair.count, clients, way, effort), error, delta)
        for pair in every
        if pair.count <= most
        for way in _ways_of(pair, gaussian and dim > 1)
        for high in (True, False)
    ]
    event = max(tried, key=lambda one: one.expected)
    pair, rounds = event.pair, event.rounds
    draw = _Draw(mech, pair, clients, event.encoded, rng)
    bounds = _bounds(event.seen(draw, event.high), event.seen(draw, not event.high), rounds, error)
    measured = _epsilon(event.way, _worth(event.way, *bounds, delta), delta)
    return VectorAudit(
        claimed=claimed,
        measured=measured,
        delta=delta,
        confidence=confidence,
        contradicted=bool(measured > claimed),
        way=event.way,
        rounds=rounds,
        coordinates=pair.count,
        size=pair.size,
        others=pair.others,
        clients=clients,
        encoded=event.encoded,
    )


def _ways_of(pair: Pair, gaussian: bool) -> Iterator[str]:
    """Events are counted where one coordinate differs, or nothing is claimed of μ; else vectors are told apart, too."""
    if pair.count == 1 or not gaussian:
        yield "counted"
    if gaussian:
        yield "told apart"


def _affordable(count: int, clients: int, way: str, effort: int) -> tuple[int, bool]:
    """Rounds of one pair, and whether everybody's messages can come from the encoder."""
    encoded = 2 * clients * count * ENOUGH[way] * max(1, effort // EFFORT) <= effort  # by no more effort more of them
    return max(ROUNDS, effort // (2 * count * (clients if encoded else 2))), encoded


# -- drawing --------------------------------------------------------------------------------------


class _Draw:
    """Sums of coordinates for either vector, from the encoder."""

    def __init__(self, mech: Channel, pair: Pair, clients: int, encoded: bool, rng: Source) -> None:
        self.mech, self.pair, self.clients, self.rng = mech, pair, clients, rng
        self.crowd = None if encoded else _recipe(pair.crowd)

    def sums(self, high: bool, count: int) -> Ints:
        """So many sums, as places in the pair's laws."""
        mech, pair = self.mech, self.pair
        own = pair.size * mech.clip * (1 if high else -1)
        found: Ints = mech.encode(np.full(count, own), self.rng, threads=1).astype(np.int64)
        if self.crowd is not None:
            found += kernels.encode(self.crowd, np.full(count, -1.0), self.rng, 1)
        elif self.clients > 1:
            others = np.full((self.clients - 1, count), pair.others * mech.clip)
            found += mech.encode_sum(others, self.rng, threads=1)
            found -= pair.begin
        return found % len(pair.high) if mech.modular else found

    def chunks(self, rounds: int, each: int = 1) -> Iterator[int]:
        """Numbers of rounds that are drawn at a time."""
        people = self.clients if self.crowd is None else 1
        most = max(1, AT_ONCE // (each * people) if each * people < AT_ONCE else 1)
        for start in range(0, rounds, most):
            yield min(most, rounds - start)


def _recipe(law: FloatArray) -> IntegerSampler:
    """A sampler of one law, in units of 2**−TABLE_BITS: what is drawn at -1 is its first row."""
    units = np.rint(law / law.sum() * 2.0**TABLE_BITS).astype(np.int64)
    units[np.argmax(units)] += 2**TABLE_BITS - int(units.sum())
    return grid_sampler(1.0, Fraction(1), 2, np.stack([units, units]), modulus=len(units))


# -- an event, and what it tells --------------------------------------------------------------------


@dataclass(frozen=True)
class _Event:
    """That a sum speaks for the ``high`` vector, or for the other, by ``least`` or more; and what it may well tell."""

    pair: Pair
    way: str
    high: bool
    rounds: int
    encoded: bool
    least: float
    expected: float

    def seen(self, draw: _Draw, high: bool) -> int:
        """How often it comes in all rounds of one vector."""
        losses, count = self.pair.losses() * (1 if self.high else -1), self.pair.count
        found = 0
        for size in draw.chunks(self.rounds, count):
            told = losses[draw.sums(high, size * count)].reshape(size, count).sum(axis=1)
            found += int((told >= self.least).sum())
        return found


def _event(pair: Pair, way: str, high: bool, rounds: int, encoded: bool, error: float, delta: float) -> _Event:
    """The one that is expected to tell most, of those for one of the vectors.

    Told apart, those for the other vector are their complements, and worth the same; but each side keeps its digits.
    """
    laws = (pair.high, pair.low) if high else (pair.low, pair.high)
    least, gained, paid = thresholds(*laws, pair.count)
    worth = _worth(way, _about(gained, rounds, ndtri(error / 2)), _about(paid, rounds, -ndtri(error / 2)), delta)
    best = _middle(worth)
    return _Event(pair, way, high, rounds, encoded, float(least[best]), _epsilon(way, worth[best], delta))


def _middle(worth: FloatArray) -> int:
    """In the middle of the first stretch of what is worth most.

    Sums of few losses lie apart, and between two of them all thresholds are the same event; near to either one it might
    fall out, or another in, since these losses are not rounded.
    """
    best = worth >= worth.max() - SAME
    first = int(np.argmax(best))
    return first + int(np.argmin(np.append(best[first:], False))) // 2


def _about(chances: FloatArray, rounds: int, z: float) -> FloatArray:
    """About the bound, ``z`` deviations away, that so many rounds will give of each probability (Wilson 1927)."""
    chances, square = np.clip(chances, 0, 1), z * z / rounds
    spread = np.sqrt(chances * (1 - chances) / rounds + square / rounds / 4)
    return np.asarray(np.clip((chances + square / 2 + z * spread) / (1 + square), 0, 1))


def _bounds(gained: int, paid: int, rounds: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Clopper and Pearson's, with half of the error each: P at least, and Q at most."""
    low = stats.beta.ppf(error / 2, gained, rounds - gained + 1) if gained else 0.0
    above = stats.beta.ppf(1 - error / 2, paid + 1, rounds - paid) if paid < rounds else 1.0
    return np.asarray(low), np.asarray(above)


def _worth(way: str, low: FloatArray, above: FloatArray, delta: float) -> FloatArray:
    """An ε, or a μ, that events of such bounds show."""
    if way == "counted":
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(low - delta, 0)) - np.log(above))
    return np.asarray(ndtri(np.minimum(low, 1 - delta)) - ndtri(np.maximum(above, delta)))


def _epsilon(way: str, worth: FloatArray, delta: float) -> float:
    """What an event is worth as an ε at δ."""
    found = max(0.0, float(worth))
    return found if way == "counted" else gaussian_epsilon(found, delta)
