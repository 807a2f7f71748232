"""Does an encoder draw from the law that is accounted for? Whatever the input, its bits, the thread or the process.

Frequencies are compared with the exact law (G-tests), neighbouring draws, threads and processes with each other, and
floats that were crafted to slip through rounding with harmless ones that have the same law.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

from rqm._util.checks import FloatArray, real, whole
from rqm.kernels.integer_sampler import POSITION_SHIFT
from rqm.mechanisms.channel import Channel
from rqm.randomness import SecureRandom, SeededRandom

APART = 1e-5
"""Total variation by which rounding a law to integers may move it; 2**-24 at 256 levels."""
LEVEL = 1e-6
"""A p-value below this, over all tests together, is a failure: a sound sampler fails once in a million audits."""
INPUTS = 8
SHARED = 4096
"""Draws of each thread, and of each process, that are compared with the others'."""

PATIENCE = 600.0
"""Seconds that a forked process may take for its few draws, which fit into the queue's pipe."""

Backend = Literal["cpu", "torch", "cuda"]
Rng = SecureRandom | SeededRandom
Found = tuple[float, str]


@dataclass(frozen=True)
class SamplerAudit:
    """``p_value`` is that of the worst test, times the number of tests; ``worst`` names it."""

    p_value: float
    worst: str
    tests: int
    draws: int
    passed: bool
    backend: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def audit_sampler(
    mech: Channel,
    rng: Rng | None = None,
    *,
    draws: int = 2_000_000,
    claimed: Channel | None = None,
    backend: Backend = "cpu",
) -> SamplerAudit:
    """Draw ``draws`` times at each of some inputs, and compare with the law of ``claimed`` (the mechanism itself).

    Among the inputs are both ends of the clip and what lies beyond them, levels, places between, and the floats next
    to a level; draws come from ``encode`` in both precisions and from ``encode_sum``. ``backend="torch"`` are the plain
    operations of torch that serve where nothing is compiled, ``"cuda"`` the GPU.

    >>> from rqm import RQM
    >>> audit_sampler(RQM(), draws=50_000).passed
    True
    """
    draws = whole("draws", draws, 10_000)
    if backend == "cuda":
        from rqm.training.trainer import pick_device  # noqa: PLC0415 (takes torch)

        pick_device("cuda")  # or says that there is none
    rng, claimed, encoder = rng or SecureRandom(), claimed or mech, Encoder(mech, backend)
    found = [
        *_statements(claimed),
        *_laws(encoder, claimed, draws, rng),
        *_floats(encoder, claimed),
        *_threads(encoder, rng),
    ]
    if backend == "cpu" and isinstance(rng, SecureRandom):
        found += _processes(encoder, rng)
    worst, where = min(found)
    p_value = min(1.0, worst * len(found))
    laws = sum(name.startswith("the law") for _, name in found)
    return SamplerAudit(p_value, where, len(found), draws * laws, bool(p_value >= LEVEL), backend)


@dataclass(frozen=True)
class Encoder:
    """A mechanism's ``encode`` and ``encode_sum`` on one backend, from NumPy arrays to NumPy arrays."""

    mech: Channel
    backend: Backend = "cpu"

    def encode(self, x: Any, rng: Rng) -> Any:
        """Levels."""
        if self.backend == "cpu":
            return np.asarray(self.mech.encode(x, rng)).astype(np.int64)
        import torch  # noqa: PLC0415 (an extra)

        from rqm.kernels import torch_backend  # noqa: PLC0415

        if self.backend == "torch":
            return torch_backend.draw(self.mech.recipe, torch.from_numpy(x), rng).numpy()
        return self.mech.encode(torch.from_numpy(x).cuda(), rng).cpu().numpy().astype(np.int64)

    def encode_sum(self, x: Any, rng: Rng) -> Any:
        """The sum over rows."""
        if self.backend == "torch":
            return sum(self.encode(row, rng) for row in x)
        if self.backend == "cpu":
            return np.asarray(self.mech.encode_sum(x, rng))
        import torch  # noqa: PLC0415

        return self.mech.encode_sum(torch.from_numpy(x).cuda(), rng).cpu().numpy()


