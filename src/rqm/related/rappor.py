"""RAPPOR: how many users have each value, from bits that each user flips once permanently and again per report."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import log, prod
from typing import Any, final

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.base import Option, option, options_of
from rqm.randomness import require

RAPPOR_UNITS = 2**40
"""Probabilities are multiples of 1/RAPPOR_UNITS, so that what is sampled is exactly what is accounted for."""

Bits = npt.NDArray[np.bool_]


@final
@dataclass(frozen=True)
class Rappor:
    """RAPPOR (Erlingsson, Pihur and Korolova 2014): counts of values by local differential privacy.

    Each user belongs to one of `cohorts`. A value sets `hashes` (h) of `bits` (k), different ones in each cohort.
    The permanent response keeps each bit with probability 1 − f and else replaces it by a fair coin. It is drawn once
    for a value. Each report draws an instantaneous response from it: a bit is 1 with probability `q` if it is set in
    the permanent response, else with probability `p`. One report of a value is `epsilon_one`-differentially
    private, any number of reports `epsilon_infinity`-differentially private. With k = h = 1, p = 0 and q = 1 it is
    `randomized-response` with two levels.

    >>> rappor = Rappor(bits=32, hashes=2, cohorts=8, f=0.5, p=0.5, q=0.75)
    >>> round(rappor.epsilon_infinity, 4), round(rappor.epsilon_one, 4), round(rappor.epsilon(10), 4)
    (4.3944, 1.0743, 4.2993)
    """

    kind = "rappor"

    bits: int = option(128, "k, the bits of a report.")
    hashes: int = option(2, "h, the bits that a value sets.")
    cohorts: int = option(64, "Groups of users, each with other hashes.")
    f: float = option(0.5, "The probability that a bit of the permanent response is a fair coin.")
    p: float = option(0.5, "The probability that a report sets a bit that the permanent response does not set.")
    q: float = option(0.75, "The probability that a report sets a bit that the permanent response sets.")

    def __post_init__(self) -> None:
        """Validate every parameter, and round probabilities to whole units."""
        whole("bits", self.bits, 1)
        whole("hashes", self.hashes, 1, self.bits)
        whole("cohorts", self.cohorts, 1)
        for name, low, high, closed in (("f", 0, 1, ""), ("p", 0, 1, "["), ("q", 0, 1, "]")):
            value = real(name, getattr(self, name), "between 0 and 1", low, high, closed=closed)
            units = round(value * RAPPOR_UNITS / 2) * 2
            if name == "f" and not 0 < units < RAPPOR_UNITS:
                raise ValueError(f"f = {value:g}: must round to a multiple of 2**-39 above 0 and below 1")
            object.__setattr__(self, name, units / RAPPOR_UNITS)
        if not self.q > self.p:
            raise ValueError(f"q = {self.q:g}: must be larger than p = {self.p:g}")

    @classmethod
    def options(cls) -> dict[str, Option]:
        """The options that the command line offers, by name."""
        return options_of(cls)

    # -- privacy ------------------------------------------------------------------------------

    @property
    def report_probabilities(self) -> tuple[float, float]:
        """The probabilities p*, q* that a bit of a report is 1 if the value does not set it, and if it does."""
        fair = self.f / 2 * (self.p + self.q)
        return fair + (1 - self.f) * self.p, fair + (1 - self.f) * self.q

    @property
    def epsilon_one(self) -> float:
        """ε of one report: two values differ in at most 2h bits."""
        return self.epsilon(1)

    @property
    def epsilon_infinity(self) -> float:
        """ε of any number of reports of one value: that of the permanent response."""
        return 2 * self.hashes * log((1 - self.f / 2) / (self.f / 2))

    def epsilon(self, reports: int, values: int = 1) -> float:
        """ε of several reports of each value of a user, exactly.

        Each new value draws a new permanent response and is charged again. ε compares users who change their values at
        the same times, always to a value that they never had. Whether and when a value changes is not hidden
        (see `epsilon_change`).

        Args:
            reports: Reports of each value.
            values: Values that a user has, one after the other.

        Returns:
            ε.
        """
        if not reports:
            return 0.0
        unset, set_ = self._count_log_pmfs(whole("reports", reports, 0))
        keep = log(1 - self.f / 2)
        flip = log(self.f / 2)
        losses = np.logaddexp(keep + set_, flip + unset) - np.logaddexp(flip + set_, keep + unset)
        losses = losses[np.isfinite(losses)]
        epsilon = self.hashes * float(losses.max() - losses.min())
        return whole("values", values, 1) * min(epsilon, self.epsilon_infinity)

    def epsilon_change(self, reports: int) -> float:
        """ε between a user who keeps a value and one who changes it, exactly. RAPPOR bounds it in no other way.

        Bits of the permanent response stay, or are drawn anew. So ε grows with the reports and with all bits, without a
        bound.

        Args:
            reports: Reports of each user before the change. There is the same number after it.

        Returns:
            ε.
        """
        unset, set_ = self._count_log_pmfs(whole("reports", reports, 0, 1000))
        flipped = log(self.f / 2)
        unflipped = log(1 - self.f / 2)
        with np.errstate(invalid="ignore"):

            def max_losses(sets_before: bool, sets_after: bool) -> tuple[float, float]:
                """The largest loss of a bit in each direction; the value sets the bit before and after, or not."""
                prior = (unflipped, flipped) if sets_before else (flipped, unflipped)  # of a permanent bit 1, and of 0
                new_prior = (unflipped, flipped) if sets_after else (flipped, unflipped)
                first = np.logaddexp(prior[0] + set_, prior[1] + unset)
                second = np.logaddexp(new_prior[0] + set_, new_prior[1] + unset)
                changed = first[:, None] + second[None]
                same = np.logaddexp(prior[0] + set_[:, None] + set_[None], prior[1] + unset[:, None] + unset[None])
                losses = (changed - same)[np.isfinite(changed)]  # infinite where `same` is impossible
                return float(losses.max()), float(-losses[np.isfinite(losses)].min())

            differing = min(self.hashes, self.bits - self.hashes)  # bits that one value sets and the other does not
            bits = [
                (differing, max_losses(True, False)),
                (differing, max_losses(False, True)),
                (self.hashes - differing, max_losses(True, True)),
                (self.bits - self.hashes - differing, max_losses(False, False)),
            ]
        return max(sum(count * losses[direction] for count, losses in bits if count) for direction in (0, 1))

    def recovered(self, reports: int) -> float:
        """The probability of guessing a fair bit of the permanent response right from its reports, from 1/2 to 1.

        These bits are permanent and differ between users. So where the probability is near 1, they identify a user.
        """
        return float(np.exp(np.maximum(*self._count_log_pmfs(whole("reports", reports, 0)))).sum() / 2)

    def _count_log_pmfs(self, reports: int) -> tuple[FloatArray, FloatArray]:
        """Log-pmfs of the number of reports that have a bit, if the permanent response does not set it, and if so."""
        from scipy.stats import binom  # noqa: PLC0415 (takes a second)

        counts = np.arange(reports + 1)
        unset, set_ = (binom.logpmf(counts, reports, chance) for chance in (self.p, self.q))
        return unset, set_

    # -- a user -------------------------------------------------------------------------------

    def bloom(self, value: str, cohort: int) -> Bits:
        """The bits that a value sets in a cohort, which are public.

        Args:
            value: The value.
            cohort: The cohort, from 0; it chooses the hashes.

        Returns:
            An array with `hashes` bits set.
        """
        bits = np.zeros(self.bits, dtype=bool)
        salt = whole("cohort", cohort, 0, self.cohorts - 1).to_bytes(8, "big")
        number = 0
        while bits.sum() < self.hashes:  # hashes may collide, and every value must set exactly h bits
            text = salt + number.to_bytes(8, "big") + value.encode()
            bits[int.from_bytes(blake2b(text, digest_size=8).digest(), "big") % self.bits] = True
            number += 1
        return bits

    def permanent(self, value: str, cohort: int, rng: object, *, users: int | None = None) -> Bits:
        """The permanent response, to be drawn once for a value and kept secret.

        Args:
            value: The value.
            cohort: The user's cohort.
            rng: A `SecureRandom` or a `SeededRandom`.
            users: Number of users with this value; None: one.

        Returns:
            The bits; of several users one row each.
        """
        shape = (self.bits,) if users is None else (users, self.bits)
        uniform = _uniform_units(shape, rng)
        half = int(self.f * RAPPOR_UNITS / 2)
        return np.where(uniform < half, True, np.where(uniform < 2 * half, False, self.bloom(value, cohort)))

    def report(self, permanent: Bits, rng: object) -> Bits:
        """One report of each permanent response: its instantaneous response.

        Args:
            permanent: The permanent responses, one row for each user.
            rng: A `SecureRandom` or a `SeededRandom`.

        Returns:
            The bits of the reports.
        """
        uniform = _uniform_units(np.shape(permanent), rng)
        return uniform < np.where(permanent, int(self.q * RAPPOR_UNITS), int(self.p * RAPPOR_UNITS))

    # -- the server ---------------------------------------------------------------------------

    def counts(self, sums: npt.ArrayLike, reports: npt.ArrayLike) -> FloatArray:
        """Unbiased counts of the users whose value sets each bit: (c − (p + fq/2 − fp/2) N) / ((1 − f)(q − p)).

        Args:
            sums: The number of reports with each bit (c), one row per cohort.
            reports: The number of reports of each cohort (N).

        Returns:
            The counts, one row per cohort.
        """
        low, _ = self.report_probabilities
        totals = np.asarray(reports, dtype=np.float64)[..., None]
        return (np.asarray(sums, dtype=np.float64) - low * totals) / ((1 - self.f) * (self.q - self.p))

    def variance(self, users: float, reports: float) -> float:
        """The variance of the unbiased count of one bit.

        Args:
            users: Number of users whose value sets the bit.
            reports: Number of users, with one report each.

        Returns:
            The variance, in users².
        """
        low, high = self.report_probabilities
        spread = users * high * (1 - high) + (reports - users) * low * (1 - low)
        return spread / ((1 - self.f) * (self.q - self.p)) ** 2

    def decode(self, sums: npt.ArrayLike, reports: npt.ArrayLike, candidates: Sequence[str]) -> dict[str, float]:
        """The number of users with each of some values, by non-negative least squares on the bits of all cohorts.

        Args:
            sums: The number of reports with each bit, one row per cohort.
            reports: The number of reports of each cohort.
            candidates: The values.

        Returns:
            The estimate for each value.

        Raises:
            ValueError: If shapes do not match, there are no reports, or there are no candidates.
        """
        from scipy.optimize import nnls  # noqa: PLC0415 (takes a second)

        totals = np.asarray(reports, dtype=np.float64)
        if np.shape(sums) != (self.cohorts, self.bits) or totals.shape != (self.cohorts,) or not totals.sum() > 0:
            raise ValueError(
                f"sums, reports: have the shapes {np.shape(sums)}, {totals.shape}: must be a row of {self.bits} bits, "
                f"and a number of reports, for each of {self.cohorts} cohorts"
            )
        if not candidates:
            raise ValueError("candidates: must be at least one value")
        fractions = totals / totals.sum()
        columns = [
            np.concatenate([fractions[cohort] * self.bloom(value, cohort) for cohort in range(self.cohorts)])
            for value in candidates
        ]
        estimates: Any = nnls(np.array(columns).T, self.counts(sums, totals).ravel())[0]
        return dict(zip(candidates, estimates.tolist(), strict=True))


def _uniform_units(shape: tuple[int, ...], rng: object) -> npt.NDArray[np.int64]:
    """Uniform integers below RAPPOR_UNITS."""
    return (require(rng).words(prod(shape)) >> np.uint64(24)).astype(np.int64).reshape(shape)
