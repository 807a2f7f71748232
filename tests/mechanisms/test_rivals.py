"""Additive noise, randomized response and tables from files: their laws, their encoders, their privacy."""

import json
from fractions import Fraction
from math import exp, inf, log

import dp_accounting
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rqm import RQM, SecureRandom, SeededRandom, StochasticRounding, mechanism_from_dict, renyi
from rqm.certify.shifts import shift_divergences, shift_range, shifted_rdp
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.table import Table
from rqm.related.randomized_response import RandomizedResponse
from rqm.secagg import Params

SMALL = {"scale": 0.8, "steps": 5, "bits": 5}
MECHS = [
    DiscreteGaussian(**SMALL),
    Skellam(**SMALL),
    Binomial(**SMALL),
    RandomizedResponse(levels=5, epsilon=2.0),
    Table(margin=0.8, rows=((7 / 9, 0.0, 2 / 9), (0.25, 0.5, 0.25), (2 / 9, 0.0, 7 / 9))),
]
IDS = [mech.kind for mech in MECHS]


@pytest.mark.parametrize("mech", MECHS, ids=IDS)
def test_the_law_sums_to_one_and_is_unbiased(mech):
    for x in (-1.0, -0.31, 0.0, 0.6, 1.0):
        assert mech.pmf(x).sum() == pytest.approx(1, abs=1e-12)
        assert sum(mech.sampled_pmf(x)) == 1
        assert abs(mech.sampled_pmf(x).astype(float) - mech.pmf(x)).max() < 1e-6
        mean = float(mech.sampled_pmf(x).astype(float) @ mech.grid.values)
        if mech.is_modular:  # but for what wraps around, which is known
            bias, _ = mech.wrapping_error(1, x)
            assert mean - x == pytest.approx(bias, abs=1e-6)
        else:
            assert mean == pytest.approx(x, abs=1e-6)


@pytest.mark.parametrize("mech", [m for m in MECHS if not m.is_modular], ids=["response", "table"])
def test_every_row_has_exactly_the_mean_of_its_level(mech):
    top = mech.levels - 1
    for j, row in enumerate(mech.table.tolist()):
        mean = Fraction(sum(i * n for i, n in enumerate(row)), 2**40)
        value = mech.output_range * (2 * mean / top - 1)
        assert value == Fraction(2 * j, mech.input_levels - 1) - 1
        assert sum(row) == 2**40


def counts(mech, x, rng, draws=1_000_000):
    return np.bincount(mech.encode(np.full(draws, x), rng), minlength=mech.levels)


def p_value(observed, law):
    seen = law * observed.sum() > 5
    expected = np.append(law[seen], law[~seen].sum()) * observed.sum()
    observed = np.append(observed[seen], observed[~seen].sum())
    keep = expected > 1e-9
    assert observed[~keep].sum() == 0
    return stats.chisquare(observed[keep], expected[keep] * observed[keep].sum() / expected[keep].sum()).pvalue


@pytest.mark.parametrize("x", [-1.0, 0.23])
@pytest.mark.parametrize("mech", MECHS, ids=IDS)
def test_draws_follow_the_law(mech, x):
    assert p_value(counts(mech, x, SecureRandom()), mech.pmf(x)) > 1e-6


@pytest.mark.parametrize(
    ("mech", "off"),
    [
        (DiscreteGaussian(**SMALL), DiscreteGaussian(scale=0.8 * 1.02, steps=5, bits=5)),
        (Skellam(**SMALL), Skellam(scale=0.8 * 1.02, steps=5, bits=5)),
        (Skellam(**SMALL), DiscreteGaussian(**SMALL)),
        (Binomial(**SMALL), Binomial(scale=1.0, steps=5, bits=5)),
        (RandomizedResponse(levels=5, epsilon=2.0), RandomizedResponse(levels=5, epsilon=2.02)),
    ],
    ids=str,
)
def test_the_same_test_sees_a_law_that_is_slightly_off(mech, off):
    assert p_value(counts(off, 0.23, SeededRandom(3), 4_000_000), mech.pmf(0.23)) < 1e-6