def _statements(claimed: Channel) -> Iterator[Found]:
    """The law that is stated and the law that is sampled are the same but for rounding to integers; nothing if so."""
    for x in _inputs(claimed):
        apart = np.abs(claimed.pmf(x) - claimed.sampled_pmf(x).astype(np.float64)).sum() / 2
        if not apart < APART:
            yield 0.0, f"the stated law at x = {x:.6g} is not the one that is sampled"


def _laws(encoder: Encoder, claimed: Channel, draws: int, rng: Rng) -> Iterator[Found]:
    """Frequencies at each input, by each entrance, and the independence of neighbouring draws."""
    entrances: dict[str, Callable[[float], Any]] = {
        "": lambda x: encoder.encode(np.full(draws, x), rng),
        " in float32": lambda x: encoder.encode(np.full(draws, x, dtype=np.float32), rng),
        " in a sum": lambda x: encoder.encode_sum(np.full((1, draws), x), rng),
    }
    for number, x in enumerate(_inputs(encoder.mech)):
        for entrance, draw in entrances.items() if number % 3 == 0 else list(entrances.items())[:1]:
            levels = draw(x)
            at = float(np.float32(x)) if "32" in entrance else x
            law = claimed.sampled_pmf(at).astype(np.float64)
            if levels.min() < 0 or levels.max() >= len(law):
                yield 0.0, f"the law at x = {x:.6g}{entrance}: an outcome that there is not"
                continue
            yield goodness(np.bincount(levels, minlength=len(law)), law), f"the law at x = {x:.6g}{entrance}"
            yield independence(levels), f"neighbours at x = {x:.6g}{entrance}"


