"""Published values of the Gaussian mechanism: δ(ε), its calibration, and Gaussian differential privacy."""

from functools import partial
from math import exp, log, sqrt

from scipy.special import ndtr

from tests.published import ours
from tests.published.rows import (
    ADD,
    AUTODP,
    DP_ACCOUNTING,
    GDP_CODE,
    GOOGLE_DP,
    OPACUS,
    PFL,
    PIPELINE_DP,
    POISSON,
    REPLACE,
    SEVEN_PLACES,
    TF_PRIVACY,
    Row,
    at_least,
    at_most,
    within,
)

LOSS_TEST = "pld/privacy_loss_mechanism_test.py: GaussianPrivacyLossTest."


def dp_accounting_delta(epsilon: float, published: str, convention: str, test: str) -> Row:
    """δ of the Gaussian mechanism with σ = 1 on vectors within an L2 clip of 1."""
    return Row(
        DP_ACCOUNTING,
        LOSS_TEST + test,
        convention,
        f"δ at ε = {epsilon:g}, σ = 1, clip 1",
        published,
        partial(ours.gaussian_delta, 1.0, epsilon, 1.0 if convention == ADD else 2.0),
        within(5e-8 / float(published), SEVEN_PLACES),
    )


ONE_BY_ONE, VECTORIZED = "test_gaussian_get_delta_for_epsilon", "test_gaussian_get_delta_for_epsilon_vectorized"