def test_noise_is_what_its_name_says():
    t = np.arange(32) - 16
    sigma = DiscreteGaussian(**SMALL).deviation
    assert sigma == 2.0
    np.testing.assert_allclose(np.exp(Skellam(**SMALL).log_noise()), stats.skellam(2, 2).pmf(t), rtol=1e-8)
    assert Binomial(**SMALL).coins == 16
    np.testing.assert_allclose(np.exp(Binomial(**SMALL).log_noise())[8:25], stats.binom(16, 0.5).pmf(t[8:25] + 8))
    ratio = np.exp(DiscreteGaussian(**SMALL).log_noise())
    np.testing.assert_allclose(ratio / ratio[16], np.exp(-(t**2) / 8))


@pytest.mark.parametrize("mech", MECHS[:3], ids=IDS[:3])
def test_sums_are_the_exact_convolution_modulo_m(mech):
    noise = [Fraction(int(n), 2**40) for n in np.roll(mech.noise_units, 16)]
    exact = noise
    for _ in range(2):
        exact = [sum(exact[i] * noise[(k - i) % 32] for i in range(32)) for k in range(32)]
    np.testing.assert_allclose(mech.summed(3), [float(p) for p in exact], rtol=1e-12)


@pytest.mark.parametrize("mech", MECHS[:3], ids=IDS[:3])
def test_privacy_of_a_sum_equals_mpmaths(mech):
    law = [mpmath.mpf(float(p)) for p in mech.summed(3)]
    for alpha in (2, 7.5):
        worst = max(
            mpmath.log(sum(p**alpha * q ** (1 - alpha) for p, q in zip(a, b, strict=True))) / (alpha - 1)
            for k in range(1, 6)
            for a, b in [(law, law[k:] + law[:k]), (law[k:] + law[:k], law)]
        )
        bound = renyi(mech, alpha, 3)
        assert float(worst) * (1 - 1e-12) <= bound.upper <= float(worst) * (1 + 2e-6)
        assert bound.certified
    assert renyi(mech, inf, 3).upper < inf


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from([DiscreteGaussian, Skellam]), alpha=st.sampled_from([2.0, 5.0, 16.0]))
def test_no_inputs_of_anybody_pass_the_certified_bound(data, kind, alpha):
    """Sums of three clients of four coordinates, computed one by one: never above, whatever they hold."""
    mech = kind(scale=1.5, steps=3, bits=5)
    dim, l2_clip = 4, 1.2
    point = st.lists(st.floats(-1, 1), min_size=dim, max_size=dim)

    def within(vector):
        return np.array(vector) * min(1, l2_clip / max(1e-9, float(np.linalg.norm(vector))))

    x, y = within(data.draw(point)), within(data.draw(point))
    others = [within(data.draw(point)) for _ in range(2)]

    def law(*values):
        found = np.zeros(32)
        found[0] = 1
        for value in values:
            one = mech.sampled_pmf(value).astype(float)
            found = np.array([sum(found[i] * one[(k - i) % 32] for i in range(32)) for k in range(32)])
        return found

    total = 0.0
    for j in range(dim):
        p, q = law(x[j], *(o[j] for o in others)), law(y[j], *(o[j] for o in others))
        total += log((p**alpha * q ** (1 - alpha)).sum()) / (alpha - 1)
    farthest, squared = shift_range(mech, l2_clip, "replace-one")
    bound = shifted_rdp(mech, [alpha], honest=3, dim=dim, farthest=farthest, squared=squared)[0]
    assert total <= bound * (1 + 1e-9)
    assert bound <= dim * renyi(mech, alpha, 3).upper * (1 + 3e-6)


