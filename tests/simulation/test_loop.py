"""The training loop against plain torch: gradients, steps of the server, and noise."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks.plain_paper_cnn import PlainPaperCNN
from rqm import PBM, RQM, Noiseless, StochasticRounding, account
from rqm.config.plan import ClientWork, ServerStep, Transforms
from rqm.ledger.ledger import read
from rqm.mechanisms.gaussian import Gaussian
from rqm.simulation.loop import RunState, pick_device
from rqm.simulation.models import MODELS, FlatModel, PaperCNN, max_pool
from rqm.simulation.simulate import simulate
from tests.commands import rqm
from tests.plans import change_plan, make_plan
from tests.simulation.small import collected, federation, model, pictures

PLAN = make_plan(data="blobs", clients=5, rounds=6, evaluate_every=3, device="cpu", mechanism=Noiseless(clip=10.0))


def test_the_papers_model_has_the_papers_size():
    count = sum(p.numel() for p in PaperCNN().parameters())
    assert count == 1_018_174
    assert pytest.approx(2.9731e-5, rel=1e-4) == 0.03 / count**0.5
    for make in MODELS.values():
        assert make(10)(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_pooling_equals_that_of_torch():
    torch.manual_seed(0)
    plain, ours = PlainPaperCNN(), PaperCNN()
    ours.load_state_dict(plain.state_dict())
    x = torch.rand(5, 1, 28, 28)
    x[:, :, :12] = 0  # an empty corner, as on every picture: all four of a square are equal there
    scores = [net(x) for net in (plain, ours)]
    assert (scores[0] == scores[1]).all()
    for net in (plain, ours):
        functional.cross_entropy(net(x), torch.arange(5)).backward()
    for example, candidate in zip(plain.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(example.grad, candidate.grad, rtol=1e-5, atol=1e-8)


def test_pooling_finds_the_first_of_equals_and_what_is_not_a_number():
    x = torch.randint(3, (4, 3, 6, 8)).float()
    x[0, 0, 0, 1] = x[1, 2, 3, 4] = x[3, 1, 5, 7] = torch.nan
    expected, where = functional.max_pool2d(x, 2, return_indices=True)
    found = max_pool(x.requires_grad_())
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=0, atol=0)
    found.nansum().backward()
    sure = ~torch.isnan(expected)
    marked = torch.zeros(4, 3, 48).scatter_(2, where.flatten(2), sure.float().flatten(2)).view(4, 3, 6, 8)
    assert torch.equal(x.grad, marked)
    with torch.no_grad():
        assert torch.equal(max_pool(x[:0]), expected[:0])


def test_a_flat_model_is_the_same_model():
    net = model()
    before = net(torch.ones(3, 2))
    flat = FlatModel(net)
    assert (net(torch.ones(3, 2)) == before).all()
    net(torch.ones(3, 2)).sum().backward()
    assert (flat.gradient == torch.cat([p.grad.reshape(-1) for p in net.parameters()])).all()
    flat.values.zero_()
    assert (net(torch.ones(3, 2)) == 0).all()


def chosen(state, round_index):
    rng = np.random.default_rng([state.plan.seed, 0, round_index])
    return rng.choice(len(state.data.train), state.plan.participation.clients, replace=False).tolist()


def plain_sgd(plan, data):
    """The same run in plain torch: the mean over clients of their mean gradients, momentum by torch's optimiser."""
    net = model()
    kinds = {"sgd": {"momentum": 0.0}, "momentum": {"momentum": plan.server.momentum}}
    if plan.server.optimizer == "adam":
        step = torch.optim.Adam(net.parameters(), lr=plan.server.rate, betas=(plan.server.momentum, 0.999), eps=1e-8)
    else:
        step = torch.optim.SGD(net.parameters(), lr=plan.server.rate, **kinds[plan.server.optimizer])
    for round_index in range(plan.participation.rounds):
        step.zero_grad()
        for client in chosen(RunState(plan, data, model()), round_index):
            x, y = data.train[client]
            (functional.cross_entropy(net(x), y) / plan.participation.clients).backward()
        step.step()
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_noise_free_training_is_plain_sgd(optimizer):
    plan, data = change_plan(PLAN, server=ServerStep(optimizer, rate=0.05)), federation()
    state = RunState(plan, data, model())
    for _ in range(plan.participation.rounds):
        state.step()
    torch.testing.assert_close(state.values, plain_sgd(plan, data), rtol=1e-4, atol=1e-6)