GAUSSIAN = [
    dp_accounting_delta(1, "0.12693674", ADD, ONE_BY_ONE),
    dp_accounting_delta(2, "0.02092364", ADD, ONE_BY_ONE),
    dp_accounting_delta(0, "0.38292492", ADD, VECTORIZED),
    dp_accounting_delta(1, "0.50986166", REPLACE, VECTORIZED),
    dp_accounting_delta(2, "0.331897999", REPLACE, VECTORIZED),
    dp_accounting_delta(0, "0.68268949", REPLACE, VECTORIZED),
    Row(
        DP_ACCOUNTING,
        LOSS_TEST + ONE_BY_ONE,
        ADD,
        "δ at ε = 1, σ = 1, sensitivity 3",
        "0.78760074",
        partial(ours.gaussian_delta, 1.0, 1.0, 3.0),
        within(5e-8 / 0.78760074, SEVEN_PLACES),
    ),
    Row(
        DP_ACCOUNTING,
        LOSS_TEST + "test_gaussian_from_privacy_parameters",
        ADD,
        "σ for ε = 16, δ = 1.016e-5, sensitivity 1",
        "0.344",
        partial(ours.gaussian_sigma, 16.0, 1.016e-5),
    ),
    Row(
        DP_ACCOUNTING,
        LOSS_TEST + "test_gaussian_from_privacy_parameters",
        REPLACE,
        "σ for ε = 16, δ = 1.016e-5, clip 2",
        "1.376",
        partial(ours.gaussian_sigma, 16.0, 1.016e-5, 4.0),
    ),
    Row(
        DP_ACCOUNTING,
        "pld/accountant_test.py: AccountantTest.test_get_smallest_gaussian_noise, base",
        ADD,
        "σ for ε = 1, δ = 0.78760074, one query of sensitivity 1",
        "1/3",
        partial(ours.gaussian_sigma, 1.0, 0.78760074),
        within(5e-8 * 3, SEVEN_PLACES),
        value=1 / 3,
    ),
    Row(
        DP_ACCOUNTING,
        "pld/accountant_test.py: AccountantTest.test_get_smallest_gaussian_noise, varying_sensitivity_and_num_queries",
        ADD,
        "σ for ε = 1, δ = 0.78760074, 25 queries of sensitivity 6",
        "10",
        partial(ours.gaussian_sigma, 1.0, 0.78760074, 6 * sqrt(25)),
        within(5e-9, SEVEN_PLACES),
    ),
    Row(
        DP_ACCOUNTING,
        "pld/pld_privacy_accountant_test.py: PldPrivacyAccountantTest.test_gaussian_basic",
        ADD,
        "δ at ε = 1 of three Gaussian mechanisms with σ = √3",
        "0.126936",
        partial(ours.gaussian_delta, sqrt(3) / sqrt(3), 1.0),
        within(1e-6 / 0.126936, "the last digit is truncated, not rounded (0.12693674 elsewhere in the same tests)"),
    ),
    Row(
        GOOGLE_DP,
        "go/noise/gaussian_noise_test.go: TestDeltaForGaussian, 'Correct value calculated'",
        ADD,
        "δ at ε = 0.1, σ = 10, sensitivity 1",
        "0.008751768145810",
        partial(ours.gaussian_delta, 10.0, 0.1),
        within(1e-10 / 0.00875, "the test asserts 1e-10"),
    ),
    Row(
        GOOGLE_DP,
        "go/noise/gaussian_noise_test.go: TestDeltaForGaussian, 'using typical epsilon'",
        ADD,
        "δ at ε = ln 3, σ = 10, sensitivity 5",
        "0.004159742234000802",
        partial(ours.gaussian_delta, 10.0, log(3), 5.0),
        within(1e-10 / 0.00416, "the test asserts 1e-10"),
    ),
    Row(
        GOOGLE_DP,
        "go/noise/gaussian_noise_test.go: TestDeltaForGaussian, 'with epsilon = 0'",
        ADD,
        "δ at ε = 0, σ = 0.5, sensitivity 1",
        "0.6826894921370859",
        partial(ours.gaussian_delta, 0.5, 0.0),
        within(1e-10 / 0.68, "the test asserts 1e-10"),
    ),
    Row(
        GOOGLE_DP,
        "cc/algorithms/numerical-mechanisms_test.cc: GaussianMechanismAddsNoiseForLowDelta",
        ADD,
        "σ for ε = 1, δ = 6.486452831e-47, sensitivity 1",
        "14.0",
        partial(ours.gaussian_sigma, 1.0, 6.486452831e-47),
        within(1e-4 / 14, "the test asserts 1e-4"),
    ),
    *[
        Row(
            GOOGLE_DP,
            "cc/algorithms/numerical-mechanisms_test.cc: Stddev",
            ADD,
            quantity,
            published,
            compute,
            at_most(1e-3, "the source stops its search within 1e-3, from above (kGaussianSigmaAccuracy)"),
        )
        for quantity, published, compute in (
            ("σ for ε = ln 3, δ = 1e-5, sensitivity 1", "3.42578125", partial(ours.gaussian_sigma, log(3), 1e-5)),
            ("σ for ε = ln 4, δ = 2e-5, sensitivity 3", "7.986328125", partial(ours.gaussian_sigma, log(4), 2e-5, 3.0)),
        )
    ],
    Row(
        GOOGLE_DP,
        "cc/algorithms/numerical-mechanisms_test.cc: GaussianVarianceReturnsWallysResult",
        ADD,
        "σ for ε = 1, δ = 1e-6, L0 sensitivity 2, L∞ sensitivity 3",
        "17.922",
        partial(ours.gaussian_sigma, 1.0, 1e-6, 3 * sqrt(2)),
        within(0.5 / (2 * 17.922**2), "the test asserts 0.5 on the variance"),
    ),
    Row(
        PIPELINE_DP,
        "tests/dp_computations_test.py: test_gaussian_delta",
        ADD,
        "δ at ε = 1, σ = 5",
        "1.75463e-8",
        partial(ours.gaussian_delta, 5.0, 1.0),
    ),
    Row(
        PIPELINE_DP,
        "tests/dp_computations_test.py: test_gaussian_delta",
        ADD,
        "δ at ε = 1.1, σ = 3.42",
        "1.00362244e-5",
        partial(ours.gaussian_delta, 3.42, 1.1),
    ),
    Row(
        PIPELINE_DP,
        "tests/dp_computations_test.py: test_gaussian_epsilon",
        ADD,
        "ε at δ = 1.75463e-8, σ = 5",
        "1.00000007214",
        partial(ours.gaussian_epsilon, 5.0, 1.75463e-8),
        within(1e-9, "the test asserts 1e-10; rqm rounds up by as much"),
    ),
    *[
        Row(
            PIPELINE_DP,
            f"tests/dp_computations_test.py: {test}",
            ADD,
            f"σ for ε = {epsilon:g}, δ = {delta:g}, sensitivity {sensitivity:g}",
            published,
            partial(ours.gaussian_sigma, epsilon, delta, sensitivity),
            at_most(1e-3, "the source's library (PyDP) stops its search within 1e-3, from above"),
        )
        for test, epsilon, delta, sensitivity, published in (
            ("test_create_gaussian_mechanism", 2.0, 1e-10, 10.0, "30.2734375"),
            ("test_create_gaussian_mechanism", 0.1, 1e-15, 3.0, "213.9375"),
            ("test_gaussian_mechanism_describe", 1.0, 1e-10, 15.0, "88.06640625"),
            ("test_gaussian_mechanism_creation", 2.0, 1e-15, 4.5, "17.1826171875"),
            ("test_gaussian_mechanism_creation", 0.1, 1e-5, 0.55, "16.9125"),
        )
    ],
    Row(
        PFL,
        "tests/privacy/test_compute_parameters.py: TestAnalyticGM.test_specific",
        ADD,
        "σ for ε = 2.25, δ = 0.00040834087, one iteration",
        "math.sqrt(2)",
        partial(ours.gaussian_sigma, 2.25, 0.00040834087),
        within(1e-6, "the test asserts pytest.approx, 1e-6"),
        value=sqrt(2),
    ),
    Row(
        AUTODP,
        "tutorials/tutorial_calibrator.ipynb, Example 1, Ana_GM",
        ADD,
        "σ for ε = 0.1, δ = 1e-6",
        "36.304691899114694",
        partial(ours.gaussian_sigma, 0.1, 1e-6),
        within(2e-7, "the source reaches ε = 0.09999999565548348"),
    ),
    Row(
        AUTODP,
        "tutorials/tutorial_new_api.ipynb, calibration with a single parameter, GM1",
        ADD,
        "σ for ε = 1.5, δ = 1e-6",
        "2.904058395116711",
        partial(ours.gaussian_sigma, 1.5, 1e-6),
        within(5e-7, "the source reaches ε = 1.4999997486031442"),
    ),
    *[
        Row(
            AUTODP,
            f"tutorials/{notebook}",
            ADD,
            quantity,
            published,
            partial(ours.gdp_epsilon, mu, delta),
            within(1e-9, "16 digits printed; rqm rounds up by 1e-10"),
        )
        for notebook, quantity, mu, delta, published in (
            ("tutorial_new_api.ipynb, Example 3", "ε at δ = 1e-5, σ = 1", 1.0, 1e-5, "4.377178095681228"),
            (
                "tutorial_new_api.ipynb, Gaussian composition",
                "ε at δ = 1e-6, 3 releases with σ = 5 and 5 with σ = 8",
                sqrt(3 / 5**2 + 5 / 8**2),
                1e-6,
                "1.984273919801572",
            ),
            (
                "tutorial_new_api.ipynb, Gaussian composition",
                "ε at δ = 1e-4, 3 releases with σ = 5 and 5 with σ = 8",
                sqrt(3 / 5**2 + 5 / 8**2),
                1e-4,
                "1.4867384204500813",
            ),
            (
                "tutorial_new_api.ipynb, NoisyGD_mech",
                "ε at δ = 1e-6, one release each with σ = 5, 3, 4",
                sqrt(1 / 5**2 + 1 / 3**2 + 1 / 4**2),
                1e-6,
                "2.0677358464697515",
            ),
            (
                "tutorial_dp_linear_regression.ipynb, SSP",
                "ε at δ = 1e-6, one release each with σ = 2, 3",
                sqrt(1 / 2**2 + 1 / 3**2),
                1e-6,
                "2.7606558305608853",
            ),
            (
                "tutorial_dp_linear_regression.ipynb, AdaSSP",
                "ε at δ = 1e-6, one release each with σ = 2, 3, 5",
                sqrt(1 / 2**2 + 1 / 3**2 + 1 / 5**2),
                1e-6,
                "2.9260992027969888",
            ),
            (
                "tutorial_PATE_with_autoDP.ipynb",
                "ε at δ = 1e-6, 100 queries with σ = 20",
                sqrt(100) / 20,
                1e-6,
                "2.2540846502197396",
            ),
            (
                "tutorial_PATE_with_autoDP.ipynb",
                "ε at δ = 1e-6, 100 queries with σ = 10",
                sqrt(100) / 10,
                1e-6,
                "4.886554117462211",
            ),
            (
                "tutorial_private_deep_learning.ipynb, section 3",
                "ε at δ = 1e-6, 100 queries with σ = 5",
                sqrt(100) / 5,
                1e-6,
                "10.99715121422065",
            ),
        )
    ],
    Row(
        AUTODP,
        "tutorials/tutorial_new_api.ipynb, Gaussian composition",
        f"{ADD}; rqm bounds the two privacy profiles and lets dp_accounting compose them",
        "ε at δ = 1e-6, 3 releases with σ = 5 and 5 with σ = 8",
        "1.984273919801572",
        partial(ours.gaussian_composition_epsilon, ((5.0, 3), (8.0, 5)), 1e-6),
        at_least(5e-5, "rqm's discretized profiles are upper bounds"),
        backend="dp_accounting",
    ),
    *[
        Row(
            TF_PRIVACY,
            "tensorflow_privacy/privacy/analysis/compute_dp_sgd_privacy_test.py: "
            f"test_compute_dp_sgd_example_privacy, {name}",
            f"{ADD}, the source by privacy loss distributions",
            f"ε at δ = 1e-5, two releases with noise multiplier 0.7{microbatching}",
            published,
            partial(ours.gdp_epsilon, mu, 1e-5),
            within(1e-8, SEVEN_PLACES),
        )
        for name, microbatching, mu, published in (
            ("no_microbatching_no_subsampling_pld", "", sqrt(2) / 0.7, "10.1224946"),
            (
                "microbatching_no_subsampling_pld",
                " halved by microbatching",
                2 * sqrt(2) / 0.7,
                "24.7160779",
            ),
        )
    ],
    Row(
        TF_PRIVACY,
        "tensorflow_privacy/privacy/analysis/compute_dp_sgd_privacy_test.py: "
        "test_dp_sgd_privacy_statement_no_user_dp_with_pld",
        f"{ADD}, the source by privacy loss distributions",
        "ε at δ = 1e-6, each example once in each of 5 epochs, noise multiplier 2 halved by microbatching",
        "12.595",
        partial(ours.gdp_epsilon, sqrt(5), 1e-6),
    ),
    Row(
        OPACUS,
        "opacus/tests/accountants_test.py: AccountingTest.test_gdp_accountant",
        f"{POISSON}; GDP, central limit theorem: μ = rate √(steps (exp(1/σ²) − 1)) as the source has it",
        "ε at δ = 1e-5, noise multiplier 1.5, rate 0.04, 2,249 steps",
        "between 6.59 and 6.6",
        partial(ours.gdp_epsilon, 0.04 * sqrt(2249 * (exp(1.5**-2) - 1)), 1e-5),
        within(0.005 / 6.595, "the test asserts 6.59 < ε < 6.6"),
        value=6.595,
    ),
    Row(
        OPACUS,
        "opacus/tests/accountants_test.py: AccountingTest.test_get_noise_multiplier_gdp",
        f"{POISSON}; GDP, central limit theorem: μ = rate √(steps (exp(1/σ²) − 1)) as the source has it",
        "target ε, δ = 1e-5, at the published noise multiplier 1.3232421875, rate 0.04, 2,250 steps",
        "8",
        partial(ours.gdp_epsilon, 0.04 * sqrt(2250 * (exp(1.3232421875**-2) - 1)), 1e-5),
        at_most(0.01 / 8, "the source stops its search within 0.01 of ε, from below"),
    ),
    Row(
        GDP_CODE,
        "README.md, Privacy Accountants, GDP CLT (Poisson subsampling)",
        f"{POISSON}; GDP, central limit theorem: μ as the source has it",
        "ε at δ = 1e-5, noise multiplier 1.3, batch 256 of 60,000, 15 epochs",
        "0.8345",
        partial(ours.gdp_epsilon, 256 / 60_000 * sqrt(15 * 60_000 / 256 * (exp(1.3**-2) - 1)), 1e-5),
    ),
    Row(
        GDP_CODE,
        "README.md, Privacy Accountants, GDP CLT (Uniform subsampling)",
        "replace-one; batches of fixed size; GDP, central limit theorem: μ as the source has it",
        "ε at δ = 1e-5, noise multiplier 1.3, batch 256 of 60,000, 15 epochs",
        "1.0685",
        partial(
            ours.gdp_epsilon,
            sqrt(2 * 15 * 256 / 60_000 * (exp(1.3**-2) * ndtr(1.5 / 1.3) + 3 * ndtr(-0.5 / 1.3) - 2)),
            1e-5,
        ),
    ),
]
