"""The GPU encoder: 40 clients of the paper's model, encoded and summed, against torch."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import Entry, Result
from rqm.kernels.integer_sampler import ALIAS_BITS, TABLE_BITS
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.randomness import SecureRandom, SeededRandom

CLIENTS, MODEL = 40, 1_018_174
OURS, SECURE = "RQM, summed", "RQM, summed, secure words"
BINOMIAL, ALGORITHM_2, COMPILED = (
    "torch binomial(15, p), summed",
    "Algorithm 2 in torch, summed",
    "torch.compile, summed",
)
PLAIN = "plain sum of the floats"


def timed(run: Callable[[], object], repeats: int = 20, turns: int = 5) -> float:
    """Seconds of device time for one run: the best of a few turns of many runs back to back."""
    run()
    best = float("inf")
    for _ in range(turns):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeats):
            run()
        stop.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(stop) / 1e3 / repeats)
    return best


def algorithm_2(mech: RQM, x: torch.Tensor) -> torch.Tensor:
    """The paper's Algorithm 2 in torch operations, client after client."""
    values = torch.from_numpy(mech.grid.values).to(x)
    total = torch.zeros(x.shape[1], dtype=torch.int64, device=x.device)
    index, keep = torch.arange(mech.levels, device=x.device), torch.from_numpy(mech.keeps).to(x)
    for row in x.clamp(-mech.clip, mech.clip):
        kept = torch.rand(len(row), mech.levels, device=x.device) < keep
        below = values <= row[:, None]
        low = torch.where(kept & below, index, 0).amax(1)
        high = torch.where(kept & ~below, index, mech.levels - 1).amin(1)
        part = (row - values[low]) / (values[high] - values[low])
        total += torch.where(torch.rand_like(part) < part, high, low)
    return total


def fused(mech: RQM) -> Callable[[torch.Tensor], torch.Tensor]:
    """What torch.compile makes of rounding and a look-up in an alias table of floats: fast, and not exact."""
    recipe, columns = mech.sampler, 1 << mech.sampler.column_bits
    threshold = torch.from_numpy((recipe.entries >> ALIAS_BITS) / 2 ** (TABLE_BITS - recipe.column_bits)).float().cuda()
    alias = torch.from_numpy((recipe.entries & (2**ALIAS_BITS - 1)).astype("int32")).cuda()

    def encode_and_sum(x: torch.Tensor) -> torch.Tensor:
        place = (x.clamp(-mech.clip, mech.clip) / mech.grid.extent + 1) * (mech.levels - 1) / 2
        level = torch.floor(place + torch.rand_like(x)).int()
        column_and_rest = columns * torch.rand_like(x)
        column = column_and_rest.int()
        index = level * columns + column
        own = column_and_rest - column < threshold[index]
        return torch.where(own, column, alias[index]).sum(0, dtype=torch.int32)

    return torch.compile(encode_and_sum)


def bench() -> Result:
    """Device time, except where the whole call is named; memory is cold, since the input exceeds the cache."""
    if not torch.cuda.is_available():
        raise ValueError("NAME = cuda: must be run where torch finds a CUDA device")
    from rqm.kernels import cuda  # noqa: PLC0415 (needs Triton)

    coordinates = CLIENTS * MODEL
    x = 0.4 * torch.randn(CLIENTS, MODEL, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    p, copy = 0.5 + 0.25 * x.clamp(-1, 1), torch.empty_like(x)
    total = torch.zeros(MODEL, dtype=torch.int32, device="cuda")
    levels = torch.empty(x.shape, dtype=torch.uint8, device="cuda")
    mech, rng = RQM(levels=16), SeededRandom(1)

    def kernel(
        what: Any, out: torch.Tensor, width: int, sum_rows: bool, source: SecureRandom | SeededRandom = rng
    ) -> Callable[[], object]:
        return lambda: cuda.launch(what.sampler, x, source, out, width, sum_rows=sum_rows)

    runs: dict[str, Callable[[], object]] = {
        OURS: kernel(mech, total, MODEL, True),
        "RQM, summed, whole call": lambda: mech.encode_sum(x, rng),
        "RQM, summed, whole call, secure words": lambda: mech.encode_sum(x, SecureRandom()),
        SECURE: kernel(mech, total, MODEL, True, SecureRandom()),
        "PBM, summed, secure words": kernel(PBM(levels=16), total, MODEL, True, SecureRandom()),
        "RQM, levels written": kernel(mech, levels, coordinates // 2, False),
        "RQM, summed, 256 levels": kernel(RQM(levels=256), total, MODEL, True),
        "PBM, summed": kernel(PBM(levels=16), total, MODEL, True),
        PLAIN: lambda: x.sum(0),
        "copy of the float32 input": lambda: copy.copy_(x),
        BINOMIAL: lambda: torch.binomial(torch.full_like(p, 15.0), p).sum(0),
        ALGORITHM_2: lambda: algorithm_2(mech, x),
    }
    peers, notes = [BINOMIAL, ALGORITHM_2], []
    try:
        compiled = fused(mech)
        compiled(x)
        runs[COMPILED] = lambda: compiled(x)
        peers.append(COMPILED)
    except Exception as error:  # a compiler that is missing or fails must not end the benchmark
        notes.append(f"torch.compile was not measured: {type(error).__name__}.")
    entries = {name: Entry(timed(run), coordinates) for name, run in runs.items()}
    names = torch.cuda.get_device_name(), f"torch {torch.__version__}"
    result = Result("cuda", OURS, peers, entries, notes=notes, machine=", ".join(names))
    result.check("billions of coordinates encoded and summed in a second", entries[OURS].rate / 1e9, 400)
    result.check("the same with secure words", entries[SECURE].rate / 1e9, 40)
    notes.append(f"{result.ratio(OURS, PLAIN):.0%} of the speed of a plain sum, which only reads the inputs.")
    return result
