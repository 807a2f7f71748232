"""What rqm computes, under the names of the literature.

Only this module of the package calls rqm. Parameters that a source states differently are converted here, and each
docstring says how. Sigma is the standard deviation of the noise in the units of the sensitivity.
"""

from collections.abc import Sequence
from math import inf, log, sqrt

import dp_accounting as dp
import numpy as np
import numpy.typing as npt

from rqm import bounds
from rqm.accounting.accountant import account
from rqm.accounting.participation import Participation, ThreatModel
from rqm.accounting.profiles import renyi_without_replacement
from rqm.accounting.record_release import RecordRelease
from rqm.accounting.release import Release
from rqm.audit.privacy import exact_epsilon
from rqm.bounds import Bound, GdpMu, PrivacyProfile, RdpCurve, compose, epsilon, profile_of
from rqm.certify.renyi import renyi
from rqm.correlated.factorization import Strategy, Workload, banded
from rqm.mechanisms.additive import DiscreteGaussian
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.related.randomized_response import RandomizedResponse
from rqm.related.rappor import Rappor

ALL_ORDERS = tuple((1.011 + 0.01 * 1.001 ** np.arange(13_000)).tolist())
"""Rényi orders from 1.02 to 4,400, 0.1 % apart: stands for a minimum over all real orders."""

BITS = 12
"""Size of the integer range of the discrete Gaussian mechanism: wide enough that no sum wraps around."""

Matrix = npt.ArrayLike


# -- Gaussian mechanism ---------------------------------------------------------------------------


def gaussian_delta(sigma: float, eps: float, sensitivity: float = 1.0) -> float:
    """δ(ε) of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    return float(bounds.gaussian_deltas(sensitivity / sigma, np.array([eps]))[0])


def gaussian_epsilon(sigma: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest ε of the Gaussian mechanism at δ."""
    return bounds.epsilon_of_gaussian(sigma / sensitivity, delta)


