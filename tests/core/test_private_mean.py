"""Whatever vector comes in, what is sent lies in the set that is accounted for."""

from math import isqrt

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from rqm import PBM, RQM, SecureRandom, SeededRandom, StochasticRounding, private_mean
from rqm.core.transform import budget, over_budget, prepare, usable_length
from rqm.mechanisms.additive import DiscreteGaussian

WIDE = StochasticRounding(levels=2, margin=16382.0)
"""As few positions as an encoder allows: 1,024 from -clip to clip."""


def mean_of(mech, dim, clip_ratio=None, **options):
    """A private mean whose coordinates are clipped at four times their root mean square, or at a ratio of the clip."""
    sent = 1 << (dim - 1).bit_length() if options.get("rotate", True) else dim
    ratio = clip_ratio or max(1.0, sent**0.5 / 4)
    return private_mean(
        mechanism=mech, dim=dim, l2_clip=ratio * mech.clip, clients=options.pop("clients", 3), **options
    )


def sent_rows(mean, x, round_index):
    """What the encoder is given: the same steps, of which the result is looked at."""
    rows, _ = prepare(
        x[None].clone() if isinstance(x, torch.Tensor) else x[None], mean.length, mean.rotation(round_index)
    )
    return mean._within(rows)


def squares(mech, row):
    """In whole numbers of any size: (2 · distance from the middle)², summed."""
    low, high = mech.sampler.low, mech.sampler.high
    positions = mech.sampler.position(np.asarray(row, dtype=np.float64)).tolist()
    assert all(low <= p <= high for p in positions)
    return sum((2 * p - low - high) ** 2 for p in positions)


mechanisms = st.one_of(
    st.builds(StochasticRounding, clip=st.floats(1e-6, 1e3), levels=st.just(2), margin=st.floats(0.0, 16000.0)),
    st.builds(RQM, clip=st.floats(1e-6, 1e3), levels=st.sampled_from([4, 16]), margin=st.floats(0.1, 1e4)),
    st.builds(PBM, clip=st.floats(1e-6, 1e3), theta=st.floats(1e-4, 0.49)),
    st.builds(
        DiscreteGaussian, clip=st.floats(1e-6, 1e3), scale=st.floats(0.1, 3.0), steps=st.just(15), bits=st.just(8)
    ),
)
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),  # huge and denormal ones, too
    st.sampled_from([0.0, -0.0, 5e-324, 1e-310, 1e308, -1.7976931348623157e308, 3.4e38, 1.0]),
)


@settings(max_examples=150)
@given(mechanisms, st.integers(1, 70), st.booleans(), st.sampled_from([np.float64, np.float32, "torch"]), st.data())
def test_every_vector_that_is_sent_lies_in_the_accounted_set(mech, dim, rotate, kind, data):
    """Concentrated, huge, denormal: after clip and rotation, in integers, within the budget; never silenced."""
    mean = mean_of(mech, dim, rotate=rotate, rounds=3)
    x = data.draw(arrays.arrays(np.float64, dim, elements=numbers))
    if kind != np.float64:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
        assume(np.isfinite(x).all())
    given_ = torch.from_numpy(x) if kind == "torch" else x
    before = np.array(x)
    round_index = data.draw(st.integers(0, 2))
    message = mean.encode_simulated(given_, SeededRandom(1), round_index=round_index)
    assert (np.asarray(given_) == before).all()  # inputs are left alone
    assert tuple(message.shape) == (mean.coordinates,)
    assert int(message.min()) >= 0
    assert int(message.max()) < mech.levels <= mean.modulus
    row = sent_rows(mean, given_ if kind == "torch" else np.asarray(x, dtype=np.float64), round_index)[0]
    assert squares(mech, np.asarray(row)) <= 4 * budget(mech, mean.l2_clip)
    if np.abs(before).max() > 1e-3 * mean.l2_clip:
        assert np.abs(np.asarray(row)).max() > 0


