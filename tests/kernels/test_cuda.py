"""The Triton kernel, on a GPU or, where there is none, in Triton's interpreter; skipped where Triton is missing."""

import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")
GPU = torch.cuda.is_available()
if not GPU:
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from rqm import PBM, RQM, SecureRandom, SeededRandom, StochasticRounding  # noqa: E402
from rqm.kernels import cuda  # noqa: E402
from rqm.mechanisms.additive import DiscreteGaussian  # noqa: E402
from rqm.mechanisms.table import Table  # noqa: E402
from tests.goodness import joint_p_value, p_value  # noqa: E402
from tests.kernels import oracle  # noqa: E402

WIDE = tuple((0.4 - x / 4, 0.2, 0.4 + x / 4) for x in np.linspace(-1, 1, 7))
DEVICE = "cuda" if GPU else "cpu"
LEVEL = 1e-6
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


def philox(counter, key, rounds=7):
    """Philox-4×32 in NumPy: an array of counters, one row each."""
    c0, c1, c2, c3 = (np.asarray(word, dtype=np.uint64) for word in counter)
    k0, k1 = key
    for _ in range(rounds):
        left, right = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (right >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            right & np.uint64(0xFFFFFFFF),
            (left >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            left & np.uint64(0xFFFFFFFF),
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


# Random123's published answers (kat_vectors): counter, key, output of Philox-4×32 with 7 rounds.
KNOWN = [
    ((0,) * 4, (0,) * 2, (0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x5207DDC2, 0x45165E59, 0x4D8EE751, 0x8C52F662)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0x4DFCCABA, 0x190A87F0, 0xC47362BA, 0xB6B5242A),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_oracle_gives_the_known_answers(counter, key, answer):
    assert tuple(int(word) for word in philox(counter, key)) == answer


def chacha(counter, key):
    """ChaCha20 in NumPy: an array of counters, four numbers of 32 bits each; sixteen words."""
    ones = np.zeros_like(np.asarray(counter[0], dtype=np.uint32))
    first = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *key, *counter]
    first = [ones + np.asarray(word).astype(np.uint32) for word in first]
    x = [word.copy() for word in first]
    columns = [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]
    diagonals = [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in 10 * (columns + diagonals):
        for i, outcomes, mixed, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = x[i] + x[outcomes]
            turned = x[mixed] ^ x[i]
            x[mixed] = (turned << np.uint32(by)) | (turned >> np.uint32(32 - by))
    return [(i + outcomes).astype(np.uint64) for i, outcomes in zip(x, first, strict=True)]


def test_the_oracle_of_secure_words_gives_the_standards_answer():
    key = np.arange(32, dtype=np.uint8).view(np.uint32)
    words = chacha((np.array([1]), 0x09000000, 0x4A000000, 0), key)  # RFC 8439, section 2.3.2
    assert [int(word[0]) for word in words[:4]] == [0xE4E7F110, 0x15593BD1, 0x1FDD0F50, 0xC47120A3]
    assert [int(word[0]) for word in words[12:]] == [0xD19C12B5, 0xB94E16DE, 0xE883D0CB, 0x4E3C50A2]


@triton.jit
def _chacha(out_ptr, key, key1, key2, key3, c1, c2, c3, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.arange(0, BLOCK)
    words = cuda.chacha(key, key1, key2, key3, offsets.to(tl.uint32), c1.to(tl.uint32), c2.to(tl.uint32), c3)
    for i in tl.static_range(16):
        tl.store(out_ptr + 16 * offsets + i, words[i].to(tl.int32, bitcast=True))


def test_the_kernels_secure_words_are_those_of_the_standard():
    key = np.arange(32, dtype=np.uint8)
    out = torch.empty((16, 16), dtype=torch.int32, device=DEVICE)
    _chacha[(1,)](out, *key.view(np.int64).tolist(), 0x09000000, 0x4A000000, 0, BLOCK=16)
    words = chacha((np.arange(16), 0x09000000, 0x4A000000, 0), key.view(np.uint32))
    assert (out.cpu().numpy().view(np.uint32) == np.stack(words, axis=1)).all()


class Fixed(SecureRandom):
    """One key, so that the words are known."""

    def key(self):
        return np.arange(10, dtype=np.uint32) * np.uint32(0x9E3779B9)


def encode(sampler, x, rng):
    out = torch.empty(x.shape, dtype=torch.uint8 if sampler.modulus <= 256 else torch.uint16, device=DEVICE)
    assert not cuda.encode(sampler, x, rng, out)
    return out.cpu().numpy()


def encode_sum(sampler, x, rng):
    total = torch.zeros(x.shape[1:], dtype=torch.int32, device=DEVICE)
    assert not cuda.encode_sum(sampler, x, rng, total)
    return total.cpu().numpy()


def expected_rows(sampler, x, rng):
    """What the kernel must give for the rows of ``x``, bit for bit, from the oracle's words."""
    if rng.private:
        (*key, start, _), generator, words_per_call = rng.key(), chacha, 16
    else:
        (*key, start), generator, words_per_call = rng.reserve_call(), philox, 4
    out = np.empty(x.shape, dtype=np.int64)
    offsets = np.arange(x.shape[1])
    for row, values in enumerate(x):
        position = sampler.position(values.astype(np.float64))
        if sampler.trials:
            out[row] = 0
            groups = -(-sampler.trials // words_per_call)
            for trial in range(sampler.trials):
                counter = row * groups + trial // words_per_call
                words = generator((offsets, 0 * offsets, 0 * offsets + counter, 0 * offsets + start), key)
                out[row] += (words[trial % words_per_call] >> np.uint64(8)) < position
        else:
            draws = words_per_call // 2
            words = generator((offsets, 0 * offsets, 0 * offsets + row // draws, 0 * offsets + start), key)
            w0, w1 = words[2 * (row % draws)], words[2 * (row % draws) + 1]
            bits = (w1 << np.uint64(8)) | (w0 & np.uint64(0xFF))
            out[row] = oracle.outcomes(sampler, position, w0 >> np.uint64(8), bits)
    return out


SAMPLERS = {
    "rqm": RQM().sampler,
    "rqm, 300 levels": RQM(levels=300, keep=0.1).sampler,
    "rqm, 2 levels": RQM(levels=2).sampler,
    "pbm": PBM().sampler,
    "pbm, 7 levels": PBM(levels=7).sampler,
    "rounding": StochasticRounding(levels=5).sampler,
    "additive": oracle.additive(levels=9, modulus=64),
    "discrete Gaussian": DiscreteGaussian(scale=0.5, bits=7).sampler,
    "more rows than outcomes": Table(margin=1.0, rows=WIDE).sampler,
}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_sums_are_those_of_the_oracle_bit_for_bit(sampler, dtype, rows):
    x = np.random.default_rng(rows).normal(size=(rows, 700)).astype(dtype)
    total = encode_sum(sampler, torch.from_numpy(x).to(DEVICE), SeededRandom(3))
    assert (total == expected_rows(sampler, x, SeededRandom(3)).sum(axis=0)).all()


@pytest.mark.parametrize("rows", [1, 8, 11])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_secure_sums_are_those_of_the_oracle_bit_for_bit(sampler, rows):
    x = np.random.default_rng(rows).normal(size=(rows, 300)).astype(np.float32)
    total = encode_sum(sampler, torch.from_numpy(x).to(DEVICE), Fixed())
    assert (total == expected_rows(sampler, x, Fixed()).sum(axis=0)).all()


@pytest.mark.parametrize("size", [1, 8, 701])
@pytest.mark.parametrize("sampler", [SAMPLERS["rqm"], SAMPLERS["pbm"]], ids=["rqm", "pbm"])
def test_secure_levels_are_those_of_the_oracle_bit_for_bit(sampler, size):
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    z = encode(sampler, torch.from_numpy(x).to(DEVICE), Fixed())
    width = size if sampler.trials else -(-size // 8)
    rows = np.append(x, np.zeros(-size % width, np.float32)).reshape(-1, width)
    assert (z == expected_rows(sampler, rows, Fixed()).ravel()[:size]).all()


@pytest.mark.parametrize("size", [1, 2, 701, 1400])
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
def test_levels_are_those_of_the_oracle_bit_for_bit(sampler, size):
    x = np.random.default_rng(size).normal(size=size).astype(np.float32)
    z = encode(sampler, torch.from_numpy(x).to(DEVICE), SeededRandom(4))
    width = size if sampler.trials else -(-size // 2)
    rows = np.append(x, np.zeros(-size % width, np.float32)).reshape(-1, width)
    assert (z == expected_rows(sampler, rows, SeededRandom(4)).ravel()[:size]).all()


def test_ties_are_decided_by_the_last_eight_bits():
    """With 2**16 columns 16 bits are left for the first comparison: a few ties in every block."""
    sampler = oracle.additive(levels=3, modulus=65536)
    x = np.zeros((2, 60_000), dtype=np.float32)
    expected = expected_rows(sampler, x, SeededRandom(5))
    assert (encode_sum(sampler, torch.from_numpy(x).to(DEVICE), SeededRandom(5)) == expected.sum(axis=0)).all()
    k0, k1, start = SeededRandom(5).reserve_call()
    offsets = np.arange(x.shape[1])
    _, w1, _, v1 = philox((offsets, 0 * offsets, 0 * offsets, 0 * offsets + start), (k0, k1))
    ties = 0
    for word in np.concatenate([w1, v1]).tolist():
        ties += (int(sampler.entries[word >> 16]) >> 16 >> 8) == word & 0xFFFF
    assert ties > 0


@triton.jit
def _positions(x_ptr, out_ptr, numbers_ptr, low, high, count, WIDE: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < count
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0)
    clip = tl.load(numbers_ptr + 2).to(x_ptr.dtype.element_ty)
    position = cuda.position_of(x, clip, tl.load(numbers_ptr), tl.load(numbers_ptr + 1), low, high, WIDE)
    tl.store(out_ptr + offsets, position.to(tl.int64), mask=inside)


EDGES = [
    *(RQM(), RQM(clip=2.9731e-5, margin=0.66), RQM(levels=255), PBM(clip=0.3)),
    *(StochasticRounding(clip=0.1, levels=256), StochasticRounding(clip=0.1), RQM(clip=0.1, margin=1e-9, levels=256)),
    StochasticRounding(clip=1 + 1e-12, levels=130, margin=0.015748032449500796),  # the last position is 2**31 − 1
]


@pytest.mark.parametrize("mech", EDGES, ids=repr)
def test_every_float32_has_an_accounted_position(mech):
    grid = mech.unit if isinstance(mech, PBM) else mech
    count = 4_000_000 if GPU else 20_000
    rng = np.random.default_rng(0)
    breakpoints = np.float32([*grid.breakpoints, *grid.grid.values, 0.0]).view(np.uint32).astype(np.int64)
    close = (rng.choice(breakpoints, count // 2) + rng.integers(-40, 41, count // 2)) % 2**32
    patterns = np.concatenate([rng.integers(0, 2**32, count // 2), close]).astype(np.uint32)
    x = patterns.view(np.float32)
    x = x[np.isfinite(x)]
    sampler, out = mech.sampler, torch.empty(len(x), dtype=torch.int64, device=DEVICE)
    tensor = torch.from_numpy(x).to(DEVICE)
    _, numbers = cuda.constants(sampler, tensor.device, tensor.dtype)
    _positions[(triton.cdiv(len(x), 512),)](
        tensor,
        out,
        numbers,
        sampler.low,
        sampler.high,
        len(x),
        WIDE=cuda.is_wide(sampler),
        BLOCK=512,
        enable_fp_fusion=False,
    )
    realised = out.cpu().numpy()
    assert ((sampler.low <= realised) & (realised <= sampler.high)).all()
    assert (realised == mech.position(x)).all()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # in the interpreter they are NumPy's
def test_inputs_that_are_not_finite_raise_the_flag():
    for value in (np.nan, np.inf, -np.inf):
        for where in (0, 700, 1399):
            x = torch.zeros(2, 700, device=DEVICE)
            x.view(-1)[where] = value
            total = torch.zeros(700, dtype=torch.int32, device=DEVICE)
            assert cuda.encode_sum(RQM().sampler, x, SeededRandom(1), total)
            assert cuda.encode(RQM().sampler, x, SeededRandom(1), torch.empty_like(x, dtype=torch.uint8))


@needs_gpu
@pytest.mark.statistical
@pytest.mark.parametrize(
    ("mech", "x"),
    [
        (RQM(), 0.1234),
        (RQM(), 1.0),
        (RQM(levels=256, keep=0.05), 0.7),
        (PBM(theta=0.35), 0.9),
        (StochasticRounding(), -0.3),
    ],
    ids=repr,
)
@pytest.mark.parametrize("rng", [SeededRandom(6), SecureRandom()], ids=repr)
def test_forty_million_draws_follow_the_sampled_law(mech, x, rng):
    inputs = torch.full((40, 1_000_003), x, device=DEVICE)
    z = mech.encode(inputs, rng).flatten()
    pmf = mech.sampled_pmf(np.float32(x))
    counts = torch.bincount(z.int(), minlength=mech.levels).cpu().numpy()
    assert p_value(counts, pmf) > LEVEL
    total = mech.encode_sum(inputs, rng).double()
    error = float(mech.grid.step * total.std() / 40 / 1000)
    assert abs(float(mech.decode(total, 40).mean()) - np.float32(x)) < 6 * error
    if isinstance(mech, RQM):
        for factor in (0.98, 1.02):
            wrong = RQM(levels=mech.levels, keep=mech.keep * factor)
            assert p_value(counts, wrong.sampled_pmf(np.float32(x))) < LEVEL


@needs_gpu
@pytest.mark.statistical
@pytest.mark.parametrize("rng", [SeededRandom(8), SecureRandom()], ids=repr)
def test_coordinates_clients_and_rounds_are_independent(rng):
    mech, x = RQM(), 0.3
    pmf, size = mech.sampled_pmf(np.float32(x)), 10_000_000
    first, second = (mech.encode(torch.full((size,), x, device=DEVICE), rng).cpu().numpy() for _ in range(2))
    source = rng if rng.private else rng.stream(1)
    outcomes = mech.encode(torch.full((size,), x, device=DEVICE), source).cpu().numpy()
    for lag in (1, 32, 256, size // 8, size // 2):  # the halves, or eighths, share calls of the generator
        assert joint_p_value(first[:-lag], first[lag:], pmf) > LEVEL
    assert joint_p_value(first, second, pmf) > LEVEL
    assert joint_p_value(first, outcomes, pmf) > LEVEL
    mixed = np.where(np.random.default_rng(0).random(size) < 0.01, first, second)
    assert joint_p_value(first, mixed, pmf) < LEVEL


@needs_gpu
def test_the_public_names_use_the_kernel():
    mech, x = RQM(), 0.5 * torch.randn(5, 3000, device=DEVICE)
    assert (mech.encode(x, SeededRandom(9)) == mech.encode(x, SeededRandom(9))).all()
    secure = mech.encode(x, SecureRandom())
    assert secure.device.type == "cuda"
    assert (secure != mech.encode(x, SecureRandom())).any()
    total = mech.encode_sum(x, SeededRandom(9))
    assert (mech.encode_sum(x, SeededRandom(9), out=total.clone()) == 2 * total).all()
    with pytest.raises(ValueError, match=r"x contains -?inf"):
        mech.encode(x / 0, SeededRandom(9))
