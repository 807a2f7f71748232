"""Published sensitivities and errors of the matrix mechanism."""

from collections.abc import Sequence
from functools import partial
from math import sqrt

import numpy as np

from tests.published import ours
from tests.published.rows import FEDERATED, JAX_PRIVACY, ROUNDING, STRATEGY, Row, at_least, within

DENSE = ((1.0, 0, 0, 0), (2, 1, 0, 0), (0, 1, 1, 0), (0, 0, 3, -6))
BANDED = ((1.0, 0, 0, 0), (2, 1, 0, 0), (0, 1, 1, 0), (0, 0, 1, -6))
FULL = ((1.0, 0, 0, 0), (2, 1, 0, 0), (0.5, 1, 1, 0), (0.4, 0, 1, -6))
DIAGONAL = tuple(map(tuple, np.diag([0.0, 3, 0, 1, 2]).tolist()))
PREFIX = tuple(map(tuple, np.tri(11).tolist()))
SENSITIVITY_TEST = "tests/matrix_factorization/sensitivity_test.py: "


def sensitivity_row(
    test: str, matrix: Sequence[Sequence[float]], times: int, separation: int, published: str, value: float
) -> Row:
    """L2 sensitivity of a strategy matrix."""
    return Row(
        JAX_PRIVACY,
        test,
        STRATEGY,
        f"sensitivity of the {len(matrix)} × {len(matrix)} matrix of the test, at most {times} participations "
        f"at least {separation} apart",
        published,
        partial(ours.matrix_sensitivity, matrix, times, separation),
        value=value,
    )


MATRICES = [
    sensitivity_row(SENSITIVITY_TEST + "SensitivityTest.test_single_participation_sensitivity", DENSE, 1, 1, "6.0", 6),
    sensitivity_row(
        SENSITIVITY_TEST + "SensitivityTest.test_single_participation_sensitivity",
        tuple(row[:3] for row in DENSE[:3]),
        1,
        1,
        "np.sqrt(5)",
        sqrt(5),
    ),
    sensitivity_row(
        SENSITIVITY_TEST + "GetSensitivityBandedTest.test_diag_strategy_matrix",
        DIAGONAL,
        5,
        2,
        "jnp.sqrt(3.0**2 + 2.0**2)",
        sqrt(13),
    ),
    sensitivity_row(
        SENSITIVITY_TEST + "GetSensitivityBandedTest.test_banded", BANDED, 4, 2, "np.sqrt(5.0 + 36.0)", sqrt(41)
    ),
    sensitivity_row(
        SENSITIVITY_TEST + "SensitivityUpperBoundTest.test_dense_X",
        FULL,
        4,
        1,
        "jnp.sqrt(jnp.abs(X).sum())",
        sqrt(np.abs(np.transpose(FULL) @ np.array(FULL)).sum()),
    ),
    sensitivity_row(
        "tests/matrix_factorization/toeplitz_test.py: ToeplitzTest.test_sensitivity_squared_tri, n = 11, k = 4",
        PREFIX,
        4,
        1,
        "square root of np.sum(np.sum(C[:, :k], axis=1) ** 2)",
        sqrt(np.sum(np.sum(np.tri(11)[:, :4], axis=1) ** 2)),
    ),
    Row(
        JAX_PRIVACY,
        "tests/matrix_factorization/banded_test.py: test_implicit_error",
        "prefix sums; mean variance at sensitivity 1; independent noise",
        "mean squared error of 9 prefix sums",
        "5.0",
        partial(ours.prefix_sum_mean_squared_error, tuple(map(tuple, np.eye(9).tolist()))),
        within(ROUNDING, "an exact value"),
    ),
    Row(
        JAX_PRIVACY,
        "tests/matrix_factorization/dense_test.py: ERROR_TEST_CASES, 2x2 prefix sum",
        "prefix sums; variances of C⁻¹ z, whatever the sensitivity of C",
        "mean of the squared errors of C = [[1, 0], [0.5, 1]]",
        "mean of [1, 1.25]",
        partial(ours.prefix_sum_mean_squared_error, ((1.0, 0.0), (0.5, 1.0))),
        value=1.125,
    ),
    Row(
        FEDERATED,
        "dp_matrix_factorization/loops_test.py: FixedPointIterationsTest.test_factorization_factorizes_target",
        "prefix sums; sum of the variances at sensitivity 1, one participation; the best factorization",
        "loss of the best factorization for 2 rounds",
        "((1 + np.sqrt(5)) / 2)**2",
        partial(ours.best_prefix_sum_loss, 2),
        at_least(
            0.01,
            "rqm's C has the same bands in all rounds before its columns are normalized; of two rounds that is seen",
        ),
        value=((1 + sqrt(5)) / 2) ** 2,
    ),
]
