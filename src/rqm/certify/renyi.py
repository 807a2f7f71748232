"""Rényi divergence of one client among n: what some inputs attain, and what is certified for all
inputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import inf
from typing import Literal, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from rqm._util.checks import FloatArray, inputs, order, whole
from rqm.certify.affine_rdp import affine_leakage, end_pmfs
from rqm.certify.blocks import certified_renyi, pairs_of_client
from rqm.certify.distributions import (
    EMPTY_SUM,
    SMALLEST_ENTRY,
    Comparison,
    OtherSums,
    PartialSum,
    all_pairs,
    divergence_table,
    repeated,
)
from rqm.certify.shifts import shift_divergences
from rqm.mechanisms.base import mechanism_of
from rqm.mechanisms.discrete import DiscreteMechanism, PmfKind

Others = Literal["worst", "balanced", "random"]


class Witness(NamedTuple):
    """Inputs that attain the lower bound: the client's two inputs, and how many other clients have
    each input."""

    x: float
    x_prime: float
    other_inputs: dict[float, int]


@dataclass(frozen=True)
class RenyiBound:
    """Bounds on the Rényi divergence of one coordinate in one round, with one client's input
    replaced.

    Attributes:
        lower: A value that the inputs in `witness` attain. It is not a guarantee. Where the worst
            case is known exactly, it equals `upper`.
        upper: A bound for all inputs of all clients if `certified`, otherwise the value for the
            given other inputs.
        alpha: The Rényi order.
        clients: How many honest clients are summed; 1 means that the adversary sees the client's
            message.
        certified: Whether `upper` holds for all inputs.
        distribution: "paper" for the pmf of the definition, "sampled" for the integer table that
            is deployed.
        witness: The inputs that attain `lower`.
    """

    lower: float
    upper: float
    alpha: float
    clients: int
    certified: bool
    distribution: PmfKind
    witness: Witness
    neighboring: str = "replace-one"

    @property
    def threat_model(self) -> str:
        """What the adversary sees: the client's message ("local") or only the sum."""
        return "local" if self.clients == 1 else f"aggregate of {self.clients} honest clients"


@overload
def renyi(
    mechanism: DiscreteMechanism,
    alpha: float = ...,
    clients: int = ...,
    others: Others | npt.ArrayLike = ...,
    *,
    distribution: PmfKind = ...,
    seed: int = ...,
) -> RenyiBound: ...
@overload
def renyi(
    mechanism: DiscreteMechanism,
    alpha: Sequence[float],
    clients: int = ...,
    others: Others | npt.ArrayLike = ...,
    *,
    distribution: PmfKind = ...,
    seed: int = ...,
) -> list[RenyiBound]: ...
def renyi(
    mechanism: DiscreteMechanism,
    alpha: float | Sequence[float] = 2,
    clients: int = 1,
    others: Others | npt.ArrayLike = "worst",
    *,
    distribution: PmfKind = "paper",
    seed: int = 0,
) -> RenyiBound | list[RenyiBound]:
    """Bounds on the Rényi divergence of the sum of `clients` messages, one client's input replaced.

    Compares the sums of one coordinate (Youn et al. 2023, Section 5). The proof that the upper
    bound holds for all inputs is in docs/proofs/interior-levels.md#theorem-10.

    Args:
        mechanism: A mechanism that sends integers.
        alpha: The Rényi order, from 1 (KL divergence) to infinity (pure DP), or a list of orders.
        clients: Number of honest clients in the sum.
        others: Inputs of the other clients. "worst" searches for the worst inputs and certifies a
            bound for all of them. "balanced" (half at −clip, half at clip) and "random" (each at
            ±clip) reproduce the paper's figures. An array gives the inputs.
        distribution: "paper" for the pmf of the definition, "sampled" for the integer table that
            is deployed.
        seed: Seed of `others="random"`.

    Returns:
        A `RenyiBound`, or a list of them if `alpha` is a list.

    Raises:
        ValueError: If an order, the number of clients or an input is out of range.

    >>> from rqm import RQM
    >>> bound = renyi(RQM(), alpha=10)
    >>> round(bound.lower, 4), round(bound.upper, 4), round(bound.witness.x, 4), bound.witness.x_prime
    (5.3684, 5.3684, 0.9333, -1.0)
    """
    mechanism = mechanism_of(mechanism).discrete
    clients = whole("clients", clients, 1)
    orders = [order(single_order) for single_order in np.atleast_1d(np.asarray(alpha, dtype=object))]
    if not orders:
        raise ValueError("alpha is empty: give at least one order")
    if isinstance(others, str) and others == "worst":
        bounds = [_worst_case(mechanism, single_order, clients, distribution) for single_order in orders]
    else:
        bounds = _for_given_inputs(mechanism, np.array(orders), clients, others, distribution, seed)
    return bounds[0] if np.ndim(alpha) == 0 else bounds


