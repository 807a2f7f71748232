"""The CPU encoder and the packing of bits, against what others offer."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import Entry, Result, measure
from rqm.kernels.packing import pack, unpack
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.randomness import SecureRandom, SeededRandom

MODEL = 1_018_174
"""Parameters of the paper's model."""
COORDINATES = 8 * MODEL
OURS = "RQM, seeded"
TORCH = "torch binomial(15, p)"
BINOMIAL, ALGORITHM_2, CHUNKED = "NumPy binomial(15, p)", "Algorithm 2 in NumPy", "Algorithm 2 in NumPy, in chunks"


def algorithm_2(mech: RQM, x: npt.NDArray[Any], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The paper's Algorithm 2 as one writes it in NumPy: draw the kept levels, find x's neighbours, round."""
    x = np.clip(x, -mech.clip, mech.clip)
    values = mech.grid.values.astype(x.dtype)
    kept = rng.random((len(x), mech.levels), dtype=x.dtype.type) < mech.keep
    kept[:, [0, -1]] = True
    below = values <= x[:, None]
    low = mech.levels - 1 - np.argmax((kept & below)[:, ::-1], axis=1)
    high = np.argmax(kept & ~below, axis=1)
    part = (x - values[low]) / (values[high] - values[low])
    return np.asarray(np.where(rng.random(len(x), dtype=x.dtype.type) < part, high, low))


def in_chunks(mech: RQM, x: npt.NDArray[Any], rng: np.random.Generator, size: int = 2**13) -> npt.NDArray[np.uint8]:
    """The same in float32 and in pieces that stay in the cache."""
    out = np.empty(len(x), dtype=np.uint8)
    for start in range(0, len(x), size):
        out[start : start + size] = algorithm_2(mech, x[start : start + size], rng)
    return out


def peer_python() -> Path | None:
    """The interpreter of ``.venv-peers``, where peers live that do not belong into our environment (``make peers``)."""
    folder = Path(os.environ.get("RQM_PEERS", ".venv-peers"))
    found = [path for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if path.exists()]
    return found[0].absolute() if found else None


OPENDP = """
import time
import opendp.prelude as dp
dp.enable_features("contrib")
draw = dp.m.make_gaussian(dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float), scale=4.0)
x = [0] * 10_000
draw(x)
start = time.perf_counter()
draw(x)
print(time.perf_counter() - start)
"""


def opendp() -> Entry | None:
    """OpenDP's exact discrete Gaussian, timed in an environment of its own; None where it is not installed."""
    for python in (peer_python(), sys.executable):
        if python is not None:
            done = subprocess.run([str(python), "-c", OPENDP], capture_output=True, text=True, timeout=300, check=False)
            if done.returncode == 0:
                return Entry(float(done.stdout), 10_000)
    return None


Runs = dict[str, tuple[Callable[[], object], int]]


def contenders() -> Runs:
    """Eight clients of the paper's model, normal with σ = 0.4 clip, in float32, on one thread unless said otherwise."""
    x = (0.4 * np.random.default_rng(0).standard_normal(COORDINATES)).astype(np.float32)
    p = 0.5 + 0.25 * np.clip(x, -1, 1).astype(np.float64)
    rng, copy, wide = np.random.default_rng(1), np.empty_like(x), x.astype(np.float64)
    seeded, secure, mech = SeededRandom(1), SecureRandom(), RQM(levels=16)
    z = mech.encode(x, seeded)
    packed = pack(z, 4)
    z_copy, packed_copy = np.empty_like(z), np.empty_like(packed)

    def ours(what: Any, source: Any, threads: int = 1) -> tuple[Callable[[], object], int]:
        return lambda: what.encode(x, source, threads=threads), COORDINATES

    runs: Runs = {
        OURS: ours(mech, seeded),
        "RQM, seeded, 2 threads": ours(mech, seeded, 2),
        "RQM, secure": ours(mech, secure),
        "RQM, secure, 2 threads": ours(mech, secure, 2),
        "RQM, seeded, summed": (lambda: mech.encode_sum(x.reshape(8, -1), seeded, threads=1), COORDINATES),
        "RQM, seeded, 2 levels": ours(RQM(levels=2), seeded),
        "RQM, seeded, 64 levels": ours(RQM(levels=64), seeded),
        "RQM, seeded, 256 levels": ours(RQM(levels=256), seeded),
        "PBM, seeded": ours(PBM(levels=16), seeded),
        "PBM, secure": ours(PBM(levels=16), secure),
        "copy of the float32 input": (lambda: np.copyto(copy, x), COORDINATES),
        BINOMIAL: (lambda: rng.binomial(15, p), COORDINATES),
        ALGORITHM_2: (lambda: algorithm_2(mech, wide, rng), COORDINATES),
        CHUNKED: (lambda: in_chunks(mech, x, rng), COORDINATES),
        "pack 4 bits (bytes in)": (lambda: pack(z, 4), z.nbytes),
        "copy of what is packed (bytes)": (lambda: np.copyto(z_copy, z), z.nbytes),
        "unpack 4 bits (bytes in)": (lambda: unpack(packed, 4, len(z)), packed.nbytes),
        "copy of what is unpacked (bytes)": (lambda: np.copyto(packed_copy, packed), packed.nbytes),
    }
    if find_spec("torch"):
        import torch  # noqa: PLC0415 (an extra)

        torch.set_num_threads(1)
        counts, odds = torch.full((COORDINATES,), 15.0), torch.from_numpy(p).float()
        runs[TORCH] = (lambda: torch.binomial(counts, odds), COORDINATES)
    return runs


def bench() -> Result:
    """All contenders, in turns."""
    runs = contenders()
    peers = [name for name in (BINOMIAL, ALGORITHM_2, CHUNKED, TORCH) if name in runs]
    notes = ["Packing, unpacking and the copies beside them count bytes of input instead of coordinates."]
    entries = measure(runs)
    exact = opendp()
    if exact:
        entries["OpenDP discrete Gaussian"] = exact
        peers.append("OpenDP discrete Gaussian")
    else:
        notes.append("OpenDP was not measured: it is not installed (make peers).")

    result = Result("encode", OURS, peers, entries, notes=notes)
    slowest = min((name for name in entries if name.endswith("levels")), key=lambda name: entries[name].rate)
    for what, one, other, wanted in (
        ("seeded over NumPy binomial", OURS, BINOMIAL, 40),
        ("seeded over Algorithm 2", OURS, ALGORITHM_2, 150),
        ("secure over NumPy binomial", "RQM, secure", BINOMIAL, 20),
        ("secure over seeded, one thread", "RQM, secure", OURS, 0.6),
        ("two threads over one", "RQM, seeded, 2 threads", OURS, 1.7),
        ("two threads over one, secure", "RQM, secure, 2 threads", "RQM, secure", 1.7),
        ("PBM over NumPy binomial", "PBM, seeded", BINOMIAL, 8),
        ("slowest of 2 to 256 levels over 16", slowest, OURS, 1 / 1.5),
        ("packing over a copy, bytes of input", "pack 4 bits (bytes in)", "copy of what is packed (bytes)", 0.3),
        ("unpacking over a copy, bytes of input", "unpack 4 bits (bytes in)", "copy of what is unpacked (bytes)", 0.3),
    ):
        result.check(what, result.ratio(one, other), wanted)
    return result
