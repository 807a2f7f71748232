"""Membership inference: members are detected without noise and not with it; an attack on nothing detects nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm._util.files import write_json
from rqm.audit import suite
from rqm.audit.membership import audit_membership, likelihood_ratios, roc_curve
from rqm.data.federated_data import Clients, FederatedData
from rqm.report.plots import draw_attack


def area(confidences, is_member):
    false, true = roc_curve(likelihood_ratios(confidences, is_member), is_member)
    return np.trapezoid(true, false)


def halves(models, users, rng):
    return np.argsort(rng.random((models, users)), axis=1) < users // 2


@pytest.mark.slow
def test_members_are_detected_without_noise_and_not_with_it(tmp_path):
    plans, data = suite.load_variants("membership", ["rounds=20", "clients=15", "examples=3"])
    audits = suite.infer_membership(plans, data, models=6, users=40)
    free, private = audits["noise-free"], audits["1 bit, ε=10"]
    assert free["area_low"] > 0.8
    assert free["found"] > 0.3
    assert private["area_low"] < 0.5 < private["area_high"]
    assert private["found_low"] <= 0.05
    write_json(tmp_path / "membership.json", audits)
    assert draw_attack(tmp_path / "membership.json").stat().st_size > 10_000


@pytest.mark.parametrize("models", [4, 8, 12])
def test_an_attack_on_nothing_is_guessing_however_few_the_models(models):
    rng = np.random.default_rng(models)
    areas = []
    for _ in range(10):
        is_member = halves(models, 3400, rng)
        areas.append(area(rng.normal(size=is_member.shape), is_member))
    assert np.mean(areas) == pytest.approx(0.5, abs=0.006)  # 0.42, 0.476 and 0.487 with users balanced instead


def test_the_attack_detects_what_is_planted_and_nothing_else():
    rng = np.random.default_rng(0)
    is_member = halves(16, 500, rng)
    noise = rng.normal(size=(16, 500)) + rng.normal(size=500)  # users differ, members do not
    assert area(noise, is_member) == pytest.approx(0.5, abs=0.03)
    assert area(noise + 3 * is_member, is_member) > 0.95


def test_a_curve_of_ties_and_of_one_class_is_a_curve():
    false, true = roc_curve(np.zeros(4), np.array([True, True, True, True]))
    assert false[-1] == 0.0
    assert true[-1] == 1.0


def test_users_are_those_of_the_data():
    inputs = torch.arange(30, dtype=torch.float32)[:, None].repeat(1, 784)
    clients = Clients.group_by_id(inputs, np.arange(30) % 3, np.repeat(np.arange(6), 5))
    data = FederatedData("six", clients, inputs[:5], torch.arange(5) % 3, 3)
    plans, _ = suite.load_variants("membership", ["rounds=1", "clients=2", "examples=2"], ["noise-free"])
    plan = replace(plans["noise-free"], examples=2)
    audit = audit_membership(plan, data, models=4, users=6)
    assert (audit.users, audit.models) == (6, 4)
    for name, value in (("models", 2), ("users", -1)):
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            audit_membership(plan, data, **{name: value})