@pytest.mark.parametrize("clip", [1e-6, 0.5, 1e3])
@pytest.mark.parametrize("size", [1e18, 1e30, 2.40615975e38, 3.4e38])
def test_rows_as_long_as_a_float_can_be_keep_their_direction(clip, size):
    """The factor that shortens such a row is no normal float32, and its square is infinite."""
    mean = mean_of(StochasticRounding(clip=clip, levels=2, margin=0.0), 2, clip_ratio=1.0, rotate=False)
    row = np.asarray(sent_rows(mean, torch.tensor([size, -size], dtype=torch.float32), 0)[0])
    assert row == pytest.approx(mean.length * np.array([0.5**0.5, -(0.5**0.5)]), rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad):
    mean = mean_of(StochasticRounding(levels=2, margin=3.0), 3)
    for x in ([1.0, bad, 0.0], np.array([1.0, bad, 0.0], dtype=np.float32), torch.tensor([1.0, bad, 0.0])):
        with pytest.raises(ValueError, match=r"x contains -?(nan|inf): every value must be finite"):
            mean.encode(x, SecureRandom())


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([1.0, 2.0], ValueError, r"x has shape \(2,\): must be \(3,\)"),
        ([[1.0, 2.0, 3.0]], ValueError, r"x has shape \(1, 3\)"),
        ([], ValueError, r"x has shape \(0,\)"),
        ([[1.0], [1.0, 2.0]], ValueError, "ragged"),
        (["a", "b", "c"], TypeError, "x has dtype"),
        (np.array([1j, 0, 0]), TypeError, "must be real numbers"),
        (torch.tensor([True, False, True]), TypeError, "must be real numbers"),
        (1.0, ValueError, r"x has shape \(\)"),
    ],
)
def test_other_shapes_and_kinds_are_refused(x, error, words):
    with pytest.raises(error, match=words):
        mean_of(StochasticRounding(levels=2, margin=3.0), 3).encode(x, SecureRandom())


def test_randomness_is_one_of_two_kinds():
    mean = mean_of(StochasticRounding(levels=2, margin=3.0), 3)
    with pytest.raises(TypeError, match=r"rqm\.SecureRandom"):
        mean.encode(np.zeros(3), np.random.default_rng(0))
    one, other = (mean.encode_simulated(np.zeros(3), SeededRandom(2)) for _ in range(2))
    assert (one == other).all()


# -- no honest vector is silenced -----------------------------------------------------------------


