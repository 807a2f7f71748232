"""Tables of divergences, one cell for each law of the others' sum, filled on all cores."""

from collections.abc import Sequence
from math import inf, log

import numpy as np

from rqm._util.checks import FloatArray
from rqm._util.threads import in_turns
from rqm.privacy.compiled import BLOCK, EMPTY, Blocked, IntArray, evaluate
from rqm.privacy.divergence import Sum
from rqm.privacy.flat import evaluate_flat


def stack(sums: Sequence[Sum]) -> Blocked:
    """Pad some laws to the same number of blocks."""
    blocks = max(len(s.exponent) for s in sums)
    mantissa = np.zeros((len(sums), blocks, BLOCK))
    exponent = np.full((len(sums), blocks), EMPTY, dtype=np.int64)
    for k, s in enumerate(sums):
        mantissa[k, : len(s.exponent)] = s.mantissa
        exponent[k, : len(s.exponent)] = s.exponent
    return mantissa, exponent


class Cells:
    """Divergences of pairs of ``laws`` beside sums of the others whose tails may be cut by ``log_tail``.

    What plain floats do not reach is computed in blocks of powers of two if it goes ``deep``; else it is NaN.
    """

    def __init__(self, log_tail: float, *, deep: bool = True) -> None:
        self.log_tail, self.deep = log_tail, deep
        self.flat = True  # whether plain floats reached all that was asked so far

    def table(
        self, places: IntArray, halves: tuple[Blocked, Blocked], laws: Sequence[Sum], pairs: IntArray, asked: FloatArray
    ) -> FloatArray:
        """The divergence of each pair beside ``halves[0][i] + halves[1][j]``: of shape (pairs, orders, places).

        A place is i, j and how many blocks the two laws have; ``asked`` holds the orders that matter for each pair,
        else NaN. An order −ε below zero asks for the logarithm of the hockey-stick divergence at ε instead.
        """
        return self._filled(places, halves, laws, pairs, asked, len(pairs))

    def largest(
        self, places: IntArray, halves: tuple[Blocked, Blocked], laws: Sequence[Sum], pairs: IntArray, asked: FloatArray
    ) -> FloatArray:
        """The largest divergence of a pair: of shape (1, orders, places)."""
        return self._filled(places, halves, laws, pairs, asked, 1)

    def _filled(
        self,
        places: IntArray,
        halves: tuple[Blocked, Blocked],
        laws: Sequence[Sum],
        pairs: IntArray,
        asked: FloatArray,
        rows: int,
    ) -> FloatArray:
        used = sorted({int(i) for i in pairs.ravel()})
        own, local = stack([laws[i] for i in used]), np.searchsorted(used, pairs)
        table = np.full((len(places), rows, asked.shape[1]), -inf)
        blocks = sum(half[0].shape[1] for half in halves)
        least = EMPTY if self.log_tail == -inf else int(self.log_tail / log(2)) - blocks.bit_length() - 6

        def fill(part: slice) -> None:
            cells, flat = table[part], self.flat
            if flat:
                evaluate_flat(places[part], *halves, own, (local, asked), least, cells)
                flat = not (self.deep and np.isnan(cells).any())
            if not flat:
                self.flat, cells[:] = False, -inf
                evaluate(places[part], *halves, own, (local, asked), least, cells)

        in_turns(fill, len(places))
        return np.moveaxis(table, 0, 2)