def test_fine_rounding_follows_plain_sgd():
    plan = change_plan(
        PLAN, mechanism=StochasticRounding(clip=4.0, levels=65536), server=ServerStep("momentum", rate=0.05)
    )
    data = federation()
    state = RunState(plan, data, model())
    for _ in range(plan.participation.rounds):
        state.step()
    reference = plain_sgd(plan, data)
    assert (state.values - reference).abs().max() < 5e-4
    coarse = RunState(change_plan(plan, mechanism=StochasticRounding(clip=4.0, levels=16)), data, model())
    for _ in range(plan.participation.rounds):
        coarse.step()
    assert (coarse.values - reference).abs().max() > 5e-3  # the tolerance means something


@pytest.mark.statistical
@pytest.mark.parametrize("mech", [RQM(clip=0.5), PBM(clip=0.5), StochasticRounding(clip=0.5, levels=4)], ids=repr)
def test_the_decoded_mean_is_unbiased_over_rounds(mech):
    data = federation()
    quiet = RunState(change_plan(PLAN, mechanism=Noiseless(clip=0.5)), data, model())
    noisy = RunState(change_plan(PLAN, mechanism=mech), data, model())
    clients = [1, 4, 6, 8, 9]
    truth = quiet.plan.mechanism.decode(collected(quiet, clients, 0)[0], 5)
    draws = torch.stack([mech.decode(collected(noisy, clients, round_index)[0], 5) for round_index in range(500)])
    error = draws.std(0) / len(draws) ** 0.5 + 1e-6
    assert ((draws.mean(0) - truth) / error).abs().max() < 5
    assert ((draws.mean(0) - truth - 0.04) / error).abs().max() > 5  # a bias of 4 % of the range would be seen


def test_gradients_that_are_not_finite_count_as_zero():
    data = federation()
    data.train.inputs[data.train.offsets[4] : data.train.offsets[5]] = torch.nan
    everyone = RunState(change_plan(PLAN, clients=12), data, model())
    with pytest.warns(UserWarning, match="round 1: 1 client had gradients that are not finite"):
        assert everyone.step().clients_loss > 0
    noisy = RunState(change_plan(PLAN, mechanism=RQM(clip=0.5)), data, model())
    assert torch.isfinite(noisy.plan.mechanism.decode(collected(noisy, [4], 0)[0], 1)).all()


def test_an_l2_clip_bounds_what_a_client_sends():
    data = federation()
    free, bound = (
        RunState(change_plan(PLAN, transforms=Transforms(l2_clip=clip)), data, model()) for clip in (None, 0.05)
    )
    (raw, _), (clipped, _) = collected(free, [4], 0), collected(bound, [4], 0)
    assert raw.norm() > 0.06
    torch.testing.assert_close(clipped, raw * 0.05 / raw.norm(), rtol=1e-4, atol=0)
    wide, _ = collected(RunState(change_plan(PLAN, transforms=Transforms(l2_clip=50.0)), data, model()), [4], 0)
    assert (wide == raw).all()


def test_rotation_does_not_change_a_run_without_noise():
    data = federation()
    straight, turned = (
        RunState(change_plan(PLAN, transforms=Transforms(l2_clip=0.5, rotate=rotate)), data, model())
        for rotate in (False, True)
    )
    rounded = RunState(
        change_plan(
            PLAN, transforms=Transforms(0.5, rotate=True), mechanism=StochasticRounding(clip=0.5, levels=65536)
        ),
        data,
        model(),
    )
    for state in (straight, turned, rounded):
        for _ in range(4):
            state.step()
    torch.testing.assert_close(turned.values, straight.values, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rounded.values, straight.values, rtol=1e-2, atol=1e-3)
    assert turned.bits_up == 5 * 64 * 32  # 51 coordinates, padded


