"""Goodness of fit: does an encoder draw from the pmf that is accounted for?

Frequencies are compared with the exact pmf, and consecutive draws, threads and processes with each
other (G-tests). Floats that are crafted to exploit rounding must give the same draws as ordinary floats.
"""

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
from scipy import stats

from rqm._util.checks import FloatArray, whole
from rqm.audit.measurement import IntArray, Source
from rqm.kernels.integer_sampler import POSITION_SHIFT
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.randomness import SecureRandom, SeededRandom

MIN_P_VALUE = 1e-6
"""A smaller p-value, corrected for the number of tests, is a failure. A sound sampler fails once in a million."""
SHARED_DRAWS = 4096
"""Draws of each thread or process. Those of a process fit into a pipe."""

Backend = Literal["cpu", "torch", "cuda"]
Result = tuple[float, str]
"""A p-value and the name of the test."""
Encode = Callable[..., IntArray]
"""Encodes an array of inputs, with a source of randomness."""


@dataclass(frozen=True)
class SamplerAudit:
    """Whether a sampler passed.

    Attributes:
        p_value: The smallest p-value times the number of tests.
        worst: The test that it comes from.
        tests: Number of tests.
        draws: Draws that were compared with a pmf.
        passed: Whether `p_value` is at least 1e-6.
        backend: What drew.
    """

    p_value: float
    worst: str
    tests: int
    draws: int
    passed: bool
    backend: str = "cpu"

    def to_dict(self) -> dict[str, Any]:
        """All values, ready for JSON."""
        return asdict(self)


def audit_sampler(
    mechanism: DiscreteMechanism,
    rng: Source | None = None,
    *,
    draws: int = 2_000_000,
    claimed: DiscreteMechanism | None = None,
    backend: Backend = "cpu",
) -> SamplerAudit:
    """Compare an encoder with the pmf that is accounted for.

    Inputs are the ends of the clip, values outside it, levels, values between levels, and the floats
    next to a level. They are encoded in both precisions and in sums.

    Args:
        mechanism: The mechanism whose encoder is tested.
        rng: Source of randomness; None: a cryptographic one.
        draws: Draws at each input.
        claimed: The mechanism whose pmf is accounted for; None: the same.
        backend: "cpu" for the compiled encoder, "torch" for the operations that replace it where
            nothing is compiled, "cuda" for the GPU.

    Returns:
        The result of all tests.

    >>> from rqm import RQM
    >>> audit_sampler(RQM(), draws=50_000).passed
    True
    """
    draws = whole("draws", draws, 10_000)
    if backend == "cuda":
        from rqm.simulation.loop import pick_device  # noqa: PLC0415 (takes torch)

        pick_device("cuda")  # raises an error if there is no GPU
    rng = rng or SecureRandom()
    claimed = claimed or mechanism
    encode = partial(_encode, mechanism, backend)
    frequencies = list(_test_frequencies(mechanism, claimed, encode, draws, rng))
    results = [
        *frequencies,
        *_test_floats(claimed, encode),
        (_threaded_p_value(encode, rng), "threads that share a source"),
    ]
    if backend == "cpu" and isinstance(rng, SecureRandom) and "fork" in multiprocessing.get_all_start_methods():
        results.append((_forked_p_value(mechanism, rng), "processes forked from one another"))
    smallest, worst = min(results)
    p_value = min(1.0, smallest * len(results))
    compared = sum(name.startswith("the pmf") for _, name in frequencies)
    return SamplerAudit(p_value, worst, len(results), draws * compared, bool(p_value >= MIN_P_VALUE), backend)


