"""Published values of discrete mechanisms, and the project's own reference values of RQM and PBM."""

from functools import partial
from math import inf, log

from tests.published import ours
from tests.published.rows import (
    DIFFPRIVLIB,
    DP_ACCOUNTING,
    OPENDP,
    RESPONSE,
    ROUNDING,
    THEORY,
    YOUN,
    Row,
    Tolerance,
    at_least,
    within,
)

RESPONSE_TEST = "rdp/rdp_privacy_accountant_test.py: RdpPrivacyAccountantTest.test_compute_rdp_randomized_response_"


def response_row(test: str, noise: float, buckets: int, order: float, published: str) -> Row:
    """D_α of randomized response that answers truthfully with probability 1 − noise, and else at random."""
    return Row(
        DP_ACCOUNTING,
        RESPONSE_TEST + test,
        RESPONSE,
        f"D_α at α = {order:g}, noise parameter {noise:g}, {buckets} buckets",
        published,
        partial(ours.randomized_response_rdp, 1 - noise + noise / buckets, buckets, order),
        within(1e-8, "16 digits printed; rqm's probabilities are multiples of 2**-40"),
    )


DISCRETE = [
    *[
        response_row(f"replace_one, {name}", noise, buckets, order, published)
        for name, noise, buckets, values in (
            (
                "small_eps",
                0.3,
                10,
                ("2.6946320226546314", "3.11316970070507", "3.1854244842182466", "3.1918471524802814"),
            ),
            (
                "medium_eps",
                0.05,
                20,
                ("5.850317703374384", "5.930633082131939", "5.94180620835157", "5.942799375126701"),
            ),
            (
                "large_eps",
                0.01,
                3,
                ("5.684126770932727", "5.695421239467805", "5.696956976543137", "5.697093486505405"),
            ),
        )
        for order, published in zip((1.5, 5.0, 50.0, inf), values, strict=True)
    ],
    response_row("inf_order_replace_one", 0.1, 10, inf, "4.51085950651685"),
    Row(
        OPENDP,
        "docs/source/api/user-guide/measurements/randomized-response.rst, make_randomized_response_bool(prob=0.75)",
        RESPONSE,
        "ε, truthful with probability 0.75, 2 categories",
        "1.0986",
        partial(ours.randomized_response_epsilon, 0.75, 2),
        Tolerance(1 - ROUNDING, 1 + 1e-4 / 1.0986, "printed as '1.0986...', truncated"),
    ),
    Row(
        OPENDP,
        "rust/src/measurements/randomized_response/test.rs: test_cat",
        RESPONSE,
        "ε, truthful with probability 0.75, 4 categories",
        "9f64.ln()",
        partial(ours.randomized_response_epsilon, 0.75, 4),
        within(1e-8, "an exact expression; rqm's probabilities are multiples of 2**-40"),
        value=log(9),
    ),
    Row(
        OPENDP,
        "rust/src/measurements/randomized_response_bitvec/mod.rs: test_make_randomized_response_bitvec",
        f"{RESPONSE}; RAPPOR's permanent randomized response",
        "ε, f = 0.5, weight 1",
        "2.1972245773362196",
        partial(ours.rappor_permanent_epsilon, 1, 0.5),
        within(1e-9, "16 digits printed"),
    ),
    Row(
        OPENDP,
        "rust/src/measurements/code/make_randomized_response_bitvec.rst",
        f"{RESPONSE}; RAPPOR's permanent randomized response",
        "ε, f = 0.95, weight 4",
        "0.8006676684558611",
        partial(ours.rappor_permanent_epsilon, 4, 0.95),
        within(1e-9, "16 digits printed; rqm's probabilities are multiples of 2**-40"),
    ),
    *[
        Row(
            DP_ACCOUNTING,
            "pld/privacy_loss_mechanism_test.py: DiscreteGaussianPrivacyLossTest."
            "test_discrete_gaussian_from_privacy_parameters",
            "add-or-remove-one; exact δ(ε); σ is the parameter of the discrete Gaussian, in integer units",
            f"σ for ε = {epsilon:g}, δ = {delta:g}, sensitivity {sensitivity}",
            published,
            partial(ours.discrete_gaussian_sigma, epsilon, delta, sensitivity),
        )
        for sensitivity, epsilon, delta, published in (
            (1, 1.0, 0.12693674, "1.041"),
            (3, 1.0, 0.78760074, "0.993"),
            (1, 2.0, 0.02092364, "1.038"),
            (5, 2.0, 0.02092364, "5.008"),
            (1, 16.0, 1e-5, "0.306"),
        )
    ],
    Row(
        DIFFPRIVLIB,
        "tests/mechanisms/test_GaussianDiscrete.py: test_sanity_scale",
        "replace-one; exact δ(ε); σ is the parameter of the discrete Gaussian, in integer units",
        "σ for ε = 3, δ = 4.00902e-10, sensitivity 1",
        "2",
        partial(ours.discrete_gaussian_sigma, 3.0, 4.00902e-10, 1),
        within(
            3e-3,
            "rqm's probabilities are multiples of 2**-40 = 9e-13, which moves this small δ by 1.5 % and σ by 0.23 %; "
            "the unrounded distribution has ε = 3.0000003 at σ = 2",
        ),
    ),
    *[
        Row(
            YOUN,
            "Theorem 5.2, the bound on D_∞, at the parameters of section 6.2",
            "replace-one input; local; one coordinate; Δ in units of the clip c",
            f"log(2 (1−q)² (1 + c/Δ)) + m log(1/(1−q)), m = 16, Δ = {margin:g}c, q = {keep:g}",
            "the formula",
            partial(ours.rqm_epsilon_bound, margin, keep, 16),
            value=log(2 * (1 - keep) ** 2 * (1 + 1 / margin)) + 16 * log(1 / (1 - keep)),
        )
        for margin, keep in ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33))
    ],
]