# -- given inputs of the other clients ------------------------------------------------------------


def _for_given_inputs(
    mechanism: DiscreteMechanism,
    orders: FloatArray,
    clients: int,
    others: Others | npt.ArrayLike,
    distribution: PmfKind,
    seed: int,
) -> list[RenyiBound]:
    """The divergences for given inputs of the other clients, over all pairs of the client's own
    inputs."""
    ends = np.array([-mechanism.clip, mechanism.clip])
    if isinstance(others, str):
        if others not in ("balanced", "random"):
            raise ValueError(f"others = {others!r}: must be 'worst', 'balanced', 'random' or an array of inputs")
        is_high = np.arange(clients - 1) >= (clients - 1) // 2
        if others == "random":
            is_high = np.random.default_rng(whole("seed", seed, 0)).choice([False, True], size=clients - 1)
        values = ends[is_high.astype(int)]
        own_inputs = ends  # the paper's pair
    else:
        values = inputs("others", others).ravel()
        own_inputs = mechanism.breakpoints
        if len(values) != clients - 1:
            raise ValueError(f"others has {len(values)} inputs: must be clients - 1 = {clients - 1}")
        if len(values) and abs(values).max() > mechanism.clip:
            outlier = values[np.argmax(abs(values))]
            raise ValueError(f"others contains {outlier:g}: must lie within the clip, ±{mechanism.clip:g}")
    total, counts = EMPTY_SUM, {}
    for value, count in zip(*np.unique(values, return_counts=True), strict=True):
        counts[float(value)] = int(count)
        total += repeated(_pmfs(mechanism, mechanism.log_pmf_at(value, distribution)), int(count))
    own_pmfs = _pmfs(mechanism, mechanism.log_pmf_at(own_inputs, distribution))
    comparison = Comparison(own_pmfs, all_pairs(len(own_inputs)), orders, "renyi")
    attained, _ = divergence_table(OtherSums.of([total]), comparison, is_attained=True)
    table, missing = divergence_table(OtherSums.of([total, EMPTY_SUM]), comparison)
    bounds = []
    for k, alpha in enumerate(orders.tolist()):
        i, j = comparison.pairs[_last_largest(attained[0, :, k])]
        witness = Witness(float(own_inputs[i]), float(own_inputs[j]), counts)
        lower = float(attained[0, :, k].max())
        with_tails = _with_tails(table[0, :, k], float(missing[0]), table[1, :, k], alpha)
        upper = max(lower, float(with_tails.max()))
        bounds.append(RenyiBound(lower, upper, alpha, clients, False, distribution, witness))
    return bounds


def _with_tails(values: FloatArray, missing: float, single_client: FloatArray, alpha: float) -> FloatArray:
    """Divergences beside the whole sum of the other clients, of which some probability is missing.

    That part counts as if there were no other clients.
    """
    if missing == 0:
        return values
    if np.isinf(alpha):
        return single_client
    if alpha == 1:
        return values + missing * single_client
    rise = alpha - 1
    return np.asarray(np.logaddexp(rise * values, np.log(missing) + rise * single_client) / rise)


def _pmfs(mechanism: DiscreteMechanism, logs: FloatArray) -> FloatArray:
    """Pmfs from their logarithms; refused if floats are too coarse for them."""
    pmfs = np.exp(logs)
    if ((pmfs < SMALLEST_ENTRY) & np.isfinite(logs)).any():
        raise ValueError(
            f"{mechanism!r}: probabilities must be at least {SMALLEST_ENTRY:g} or 0, got "
            f"exp({logs[np.isfinite(logs)].min():g}); use fewer levels or more noise"
        )
    return pmfs


def _last_largest(values: FloatArray) -> int:
    """The index of the largest value; of mirror images, which tie but for rounding, the last."""
    return int(np.flatnonzero(values >= values.max() * (1 - 1e-12))[-1])


# -- worst-case inputs of the other clients -------------------------------------------------------


