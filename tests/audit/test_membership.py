"""Who took part: found without noise, not found with it; and an attack on nothing finds nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm._util.files import write_json
from rqm.audit import jobs
from rqm.audit.membership import audit_membership, curve, likelihood_ratios
from rqm.data.federated_data import Clients, FederatedData
from rqm.report.attacks import draw


@pytest.mark.slow
def test_members_are_found_without_noise_and_not_with_it(tmp_path):
    plans, data = jobs.variants("membership", ["rounds=20", "clients=15", "examples=3"])
    found = jobs.membership(plans, data, models=6, users=40)
    free, private = found["noise-free"], found["1 bit, ε=10"]
    assert free["area_low"] > 0.8
    assert free["found"] > 0.3
    assert private["area_low"] < 0.5 < private["area_high"]
    assert private["found_low"] <= 0.05
    write_json(tmp_path / "membership.json", found)
    assert draw(tmp_path / "membership.json").stat().st_size > 10_000


def halves(models, users, rng):
    return np.argsort(rng.random((models, users)), axis=1) < users // 2


@pytest.mark.parametrize("models", [4, 8, 12])
def test_an_attack_on_nothing_is_guessing_however_few_the_models(models):
    rng = np.random.default_rng(models)
    areas = []
    for _ in range(10):
        half = halves(models, 3400, rng)
        false, true = curve(likelihood_ratios(rng.normal(size=half.shape), half).ravel(), half.ravel())
        areas.append(np.trapezoid(true, false))
    assert np.mean(areas) == pytest.approx(0.5, abs=0.006)  # 0.42, 0.476 and 0.487 with users balanced instead


def test_the_attack_finds_what_is_planted_and_nothing_else():
    rng = np.random.default_rng(0)
    half = halves(16, 500, rng)
    noise = rng.normal(size=(16, 500)) + rng.normal(size=500)  # users differ, members do not
    false, true = curve(likelihood_ratios(noise, half).ravel(), half.ravel())
    assert np.trapezoid(true, false) == pytest.approx(0.5, abs=0.03)
    false, true = curve(likelihood_ratios(noise + 3 * half, half).ravel(), half.ravel())
    assert np.trapezoid(true, false) > 0.95


def test_a_curve_of_ties_and_of_one_class_is_a_curve():
    false, true = curve(np.zeros(4), np.array([True, True, True, True]))
    assert false[-1] == 0.0
    assert true[-1] == 1.0


def test_users_are_those_of_the_data():
    inputs = torch.arange(30, dtype=torch.float32)[:, None].repeat(1, 784)
    clients = Clients.group_by_id(inputs, np.arange(30) % 3, np.repeat(np.arange(6), 5))
    data = FederatedData("six", clients, inputs[:5], torch.arange(5) % 3, 3)
    plans, _ = jobs.variants("membership", ["rounds=1", "clients=2", "examples=2"], ["noise-free"])
    plan = replace(plans["noise-free"], examples=2)
    audit, *_ = audit_membership(plan, data, models=4, users=6)
    assert (audit.users, audit.models) == (6, 4)
    with pytest.raises(ValueError, match="models = 2"):
        audit_membership(plan, data, models=2)
    with pytest.raises(ValueError, match="users = -1"):
        audit_membership(plan, data, users=-1)
    with pytest.raises(ValueError, match="variant = x"):
        jobs.variants("membership", chosen=["x"])
