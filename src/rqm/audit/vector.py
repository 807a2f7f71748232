"""How much does the sum of whole vectors leak, measured? A lower confidence bound on ε, from samples.

Two vectors of one client differ in some coordinates, all others hold the same (``privacy/attained.py`` tries several);
the rest of the coordinates tells nothing. The adversary knows the laws, and adds up how much each coordinate's sum
speaks for either vector. The client's own message comes from the encoder. So do all others' where that is affordable;
else their sums, which are the same for both vectors, are drawn from their exact law, rounded to 2⁻⁴⁰.

Where one coordinate differs, an event is *counted* at δ itself: ε ≥ log((P − δ) / Q). Of many that cannot be: at
δ = 10⁻⁶ hardly anything would be seen. But what is certified of many is that they are no easier to tell than N(0, 1)
and N(μ, 1), and of such a pair nobody *guesses* more than Φ(μ/2) right. So the vector is drawn by a fair coin, the
adversary guesses it, and how often he is right bounds μ from below; that is told as the ε of such a Gaussian at δ. It
is measured in the claim's own currency (as Nasr et al. 2023, "Tight auditing of differentially private machine
learning"): it is an ε at δ only of releases that are as Gaussian as the claim says.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from math import inf, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.special import ndtri

from rqm import kernels
from rqm._util.checks import FloatArray, real, whole
from rqm.audit.sampler import checked_confidence
from rqm.kernels.recipe import TABLE_BITS, Recipe, on_grid
from rqm.mechanisms.channel import Channel
from rqm.privacy.attained import Pair, pairs, tails
from rqm.privacy.gaussian import gaussian_epsilon
from rqm.randomness import SecureRandom, SeededRandom

EFFORT = 1_000_000_000
"""Messages, about, that are drawn in all."""
ROUNDS = 20_000, 4_000_000
"""Guesses, at least and at most."""
COUNTED = 40_000_000
"""Draws of either vector, at least, in which events are to be counted, before others' messages are drawn one by one."""
AT_ONCE = 2**17
"""Coordinates that are drawn at a time: they stay in the cache."""