def _encode(mechanism: DiscreteMechanism, backend: Backend, x: Any, rng: Source, *, in_sum: bool = False) -> IntArray:
    """Messages of an array of inputs; `in_sum`: the sum over its rows."""
    encode = mechanism.encode_sum if in_sum else mechanism.encode
    if backend == "cpu":
        return np.asarray(encode(x, rng)).astype(np.int64)
    import torch  # noqa: PLC0415 (an extra)

    from rqm.kernels import torch_backend  # noqa: PLC0415

    inputs = torch.from_numpy(x)
    if backend == "cuda":
        messages = encode(inputs.cuda(), rng).cpu()
    else:
        messages = torch_backend.draw(mechanism.sampler, inputs, rng)
        messages = messages.sum(0) if in_sum else messages
    return np.asarray(messages.numpy()).astype(np.int64)


def _test_frequencies(
    mechanism: DiscreteMechanism, claimed: DiscreteMechanism, encode: Encode, draws: int, rng: Source
) -> Iterator[Result]:
    """At each input: the integer table, frequencies, and the independence of consecutive draws."""
    for index, x in enumerate(_test_inputs(mechanism)):
        # Rounding to integers moves the pmf by a total variation distance of 2⁻²⁴ at 256 levels.
        if not np.abs(claimed.pmf(x) - claimed.sampled_pmf(x).astype(np.float64)).sum() / 2 < 1e-5:
            yield 0.0, f"the stated pmf at x = {x:.6g} is not the one that is sampled"
        inputs = np.full((1, draws), x)
        messages = {"": encode(inputs[0], rng)}
        if index % 3 == 0:
            messages[" in float32"] = encode(inputs[0].astype(np.float32), rng)
            messages[" in a sum"] = encode(inputs, rng, in_sum=True)
        for encoding, drawn in messages.items():
            rounded = float(np.float32(x)) if encoding == " in float32" else x
            pmf = claimed.sampled_pmf(rounded).astype(np.float64)
            where = f"x = {x:.6g}{encoding}"
            if drawn.min() < 0 or drawn.max() >= len(pmf):
                yield 0.0, f"the pmf at {where}: an outcome that there is not"
                continue
            yield goodness(np.bincount(drawn, minlength=len(pmf)), pmf), f"the pmf at {where}"
            yield serial_independence_p_value(drawn), f"neighbors at {where}"


