"""Training across silos: what a silo sends, what the server makes of it, and that it learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Plan, simulate
from rqm.training.trainer import Trainer
from tests.training.small import federation, model

NOISE = {"mechanism": "discrete-gaussian", "clip": 4.0, "scale": 0.15, "steps": 1023, "bits": 13}
PLAN = {
    "mechanism": NOISE,
    "model": "own",
    "clients": 3,
    "rounds": 12,
    "delta": 1e-6,
    "evaluate_every": 12,
    "transforms": {"l2_clip": 16.0, "rotate": True},
    "records": {"clip": 1.0, "batch": 60, "rate": 0.5, "silos": 3},
    "server": {"rate": 1.0, "momentum": 0.5},
}


def plan(**changes):
    return Plan.from_dict(PLAN | changes)


def trainer(one, **options):
    return Trainer(one, federation(), model(), **options)


def test_a_federation_of_silos_learns_and_says_what_it_costs_a_record(tmp_path):
    run = simulate(plan(), model(), federation(), folder=tmp_path)
    last = list(run)[-1]
    assert last.accuracy > 0.7
    assert last.clients_loss is None
    assert run.guarantee.unit == "record"
    assert 0 < run.guarantee.epsilon < 30


def test_users_are_put_together_to_silos_and_no_record_is_lost():
    made = trainer(plan())
    assert len(made.data.train) == 3
    assert made.data.train.sizes.sum() == federation().train.sizes.sum()


def test_each_silo_draws_its_own_records_anew_in_every_round_and_the_same_again():
    made = trainer(plan())
    totals = {}
    for silo, turn in [(0, 0), (0, 1), (1, 0)]:
        source = made.aggregator._source(8, turn, silo)
        totals[silo, turn] = made.work.records(silo, turn, source.words)
    again = made.work.records(0, 0, made.aggregator._source(8, 0, 0).words)
    torch.testing.assert_close(again.total, totals[0, 0].total)
    assert not torch.equal(totals[0, 0].total, totals[0, 1].total)
    counts = [made.work.records(0, turn, made.aggregator._source(8, turn, 0).words).records for turn in range(200)]
    size = made.data.train.sizes[0]
    assert np.mean(counts) == pytest.approx(size / 2, abs=5 * (size / 4 / 200) ** 0.5)
    assert np.var(counts) == pytest.approx(size / 4, rel=0.5)


def test_in_a_fixed_order_every_record_comes_once_an_epoch():
    made = trainer(plan(records={"clip": 1.0, "batch": 60, "batches": 4, "silos": 3, "neighbours": "replace"}))
    counts = [made.work.records(1, turn, lambda _: None).records for turn in range(4)]
    assert sum(counts) == made.data.train.sizes[1]
    assert max(counts) - min(counts) <= 1


def test_the_server_divides_by_a_public_number_of_records():
    quiet = {"mechanism": "noiseless", "clip": 1e6}
    seen = []

    class Watching(Trainer.__init__.__globals__["Observer"]):
        def learns(self, turn, mean):
            seen.append(mean.clone())

    for batch in (60, 120):
        one = plan(mechanism=quiet, rounds=1, records=PLAN["records"] | {"batch": batch, "rate": 1.0})
        trainer(replace(one, transforms=replace(one.transforms, rotate=False)), observer=Watching()).step()
    torch.testing.assert_close(seen[0], 2 * seen[1])


@pytest.mark.parametrize("secure", [False, True])
def test_the_true_protocol_adds_up_silos(secure):
    made = trainer(plan(secagg="real", rounds=2), secure=secure)
    ideal = trainer(plan(rounds=2))
    found = [one.step() for one in (made, ideal)]
    assert found[0].secagg_bytes_up > 0
    if not secure:
        torch.testing.assert_close(made.values, ideal.values)


def test_models_that_mix_records_are_refused_before_anything_is_done():
    mixing = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="batch normalisation"):
        Trainer(plan(), federation(), mixing)
    with pytest.raises(ValueError, match="loss: must give one number for every record"):
        trainer(plan(), loss=nn.CrossEntropyLoss())


def test_more_silos_than_users_are_refused():
    with pytest.raises(ValueError, match="silos = 40: must be at most 12"):
        trainer(plan(records=PLAN["records"] | {"silos": 40}))
