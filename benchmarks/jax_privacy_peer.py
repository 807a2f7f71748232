"""jax_privacy's banded optimiser: a script for an environment where jax_privacy is installed.

It reads a JSON list of [rounds, bands, momentum, rates, steps] and prints the strategies' columns as a list of lists.
"""
# mypy: ignore-errors

import json
import sys

import jax

jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402 (after the setting above)
import numpy as np  # noqa: E402 (the same)
from jax_privacy.matrix_factorization import banded, streaming_matrix  # noqa: E402 (the same)


def main() -> None:
    """Optimise every case, and print the matrices by their bands."""
    for rounds, bands, momentum, rates, steps in json.load(sys.stdin):
        workload = streaming_matrix.momentum_sgd_matrix(momentum, jnp.array(rates))
        found = banded.optimize(rounds, bands=bands, A=workload, max_optimizer_steps=steps)
        matrix = np.asarray(found.materialize())
        rows = [[matrix[t, t - lag] if lag <= t else 0.0 for lag in range(bands)] for t in range(rounds)]
        print(json.dumps(rows), flush=True)


if __name__ == "__main__":
    main()
