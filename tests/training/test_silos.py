"""Training across silos: what a silo sends, what the server makes of it, and that it learns."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Plan, simulate
from rqm.training.record_gradients import records_of_round
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
    "records": {"clip": 1.0, "batch": 60, "sampling_rate": 0.5, "silos": 3},
    "server": {"rate": 1.0, "momentum": 0.5},
}


IN_ORDER = {"records": {"clip": 1.0, "batch": 60, "silos": 3}, "min_separation": 4}


def plan(**changes):
    return Plan.from_dict(PLAN | changes)


def trainer(one, **options):
    return Trainer(one, federation(), model(), **options)


def silo_sum(made, silo, turn):
    (total,), losses = made.updates.vector(silo, turn)
    assert not len(losses)
    return total


def test_a_federation_of_silos_learns_and_says_what_it_costs_a_record(tmp_path):
    run = simulate(plan(), model(), federation(), folder=tmp_path)
    last = list(run)[-1]
    assert last.accuracy > 0.7
    assert last.clients_loss is None
    assert run.guarantee.threat_model.unit == "record"
    assert 0 < run.guarantee.epsilon < 30


def test_users_are_put_together_to_silos_and_no_record_is_lost():
    made = trainer(plan())
    assert len(made.data.train) == 3
    assert made.data.train.sizes.sum() == federation().train.sizes.sum()


def test_each_silo_draws_its_own_records_anew_in_every_round_and_the_same_again():
    made = trainer(plan())
    totals = {}
    for silo, turn in [(0, 0), (0, 1), (1, 0)]:
        totals[silo, turn] = silo_sum(made, silo, turn)
    again = silo_sum(made, 0, 0)
    torch.testing.assert_close(again.total, totals[0, 0].total)
    assert not torch.equal(totals[0, 0].total, totals[0, 1].total)
    counts = [silo_sum(made, 0, turn).records for turn in range(200)]
    size = made.data.train.sizes[0]
    assert np.mean(counts) == pytest.approx(size / 2, abs=5 * (size / 4 / 200) ** 0.5)
    assert np.var(counts) == pytest.approx(size / 4, rel=0.5)


def test_in_a_fixed_order_every_record_comes_once_an_epoch():
    made = trainer(plan(**IN_ORDER, neighboring="replace-one"))
    counts = [silo_sum(made, 1, turn).records for turn in range(4)]
    assert sum(counts) == made.data.train.sizes[1]
    assert max(counts) - min(counts) <= 1


def test_the_server_divides_by_a_public_number_of_records():
    quiet = {"mechanism": "noiseless", "clip": 1e6}
    seen = []

    class Watching(Trainer.__init__.__globals__["Observer"]):
        def learns(self, turn, mean):
            seen.append(mean.clone())

    for batch in (60, 120):
        one = plan(mechanism=quiet, rounds=1, records=PLAN["records"] | {"batch": batch, "sampling_rate": 1.0})
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
    with pytest.raises(ValueError, match="batch normalization"):
        Trainer(plan(), federation(), mixing)
    with pytest.raises(ValueError, match="loss: must give one number for every record"):
        trainer(plan(), loss=nn.CrossEntropyLoss())


def test_more_silos_than_users_are_refused():
    with pytest.raises(ValueError, match="silos = 40: must be at most 12"):
        trainer(plan(records=PLAN["records"] | {"silos": 40}))


HELD = IN_ORDER | {"noise": 40.0, "mechanism": NOISE | {"bits": 14}}


def test_in_an_order_of_their_own_records_move_no_others():
    made = trainer(plan(**IN_ORDER))
    counts = [silo_sum(made, 1, turn).records for turn in range(8)]
    assert sum(counts[:4]) == made.data.train.sizes[1]
    assert counts[:4] == counts[4:]
    words = np.arange(40, dtype=np.uint64) ** 2  # a record's own, whoever else is there
    batch = [set(words[records_of_round(None, 4, 40, turn, lambda _: None, words)].tolist()) for turn in range(4)]
    fewer = np.delete(words, 7)
    less = [set(fewer[records_of_round(None, 4, 39, turn, lambda _: None, fewer)].tolist()) for turn in range(4)]
    assert sum(len(one - other) for one, other in zip(batch, less, strict=True)) == 1


def rounds_of(made, count):
    """The sums of so many rounds, as they are revealed, and those of the same inputs without transient noise."""
    seen = []
    for turn in range(count):
        chosen = made.participants.choose(turn)
        staying, before = made.participants.survive(chosen, turn), made.participants.before(turn)
        seen.append(made.aggregator.collect(chosen, staying, turn, before).total.long())
        made.done += 1
    return torch.stack(seen)


@pytest.mark.parametrize("secure", [False, True])
def test_a_silo_takes_its_noise_back_in_its_next_message(secure):
    held = trainer(plan(**HELD, rounds=6), secure=secure)
    modulus = held.mean.modulus
    if secure:  # nobody can draw it again
        rounds_of(held, 2)
        assert held.secret.shape == (3, held.coordinates)
        return
    plain = trainer(plan(**HELD, rounds=6))
    plain.aggregator._replace = lambda *_: None
    apart = (rounds_of(held, 6) - rounds_of(plain, 6)) % modulus
    noise = torch.stack([sum(held.aggregator._own(turn, silo) for silo in range(3)) for turn in range(6)]).long()
    assert torch.equal(apart.cumsum(dim=0) % modulus, noise % modulus)  # of all that was added only the last is left
    assert noise.float().std() == pytest.approx(40 * 3**0.5, rel=0.1)


def test_a_silo_that_is_away_leaves_its_noise_in_and_begins_anew():
    held = trainer(plan(**HELD, rounds=6, lost=0.3, min_survivors=1))
    plain = trainer(plan(**HELD, rounds=6, lost=0.3, min_survivors=1))
    plain.aggregator._replace = lambda *_: None
    there = [set(held.participants.survive(held.participants.choose(turn), turn)) for turn in range(6)]
    assert any(len(one) < 3 for one in there)
    apart = (rounds_of(held, 6) - rounds_of(plain, 6)) % held.mean.modulus
    for turn in range(6):
        expected = sum(held.aggregator._own(turn, silo) for silo in there[turn]).long()
        for silo in there[turn] & there[turn - 1] if turn else ():
            expected = expected - held.aggregator._own(turn - 1, silo)
        assert torch.equal(apart[turn], expected % held.mean.modulus)


def test_the_true_protocol_takes_noise_back_in_one_message():
    made, ideal = (trainer(plan(**HELD, rounds=3, secagg=how)) for how in ("real", "ideal"))
    assert torch.equal(rounds_of(made, 3), rounds_of(ideal, 3))


def test_silos_learn_with_noise_that_cancels(tmp_path):
    run = simulate(plan(**HELD, rounds=16), model(), federation(), folder=tmp_path)
    assert list(run)[-1].accuracy > 0.7
    assert run.guarantee.participation.min_separation == 4
