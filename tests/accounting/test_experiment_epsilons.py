"""A plan whose name or description states an ε has no larger one, as `rqm account` prints it."""

import re

import pytest

from rqm.config.account import planned_mean
from rqm.config.experiments import find, names
from rqm.config.sweep import Sweep

SLOW = {"cancel", "silos-emnist", "mnist-user-level"}
DESCRIBED = {
    "demo": 8,
    "silos": 8,
    "systems": 1,
    "local-steps-private": 8,
    "few-coordinates": 10,
    "which-mechanism": 10,
}
DESCRIBED |= {"few-coordinates-3400": 10}
"""ε in the description of an experiment whose variants do not name it."""
EXPERIMENTS = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in names()]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_no_variant_exceeds_the_epsilon_that_it_is_named_for(experiment):
    described = DESCRIBED.get(experiment)
    if described is not None:
        assert re.search(rf"ε (=|≤) {described}\b", find(experiment).read_text())
    for name, plan in Sweep.from_toml(find(experiment)).variants.items():
        stated = re.search(r"ε=([\d.]+)", name)
        limit = float(stated[1]) if stated else described
        if limit is not None and plan.mechanism.adds_noise:
            printed = f"{planned_mean(plan).account().epsilon:.4g}"
            assert float(printed) <= limit, name