def silenced(mech, dim, count, seed):
    """How many of so many random vectors, clipped and rotated, the encoder would still find too long."""
    rng = np.random.default_rng(seed)
    mean = mean_of(mech, dim, rounds=1)
    shapes = [
        rng.normal(size=(count, dim)),
        rng.standard_cauchy(size=(count, dim)),
        rng.choice([-1.0, 1.0], (count, dim)),
    ]
    x = np.concatenate([part[: -(-count // 3)] for part in shapes])[:count]
    x *= 10.0 ** rng.uniform(-1, 3, size=(count, 1)) * mean.l2_clip / np.sqrt(dim)
    found = 0
    for rows in (x, torch.from_numpy(x.astype(np.float32))):
        ready, finite = prepare(rows, mean.length, mean.rotation(0))
        assert finite.all()
        found += int(over_budget(mech, ready, mean.l2_clip).sum())
    return found


NARROW = [
    WIDE,
    StochasticRounding(levels=2, margin=5000.0),
    RQM(margin=200_000.0),
    PBM(theta=6e-5),
    StochasticRounding(levels=2, margin=3.0),
]


@pytest.mark.parametrize("mech", NARROW, ids=repr)
def test_no_clipped_vector_is_sent_as_zero(mech):
    for dim in (1, 2, 3, 5, 8, 17, 64, 1024):
        assert silenced(mech, dim, max(30, 20_000 // dim), dim) == 0


@pytest.mark.slow
@pytest.mark.parametrize("bits", range(21))
def test_no_clipped_vector_of_a_million_is_sent_as_zero(bits):
    count = {0: 200_000, 1: 200_000, 2: 200_000, 3: 200_000, 4: 200_000}.get(bits, max(3, 2**21 >> bits))
    for mech in NARROW:
        for start in range(0, count, 20_000):
            assert silenced(mech, 1 << bits, min(20_000, count - start), [bits, start]) == 0


def test_the_check_has_power():
    """Scaled to C itself, and not to what leaves room for rounding, many short vectors are too long in integers."""
    mean = mean_of(WIDE, 4)
    x = np.random.default_rng(0).normal(size=(2000, 4)) * 100
    rows, _ = prepare(x, mean.l2_clip * (1 - 2.0**-15), mean.rotation(0))  # the room that floats need
    assert over_budget(WIDE, rows, mean.l2_clip).sum() > 20


@given(mechanisms, st.integers(1, 2**20), st.floats(0.3, 300))
def test_the_room_left_for_rounding_is_enough_and_not_more(mech, count, ratio):
    """In whole numbers: a vector of that length whose every position is rounded outwards is within the budget."""
    bound = ratio * mech.clip
    try:
        length = usable_length(mech, bound, count)
    except ValueError:
        return
    assert bound / 2 < length < bound
    if bound > mech.clip * count**0.5:  # no vector within the clip of every coordinate is longer
        return
    recipe = mech.sampler
    reach = (
        length * recipe.scale / (1 - 2.0**-16) + isqrt(count * 10**12) / 2e6
    )  # L2 distance plus half a position each
    assert reach**2 <= budget(mech, bound) * (1 + 1e-9) + 1
    if recipe.high - recipe.low > 10**6 and ratio > count**0.5 / 8:
        assert length > (1 - 1e-4) * bound


def test_a_clip_without_room_is_refused():
    with pytest.raises(ValueError, match=r"l2_clip = 0\.001: has room for"):
        private_mean(mechanism=WIDE, dim=1000, clients=10, l2_clip=1e-3).encode(np.zeros(1000), SecureRandom())


# -- the mean -------------------------------------------------------------------------------------


@pytest.mark.statistical
@pytest.mark.parametrize(
    "mech", [StochasticRounding(clip=0.5, levels=2, margin=1.0), PBM(clip=0.5), RQM(clip=0.5)], ids=repr
)
def test_the_decoded_mean_is_unbiased(mech):
    mean = private_mean(mechanism=mech, dim=5, clients=3, l2_clip=1.0, rounds=1200)
    x = np.random.default_rng(1).normal(size=(3, 5)) * 0.25
    estimates = []
    for round_index in range(1200):
        total = sum(
            mean.encode_simulated(row, SeededRandom(3, round_index, client), round_index=round_index)
            for client, row in enumerate(x)
        )
        estimates.append(mean.decode(total % mean.modulus, survivors=3, round_index=round_index))
    error = np.std(estimates, axis=0) / 1200**0.5
    off = (np.mean(estimates, axis=0) - x.mean(axis=0)) / error
    assert np.abs(off).max() < 5
    assert np.abs(off + 0.1 / error).max() > 5  # a bias of a fifth of a clip would be seen


def test_both_libraries_mean_the_same():
    mean = private_mean(mechanism=StochasticRounding(clip=1.0, levels=65536), dim=50, clients=2, l2_clip=2.0)
    x = np.random.default_rng(0).normal(size=50) / 10
    for one in (x, torch.from_numpy(x), torch.from_numpy(x).float()):
        message = mean.encode_simulated(one, SeededRandom(0))
        estimate = mean.decode(2 * message, 2)
        assert type(message) is type(estimate)
        np.testing.assert_allclose(np.asarray(estimate), x, atol=1e-3)


def test_sums_of_messages_cannot_overflow():
    mean = private_mean(mechanism=RQM(levels=256), dim=4, clients=1000)
    message = mean.encode(np.ones(4), SecureRandom())
    assert message.dtype == np.int64
    assert mean.modulus == 2**18
    with pytest.raises(ValueError, match="does not fit 31 bits"):
        private_mean(mechanism=StochasticRounding(levels=65536), dim=4, clients=10**6)


# -- what is refused ------------------------------------------------------------------------------
