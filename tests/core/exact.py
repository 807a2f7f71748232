"""What an encoder is given, in integers of any size, and the exact distribution of a revealed sum."""

import numpy as np
import torch
from hypothesis import strategies as st

from rqm import PBM, RQM, DiscreteGaussian, StochasticRounding, private_mean

ONE_BIT = StochasticRounding(levels=2, margin=3.0)
FEW_POSITIONS = StochasticRounding(levels=2, margin=16382.0)
"""As few positions as an encoder allows: 1,024 from -clip to clip."""
mechanisms = st.one_of(
    st.builds(StochasticRounding, clip=st.floats(1e-6, 1e3), levels=st.just(2), margin=st.floats(0.0, 16000.0)),
    st.builds(RQM, clip=st.floats(1e-6, 1e3), levels=st.sampled_from([4, 16]), margin=st.floats(0.1, 1e4)),
    st.builds(PBM, clip=st.floats(1e-6, 1e3), theta=st.floats(1e-4, 0.49)),
    st.builds(
        DiscreteGaussian, clip=st.floats(1e-6, 1e3), scale=st.floats(0.1, 3.0), steps=st.just(15), bits=st.just(8)
    ),
)


def mean_of(mechanism, dim, **options):
    """A private mean whose coordinates are clipped at four times their root mean square."""
    coordinates = 1 << (dim - 1).bit_length() if options.get("rotate", True) else dim
    options = {"clients": 3, "l2_clip": max(1.0, coordinates**0.5 / 4) * mechanism.clip} | options
    return private_mean(mechanism=mechanism, dim=dim, **options)


def encoded_rows(mean, vectors, round_index=0):
    """The rows that the encoder rounds: transformed, and within the L2 bound."""
    rows = vectors.clone() if isinstance(vectors, torch.Tensor) else vectors
    return mean.quantizer.enforce_bound(mean.transform(round_index).forward(rows)[0])


def squared_distance(mechanism, row):
    """The squared distance of a row's positions from the middle, in half positions."""
    low, high = mechanism.sampler.low, mechanism.sampler.high
    positions = mechanism.sampler.position(np.asarray(row, dtype=np.float64)).tolist()
    assert all(low <= position <= high for position in positions)
    return sum((2 * position - low - high) ** 2 for position in positions)


def pmf_of_sum(mean, row, other_rows):
    """The exact joint pmf of the revealed sum, over all coordinates, of some clients' rows."""
    joint = np.ones(1)
    for coordinate in range(mean.coordinates):
        pmf = mean.mechanism.sampled_pmf(row[coordinate]).astype(float)
        for other_row in other_rows:
            pmf = np.convolve(pmf, mean.mechanism.sampled_pmf(other_row[coordinate]).astype(float))
        joint = np.multiply.outer(joint, pmf).ravel()
    return joint


def hockey_stick(p, q, epsilon):
    """The least δ with which `p` is (ε, δ)-close to `q`."""
    return np.maximum(p - np.exp(epsilon) * q, 0).sum()