ONE_COORDINATE = "replace-one input; one coordinate of one round; local (one client) or the sum of all clients"


def theory_rqm(
    section: int,
    margin: float,
    keep: float,
    clients: int,
    order: float,
    others: str | float,
    published: str,
    name: str = "",
) -> Row:
    """D_α of RQM with 16 levels."""
    inputs = "" if clients == 1 else f", other clients {name or others}"
    return Row(
        THEORY,
        f"section {section}, Numbers",
        ONE_COORDINATE,
        f"D_α of RQM at α = {order:g}, m = 16, Δ = {margin:g}c, q = {keep:g}, n = {clients}"
        + (inputs or (", inputs ±c" if others == "balanced" else ", worst inputs")),
        published,
        partial(ours.rqm_renyi, margin, keep, 16, clients, order, others),
    )


def theory_pbm(order: float, others: str, published: str, tolerance: Tolerance | None = None) -> Row:
    """D_α of PBM with 15 trials and θ = 0.25 among 40 clients."""
    return Row(
        THEORY,
        "section 3, Numbers",
        ONE_COORDINATE,
        f"D_α of PBM at α = {order:g}, Binomial(15), θ = 0.25, n = 40, other clients {others}",
        published,
        partial(ours.pbm_renyi, 0.25, 15, 40, order, others),
        tolerance,
    )


PROJECT = [
    theory_rqm(2, 1.0, 0.42, 1, 10, "balanced", "5.33666"),
    theory_rqm(2, 1.0, 0.42, 1, 10, "worst", "5.36840"),
    theory_rqm(2, 0.66, 0.33, 1, inf, "balanced", "5.28754"),
    theory_rqm(2, 0.66, 0.33, 1, inf, "worst", "5.29826"),
    theory_rqm(2, 1.0, 0.23, 1, inf, "balanced", "3.17378"),
    theory_rqm(2, 1.0, 0.23, 1, inf, "worst", "3.21931"),
    theory_rqm(3, 1.0, 0.42, 40, 2, "balanced", ".45670"),
    theory_rqm(3, 1.0, 0.42, 40, 2, 2 / 15, ".43751", "at .1333c"),
    theory_rqm(3, 1.0, 0.42, 40, 2, 1.0, ".48589", "at c"),
    theory_rqm(3, 1.0, 0.42, 40, 2, 14 / 15, ".50270", "at .9333c"),
    theory_rqm(3, 1.0, 0.42, 40, 10, "balanced", "1.6506"),
    theory_rqm(3, 1.0, 0.42, 40, 10, 1.0, "2.1501", "at c"),
    theory_pbm(2, "balanced", ".49989"),
    theory_pbm(2, "worst", ".51753"),
    theory_pbm(8, "worst", "2.42114"),
    theory_pbm(32, "worst", "10.93425", at_least(1e-4, "rqm's is an upper bound, the published value is attained")),
]