def _test_inputs(mechanism: DiscreteMechanism) -> list[float]:
    """At most eight breakpoints, the float after one of them, values between them, and one outside the clip."""
    indices = np.linspace(0, len(mechanism.breakpoints) - 1, 8).round().astype(int)
    breakpoints = mechanism.breakpoints[np.unique(indices)]
    between = breakpoints[:-1:3] + np.diff(breakpoints)[::3] * 0.64
    next_float = np.nextafter(breakpoints[len(breakpoints) // 2], np.inf)
    return [*breakpoints.tolist(), float(next_float), *between.tolist(), 2.5 * mechanism.clip]


# -- an adversary who chooses the bits of floats --------------------------------------------------


def crafted_floats(mechanism: DiscreteMechanism) -> FloatArray:
    """Floats that rounding could treat wrongly: next to breakpoints, at half positions, subnormal, huge."""
    clip = mechanism.clip
    points = np.concatenate([mechanism.breakpoints, -mechanism.breakpoints])
    next_floats = (points.view(np.int64)[:, None] + np.arange(-3, 4)).view(np.float64)
    fractions = np.random.default_rng(0).integers(0, 2**52, size=500, dtype=np.uint64)
    all_bits = (2 * (fractions | (np.uint64(1022) << np.uint64(52))).view(np.float64) - 1) * clip
    extreme = np.array([0.0, 5e-324, 1e-323, 1.5e-323, 2.2e-308, 1e-45, 1e38, 3.4e38, 1.7e308])
    position = clip / (mechanism.sampler.high - mechanism.sampler.low)
    halves = clip * np.array([-1, -0.5, 0, 0.5, 1])[:, None] + position * np.array([-1.5, -0.5, 0.5, 1.5])
    floats = np.concatenate([next_floats.ravel(), all_bits, -all_bits, extreme, -extreme, halves.ravel()])
    return np.asarray(floats[np.isfinite(floats)])  # the bits below those of zero are no number


def _test_floats(claimed: DiscreteMechanism, encode: Encode) -> Iterator[Result]:
    """Each crafted float is drawn from exactly like an ordinary float at the same position of the grid."""
    sampler = claimed.sampler
    for dtype in (np.float64, np.float32):
        with np.errstate(over="ignore"):
            x = crafted_floats(claimed).astype(dtype)
        x = x[np.isfinite(x)]
        position = sampler.position(x.astype(np.float64))
        ordinary = np.asarray((position - (sampler.center - POSITION_SHIFT)) / sampler.scale, dtype=np.float64)
        is_sound = (sampler.position(ordinary) == position) & (position >= sampler.low) & (position <= sampler.high)
        yield float(is_sound.all()), f"the positions of crafted {np.dtype(dtype).name}"
        crafted, expected = (encode(np.repeat(values, 64), SeededRandom(1)) for values in (x, ordinary))
        yield float(np.array_equal(crafted, expected)), f"draws at crafted {np.dtype(dtype).name}"


# -- threads and processes ------------------------------------------------------------------------


def _threaded_p_value(encode: Encode, rng: Source) -> float:
    """The p-value of independence of the draws of threads that share a source."""
    with ThreadPoolExecutor(4) as pool:
        draws = list(pool.map(lambda _: encode(np.zeros(SHARED_DRAWS), rng), range(8)))
    return _joint_independence(draws)


def _forked_p_value(mechanism: DiscreteMechanism, rng: Source) -> float:
    """The p-value of independence of the draws of a process and of two that it forks."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    children = [context.Process(target=_draw_into, args=(queue, mechanism, rng)) for _ in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a fork with threads may fail is what is tested
        for child in children:
            child.start()
    for child in children:
        child.join(600)  # seconds, on a busy machine
    if any(child.exitcode != 0 for child in children):  # one died, or did not end
        for child in children:
            child.kill()
        return 0.0
    _draw_into(queue, mechanism, rng)
    return _joint_independence([queue.get() for _ in range(3)])


def _draw_into(queue: Any, mechanism: DiscreteMechanism, rng: Source) -> None:
    queue.put(np.asarray(mechanism.encode(np.zeros(SHARED_DRAWS), rng, threads=1)))


def _joint_independence(draws: Sequence[IntArray]) -> float:
    """The smallest p-value of independence of two of several sequences, times the number of pairs."""
    values = [serial_independence_p_value(np.column_stack(pair).ravel()) for pair in combinations(draws, 2)]
    return min(1.0, min(values) * len(values))


# -- tests ----------------------------------------------------------------------------------------


def goodness(counts: IntArray, pmf: FloatArray) -> float:
    """The p-value of a G-test of counts against a pmf.

    Args:
        counts: How often each outcome was drawn.
        pmf: Its probability. Rare outcomes are merged. Impossible ones must not occur.

    Returns:
        The p-value.
    """
    if counts[pmf == 0].any():
        return 0.0
    is_common = pmf * counts.sum() >= 10
    expected = np.append(pmf[is_common], pmf[~is_common].sum())
    observed = np.append(counts[is_common], counts[~is_common].sum())[expected > 0]
    expected = expected[expected > 0]
    if len(expected) < 2:
        return 1.0
    expected *= observed.sum() / expected.sum()
    return float(stats.power_divergence(observed, expected, lambda_="log-likelihood").pvalue)


def serial_independence_p_value(messages: IntArray) -> float:
    """The p-value of a G-test of independence of the draws 0 and 1, 2 and 3, …, in at most four groups each."""
    highest = np.max(messages)
    edges = np.unique(np.quantile(messages, [0.25, 0.5, 0.75], method="nearest"))
    edges = edges[edges < highest] if (edges < highest).any() else np.array([highest - 1])  # or all were in one group
    groups = np.searchsorted(edges, messages, side="left")
    table = stats.contingency.crosstab(groups[:-1:2], groups[1::2]).count
    if min(table.shape) < 2:
        return 1.0
    return float(stats.chi2_contingency(table, correction=False, lambda_="log-likelihood").pvalue)