def test_a_discrete_gaussian_costs_what_a_gaussian_costs_and_not_less():
    """Of the same variance: at most what Kairouz et al. prove for sums of discrete Gaussians; dp-accounting agrees."""
    mech, clients = DiscreteGaussian(scale=4.0, steps=15, bits=12), 20
    orders = [2, 4, 8, 16]
    event = dp_accounting.rdp.RdpAccountant(orders)
    event.compose(dp_accounting.GaussianDpEvent(clients**0.5 * mech.deviation / mech.steps))
    gaussian = np.array(event._rdp)
    ours = np.array([b.upper for b in renyi(mech, orders, clients)])
    tau = 10 * sum(exp(-2 * np.pi**2 * mech.deviation**2 * k / (k + 1)) for k in range(1, clients))
    shift2 = mech.steps**2 / (clients * mech.deviation**2)
    published = np.array([a * shift2 / 2 + tau for a in orders])
    assert (ours <= published * (1 + 3e-6)).all()
    np.testing.assert_allclose(ours, gaussian, rtol=1e-3)


def test_skellam_is_within_its_published_bound():
    """Agarwal, Kairouz and Liu 2021, Theorem 3.5: α Δ²/2μ + min(((2α−1)Δ² + 6Δ)/4μ², 3Δ/2μ), μ the sum's variance."""
    mech, clients = Skellam(scale=4.0, steps=15, bits=12), 20
    mu, shift = clients * mech.deviation**2, mech.steps
    for alpha in (2, 4, 8, 16):
        published = alpha * shift**2 / (2 * mu) + min(
            ((2 * alpha - 1) * shift**2 + 6 * shift) / (4 * mu**2), 3 * shift / (2 * mu)
        )
        assert renyi(mech, alpha, clients).upper <= published * (1 + 3e-6)


def test_wrapping_is_measured():
    mech = DiscreteGaussian(scale=3.0, steps=7, bits=6)
    clients, x = 9, 0.55
    sums = mech.encode(np.full((clients, 400_000), x), SeededRandom(5)).sum(axis=0, dtype=np.int64)
    errors = mech.decode(sums % 64, clients) - x
    bias, square = mech.wrapping_error(clients, x)
    assert abs(bias) > 0.02  # these few bits are too few
    assert errors.mean() == pytest.approx(bias, abs=5 * errors.std() / 400_000**0.5)
    assert (errors**2).mean() == pytest.approx(square, rel=0.02)
    roomy = DiscreteGaussian(scale=3.0, steps=7, bits=12)
    assert abs(roomy.wrapping_error(clients, x)[0]) < 1e-6
    assert roomy.wrapping_error(clients, 0.0)[1] == pytest.approx(roomy.variance_max / clients, rel=1e-6)


@given(levels=st.integers(2, 40), epsilon=st.floats(0.01, 20))
def test_randomized_response_keeps_its_epsilon_in_integers(levels, epsilon):
    mech = RandomizedResponse(levels=levels, epsilon=epsilon)
    true, other = mech.units
    assert true > other > 0
    assert mpmath.log(mpmath.mpf(true) / other) <= epsilon
    assert mech.loss == pytest.approx(epsilon, abs=1e-3 + 2e-9 * exp(epsilon) ** 0.5)


def test_randomized_response_with_two_levels_is_the_1_bit_mechanism():
    mech = RandomizedResponse(levels=2, epsilon=log(3))
    np.testing.assert_allclose(
        mech.pmf([-1, 0.2, 1]), StochasticRounding(levels=2, margin=1.0).pmf([-1, 0.2, 1]), atol=1e-9
    )
    assert renyi(mech, inf).upper == pytest.approx(log(3), rel=1e-9)