@lru_cache(maxsize=4096)
def _worst_case(mechanism: DiscreteMechanism, alpha: float, clients: int, distribution: PmfKind) -> RenyiBound:
    """The bound for all inputs."""
    breakpoints = mechanism.breakpoints
    if (
        mechanism.has_noiseless_inputs
    ):  # others at a level inside the clip add no noise, and clip rounds to where −clip cannot
        witness = Witness(mechanism.clip, -mechanism.clip, {float(breakpoints[1]): clients - 1})
        return RenyiBound(inf, inf, alpha, clients, True, distribution, witness)
    if mechanism.additive is not None:  # the noise does not depend on any input
        by_shift = shift_divergences(mechanism.additive, (alpha,), clients)[:, 0]
        shift = int(np.argmax(by_shift >= by_shift[-1] * (1 - 1e-6)))
        other_inputs = {0.0: clients - 1} if clients > 1 else {}
        witness = Witness(float(breakpoints[shift]), float(breakpoints[0]), other_inputs)
        return RenyiBound(by_shift[-1], by_shift[-1], alpha, clients, True, "sampled", witness)
    own_pmfs = _pmfs(mechanism, mechanism.breakpoint_log_pmfs(distribution))
    trials = mechanism.bernoulli_trials
    attained = worst_inputs(mechanism, alpha, clients, distribution)
    upper = inf
    if mechanism.is_affine and 1 < alpha < inf and clients > 1:
        ends = end_pmfs(mechanism, distribution)
        upper = trials * float(affine_leakage(ends, (alpha,), clients - 1, "replace-one").largest[0])
    if upper > 1.002 * attained.value:
        others = np.exp(mechanism.trial_log_pmfs(distribution))
        upper = min(upper, certified_renyi(own_pmfs, others, (clients - 1) * trials, alpha, attained.value))
    upper = rounded_up(upper, alpha, own_pmfs, clients)
    lower = upper if rounded_up(attained.value, alpha, own_pmfs, clients) >= upper else attained.value
    x, x_prime = breakpoints[list(attained.pair)].tolist()
    other_inputs = {value: count for value, count in zip(breakpoints.tolist(), attained.counts, strict=True) if count}
    witness = Witness(x, x_prime, other_inputs)
    return RenyiBound(lower, upper, alpha, clients, True, distribution, witness)


def rounded_up(value: float, alpha: float, own_pmfs: FloatArray, clients: int) -> float:
    """A divergence plus more than rounding errors can have taken away, rounded up to 40 bits.

    Every probability is a sum of products of positive floats: its relative error is at most the
    number of operations behind it. An error of r in all probabilities moves D_α by at most
    r·(2α−1)/(α−1), and near α = 1 by a multiple of the largest privacy loss.

    See docs/proofs/interior-levels.md#lemma-9.

    Args:
        value: The divergence as it was computed.
        alpha: Its order.
        own_pmfs: The client's pmfs, one row for each input.
        clients: How many clients were summed.

    Returns:
        A number that is at least the divergence.
    """
    if not np.isfinite(value):
        return value
    seen = own_pmfs[:, own_pmfs.max(axis=0) > 0]
    smallest = np.where(seen > 0, seen, inf).min(axis=0)
    widest = float(np.log(seen.max(axis=0) / smallest).max())
    operations = 8 * own_pmfs.shape[1] * clients + 64
    alpha = float(np.clip(alpha, 1 + 1e-9, 1e6))
    growth = min((2 * alpha - 1) / (alpha - 1), 4 + 4 * widest) + 4 * value
    mantissa, exponent = np.frexp(value + 2.0**-53 * operations * growth)
    return float(np.ldexp(np.ceil(mantissa * 2.0**40), int(exponent) - 40))


# -- search for the worst inputs ------------------------------------------------------------------


class WorstInputs(NamedTuple):
    """The largest divergence found, its pair of breakpoints and the number of other clients at each
    breakpoint."""

    value: float
    pair: tuple[int, int]
    counts: tuple[int, ...]


