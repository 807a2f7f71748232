"""What one release is, and who takes part: what a ledger's first line promises."""

from math import exp, lgamma, sqrt
from typing import Any, NamedTuple

from .chain import shown
from .laws import Unsure

UNLUCKY, RARE = 0.1, 1e-3
"""The parts of δ that pay for samples with fewer honest clients than the floor, or than the fewest of a mixture."""
MANY = 10**8
"""Populations beyond it are not computed with."""
ALIKE = 1.02
"""Numbers of honest clients within this of each other count as the least of them."""


class Promise(NamedTuple):
    """What one release is, and who takes part."""

    mechanism: dict[str, Any]
    dim: int
    clients: int
    delta: float
    l2_clip: float | None
    rotate: bool
    population: int | None
    participations: int | None
    honest: int | float | None
    survivors: int | None
    zero_out: bool
    uniform: bool
    cancel: float | None = None
    left: float = 0.0
    times: int = 1
    separation: int | None = None
    few: int | None = None

    @property
    def coordinates(self) -> int:
        """Integers that a client sends: all, or few of a vector, padded to a power of two if it is rotated."""
        return self._all if self.few is None else self.few

    @property
    def _all(self) -> int:
        return 1 << (self.dim - 1).bit_length() if self.rotate else self.dim

    @property
    def longest(self) -> float:
        """How long what is sent may be, in units of the L2 clip: of few coordinates the second clip says so."""
        return 1 if self.few is None else 1 + 3 / sqrt(2 * self.few)

    @property
    def attained(self) -> float:
        """How much of that a vector within the L2 clip can reach, which has nothing but what is chosen."""
        return min(1.0, sqrt(self._all / self.coordinates) / self.longest)

    @property
    def budget(self) -> float:
        """(C/c)²: the sum of squares of a vector's coordinates, in units of the clip, at most."""
        most = float(self.coordinates)
        return most if self.l2_clip is None else min(most, (self.l2_clip * self.longest / self.mechanism["clip"]) ** 2)

    @property
    def _gone(self) -> int:
        return 0 if self.survivors is None else self.clients - self.survivors

    def floor(self, releases: int) -> tuple[int, float]:
        """Honest clients whose noise is in each of so many sums, the user's included, and the δ that is left."""
        if not isinstance(self.honest, float):
            return max(1, (self.clients if self.honest is None else self.honest) - self._gone), self.delta
        few, _ = _from(self._chances(), UNLUCKY * self.delta / releases)
        return max(1, 1 + few - self._gone), (1 - UNLUCKY) * self.delta

    def crowds(self, releases: int) -> tuple[list[tuple[float, int]], float]:
        """How likely a release holds so many honest clients at least, and the δ that is left of so many releases.

        Numbers that hardly differ are taken together. Nobody's input changes them, so the adversary may know them.
        """
        if not isinstance(self.honest, float):
            return [(1.0, self.floor(releases)[0])], self.delta
        few, chances = _from(self._chances(), RARE * self.delta / releases)
        found: list[tuple[float, int]] = []
        for others, chance in enumerate(chances, start=few):
            honest = max(1, 1 + others - self._gone)
            if found and honest <= ALIKE * found[-1][1]:
                found[-1] = found[-1][0] + chance, found[-1][1]
            else:
                found.append((chance, honest))
        return found, (1 - RARE) * self.delta

    def _chances(self) -> tuple[int, list[float]]:
        """The fewest honest others in a random sample, and the chances of so many, of one more, …; rounded up."""
        if not self.uniform or self.population is None or self.population > MANY or self.clients > MANY / 100:
            raise Unsure(f"honest = {self.honest}: a fraction needs clients who are drawn at random from a population")
        assert isinstance(self.honest, float)
        good = max(1, int(self.honest * self.population)) - 1  # others: the user himself is honest, and there
        bad, drawn = self.population - 1 - good, self.clients - 1
        whole, least = _choose(good + bad, drawn), max(0, drawn - bad)
        every = range(least, min(drawn, good) + 1)
        return least, [exp(_choose(good, h) + _choose(bad, drawn - h) - whole) * (1 + 1e-4) for h in every]


def _choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _from(chances: tuple[int, list[float]], rare: float) -> tuple[int, list[float]]:
    """The same from the most h on such that fewer than h have that chance at most."""
    (least, each), below = chances, 0.0
    for index, chance in enumerate(each):
        below += chance
        if below > rare:
            return least + index, each[index:]
    return least + len(each) - 1, each[-1:]


def whole(values: dict[str, Any], name: str, most: int | None, *, none: bool = False) -> Any:
    """A value that must be a whole number from 1 to so many; or none, if that is allowed."""
    value = values[name]
    if (value is None and not none) or (
        value is not None and (type(value) is not int or not 1 <= value <= (most or 1))
    ):
        raise Unsure(f"{name} = {shown(value)}: must be a whole number from 1 to {most}")
    return value


def real(values: dict[str, Any], name: str, most: float) -> None:
    """A value that must be a number above 0, and at most so much."""
    value = values[name]
    if type(value) not in (int, float) or not 0 < value <= most or not value >= 1e-300:
        raise Unsure(f"{name} = {shown(value)}: must be a number above 0, and at most {most:g}")
