"""Rényi divergences of a vector under an L2 budget, of laws that are affine cell by cell: where ε is large.

If D_α ≤ K (x² + y²) for all inputs x and y of one coordinate, in clips, and all inputs of the others, it is at most 2KS
for vectors whose squares sum to S each. The least K is looked for in boxes of inputs: D_α is certified at corners, and
exp((α−1) D_α) is jointly convex, hence below what is interpolated. Near zero both inputs lie in one cell, where D_α is
at most α/2 · I · (x − y)², I the largest variance of a score there, if α ≤ 2 (``docs/proofs/inner.md``).
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf

import numpy as np

from rqm._util import cache
from rqm._util.checks import FloatArray
from rqm.mechanisms.channel import Channel, Law
from rqm.privacy.certificate import Asked, needed_tail, outward
from rqm.privacy.composition import LOW
from rqm.privacy.counts import pair_bounds
from rqm.privacy.divergence import Sum, all_pairs, pair_divergences, unlike_pairs
from rqm.privacy.tiers import measured_tiers

WITHIN = 8
"""Parts of a side of a box, in each of which the smallest square is taken."""
CLOSE = 1.002
"""A box is cut in four as long as its bound is above this times the largest that is certified at a corner."""
CUTS = 7
"""How often."""
NOTHING = 1e-9
"""A knot this near to zero, in clips, is at zero."""
SLACK = 1 + 1e-9
"""Far more than the rounding errors of interpolation."""

Box = tuple[float, float, float, float]


def budget_rdp(mech: Channel, orders: Sequence[float], *, honest: int, squared: float, law: Law) -> FloatArray:
    """Certified D_α of two vectors whose squares, in clips, sum to ``squared`` together; infinite if none is known."""
    return np.array([squared * _rate(mech, float(alpha), honest, law) for alpha in orders])


@lru_cache(maxsize=256)
def _rate(mech: Channel, alpha: float, honest: int, law: Law) -> float:
    """The least K that was found for which D_α ≤ K (x² + y²)."""
    zero = float(np.abs(mech.knots).min()) < NOTHING * mech.clip  # then inputs near zero are in two cells
    if not 1 < alpha <= LOW or honest < 2 or zero or mech.exposed or len(mech.knots) < 3:
        return inf
    asked = [mech.to_dict(), alpha, honest, law]
    held = cache.read("budget", asked)
    if held is None:
        held = _Boxes(mech, alpha, honest, law).rate()
        cache.write("budget", asked, held)
    return float(held)


class _Boxes:
    """Boxes of inputs of one coordinate, and what is certified at their corners."""

    def __init__(self, mech: Channel, alpha: float, honest: int, law: Law) -> None:
        self.knots, self.logs = mech.knots / mech.clip, mech.knot_laws(law)
        self.laws = [Sum.of(row) for row in self.logs]
        self.alpha, self.count = alpha, honest - 1
        self.orders = np.unique([alpha, LOW])
        unlike = unlike_pairs(self.logs)
        self.alone = pair_divergences(Sum.nothing(), self.laws, unlike, self.orders).max(axis=0)
        tier = next(
            one
            for one in measured_tiers(len(self.logs), self.logs.shape[1], self.count, tails=False)
            if one.groups == 2
        )
        ways = Asked(tier, self.logs, self.laws, self.logs, self.count, all_pairs(len(self.logs)))
        self.ways, self.block = ways.each_way(), tier.block
        self.known: dict[tuple[float, float], FloatArray] = {}

    def rate(self) -> float:
        """K, the largest over all boxes."""
        cells = list(zip(self.knots[:-1].tolist(), self.knots[1:].tolist(), strict=True))
        self._certify({(a, b) for a, b in cells} | {(b, a) for a, b in cells})
        found = max(self._same(a, b) for a, b in cells)
        boxes: list[Box] = [(*x, *y) for x in cells for y in cells if x != y]
        for cut in range(CUTS + 1):
            self._certify({(x, y) for box in boxes for x in box[:2] for y in box[2:] if x != y})
            corner = max(self._at(*pair)[0] / (pair[0] ** 2 + pair[1] ** 2) for pair in self.known)
            bounds = np.array([self._bound(box) for box in boxes])
            last = cut == CUTS
            done = bounds <= max(corner * CLOSE, found)
            found = max(found, float(bounds[done | last].max(initial=0.0)))
            boxes = [part for box, one in zip(boxes, done, strict=True) if not one for part in _quarters(box)]
            if not boxes:
                break
        return found * SLACK

    def _at(self, x: float, y: float) -> FloatArray:
        """D_α, and D₂, of two inputs."""
        return self.known[x, y] if x != y else np.zeros(len(self.orders))

    def _same(self, a: float, b: float) -> float:
        """K of two inputs in one cell: its ends are told apart by χ² = w² times the variance of a score at one."""
        variance = float(np.expm1(max(self._at(a, b)[-1], self._at(b, a)[-1]))) / (b - a) ** 2
        furthest = 1.0 if a < 0 < b else min(1.0, (b - a) ** 2 / (2 * min(a * a, b * b)) / 2)
        return self.alpha * variance * furthest

    def _bound(self, box: Box) -> float:
        """K of a box, by what is interpolated between its corners, in parts."""
        a, b, c, d = box
        corners = np.array([[self._at(x, y)[0] for y in (c, d)] for x in (a, b)])
        part = np.linspace(0, 1, WITHIN + 1)
        weights = np.stack([1 - part, part])
        value = np.log1p(weights.T @ np.expm1((self.alpha - 1) * corners) @ weights) / (self.alpha - 1)
        highest = np.maximum.reduce([value[:-1, :-1], value[1:, :-1], value[:-1, 1:], value[1:, 1:]])
        least = [np.minimum(side[:-1] ** 2, side[1:] ** 2) for side in (a + (b - a) * part, c + (d - c) * part)]
        least = [
            np.where((side[:-1] < 0) & (side[1:] > 0), 0.0, low)
            for side, low in zip((a + (b - a) * part, c + (d - c) * part), least, strict=True)
        ]
        with np.errstate(divide="ignore"):
            return float((highest / (least[0][:, None] + least[1][None])).max())

    def _certify(self, pairs: set[tuple[float, float]]) -> None:
        """Work out what is certified for some pairs of inputs."""
        new = sorted(pairs - set(self.known))
        if not new:
            return
        inputs = sorted({x for pair in new for x in pair})
        logs = np.array([self._law(x) for x in inputs])
        places = np.searchsorted(inputs, np.array(new))
        tail = min(map(needed_tail, self.orders, self.alone))
        laws, found = [Sum.of(row) for row in logs], np.zeros((len(new), len(self.orders)))
        for groups, _, steps, _, ones in self.ways:
            bounds = pair_bounds(
                groups,
                steps,
                ones,
                block=self.block,
                laws=laws,
                pairs=places,
                orders=self.orders,
                alone=self.alone,
                log_tail=tail,
            )
            found = np.maximum(found, bounds)
        self.known |= zip(new, outward(found, self.orders, logs, self.logs, self.count), strict=True)

    def _law(self, x: float) -> FloatArray:
        """The law at an input, between those of the knots around it."""
        cell = min(int(np.searchsorted(self.knots, x, side="right")) - 1, len(self.knots) - 2)
        part = (x - self.knots[cell]) / (self.knots[cell + 1] - self.knots[cell])
        with np.errstate(divide="ignore"):
            low, high = np.log1p(-part), np.log(part)
        return np.asarray(np.logaddexp(low + self.logs[cell], high + self.logs[cell + 1]))


def _quarters(box: Box) -> list[Box]:
    """A box, cut in four."""
    a, b, c, d = box
    x, y = (a + b) / 2, (c + d) / 2
    return [(a, x, c, y), (a, x, y, d), (x, b, c, y), (x, b, y, d)]
