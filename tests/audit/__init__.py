"""Audits: they find what is planted, and nothing where there is nothing."""

from rqm import PBM, RQM, StochasticRounding
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.related.mvu import private_table
from rqm.related.randomized_response import RandomizedResponse

SMALL_NOISE = {"scale": 1.0, "steps": 5, "bits": 6}
"""Additive noise whose tails can be measured."""
ADDITIVE = [DiscreteGaussian(**SMALL_NOISE), Skellam(**SMALL_NOISE), Binomial(**SMALL_NOISE)]
TABLES = [
    RQM(),
    RQM(keep=0.23),
    RQM(margin=0.66, keep=0.33),
    PBM(theta=0.1, levels=8),
    StochasticRounding(levels=2, margin=1.0),
    RandomizedResponse(levels=8, epsilon=3.0),
    private_table(3.0, 8, rows=9),
]
MECHANISMS = TABLES + ADDITIVE


def kind(mechanism):
    return mechanism.kind