def test_the_noise_of_a_trusted_server_has_the_planned_size():
    plan = change_plan(PLAN, mechanism=Gaussian(2.0), transforms=Transforms(l2_clip=0.5))
    data = federation()
    state, quiet = (
        RunState(plan, data, model()),
        RunState(change_plan(plan, mechanism=Noiseless(clip=10.0)), data, model()),
    )
    truth = collected(quiet, [1, 4], 0)[0]
    draws = torch.stack([collected(state, [1, 4], round_index)[0] for round_index in range(300)]) - truth
    assert draws.std() == pytest.approx(1.0, rel=0.03)
    assert draws.mean().abs() < 0.04
    assert (collected(state, [1, 4], 7)[0] == collected(state, [1, 4], 7)[0]).all()
    with pytest.raises(ValueError, match=r"transforms.l2_clip = None"):
        change_plan(PLAN, mechanism=Gaussian(2.0))


def test_participations_are_limited():
    plan = change_plan(PLAN, max_participations=2, clients=5, rounds=4)
    state = RunState(plan, federation(), model())
    cohorts = [state.cohorts.clients(round_index) for round_index in range(4)]
    assert np.bincount(np.ravel(cohorts)).max() == 2
    assert all(len(set(chosen)) == 5 for chosen in cohorts)
    later = RunState(plan, federation(), model())
    assert later.cohorts.clients(3) == cohorts[3]
    assert later.cohorts.clients(1) == cohorts[1]
    with pytest.raises(ValueError, match=r"participations = 1: 4 rounds of 5 clients are more than the 12 turns"):
        RunState(change_plan(plan, max_participations=1), federation(), model())


def test_an_assumed_population_is_resampled_from_the_data():
    plan = change_plan(PLAN, population=500, examples=4, max_participations=1, clients=50, rounds=10)
    data = federation()
    state = RunState(plan, data, model())
    assert len(state.data.train) == 500
    assert set(state.data.train.sizes.tolist()) == {4}
    x, y = state.data.train[17]
    home, labels = data.train[17 % 12]
    for example, label in zip(x, y, strict=True):
        assert any(
            (example == candidate).all() and label == candidate_label
            for candidate, candidate_label in zip(home, labels, strict=True)
        )
    for _ in range(10):
        state.step()
    cohorts = [state.cohorts.clients(round_index) for round_index in range(10)]
    assert sorted(np.ravel(cohorts)) == list(range(500))


def test_the_sum_is_revealed_modulo_a_power_of_two():
    mech = RQM(clip=0.5)
    total, _ = collected(RunState(change_plan(PLAN, mechanism=mech), federation(), model()), [1, 4, 6], 0)
    assert total.dtype == torch.int32
    assert mech.sum_bits(3) == 6
    assert int(total.max()) <= 45 < 2**6


def test_dropout_layers_follow_the_seed_and_are_off_in_evaluations():
    data = pictures()
    plan = change_plan(PLAN, model="paper-cnn", dropout=1.0, clients=2, rounds=2)
    runs = [RunState(plan, data) for _ in range(2)]
    for state in runs:
        state.step()
    assert (runs[0].values == runs[1].values).all()
    assert runs[0].evaluate() == runs[0].evaluate()
    plain = RunState(change_plan(plan, dropout=0.0), data)
    plain.step()
    assert not torch.equal(plain.values, runs[0].values)
    with pytest.raises(ValueError, match=r"dropout = 0.5: must be 0 for the model linear"):
        RunState(change_plan(plan, model="linear", dropout=0.5), data)


def test_local_steps_send_the_change_over_the_rate():
    plan = change_plan(PLAN, client=ClientWork("local", epochs=2, batch=4, rate=0.1))
    trainer = RunState(plan, federation(), model())
    before = trainer.values.clone()
    trainer.updates.compute(trainer.updates.model, [2], 0)
    assert (trainer.values == before).all()
    one_step = change_plan(plan, client=ClientWork("local", epochs=1, batch=1000, rate=0.1))
    single, full = RunState(one_step, federation(), model()), RunState(PLAN, federation(), model())
    rows = [trainer.updates.compute(trainer.updates.model, [2], 0)[0] for trainer in (single, full)]
    torch.testing.assert_close(*rows, rtol=1e-4, atol=1e-5)