def test_a_table_can_be_any_channel_and_comes_back_from_its_file(tmp_path):
    old = RandomizedResponse(clip=0.5, levels=4, epsilon=1.0)
    rows = tuple(map(tuple, np.exp(old.log_rows()).tolist()))
    mech = Table(clip=0.5, margin=float(old.output_range) - 1, rows=rows)
    np.testing.assert_allclose(mech.pmf([-0.5, 0.1]), old.pmf([-0.5, 0.1]), rtol=1e-9)
    path = mech.save(tmp_path / "mine.json")
    assert Table.load(path) == mech == mechanism_from_dict({"mechanism": "table", "file": str(path)})
    assert mechanism_from_dict(json.loads(json.dumps(mech.to_dict()))) == mech
    path.write_text(path.read_text()[:50])
    with pytest.raises(ValueError, match="must be a table's JSON file"):
        Table.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ((1.0, 0.0),)}, "at least two"),
        ({"rows": ((0.5, 0.5), (0.5,))}, "equal length"),
        ({"rows": ((0.75, 0.25), (0.25, float("nan")))}, "must be probabilities"),
        ({"rows": ((0.75, 0.26), (0.25, 0.75))}, "total 1.01"),
        ({"rows": ((0.7, 0.3), (0.25, 0.75))}, "mean -0.4"),
        ({"margin": -0.1}, "margin"),
    ],
)
def test_bad_tables_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Table(**change)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mechanism": "discrete-gaussian", "steps": 4}, "odd"),
        ({"mechanism": "skellam", "bits": 17}, "bits = 17"),
        ({"mechanism": "binomial", "scale": 0.0}, "scale = 0"),
        ({"mechanism": "randomized-response", "epsilon": 0.0}, "epsilon = 0"),
    ],
)
def test_bad_parameters_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        mechanism_from_dict(fields)


def test_round_trips():
    for mech in MECHS:
        assert mechanism_from_dict(json.loads(json.dumps(mech.to_dict()))) == mech
    assert RQM() in {RQM()}


def test_small_divergences_keep_their_digits():
    """Ten thousand clients: against mpmath with fifty digits on the same law."""
    mech, clients = DiscreteGaussian(scale=0.5, steps=7, bits=10), 10_000
    with mpmath.workdps(50):
        law = [mpmath.mpf(float(p)) for p in mech.summed(clients)]
        total = sum(law)
        law = [p / total for p in law]
        turned = law[1:] + law[:1]
        for alpha in (1.25, 2, 16):
            exact = max(
                mpmath.log(sum(p**alpha * q ** (1 - alpha) for p, q in zip(a, b, strict=True))) / (alpha - 1)
                for a, b in ((law, turned), (turned, law))
            )
            ours = shift_divergences(mech, (float(alpha),), clients)[1, 0]
            assert exact <= ours <= exact * (1 + 3e-6)


def test_what_is_summed_is_summed_modulo_m():
    """The integer sum of wrapped outcomes would leak more than is certified: it is never shown."""
    mech = DiscreteGaussian(scale=1.0, steps=7, bits=4)
    sums = mech.encode_sum(np.zeros((50, 1000)), SeededRandom(1))
    assert sums.max() < 16
    with pytest.raises(ValueError, match="must be 12, the modulus"):
        Params(clients=100, count=3, levels=4096, round=b"r", modular=True, bits=19)
    assert Params(clients=100, count=3, levels=4096, round=b"r", modular=True).bits == 12


def test_an_epsilon_that_integers_cannot_keep_is_refused():
    with pytest.raises(ValueError, match="must be larger for 1000 levels"):
        RandomizedResponse(levels=1000, epsilon=1e-8)


def test_what_equal_mechanisms_draw_by_is_made_once():
    """One is read from the plan, one from every ledger: a node that answers would make the same table each time."""
    one, other, wider = DiscreteGaussian(**SMALL), DiscreteGaussian(**SMALL), DiscreteGaussian(**SMALL | {"scale": 0.9})
    assert one.sampler is other.sampler
    assert (wider.sampler.entries != one.sampler.entries).any()
