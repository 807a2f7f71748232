"""Published values of Rényi divergences, zero-concentrated differential privacy, and sampling without replacement."""

from functools import partial
from math import sqrt

from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from tests.published import ours
from tests.published.rows import (
    AUTODP,
    DP_ACCOUNTING,
    OLD_TF_PRIVACY,
    OPACUS_ORDERS,
    OPENDP,
    PFL,
    RDP,
    RDP_GAUSSIAN,
    SEVEN_PLACES,
    TF_PRIVACY,
    Row,
    Tolerance,
    within,
)

CONTINUOUS = "the source minimizes over all real orders, rqm over orders 0.1 % apart"

RENYI = [
    Row(
        DP_ACCOUNTING,
        "rdp/rdp_privacy_accountant_test.py: RdpPrivacyAccountantTest.test_compute_epsilon_delta_pure_dp",
        RDP,
        "ε at δ = 1e-5, D_α = 1.1 at the orders 2 to 32",
        "1.32783806176",
        partial(ours.rdp_epsilon, range(2, 33), [1.1] * 31, 1e-5),
    ),
    Row(
        DP_ACCOUNTING,
        "rdp/rdp_privacy_accountant_test.py: RdpPrivacyAccountantTest.test_compute_epsilon_delta_gaussian",
        RDP_GAUSSIAN,
        "ε at δ = 1e-6, σ = 4.530877117",
        "1",
        partial(ours.gaussian_rdp_epsilon, 4.530877117, 1e-6),
        within(2e-7, f"{SEVEN_PLACES}; orders 0.1 % apart"),
    ),
    *[
        Row(
            PFL,
            "tests/internal/test_privacy_loss_bound.py: TestRenyiPrivacyLossBound.test_convert_to_approximate_dp",
            RDP,
            f"ε at δ = {delta:g}, D_α = {divergence:g} at α = {order:g}",
            published,
            partial(ours.rdp_epsilon, [order], [divergence], delta),
            within(1e-9, "the test asserts 1e-10"),
        )
        for order, divergence, delta, published in (
            (2.0, 1.0, 1e-5, "11.126631103850338"),
            (2.0, 1.0, 1e-3, "6.521460917862246"),
            (10.0, 0.5, 1e-5, "1.4180106367839715"),
            (10.0, 0.5, 1e-3, "0.9063250605630727"),
            (100.0, 0.1, 1e-8, "0.2295002758431074"),
        )
    ],
    *[
        Row(
            TF_PRIVACY,
            "tensorflow_privacy/privacy/analysis/compute_dp_sgd_privacy_test.py: "
            f"test_compute_dp_sgd_example_privacy, {name}",
            f"add-or-remove-one; {RDP}, dp_accounting's default orders; no sampling",
            f"ε at δ = 1e-5, two releases with noise multiplier 0.7{microbatching}",
            published,
            partial(ours.gaussian_rdp_epsilon, multiplier, 1e-5, 2, DEFAULT_RDP_ORDERS),
            within(1e-8, SEVEN_PLACES),
        )
        for name, microbatching, multiplier, published in (
            ("no_microbatching_no_subsampling_rdp", "", 0.7, "10.8602036"),
            (
                "microbatching_no_subsampling_rdp",
                " halved by microbatching",
                0.35,
                "26.2880374",
            ),
        )
    ],
    Row(
        TF_PRIVACY,
        "tensorflow_privacy/privacy/analysis/compute_dp_sgd_privacy_test.py: "
        "test_dp_sgd_privacy_statement_no_user_dp_with_rdp",
        f"add-or-remove-one; {RDP}, dp_accounting's default orders; no sampling",
        "ε at δ = 1e-6, each example once in each of 5 epochs, noise multiplier 2 halved by microbatching",
        "13.376",
        partial(ours.gaussian_rdp_epsilon, 1.0, 1e-6, 5, DEFAULT_RDP_ORDERS),
    ),
    Row(
        TF_PRIVACY,
        "tensorflow_privacy/privacy/analysis/tree_aggregation_accountant_test.py: test_gaussian_zcdp_to_epsilon",
        f"{RDP}, the orders of the test; ρ-zCDP as published for Gboard (Google AI blog, February 2022)",
        "ε at δ = 1e-10, ρ = 0.81",
        "8.92",
        partial(ours.zcdp_epsilon, 0.81, 1e-10, OPACUS_ORDERS),
    ),
    *[
        Row(
            AUTODP,
            f"tutorials/{notebook}",
            RDP_GAUSSIAN,
            quantity,
            published,
            partial(ours.gaussian_rdp_epsilon, multiplier, delta),
            within(5e-7, CONTINUOUS),
        )
        for notebook, quantity, multiplier, delta, published in (
            (
                "tutorial_new_api.ipynb, Example 3, BBGHS_RDP_conversion",
                "ε at δ = 1e-5, σ = 1",
                1.0,
                1e-5,
                "4.728386984943314",
            ),
            (
                "tutorial_new_api.ipynb, Generic composition",
                "ε at δ = 1e-6, 3 releases with σ = 5 and 5 with σ = 8",
                1 / sqrt(3 / 5**2 + 5 / 8**2),
                1e-6,
                "2.1309868424169824",
            ),
            (
                "tutorial_new_api.ipynb, Generic composition",
                "ε at δ = 1e-4, 3 releases with σ = 5 and 5 with σ = 8",
                1 / sqrt(3 / 5**2 + 5 / 8**2),
                1e-4,
                "1.6484258167240666",
            ),
        )
    ],
    Row(
        OPENDP,
        "rust/src/combinators/measure_cast/zCDP_to_approxDP/test.rs: test_zCDP_to_approxDP_nontrivial",
        RDP_GAUSSIAN,
        "ε at δ = 1e-3, σ = 4",
        "0.6880024554878086",
        partial(ours.gaussian_rdp_epsilon, 4.0, 1e-3),
        within(5e-7, CONTINUOUS),
    ),
    Row(
        OPENDP,
        "docs/source/api/user-guide/combinators/measure-casting.rst",
        RDP_GAUSSIAN,
        "ε at δ = 1e-6, σ = 0.5",
        "11.688596249354896",
        partial(ours.gaussian_rdp_epsilon, 0.5, 1e-6),
        within(5e-7, CONTINUOUS),
    ),
    Row(
        OPENDP,
        "rust/src/combinators/measure_cast/zCDP_to_approxDP/cdp_delta/test.rs: test_cdp_delta_rounding_regression",
        RDP,
        "ε = 0.25 back from the published δ = 8.17727531036956e-2, ρ = 0.05",
        "0.25",
        partial(ours.zcdp_epsilon, 0.05, 8.17727531036956e-2),
        within(5e-7, CONTINUOUS),
    ),
    *[
        Row(
            OLD_TF_PRIVACY,
            "tensorflow_privacy/privacy/analysis/rdp_accountant_test.py: test_compute_rdp_sequence_without_replacement",
            "replace-one; 1 % of the records, without replacement; noise multiplier over the change of one record; "
            "Wang, Balle and Kasiviswanathan 2019",
            f"D_α at α = {order}{note}, noise multiplier 2.5, 50 steps",
            published,
            partial(ours.sampled_without_replacement_rdp, 2.5, 1, 100, order, 50),
            tolerance,
        )
        for order, note, published, tolerance in (
            (2, " (printed for α = 1.001 and 1.5)", "3.4701e-3", None),
            (
                5,
                "",
                "8.7634e-3",
                Tolerance(
                    1.0,
                    1.04,
                    "rqm takes Theorem 9, the source Theorem 27 for the Gaussian, which is tighter at middle orders "
                    "(by 56 % at α = 50, which is therefore not listed)",
                ),
            ),
            (100, "", "1.6776e2", within(1e-4, "the test asserts 1e-4")),
            (256, "", "7.9297e2", within(1e-4, "the test asserts 1e-4")),
        )
    ],
]