def test_outcomes_hold_bits_and_evaluations():
    outcomes = list(simulate(change_plan(PLAN, mechanism=RQM(clip=0.5)), model(), federation()))
    assert [r.round for r in outcomes] == [1, 2, 3, 4, 5, 6]
    assert [r.accuracy is not None for r in outcomes] == [False, False, True, False, False, True]
    assert outcomes[0].bits_up == 5 * 51 * 4


def test_a_simulation_charges_a_ledger_and_keeps_its_model(tmp_path):
    plan = change_plan(
        PLAN,
        mechanism=StochasticRounding(clip=0.3, levels=2, margin=40.0),
        transforms=Transforms(l2_clip=1.0, rotate=True),
    )
    started = simulate(plan, model(), federation(), folder=tmp_path / "kept")
    assert next(started).round == 1
    assert read(started.ledger)[1] == {0: 1}
    assert len(list(started)) == 5
    assert list(started) == []
    printed = json.loads(rqm("account", tmp_path / "kept", "--json").stdout)
    assert printed["epsilon"] == started.guarantee.epsilon == account(change_plan(plan, dim=51)).epsilon
    assert printed["charges"] == 6
    assert not torch.equal(next(started.model.parameters()), next(model().parameters()))
    with pytest.raises(ValueError, match="holds a ledger already"):
        simulate(plan, model(), federation(), folder=tmp_path / "kept")
    brief = simulate(plan, model(), data=federation())  # the ledger lasts as long as the simulation
    list(brief)
    assert json.loads(rqm("account", brief.ledger, "--json").stdout)["charges"] == 6
    assert simulate(PLAN, model(), federation()).ledger is None
    spent = simulate(
        change_plan(plan, budget_epsilon=1.01 * started.mean.account({0: 1, 1: 1}).epsilon), model(), federation()
    )
    assert len(list(spent)) == 2


@pytest.mark.parametrize("mech", [RQM(clip=0.5), Noiseless(clip=0.5)], ids=repr)
@pytest.mark.parametrize("work", ["gradient", "local"])
@pytest.mark.parametrize("together", [False, True])
def test_any_number_of_workers_gives_the_same_bits(mech, work, together, monkeypatch):
    results = []
    for cores in (1, 2, 5):
        monkeypatch.setattr("rqm.simulation.client_updates.usable_cores", lambda cores=cores: cores)
        plan = change_plan(PLAN, mechanism=mech, client=ClientWork(work, batch=3), clients=9)
        state = RunState(plan, federation(), model())
        if not together:
            state.updates.groups = None
        assert state.updates.threads.count == cores
        records = [state.step() for _ in range(3)]
        results.append((state.values, [record.clients_loss for record in records], records[-1].accuracy))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][0], results[2][0])
    assert results[0][1:] == results[1][1:] == results[2][1:]


def test_a_model_with_a_state_or_randomness_of_its_own_sees_one_client_after_the_other(monkeypatch):
    monkeypatch.setattr("rqm.simulation.client_updates.usable_cores", lambda: 2)
    for layer in (torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(8)):
        net = torch.nn.Sequential(torch.nn.Linear(2, 8), layer, torch.nn.Linear(8, 3))
        before = torch.get_rng_state()
        assert RunState(PLAN, federation(), net).updates.threads.count == 1
        assert torch.equal(before, torch.get_rng_state())
    assert RunState(PLAN, federation(), model()).updates.threads.count == 2


def test_plans_that_cannot_be_carried_out_are_refused():
    with pytest.raises(ValueError, match="clients = 50: must be at most 12"):
        RunState(change_plan(PLAN, clients=50), federation(), model())
    with pytest.raises(ValueError, match="model = resnet"):
        RunState(change_plan(PLAN, model="resnet"), federation())
    with pytest.raises(ValueError, match="device = quantum"):
        pick_device("quantum")