@lru_cache(maxsize=4096)
def worst_inputs(
    mechanism: DiscreteMechanism, alpha: float, clients: int, distribution: PmfKind = "paper"
) -> WorstInputs:
    """Search for the inputs of all clients that leak most: all others equal, two inputs, then local
    moves.

    The value is attained, so it is a lower bound on any certificate.

    See docs/proofs/interior-levels.md#lemma-2.

    Args:
        mechanism: A mechanism that sends integers and whose noise depends on the input.
        alpha: The Rényi order.
        clients: Number of honest clients in the sum.
        distribution: "paper" or "sampled".

    Returns:
        The largest divergence found and the inputs that attain it.

    >>> from rqm import RQM
    >>> worst_inputs(RQM(), 8.0, 5).value <= renyi(RQM(), 8, 5).upper
    True
    """
    pmfs = np.exp(mechanism.breakpoint_log_pmfs(distribution))
    many_clients = 256  # from here on few splits are tried, and several clients move at a time
    search = _Search(pmfs, alpha, clients - 1)
    count = clients - 1
    if count == 0:
        return search.best
    breakpoints = len(pmfs)
    tried: Sequence[int] = range(breakpoints)
    if breakpoints > search.many_breakpoints:
        tried = sorted({round(v) for v in np.linspace(0, breakpoints - 1, 17)})
    ranked = sorted((search.consider([search.placed({v: count})]), v) for v in reversed(tried))
    search.keep_pairs_near_best()
    max_tried = 16 if count < many_clients else 4
    if len(tried) > max_tried:
        tried = sorted(v for _, v in ranked[-max(4, max_tried // 2) :])
    steps = min(count - 1, max(3, 20_000 // (count * pmfs.shape[1])))
    splits = sorted({int(k) for k in np.linspace(1, count - 1, steps)}) if count > 1 else []
    search.consider([search.placed({u: k, v: count - k}) for u, v in combinations(tried, 2) for k in splits])
    size = 1 if count < many_clients else count // 4
    for _ in range(min(count, many_clients)):
        previous = search.best.value
        search.consider(sorted(set(_moves(search.best.counts, tried, size))))
        if search.best.value <= previous * (1 + 1e-12):
            if size <= max(1, count // many_clients):
                break
            size = max(1, size // 4)
    return search.best


_Counts = tuple[tuple[int, int], ...]
"""Breakpoints, each with a number of clients."""


class _Search:
    """The worst inputs found so far, and the sums of clients that were needed to find them.

    Attributes:
        many_breakpoints: With more breakpoints only some inputs and pairs are tried: 256-level tables
            take seconds instead of hours.
        searched_pairs: Pairs of breakpoints that are then tried, those that reveal most of one client alone.
    """

    many_breakpoints = 160
    searched_pairs = 128

    def __init__(self, pmfs: FloatArray, alpha: float, count: int) -> None:
        self.pmfs, self.alpha = pmfs, alpha
        self.pairs = pairs_of_client(pmfs, count)
        self.powers: dict[tuple[int, int], PartialSum] = {}
        self.best = WorstInputs(-1.0, (0, 1), (0,) * len(pmfs))
        single_client = self._divergences([self.placed({})])[0]
        if count == 0:
            self._keep(single_client, self.placed({}))
        elif len(pmfs) > self.many_breakpoints:
            self.pairs = self.pairs[np.argsort(-single_client, kind="stable")[: self.searched_pairs]]

    def placed(self, counts: dict[int, int]) -> tuple[int, ...]:
        """The number of clients at every breakpoint, zero where `counts` has none."""
        return tuple(counts.get(v, 0) for v in range(len(self.pmfs)))

    def consider(self, placements: Sequence[tuple[int, ...]]) -> float:
        """Try placements of the other clients; return the largest divergence among them."""
        largest, batch_size = -inf, 2048  # of a larger batch the table of divergences takes much memory
        for start in range(0, len(placements), batch_size):
            batch = placements[start : start + batch_size]
            table = self._divergences(batch)
            for k in np.flatnonzero(table.max(axis=1) > self.best.value * (1 + 1e-12)).tolist():
                self._keep(table[k], batch[k])
            largest = max(largest, float(table.max()))
        return largest

    def keep_pairs_near_best(self) -> None:
        """Restrict the search to the pair of inputs that is worst so far."""
        self.pairs = np.array([self.best.pair])

    def _keep(self, values: FloatArray, placement: tuple[int, ...]) -> None:
        if values.max() > self.best.value * (1 + 1e-12):
            i, j = self.pairs[_last_largest(values)].tolist()
            self.best = WorstInputs(float(values.max()), (i, j), placement)

    def _divergences(self, placements: Sequence[tuple[int, ...]]) -> FloatArray:
        """The divergence of every pair beside every placement."""
        first: dict[_Counts, int] = {}
        second: dict[_Counts, int] = {}
        cells = []
        for placement in placements:
            used = tuple((v, count) for v, count in enumerate(placement) if count)
            i = first.setdefault(used[:-1], len(first))
            j = second.setdefault(used[-1:], len(second))
            cells.append((i, j))
        others = OtherSums([*map(self._sum, first)], [*map(self._sum, second)], np.array(cells))
        table, _ = divergence_table(others, Comparison(self.pmfs, self.pairs, [self.alpha], "renyi"), is_attained=True)
        return np.asarray(table[:, :, 0])

    def _sum(self, used: _Counts) -> PartialSum:
        total = EMPTY_SUM
        for key in used:
            if key not in self.powers:
                self.powers[key] = repeated(self.pmfs[key[0]], key[1])
            total = (total + self.powers[key]).trimmed(SMALLEST_ENTRY)
        return total


def _moves(counts: tuple[int, ...], breakpoints: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """All placements in which `size` clients move from one breakpoint to another."""
    for u in (u for u, count in enumerate(counts) if count):
        for v in breakpoints:
            if u != v:
                candidate = list(counts)
                step = min(size, counts[u])
                candidate[u] -= step
                candidate[v] += step
                yield tuple(candidate)
