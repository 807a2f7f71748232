"""RAPPOR: what values users have, counted from bits that each has flipped once for all, and again every time."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log, prod
from typing import Any, ClassVar, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.base import Option, option, options_of
from rqm.randomness import require

UNITS = 2**40
"""Probabilities are whole numbers of so many units: what is drawn is what is accounted for."""

Bits = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True)
class Rappor:
    """RAPPOR (Erlingsson, Pihur and Korolova 2014): counts of values, not means of vectors; private by itself.

    A value sets ``hashes`` (h) different ones of ``bits`` (k), others in each of ``cohorts``, one of which every
    user has. The permanent response keeps a bit with probability 1 − f, and else is fair; it is drawn once for a
    value, and kept. Of it the instantaneous response is drawn anew for every report: 1 with probability ``q`` where
    its bit is set, and ``p`` where not. Any number of reports of one value is ``epsilon_infinity``-differentially
    private, one ``epsilon_one``. (With k = h = 1 and p = 0, q = 1 it is the one bit of ``randomized-response``.)

    >>> rappor = Rappor(bits=32, hashes=2, cohorts=8, f=0.5, p=0.5, q=0.75)
    >>> round(rappor.epsilon_infinity, 4), round(rappor.epsilon_one, 4), round(rappor.epsilon(10), 4)
    (4.3944, 1.0743, 4.2993)
    """

    kind: ClassVar[str] = "rappor"

    bits: int = option(128, "k, the bits of a report.")
    hashes: int = option(2, "h, the bits that a value sets.")
    cohorts: int = option(64, "Groups of users, each of which has hashes of its own.")
    f: float = option(0.5, "The chance that a bit of the permanent response is a fair coin.")
    p: float = option(0.5, "The chance that a bit of a report is set where that of the permanent response is not.")
    q: float = option(0.75, "The same where it is.")

    def __post_init__(self) -> None:
        """Validate every parameter, and take probabilities to whole units."""
        whole("bits", self.bits, 1)
        whole("hashes", self.hashes, 1, self.bits)
        whole("cohorts", self.cohorts, 1)
        for name, low, high, closed in (("f", 0, 1, ""), ("p", 0, 1, "["), ("q", 0, 1, "]")):
            value = real(name, getattr(self, name), "between 0 and 1", low, high, closed=closed)
            units = round(value * UNITS / 2) * 2
            if not (name != "f" or 0 < units < UNITS):
                raise ValueError(f"f = {value:g}: must be a whole number of 2**39ths, from 1 of them on, below 1")
            object.__setattr__(self, name, units / UNITS)
        if not self.q > self.p:
            raise ValueError(f"q = {self.q:g}: must be larger than p = {self.p:g}")

    @classmethod
    def options(cls) -> dict[str, Option]:
        """What a command line offers."""
        return options_of(cls)

    # -- what it tells ------------------------------------------------------------------------

    @property
    def told(self) -> tuple[float, float]:
        """The probabilities p*, q* that a bit of a report is 1, where a value does not set it, and where it does."""
        fair = self.f / 2 * (self.p + self.q)
        return fair + (1 - self.f) * self.p, fair + (1 - self.f) * self.q

    @property
    def epsilon_one(self) -> float:
        """ε of one report, pure: two values differ in 2h bits."""
        return self.epsilon(1)

    @property
    def epsilon_infinity(self) -> float:
        """ε of all reports of one value, however many: that of the permanent response."""
        return 2 * self.hashes * log((1 - self.f / 2) / (self.f / 2))

    def epsilon(self, reports: int, values: int = 1) -> float:
        """ε of so many reports, exactly, of each of so many values that a user has had one after the other.

        What is kept is kept for a value: who changes it draws another permanent response, and pays again. It holds
        between users who change their values at the same times, each time to one that they never had before: that
        a value was changed, and when, is not hidden (``epsilon_change``).
        """
        if not reports:
            return 0.0
        at_p, at_q = (_counted(whole("reports", reports, 0), chance) for chance in (self.p, self.q))
        with np.errstate(divide="ignore"):
            keep, turn = np.log(1 - self.f / 2), np.log(self.f / 2)
        apart = np.logaddexp(keep + at_q, turn + at_p) - np.logaddexp(turn + at_q, keep + at_p)
        there = np.isfinite(apart)
        found = self.hashes * float(apart[there].max() - apart[there].min())
        return whole("values", values, 1) * min(found, self.epsilon_infinity)

    def epsilon_change(self, reports: int) -> float:
        """ε, exactly, between one who keeps a value and one who changes it, each with so many reports before and after.

        Bits of the permanent response stay as they were, or are drawn anew: this grows with the reports and with all of
        the bits, without a bound. For one who changes, RAPPOR promises nothing else.
        """
        at = [_counted(whole("reports", reports, 0, 1000), chance) for chance in (self.q, self.p)]
        with np.errstate(divide="ignore", invalid="ignore"):
            keep = np.log([[self.f / 2, 1 - self.f / 2], [1 - self.f / 2, self.f / 2]])  # where it is not set, and is

            def one(bit: bool) -> FloatArray:
                found: FloatArray = np.logaddexp(keep[int(bit), 0] + at[0], keep[int(bit), 1] + at[1])
                return found

            def most(before: bool, after: bool) -> tuple[float, float]:
                apart = one(before)[:, None] + one(after)[None]
                same = np.logaddexp(*(keep[int(before), k] + at[k][:, None] + at[k][None] for k in (0, 1)))
                ratio = (apart - same)[np.isfinite(apart)]  # of drawn anew over kept, which may be infinite
                return float(ratio.max()), float(-ratio[np.isfinite(ratio)].min())

            own = min(self.hashes, self.bits - self.hashes)  # bits that one value sets and another does not
            each = [(own, most(True, False)), (own, most(False, True)), (self.hashes - own, most(True, True))]
            each.append((self.bits - self.hashes - own, most(False, False)))
        return max(sum(bits * found[way] for bits, found in each if bits) for way in (0, 1))

    def recovered(self, reports: int) -> float:
        """How often a bit of the permanent response is guessed right from so many reports: what memory leaks.

        A fair bit, guessed at best: from one half to 1. Those bits are kept for good, and different for every user:
        where this is near to 1, they are a name.
        """
        at_p, at_q = (_counted(whole("reports", reports, 0), chance) for chance in (self.p, self.q))
        return float(np.exp(np.maximum(at_p, at_q)).sum() / 2)

    # -- a user -------------------------------------------------------------------------------

    def bloom(self, value: str, cohort: int) -> Bits:
        """The bits that a value sets in a cohort: public."""
        found, salt = np.zeros(self.bits, dtype=bool), whole("cohort", cohort, 0, self.cohorts - 1).to_bytes(8, "big")
        number = 0
        while found.sum() < self.hashes:  # h different ones, or two values could differ in more bits than 2h
            text = salt + number.to_bytes(8, "big") + value.encode()
            found[int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % self.bits] = True
            number += 1
        return found

    def permanent(self, value: str, cohort: int, rng: object, *, users: int | None = None) -> Bits:
        """The permanent response: to be drawn once for a value, and kept a secret. Of many ``users`` a row each."""
        shape = (self.bits,) if users is None else (users, self.bits)
        drawn, half = self._units(shape, rng), int(self.f * UNITS / 2)
        return np.where(drawn < half, True, np.where(drawn < 2 * half, False, self.bloom(value, cohort)))

    def report(self, permanent: Bits, rng: object) -> Bits:
        """One report: the instantaneous response to what is kept; of many users, one of each."""
        drawn = self._units(np.shape(permanent), rng)
        return drawn < np.where(permanent, int(self.q * UNITS), int(self.p * UNITS))

    @staticmethod
    def _units(shape: tuple[int, ...], rng: object) -> npt.NDArray[np.int64]:
        return (require(rng).words(prod(shape)) >> np.uint64(24)).astype(np.int64).reshape(shape)

    # -- the server ---------------------------------------------------------------------------

    def counts(self, sums: npt.ArrayLike, reports: npt.ArrayLike) -> FloatArray:
        """How many users have set each bit, unbiased, from how many of a cohort's ``reports`` (N) have it.

        (c − (p + fq/2 − fp/2) N) / ((1 − f)(q − p)); ``sums`` have one row a cohort.
        """
        low, _ = self.told
        sums, many = np.asarray(sums, dtype=np.float64), np.asarray(reports, dtype=np.float64)
        return np.asarray((sums - low * many[..., None]) / ((1 - self.f) * (self.q - self.p)))

    def variance(self, users: float, reports: float) -> float:
        """The variance of such a count, where so many of ``reports`` users have set the bit."""
        low, high = self.told
        spread = users * high * (1 - high) + (reports - users) * low * (1 - low)
        return spread / ((1 - self.f) * (self.q - self.p)) ** 2

    def decode(self, sums: npt.ArrayLike, reports: npt.ArrayLike, candidates: Sequence[str]) -> dict[str, float]:
        """How many users have each of some values: least squares that are not negative, on the bits of all cohorts."""
        from scipy.optimize import nnls  # noqa: PLC0415 (a second, which nobody else waits)

        many = np.asarray(reports, dtype=np.float64)
        if np.shape(sums) != (self.cohorts, self.bits) or many.shape != (self.cohorts,) or not many.sum() > 0:
            raise ValueError(
                f"sums, reports: have the shapes {np.shape(sums)}, {many.shape}: must be a row of {self.bits} bits, "
                f"and a number of reports, for each of {self.cohorts} cohorts"
            )
        if not candidates:
            raise ValueError("candidates: must be at least one value")
        share = many / many.sum()
        columns = [
            np.concatenate([share[cohort] * self.bloom(one, cohort) for cohort in range(self.cohorts)])
            for one in candidates
        ]
        found: Any = nnls(np.array(columns).T, self.counts(sums, many).ravel())[0]
        return dict(zip(candidates, found.tolist(), strict=True))


def _counted(reports: int, chance: float) -> FloatArray:
    """The logarithm of the law of how many of so many reports have a bit set."""
    from scipy.stats import binom  # noqa: PLC0415 (a second, which nobody else waits)

    return np.asarray(binom.logpmf(np.arange(reports + 1), reports, chance))