def gaussian_sigma(eps: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation for (ε, δ): the analytic calibration of Balle and Wang (2018)."""
    return sensitivity / bounds.gaussian_mu(eps, delta)


def gdp_epsilon(mu: float, delta: float) -> float:
    """ε at δ of a μ-GDP mechanism (Dong, Roth and Su 2022, Corollary 2.13)."""
    return epsilon(Bound(GdpMu(mu)), delta)


def gaussian_composition_epsilon(releases: Sequence[tuple[float, int]], delta: float) -> float:
    """ε of several Gaussian mechanisms, given as (sigma, count), composed by their privacy profiles.

    rqm bounds each profile; dp_accounting convolves the privacy loss distributions.
    """
    profiles = [(Bound(PrivacyProfile(((profile_of(GdpMu(1 / sigma)), 1),))), count) for sigma, count in releases]
    return epsilon(compose(profiles), delta)


# -- Rényi differential privacy -------------------------------------------------------------------


def rdp_epsilon(orders: Sequence[float], divergences: Sequence[float], delta: float, steps: int = 1) -> float:
    """ε at δ from Rényi divergences (Canonne, Kamath and Steinke 2020, Proposition 12), the best order of all."""
    curve = RdpCurve(tuple(map(float, orders)), np.array(divergences, dtype=float))
    return epsilon(compose([(Bound(curve), steps)]), delta)


def gaussian_rdp_epsilon(
    noise_multiplier: float, delta: float, steps: int = 1, orders: Sequence[float] = ALL_ORDERS
) -> float:
    """The same for Gaussian mechanisms, D_α = α / 2σ² each."""
    curve = Release(Gaussian(noise_multiplier), 1, 1.0).rdp(orders, "zero-out", 1)
    return rdp_epsilon(curve.orders, curve.values.tolist(), delta, steps)


def zcdp_epsilon(rho: float, delta: float, orders: Sequence[float] = ALL_ORDERS) -> float:
    """The same for ρ-zCDP, D_α = ρα: that of a Gaussian mechanism with σ = 1 / √(2ρ)."""
    return gaussian_rdp_epsilon(1 / sqrt(2 * rho), delta, orders=orders)


def sampled_without_replacement_rdp(
    noise_multiplier: float, batch_size: int, population: int, order: int, steps: int
) -> float:
    """D_α of the Gaussian mechanism on a subset of fixed size (Wang, Balle and Kasiviswanathan 2019, Theorem 9).

    `noise_multiplier` is relative to the change when one record is replaced, which is two clips in rqm.
    """
    full = Release(Gaussian(2 * noise_multiplier), 1, 1.0).rdp(range(2, order + 1), "replace-one", 1)
    return steps * float(renyi_without_replacement(full, batch_size / population).values[-1])


# -- Poisson sampling: dp_accounting computes the losses, or the divergences ----------------------


def subsampled_gaussian_epsilon(
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    delta: float,
    accountant: str,
    orders: Sequence[float] = (),
) -> float:
    """ε of DP-SGD: Poisson sampling, add-or-remove-one, by Rényi divergences or privacy loss distributions.

    By losses it is rqm's ε of a record with a trusted server. The Rényi divergences of one step are dp_accounting's,
    as rqm has none for Poisson sampling; rqm composes them and converts them to ε.
    """
    if accountant == "rdp":
        theirs = dp.rdp.RdpAccountant(list(map(float, orders)))
        theirs.compose(dp.PoissonSampledDpEvent(sampling_rate, dp.GaussianDpEvent(noise_multiplier)))
        return rdp_epsilon(orders, theirs._rdp, delta, steps)
    release = RecordRelease(Gaussian(noise_multiplier), 1, 1.0, record_clip=1.0, sampling_rate=sampling_rate)
    threat_model = ThreatModel(unit="record", neighboring="add-or-remove-one")
    return account(release, Participation(1, steps), threat_model, delta).epsilon


# -- discrete mechanisms --------------------------------------------------------------------------


def discrete_gaussian_sigma(eps: float, delta: float, sensitivity: int) -> float:
    """The smallest parameter σ with which the discrete Gaussian is (ε, δ)-private, for an odd sensitivity.

    Of the deployed distribution, whose probabilities are multiples of 2**-40.
    """

    def is_private(sigma: float) -> bool:
        mechanism = DiscreteGaussian(scale=2 * sigma / sensitivity, steps=sensitivity, bits=BITS)
        return exact_epsilon(mechanism, delta) <= eps

    high = 1.0
    while not is_private(high):
        high *= 2
    while is_private(high / 2):
        high /= 2
    low = high / 2
    while high > low * (1 + 1e-6):
        sigma = sqrt(low * high)
        low, high = (low, sigma) if is_private(sigma) else (sigma, high)
    return high


def randomized_response_rdp(truth_probability: float, categories: int, order: float) -> float:
    """D_α of k-ary randomized response, one input replaced by another."""
    pure = log(truth_probability * (categories - 1) / (1 - truth_probability))
    return renyi(RandomizedResponse(levels=categories, epsilon=pure), order).upper


def randomized_response_epsilon(truth_probability: float, categories: int) -> float:
    """ε of k-ary randomized response, pure."""
    return randomized_response_rdp(truth_probability, categories, inf)


def rappor_permanent_epsilon(hashes: int, f: float) -> float:
    """ε∞ of RAPPOR's permanent randomized response (Erlingsson, Pihur and Korolova 2014, Theorem 1)."""
    return Rappor(bits=32, hashes=hashes, f=f).epsilon_infinity


def rqm_renyi(
    margin: float, keep: float, levels: int, clients: int, order: float, others: str | float = "worst"
) -> float:
    """D_α of one coordinate of the Randomized Quantization Mechanism in a sum, one client's input replaced.

    `margin` (Δ) is in units of the clip. `others` may be one input in units of the clip, held by all other clients.
    """
    return _renyi(RQM(margin=margin, keep=keep, levels=levels), clients, order, others)


def rqm_epsilon_bound(margin: float, keep: float, levels: int) -> float:
    """The bound on D_∞ of Youn et al. (2023), Theorem 5.2."""
    return RQM(margin=margin, keep=keep, levels=levels).theorem_bound


def pbm_renyi(theta: float, trials: int, clients: int, order: float, others: str | float = "worst") -> float:
    """D_α of one coordinate of the Poisson Binomial Mechanism, Binomial(`trials`, 1/2 ± θ), in a sum."""
    return _renyi(PBM(theta=theta, levels=trials + 1), clients, order, others)


def _renyi(mechanism: RQM | PBM, clients: int, order: float, others: str | float) -> float:
    inputs = others if isinstance(others, str) else np.full(clients - 1, others * mechanism.clip)
    return renyi(mechanism, order, clients, inputs).upper


# -- matrix mechanism -----------------------------------------------------------------------------


def matrix_sensitivity(strategy_matrix: Matrix, max_participations: int, min_separation: int) -> float:
    """L2 sensitivity of the strategy matrix C, for at most so many participations at least so far apart."""
    return _strategy(strategy_matrix).sensitivity(max_participations, min_separation)


def prefix_sum_mean_squared_error(strategy_matrix: Matrix) -> float:
    """Mean over the prefix sums of their variance, with noise of variance 1 before C⁻¹ is applied."""
    strategy = _strategy(strategy_matrix)
    return (strategy.error(_prefix_sums(strategy.rounds)) / strategy.sensitivity()) ** 2


def best_prefix_sum_loss(rounds: int) -> float:
    """The sum of the variances of all prefix sums at sensitivity 1, for the best C with so many bands."""
    workload = _prefix_sums(rounds)
    return rounds * banded(workload, rounds).error(workload) ** 2


def _prefix_sums(rounds: int) -> Workload:
    return Workload(rounds, momentum=0.0, schedule="constant")


def _strategy(matrix: Matrix) -> Strategy:
    """Rows of bands, as rqm stores a lower triangular matrix: `rows[t, j]` is C[t, t − j]."""
    dense = np.asarray(matrix, dtype=float)
    rounds = len(dense)
    rows = np.array([[dense[t, t - j] if j <= t else 0.0 for j in range(rounds)] for t in range(rounds)])
    bands = 1 + int(np.flatnonzero(rows.any(axis=0))[-1])
    return Strategy(rows[:, :bands])
