"""Training across silos: sampling of records, sums of silos, and correlated noise."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Plan, simulate
from rqm.correlated.simulated_chain import IndependentChain
from rqm.simulation.loop import Observer, RunState
from rqm.simulation.record_gradients import records_of_round
from tests.simulation.small import federation, model

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


def run_state(silo_plan, **options):
    return RunState(silo_plan, federation(), model(), **options)


def sum_of_silo(state, silo, round_index):
    """The sum of the records that take part in a round."""
    return state.updates.compute(state.updates.model, [silo], round_index)[0][0]


def test_silos_learn_and_state_the_epsilon_of_a_record(tmp_path):
    run = simulate(plan(), model(), federation(), folder=tmp_path)
    last = list(run)[-1]
    assert last.accuracy > 0.7
    assert last.clients_loss is None
    assert run.guarantee.threat_model.unit == "record"
    assert 0 < run.guarantee.epsilon < 30


def test_users_are_merged_to_silos():
    state = run_state(plan())
    assert len(state.data.train) == 3
    assert state.data.train.sizes.sum() == federation().train.sizes.sum()


def test_silos_sample_records_by_round_and_seed():
    def sampled(silo, round_index):
        return sum_of_silo(run_state(plan()), silo, round_index)

    torch.testing.assert_close(sampled(0, 0).total, sampled(0, 0).total)
    assert not torch.equal(sampled(0, 0).total, sampled(0, 1).total)
    state = run_state(plan())
    counts = [sum_of_silo(state, 0, round_index).records for round_index in range(200)]
    size = state.data.train.sizes[0]
    assert np.mean(counts) == pytest.approx(size / 2, abs=5 * (size / 4 / 200) ** 0.5)
    assert np.var(counts) == pytest.approx(size / 4, rel=0.5)


def test_in_a_fixed_order_every_record_comes_once_an_epoch():
    state = run_state(plan(**IN_ORDER, neighboring="replace-one"))
    counts = [sum_of_silo(state, 1, round_index).records for round_index in range(4)]
    assert sum(counts) == state.data.train.sizes[1]
    assert max(counts) - min(counts) <= 1


def test_the_server_divides_by_a_public_number_of_records():
    quiet = {"mechanism": "noiseless", "clip": 1e6}
    means = []

    class Watching(Observer):
        def learns(self, round_index, mean):
            means.append(mean.clone())

    for batch in (60, 120):
        silo_plan = plan(mechanism=quiet, rounds=1, records=PLAN["records"] | {"batch": batch, "sampling_rate": 1.0})
        run_state(
            replace(silo_plan, transforms=replace(silo_plan.transforms, rotate=False)), observer=Watching()
        ).step()
    torch.testing.assert_close(means[0], 2 * means[1])


@pytest.mark.parametrize("is_secure", [False, True])
def test_the_real_protocol_adds_up_silos(is_secure):
    state = run_state(plan(secagg="real", rounds=2), is_secure=is_secure)
    ideal = run_state(plan(rounds=2))
    outcomes = [run.step() for run in (state, ideal)]
    assert outcomes[0].secagg_bytes_up > 0
    if not is_secure:
        torch.testing.assert_close(state.values, ideal.values)


def test_models_that_mix_records_are_refused():
    mixing = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    with pytest.raises(ValueError, match="batch normalization"):
        RunState(plan(), federation(), mixing)
    with pytest.raises(ValueError, match="loss: must give one number for every record"):
        run_state(plan(), loss=nn.CrossEntropyLoss())


def test_more_silos_than_users_are_refused():
    with pytest.raises(ValueError, match="silos = 40: must be at most 12"):
        run_state(plan(records=PLAN["records"] | {"silos": 40}))


HELD = IN_ORDER | {"noise": 40.0, "mechanism": NOISE | {"bits": 14}}


def test_a_record_does_not_change_the_batches_of_others():
    state = run_state(plan(**IN_ORDER))
    counts = [sum_of_silo(state, 1, round_index).records for round_index in range(8)]
    assert sum(counts[:4]) == state.data.train.sizes[1]
    assert counts[:4] == counts[4:]
    words = np.arange(40, dtype=np.uint64) ** 2  # a record's own, whoever else is there
    batch = [
        set(words[records_of_round(None, 4, 40, round_index, lambda _: None, words)].tolist())
        for round_index in range(4)
    ]
    fewer = np.delete(words, 7)
    less = [
        set(fewer[records_of_round(None, 4, 39, round_index, lambda _: None, fewer)].tolist())
        for round_index in range(4)
    ]
    assert sum(len(words_ - smaller) for words_, smaller in zip(batch, less, strict=True)) == 1


def sums_of(state, count, *, is_correlated=True):
    """The sums of some rounds as they are revealed; without correlated noise, of the same messages."""
    if not is_correlated:
        state.secure_sum.chain = IndependentChain()
    cohorts = [state.cohorts.draw(round_index) for round_index in range(count)]
    return torch.stack([state.secure_sum.reveal(state.updates, cohort).total.long() for cohort in cohorts])


def noise_of(state, round_index, silos):
    return sum((state.secure_sum.chain.state_of(round_index, silo).added for silo in silos), torch.tensor(0)).long()


def test_secure_noise_of_silos_is_kept_for_the_next_round():
    state = run_state(plan(**HELD, rounds=6), is_secure=True)
    sums_of(state, 2)
    assert state.secure_sum.chain.secret(2).shape == (3, state.mean.coordinates)


def test_a_silo_cancels_its_noise_in_its_next_message():
    state, plain = (run_state(plan(**HELD, rounds=6)) for _ in range(2))
    added = (sums_of(state, 6) - sums_of(plain, 6, is_correlated=False)) % state.mean.modulus
    noise = torch.stack([noise_of(state, round_index, range(3)) for round_index in range(6)])
    assert torch.equal(added.cumsum(dim=0) % state.mean.modulus, noise % state.mean.modulus)  # only the last is left
    assert noise.float().std() == pytest.approx(40 * 3**0.5, rel=0.1)


def test_a_silo_that_drops_out_leaves_its_noise_in_the_model_and_begins_anew():
    state, plain = (run_state(plan(**HELD, rounds=6, client_dropout=0.3, min_survivors=1)) for _ in range(2))
    survivors = [set(state.cohorts.draw(round_index).survivors) for round_index in range(6)]
    assert any(len(silos) < 3 for silos in survivors)
    added = (sums_of(state, 6) - sums_of(plain, 6, is_correlated=False)) % state.mean.modulus
    for round_index in range(6):
        expected = noise_of(state, round_index, survivors[round_index])
        if round_index:
            settling = survivors[round_index] & survivors[round_index - 1]
            expected = expected - noise_of(state, round_index - 1, settling)
        assert torch.equal(added[round_index], expected % state.mean.modulus)


def test_the_real_protocol_settles_in_the_same_message():
    real, ideal = (run_state(plan(**HELD, rounds=3, secagg=kind)) for kind in ("real", "ideal"))
    assert torch.equal(sums_of(real, 3), sums_of(ideal, 3))


def test_silos_learn_with_correlated_noise(tmp_path):
    run = simulate(plan(**HELD, rounds=16), model(), federation(), folder=tmp_path)
    assert list(run)[-1].accuracy > 0.7
    assert run.guarantee.participation.min_separation == 4