def _inputs(mech: Channel) -> list[float]:
    breakpoints = mech.breakpoints[
        np.linspace(0, len(mech.breakpoints) - 1, min(len(mech.breakpoints), INPUTS)).round().astype(int)
    ]
    inner = [float(np.nextafter(breakpoints[len(breakpoints) // 2], np.inf))]
    between = [float((a + b) / 2 + (b - a) / 7) for a, b in zip(breakpoints[:-1:3], breakpoints[1::3], strict=False)]
    return [*map(float, breakpoints), *inner, *between, 2.5 * mech.clip]


# -- an adversary who chooses the bits of floats -------------------------------------------------------


def crafted_floats(mech: Channel) -> FloatArray:
    """Floats at which rounding could slip: around every knot, subnormal, huge, and with awkward last bits."""
    around = np.concatenate([mech.breakpoints, -mech.breakpoints, [0.0]])
    up = down = around
    steps = [around]
    for _ in range(3):
        up, down = np.nextafter(up, np.inf), np.nextafter(down, -np.inf)
        steps += [up, down]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**52, size=500, dtype=np.uint64) | (np.uint64(1022) << np.uint64(52))
    awkward = (2 * bits.view(np.float64) - 1) * mech.clip  # all 52 bits of the fraction in use
    extreme = np.array([5e-324, 2.2e-308, 1e-45, 1e38, 3.4e38, 1.7e308, -0.0])
    unit = mech.clip / (mech.recipe.high - mech.recipe.low)
    halves = mech.clip * np.array([-1, -0.5, 0, 0.5, 1])[:, None] + unit * np.array([-1.5, -0.5, 0.5, 1.5])
    return np.concatenate([*steps, awkward, -awkward, extreme, -extreme, halves.ravel()])


def _floats(encoder: Encoder, claimed: Channel) -> Iterator[Found]:
    """Each crafted float draws exactly as a harmless one whose position is the same and is accounted for."""
    recipe = claimed.recipe
    for kind in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            given = crafted_floats(claimed).astype(kind)
        x = given[np.isfinite(given)]
        position = recipe.position(x.astype(np.float64))
        harmless = np.asarray((position - (recipe.center - POSITION_SHIFT)) / recipe.scale, dtype=np.float64)
        sound = (recipe.position(harmless) == position) & (position >= recipe.low) & (position <= recipe.high)
        yield float(sound.all()), f"the positions of crafted {np.dtype(kind).name}"
        drawn, expected = (encoder.encode(np.repeat(values, 64), SeededRandom(1)) for values in (x, harmless))
        yield float(np.array_equal(drawn, expected)), f"draws at crafted {np.dtype(kind).name}"


# -- threads and processes ----------------------------------------------------------------------------


def _draw_some(job: tuple[Encoder, Rng]) -> Any:
    encoder, rng = job
    return encoder.encode(np.zeros(SHARED), rng)


def _threads(encoder: Encoder, rng: Rng) -> Iterator[Found]:
    """Threads that share a source never share a draw."""
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(_draw_some, [(encoder, rng)] * 8))
    yield together(drawn), "threads that share a source"


def _processes(encoder: Encoder, rng: Rng) -> list[Found]:
    """A process and the two that it forks do not share a draw."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return []
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=_draw_into, args=(queue, encoder, rng)) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork among threads: just what is to be tried
        for child in children:
            child.start()
    for child in children:
        child.join(PATIENCE)
    if any(child.exitcode != 0 for child in children):
        for child in children:
            child.kill()
        return [(0.0, "processes forked from one another: one died, or did not end")]
    drawn = [_draw_some((encoder, rng)), *(queue.get() for _ in children)]
    return [(together(drawn), "processes forked from one another")]


def _draw_into(queue: Any, encoder: Encoder, rng: Rng) -> None:
    queue.put(np.asarray(encoder.mech.encode(np.zeros(SHARED), rng, threads=1)))


def together(drawn: list[Any]) -> float:
    """The p-value of independence of several sequences: the least over all pairs, times how many there are."""
    values = [independence(np.column_stack([a, b]).ravel()) for i, a in enumerate(drawn) for b in drawn[i + 1 :]]
    return min(1.0, min(values) * len(values))


# -- tests --------------------------------------------------------------------------------------------


def goodness(counts: Any, law: FloatArray) -> float:
    """The p-value of a G-test; rare outcomes are taken together, impossible ones must not occur."""
    total = counts.sum()
    if counts[law == 0].any():
        return 0.0
    often = law * total >= 10
    expected = np.append(law[often], law[~often].sum()) * total
    observed = np.append(counts[often], counts[~often].sum())
    kept = expected > 0
    if kept.sum() < 2:
        return 1.0
    scaled = expected[kept] * (observed[kept].sum() / expected[kept].sum())
    return float(stats.power_divergence(observed[kept], scaled, lambda_="log-likelihood").pvalue)


def independence(levels: Any) -> float:
    """The p-value of a G-test on pairs of neighbouring draws, both of which fall into one of at most four groups."""
    top = np.max(levels)
    edges = np.unique(np.quantile(levels, [0.25, 0.5, 0.75], method="nearest"))
    edges = edges[edges < top] if (edges < top).any() else np.array([top - 1])  # or all would be in one group
    groups = np.searchsorted(edges, levels, side="left")
    pairs = np.zeros((groups.max() + 1,) * 2)
    np.add.at(pairs, (groups[:-1:2], groups[1::2]), 1)
    pairs = pairs[pairs.sum(axis=1) > 0][:, pairs.sum(axis=0) > 0]
    if min(pairs.shape) < 2:
        return 1.0
    return float(stats.chi2_contingency(pairs, correction=False, lambda_="log-likelihood").pvalue)


def checked_confidence(confidence: float) -> float:
    """A confidence strictly between 0 and 1."""
    return real("confidence", confidence, "between 0 and 1", 0, 1)