Source = SecureRandom | SeededRandom
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class VectorAudit:
    """What is claimed of a whole release at δ, and what was measured with ``confidence``; one client's vector replaced.

    ``way`` is "counted" or "guessed", by so many ``rounds`` (of each vector; of both together). ``coordinates`` of
    ``size`` clips were turned over, all others held ``others`` clips; ``encoded`` says whether their messages came from
    the encoder, too, or their sums from the law.
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
    confidence: float = 0.99,
    effort: int = EFFORT,
    rng: Source | None = None,
) -> VectorAudit:
    """Measure ε of the sum over ``clients`` of vectors of ``dim`` coordinates within ``l2_clip``, as claimed at δ.

    >>> from rqm import PBM
    >>> found = audit_vector(PBM(theta=0.05), 4.5, clients=10, dim=64, l2_clip=2.0, delta=1e-5, effort=10**6)
    >>> found.way, found.coordinates, found.contradicted
    ('guessed', 16, False)
    """
    clients, dim = whole("clients", clients, 1), whole("dim", dim, 1)
    delta = real("delta", delta, "strictly between 0 and 1", 0, 1)
    confidence, rng, effort = checked_confidence(confidence), rng or SecureRandom(), whole("effort", effort, 100_000)
    error, tried = 1 - confidence, []
    every = list(pairs(mech, clients, dim, l2_clip))
    most = max(2 * effort // ROUNDS[0], min(pair.count for pair in every))  # of many coordinates each takes its time
    for pair in (pair for pair in every if pair.count <= most):
        for way in _ways_of(pair, dim):
            rounds, encoded = _affordable(pair.count, clients, way, effort)
            expected = (
                _accuracy(pair, rounds, error, delta)
                if way == "guessed"
                else _expected(pair, way, rounds, error, delta)
            )
            tried.append((expected, way, rounds, encoded, pair))
    _, way, rounds, encoded, pair = max(tried, key=lambda one: one[0])
    draw = _Draw(mech, pair, clients, encoded, rng)
    measured = _guessed(draw, rounds, error, delta) if way == "guessed" else _counted(draw, way, rounds, error, delta)
    return VectorAudit(
        claimed=claimed,
        measured=measured,
        delta=delta,
        confidence=confidence,
        contradicted=bool(measured > claimed),
        way=way.split()[0],
        rounds=rounds,
        coordinates=pair.count,
        size=pair.size,
        others=pair.others,
        clients=clients,
        encoded=encoded,
    )


def _ways_of(pair: Pair, dim: int) -> Iterator[str]:
    """Events of one coordinate that differs are counted, in either direction; of a vector it may also be guessed."""
    if pair.count == 1:
        yield from ("counted", "counted the other way")
    if dim > 1:
        yield "guessed"


def _affordable(count: int, clients: int, way: str, effort: int) -> tuple[int, bool]:
    """Rounds of one pair, and whether everybody's messages can come from the encoder."""
    if way != "guessed":
        encoded = 2 * clients * COUNTED <= effort
        return effort // (2 * (clients if encoded else 2)), encoded
    encoded = clients * count * ROUNDS[0] <= effort
    return int(np.clip(effort // (count * (clients if encoded else 2)), *ROUNDS)), encoded


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


def _recipe(law: FloatArray) -> Recipe:
    """A sampler of one law, in units of 2**−TABLE_BITS: what is drawn at -1 is its first row."""
    units = np.rint(law / law.sum() * 2.0**TABLE_BITS).astype(np.int64)
    units[np.argmax(units)] += 2**TABLE_BITS - int(units.sum())
    return on_grid(1.0, Fraction(1), 2, np.stack([units, units]), rows=True, modulus=len(units))


# -- counting one coordinate's events at δ ----------------------------------------------------------


def _expected(pair: Pair, way: str, rounds: int, error: float, delta: float) -> float:
    """The bound that the best event can be expected to give."""
    p, q = (pair.high, pair.low) if way == "counted" else (pair.low, pair.high)
    return float(_abouts(*tails(p, q, 1), rounds, error, delta).max())


def _abouts(gained: FloatArray, paid: FloatArray, rounds: int, error: float, delta: float) -> FloatArray:
    """About the bounds that some events will give, by their probabilities under either law."""
    z = -float(ndtri(error / 2))
    with np.errstate(divide="ignore", invalid="ignore"):
        low = gained - z * np.sqrt(gained / rounds) - delta
        high = paid + z * np.sqrt(paid / rounds) + z * z / rounds
        return np.where(low > 0, np.log(np.maximum(low, 1e-300)) - np.log(high), -inf)


def _counted(draw: _Draw, way: str, rounds: int, error: float, delta: float) -> float:
    """log((P − δ)/Q) at least, of an event chosen on the laws: Clopper and Pearson's bounds, half of the error each."""
    pair, flipped = draw.pair, way != "counted"
    p, q = (pair.low, pair.high) if flipped else (pair.high, pair.low)
    losses = pair.losses() * (-1 if flipped else 1)
    best = int(np.argmax(_abouts(*tails(p, q, 1), rounds, error, delta)))
    event = np.zeros(len(losses), dtype=bool)
    event[np.argsort(np.where((p > 0) & (q > 0), -losses, inf), kind="stable")[: best + 1]] = True

    def hits(high: bool) -> int:
        return sum(int(event[draw.sums(high, size)].sum()) for size in draw.chunks(rounds))

    mine, others = hits(not flipped), hits(flipped)
    low = stats.beta.ppf(error / 2, mine, rounds - mine + 1) if mine else 0.0
    above = stats.beta.ppf(1 - error / 2, others + 1, rounds - others) if others < rounds else 1.0
    return max(0.0, log((low - delta) / above)) if low > delta else 0.0


# -- guessing which of two vectors it was ---------------------------------------------------------


def _accuracy(pair: Pair, rounds: int, error: float, delta: float) -> float:
    """The bound that so many guesses can be expected to give."""
    gained, paid = tails(pair.high, pair.low, pair.count)
    right = min(1.0, 0.5 + float((gained - paid).max()) / 2)
    return _told(right + float(ndtri(error)) * sqrt(right * (1 - right) / rounds), delta)


def _told(right: float, delta: float) -> float:
    """ε at δ of a Gaussian of which so many guesses are right."""
    return gaussian_epsilon(float(2 * ndtri(min(right, 1 - 1e-12))), delta) if right > 0.5 else 0.0


def _guessed(draw: _Draw, rounds: int, error: float, delta: float) -> float:
    """ε by how many guesses were right: which vector it was, a fair coin says. Clopper and Pearson's bound."""
    coins = np.unpackbits(draw.rng.words(-(-rounds // 64)).view(np.uint8))[:rounds]
    losses, count, right = draw.pair.losses(), draw.pair.count, 0
    for high, times in ((True, int(coins.sum())), (False, rounds - int(coins.sum()))):
        for size in draw.chunks(times, count):
            told = losses[draw.sums(high, size * count)].reshape(size, count).sum(axis=1)
            right += int(((told >= 0) == high).sum())
    return _told(float(stats.beta.ppf(error, right, rounds - right + 1)), delta)
