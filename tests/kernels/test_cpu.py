"""The CPU encoder: the same draws as a plain oracle, the exact law for any float, any number of threads."""

import multiprocessing
import threading
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import PBM, RQM, SecureRandom, SeededRandom, StochasticRounding
from rqm.kernels import cpu, encode, encode_long, encode_sum
from rqm.kernels.integer_sampler import POSITION_BITS, TABLE_BITS, alias_table
from rqm.randomness import OneEach
from tests.goodness import joint_p_value, p_value
from tests.kernels import oracle

MANY = 10_000_000
LEVEL = 1e-6
MIN_COORDINATES = 64 * cpu.SEED_CHUNK  # of a thread


def chunks_of(count):
    """The number of chunks with this number of words."""
    return -(-count // cpu.SEED_CHUNK)


def from_words(sampler, x, words):
    """Encode with words that are given, and those of a last chunk that is not full made up."""
    x, words = np.asarray(x), np.asarray(words, dtype=np.uint64)
    words = np.pad(words, (0, cpu.SEED_CHUNK * chunks_of(len(x)) * sampler.words_per_coordinate - len(words)))
    out, buffer = np.empty(len(x), dtype=sampler.dtype), np.empty(cpu.SEED_CHUNK, dtype=np.uint64)
    assert not cpu.encode_words(x, out, cpu.compiled_sampler(sampler), False, words, buffer)
    return out


TABLES = [RQM().sampler, RQM(levels=300, keep=0.1).sampler, StochasticRounding(levels=5).sampler, RQM(levels=2).sampler]
ADDITIVE = [oracle.additive(), oracle.additive(levels=100, modulus=100), oracle.additive(modulus=4096, columns=7)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sampler", [*TABLES, *ADDITIVE])
def test_each_word_gives_the_outcome_that_the_proof_says(sampler, dtype):
    rng = np.random.default_rng(1)
    x = rng.uniform(-1.2, 1.2, 5000).astype(dtype)
    words = SeededRandom(2).words(5000)
    expected = oracle.outcomes(sampler, sampler.position(x.astype(float)), words >> 40, words & np.uint64(2**40 - 1))
    assert (from_words(sampler, x, words) == expected).all()


@pytest.mark.parametrize("levels", [2, 8, 9, 10, 16, 40])
def test_pbm_counts_trials_of_24_bits_that_do_not_overlap(levels):
    mech = PBM(theta=0.3, levels=levels)
    x = np.random.default_rng(1).uniform(-1.2, 1.2, 2500).astype(np.float32)
    words = SeededRandom(2).words(mech.sampler.words_per_coordinate * cpu.SEED_CHUNK * chunks_of(len(x)))
    position, expected = mech.position(x), np.zeros(len(x), dtype=int)
    start = 0
    for first in range(0, len(x), cpu.SEED_CHUNK):
        chunk_positions = position[first : first + cpu.SEED_CHUNK]
        for group in range((mech.bernoulli_trials + 7) // 8):
            planes = words[start : start + 3 * len(chunk_positions)].reshape(3, -1)
            start += 3 * cpu.SEED_CHUNK
            for j, triple in enumerate(planes.T.tolist()):
                bits = triple[0] << 128 | triple[1] << 64 | triple[2]  # 192 bits: eight trials, first ones high
                for trial in range(min(8, mech.bernoulli_trials - 8 * group)):
                    drawn = bits >> 24 * (7 - trial) & 0xFFFFFF
                    expected[first + j] += drawn < chunk_positions[j]
    assert (from_words(mech.sampler, x, words) == expected).all()


def rounding_only(sampler):
    """The same placement and rounding, with nothing drawn after it: the outcome is the rounded level."""
    entries, columns = alias_table(np.array([[2**TABLE_BITS]]))
    return replace(sampler, entries=entries, column_bits=columns, has_row_per_level=False, modulus=65536)


def realised_positions(sampler, x):
    """The law of the rounding, read off the encoder itself: the level and how many of the 2**24 draws round up."""
    sampler = rounding_only(sampler)
    base = from_words(sampler, x, np.zeros(len(x)))
    low, high = np.zeros(len(x), dtype=np.uint64), np.full(len(x), 2**24, dtype=np.uint64)  # first draw that rounds up
    while (low < high).any():
        middle = (low + high) // np.uint64(2)
        up = from_words(sampler, x, np.minimum(middle, np.uint64(2**24 - 1)) << np.uint64(TABLE_BITS)) > base
        up &= middle < 2**24
        low, high = np.where(up | (low == high), low, middle + np.uint64(1)), np.where(up, middle, high)
    return (base.astype(np.int64) << POSITION_BITS) + (2**24 - low.astype(np.int64))


def neighbors(values):
    """All float32 bit patterns: anywhere, or within a few ulps of the given values."""
    bits = st.sampled_from([int(np.float32(v).view(np.uint32)) for v in values])
    close = st.builds(lambda base, ulps: (base + ulps) % 2**32, bits, st.integers(-40, 40))
    return st.one_of(st.integers(0, 2**32 - 1), close).filter(lambda b: np.isfinite(np.uint32(b).view(np.float32)))


ADVERSARY = [
    RQM(),
    RQM(clip=2.9731e-5, margin=0.66),
    RQM(levels=255, keep=0.2),
    PBM(clip=0.3),
    StochasticRounding(clip=3e37),
]
SPECIAL = [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF]


@pytest.mark.parametrize("mech", ADVERSARY, ids=repr)
@given(data=st.data())
def test_every_float32_has_an_accounted_rounding_probability(mech, data):
    grid = mech.unit if isinstance(mech, PBM) else mech
    patterns = data.draw(st.lists(neighbors([*grid.breakpoints, *grid.grid.values, 0.0]), min_size=1, max_size=60))
    x = np.array([*patterns, *SPECIAL], dtype=np.uint32).view(np.float32)
    realised = realised_positions(replace(mech.sampler, trials=0), x)
    low, high = (int(mech.position(end)) for end in (-mech.clip, mech.clip))
    assert ((low <= realised) & (realised <= high)).all()
    assert (realised == mech.position(x)).all()  # and it is the law that sampled_pmf states
    outside = np.abs(x.astype(float)) >= mech.clip
    assert np.isin(realised[outside], [low, high]).all()


@given(x=st.floats(allow_nan=False, allow_infinity=False), clip=st.floats(1e-280, 1e280))
def test_every_float64_has_an_accounted_rounding_probability(x, clip):
    mech = RQM(clip=clip)
    ends = np.array([x, clip, -clip, np.nextafter(clip, np.inf), -np.nextafter(clip, np.inf)])
    realised = realised_positions(mech.sampler, ends)
    assert ((mech.sampler.low <= realised) & (realised <= mech.sampler.high)).all()
    assert (realised == mech.position(ends)).all()


def test_the_probe_reads_a_position_that_is_off_by_one_unit():
    """The power of the tests above: a placement that errs in the last bit is seen."""
    sampler = RQM().sampler
    off = replace(sampler, center=sampler.center + 1, low=sampler.low, high=sampler.high)
    x = np.linspace(-0.9, 0.9, 7)
    assert (realised_positions(off, x) == sampler.position(x) + 1).all()


@pytest.mark.parametrize("mech", [RQM(), PBM(), StochasticRounding(levels=300), RQM(levels=300)], ids=repr)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_do_not_change_seeded_output(mech, dtype):
    x = np.random.default_rng(0).normal(size=(3, 70_001)).astype(dtype)
    first, two, five = (mech.encode(x, SeededRandom(4), threads=n) for n in (1, 2, 5))
    assert (first == two).all()
    assert (first == five).all()
    sums = [mech.encode_sum(x, SeededRandom(4), threads=n) for n in (1, 2, 5)]
    assert (sums[0] == sums[1]).all()
    assert (sums[0] == sums[2]).all()


@pytest.mark.parametrize("mech", [RQM(), PBM(), StochasticRounding(levels=3)], ids=repr)
def test_a_fused_sum_is_the_sum_of_the_levels(mech):
    x = np.random.default_rng(0).normal(size=(7, 4 * cpu.SEED_CHUNK)).astype(np.float32)
    levels = mech.encode(x, SeededRandom(9))
    total = mech.encode_sum(x, SeededRandom(9))
    assert total.dtype == np.int32
    assert (total == levels.sum(axis=0, dtype=np.int64)).all()
    more = mech.encode_sum(x[:3], SeededRandom(1), out=total.copy())
    assert (more - total == mech.encode(x[:3], SeededRandom(1)).sum(axis=0, dtype=np.int64)).all()


def test_additive_tables_wrap_around():
    sampler = oracle.additive(levels=9, modulus=64)
    z = encode(sampler, np.full(MANY // 10, 0.9), SeededRandom(3), None)
    pmf = oracle.additive_law(sampler, int(sampler.position(np.array([0.9]))[0]))
    assert p_value(np.bincount(z, minlength=64), pmf) > LEVEL
    assert p_value(np.bincount((z + 1) % 64, minlength=64), pmf) < LEVEL
    total = encode_sum(sampler, np.full((50, 1000), 0.9), SeededRandom(3), None, None)
    assert total.max() <= 50 * 63


def test_bad_inputs_are_refused_and_sums_stay_as_they_were():
    mech, rng = RQM(), SeededRandom(1)
    for value in (np.nan, np.inf, -np.inf):
        for size in (1, 1023, 200_000):
            for dtype in (np.float32, np.float64):
                x = np.zeros((2, size), dtype=dtype)
                x[1, size // 2] = value
                with pytest.raises(ValueError, match=f"x contains {value}"):
                    mech.encode(x, rng)
                total = np.arange(size, dtype=np.int32)
                with pytest.raises(ValueError, match=f"x contains {value}"):
                    mech.encode_sum(x, rng, out=total)
                assert (total == np.arange(size)).all()
    full = np.full(3, 2**31 - 20, dtype=np.int32)
    with pytest.raises(ValueError, match=r"0\.\.2147483617"):
        mech.encode_sum(np.zeros((2, 3)), rng, out=full)
    assert (full == 2**31 - 20).all()
    for out, error in ((np.zeros(3), TypeError), (np.zeros((3, 2), np.int32)[:, 0], TypeError), ([0, 0, 0], TypeError)):
        with pytest.raises(error, match="out"):
            mech.encode_sum(np.zeros((2, 3)), rng, out=out)
    with pytest.raises(ValueError, match="shape"):
        mech.encode_sum(np.zeros((2, 3)), rng, out=np.zeros(4, np.int32))
    for shape in ((), (0, 3)):
        with pytest.raises(ValueError, match="client"):
            mech.encode_sum(np.zeros(shape), rng)
    with pytest.raises(ValueError, match="at most 32768"):
        StochasticRounding(levels=65536).encode_sum(np.zeros((32769, 1)), rng)
    with pytest.raises(ValueError, match="threads"):
        mech.encode([0.0], rng, threads=0)
    with pytest.raises(TypeError, match="dtype"):
        mech.encode([True], rng)


def test_other_layouts_and_types_are_read_correctly():
    mech = RQM()
    x = np.random.default_rng(0).normal(size=(40, 50))
    expected = mech.encode(np.ascontiguousarray(x.T), SeededRandom(1))
    assert (mech.encode(x.T, SeededRandom(1)) == expected).all()
    assert (mech.encode(x.T.tolist(), SeededRandom(1)) == expected).all()
    half = x.astype(np.float16)
    assert (mech.encode(half, SeededRandom(1)) == mech.encode(half.astype(np.float32), SeededRandom(1))).all()
    whole = np.arange(-3, 4)
    assert (mech.encode(whole, SeededRandom(1)) == mech.encode(whole.astype(float), SeededRandom(1))).all()


@pytest.mark.parametrize("rng", [SeededRandom(1), SecureRandom()], ids=repr)
@pytest.mark.parametrize("mech", [RQM(), PBM()], ids=repr)
def test_encoding_allocates_the_output_and_a_fixed_buffer(mech, rng):
    extra = []
    for size in (1_000_000, 8_000_000):
        x = np.zeros(size, dtype=np.float32)
        mech.encode(x[:200_000], rng)
        tracemalloc.start()
        out = mech.encode(x, rng, threads=2)
        extra.append(tracemalloc.get_traced_memory()[1] - out.nbytes)
        tracemalloc.stop()
    assert max(extra) < 2_500_000  # a temporary array of a byte a coordinate would be seven million more


def _child(queue):
    x = np.linspace(-1, 1, 300_000, dtype=np.float32)
    queue.put((RQM().encode(x, SeededRandom(1), threads=2).sum(), RQM().encode(x, SecureRandom(), threads=2).tobytes()))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_encodes_on_threads_with_its_own_secure_words():
    x = np.linspace(-1, 1, 300_000, dtype=np.float32)
    expected = RQM().encode(x, SeededRandom(1), threads=2).sum()  # the pool exists before the fork
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    children = [context.Process(target=_child, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    answers = [queue.get(timeout=1800) for _ in children]
    for child in children:
        child.join()
    assert [answer[0] for answer in answers] == [expected, expected]
    assert answers[0][1] != answers[1][1]


def test_many_threads_may_encode_at_once():
    x, results = np.linspace(-1, 1, 200_000, dtype=np.float32), {}

    def work(name):
        results[name] = RQM().encode(x, SeededRandom(name), threads=2)

    workers = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all((results[name] == RQM().encode(x, SeededRandom(name), threads=1)).all() for name in range(6))


CASES = [
    (RQM(), 0.1234),
    (RQM(), 1.0),
    (RQM(levels=6, keep=(0.9, 0.1, 0.5, 0.02)), -0.4),
    (RQM(levels=256, keep=0.05), 0.7),
    (PBM(theta=0.35), 0.9),
    (StochasticRounding(levels=2, margin=20.0), -0.3),
]


def counts(mech, x, rng):
    return np.bincount(mech.encode(np.full(MANY, x, dtype=np.float32), rng), minlength=mech.levels)


@pytest.mark.statistical
@pytest.mark.parametrize("rng", [SeededRandom(2), SecureRandom()], ids=repr)
@pytest.mark.parametrize(("mech", "x"), CASES, ids=repr)
def test_ten_million_draws_follow_the_sampled_law(mech, x, rng):
    assert p_value(counts(mech, x, rng), mech.sampled_pmf(np.float32(x))) > LEVEL


@pytest.mark.statistical
@pytest.mark.parametrize("rng", [SeededRandom(3), SecureRandom()], ids=repr)
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_the_same_test_rejects_a_keep_probability_two_per_cent_off(factor, rng):
    for mech, x in CASES[:4]:
        keep = mech.keeps[1:-1] * factor
        wrong = RQM(levels=mech.levels, keep=keep.tolist() if len(set(keep)) > 1 else float(keep[0]))
        assert p_value(counts(mech, x, rng), wrong.sampled_pmf(np.float32(x))) < LEVEL


def planted(first, second, share=0.01):
    """A copy of ``second`` that repeats ``first`` now and then: what a test of independence must find."""
    return np.where(np.random.default_rng(0).random(len(second)) < share, first, second)


@pytest.mark.statistical
@pytest.mark.parametrize("rng", [SeededRandom(5), SecureRandom()], ids=repr)
def test_coordinates_are_independent(rng):
    mech, x = RQM(), 0.3
    z = mech.encode(np.full(MANY, x), rng).astype(np.int64)
    pmf = mech.sampled_pmf(x)
    for lag in (
        1,
        2,
        8,
        cpu.SEED_CHUNK // 2,
        cpu.SEED_CHUNK,
        32 * cpu.SEED_CHUNK,
    ):  # 512 apart: two halves of one Threefry block
        assert joint_p_value(z[:-lag], z[lag:], pmf) > LEVEL
    assert joint_p_value(z[:-1], planted(z[:-1], z[1:]), pmf) < LEVEL


@pytest.mark.statistical
def test_clients_and_rounds_are_independent():
    mech, x, root = RQM(), -0.2, SeededRandom(6)
    pmf, size = mech.sampled_pmf(x), MANY // 4
    z = {
        (client, draw_index): mech.encode(np.full(size, x), root.stream(client, draw_index)).astype(np.int64)
        for client in range(3)
        for draw_index in range(2)
    }
    names = list(z)
    for i, first in enumerate(names):
        for variant in names[i + 1 :]:
            assert joint_p_value(z[first], z[variant], pmf) > LEVEL
            assert joint_p_value(z[first][:-1], z[variant][1:], pmf) > LEVEL
    assert joint_p_value(z[names[0]], planted(z[names[0]], z[names[1]]), pmf) < LEVEL


@pytest.mark.statistical
def test_calls_of_one_source_are_independent():
    mech, x, pmf = RQM(), 0.0, RQM().sampled_pmf(0.0)
    for rng in (SeededRandom(7), SecureRandom()):
        first, second = (mech.encode(np.full(MANY // 4, x), rng).astype(np.int64) for _ in range(2))
        assert joint_p_value(first, second, pmf) > LEVEL


def test_after_an_error_no_thread_goes_on_writing():
    done, started = [], threading.Event()

    def task(start, stop):
        if start == 0:
            started.wait(10)
            raise KeyboardInterrupt
        started.set()
        done.append(start)
        return False

    size = 400 * MIN_COORDINATES
    with pytest.raises(KeyboardInterrupt):
        cpu.run_in_blocks(task, size, 2)
    finished = len(done)
    threading.Event().wait(0.05)
    assert len(done) == finished  # all had stopped when the error came out
    assert finished < size // MIN_COORDINATES


def test_a_pool_that_is_shut_down_leaves_the_work_to_the_caller(monkeypatch):
    class Closed:
        def submit(self, _):
            raise RuntimeError("cannot schedule new futures after shutdown")

    x = np.zeros(3 * MIN_COORDINATES, dtype=np.float32)
    expected = RQM().encode(x, SeededRandom(1), threads=1)
    monkeypatch.setattr(cpu, "_pool", Closed)
    assert (RQM().encode(x, SeededRandom(1), threads=3) == expected).all()


def test_arrays_that_would_hide_something_are_refused():
    mech, rng = RQM(), SeededRandom(1)
    with pytest.raises(TypeError, match="masked"):
        mech.encode(np.ma.masked_array([1.0, 2.0], [True, False]), rng)
    memory = np.zeros(8, dtype=np.float32)
    with pytest.raises(ValueError, match="share memory"):
        mech.encode_sum(memory.reshape(1, 8), rng, out=memory.view(np.int32))
    with pytest.raises(TypeError, match="out"):
        mech.encode_sum(np.zeros((1, 3)), rng, out=np.ma.zeros(3, dtype=np.int32))


def test_big_endian_and_read_only_inputs_give_the_same_levels():
    x = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    expected = RQM().encode(x, SeededRandom(1))
    frozen = x.copy()
    frozen.setflags(write=False)
    for variant in (x.astype(">f4"), frozen):
        assert (RQM().encode(variant, SeededRandom(1)) == expected).all()


def test_rows_with_a_source_each_draw_what_they_draw_alone():
    x = np.random.default_rng(0).normal(size=(5, 3000)).astype(np.float32)
    for mech in (RQM(), PBM()):
        sources = OneEach(SeededRandom(3, client) for client in range(5))
        expected = sum(mech.encode(row, SeededRandom(3, client)).astype(np.int64) for client, row in enumerate(x))
        assert (mech.encode_sum(x, sources) == expected).all()
        with pytest.raises(ValueError, match="5 sources: must have one for each of 4 rows"):
            mech.encode_sum(x[:4], sources)


@pytest.mark.parametrize("mech", [RQM(), PBM(), StochasticRounding()])
def test_long_levels_are_written_over_the_inputs_unless_they_are_to_be_kept(mech):
    x = mech.clip * np.sin(np.arange(200_000.0))
    levels, taken = encode(mech.sampler, x, SeededRandom(1), None), x.copy()
    outcomes = [encode_long(mech.sampler, array, SeededRandom(1), keep=x) for array in (x, taken)]
    assert [first.dtype for first in outcomes] == [np.int64] * 2
    assert (np.stack(outcomes) == levels).all()
    assert np.shares_memory(outcomes[1], taken)
