"""FedPAQ, FedCOMGATE and FedAQ: each step against its definition, their memory, their account, what they are for."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Noiseless, Plan, StochasticRounding, account, private_mean, simulate
from rqm.data.federated_data import Clients, FederatedData
from rqm.plan.account import account_ledger
from rqm.plan.folder import read_checkpoint
from rqm.plan.guard import Guard
from rqm.plan.plan import Adapt, ClientWork, ServerStep, Transforms
from rqm.training.run import carry_out
from rqm.training.trainer import Trainer
from tests.plans import change_plan, make_plan
from tests.training.small import federation, model, pictures
from tools.methods import Run

USERS, STEPS, RATE = 4, 6, 0.05
PLAN = make_plan(
    model="own",
    mechanism=Noiseless(clip=1e6),
    clients=USERS,
    rounds=6,
    evaluate_every=3,
    client=ClientWork(work="local", rate=RATE, steps=STEPS, batch=100),
    server=ServerStep(optimizer="sgd", rate=RATE),
)


def quadratics(seed=0):
    """Clients whose loss is ‖A_i x − b_i‖² / 2: they want different things, and all gradients are exact."""
    rng = np.random.default_rng(seed)
    inputs = torch.from_numpy(rng.normal(size=(USERS * 8, 5)) * np.repeat([0.3, 0.6, 1.0, 1.5], 8)[:, None]).float()
    labels = torch.from_numpy(rng.normal(size=(USERS * 8, 1)) + np.repeat([-3.0, 0.0, 1.0, 4.0], 8)[:, None]).float()
    return FederatedData("quadratics", Clients(inputs, labels, 8 * np.arange(USERS + 1)), inputs, labels, 1)


def line():
    torch.manual_seed(0)
    return nn.Linear(5, 1, bias=False)


def half_square(outputs, labels):
    return ((outputs - labels) ** 2).mean() / 2


def trained(work, rounds, data=None, **client):
    plan = change_plan(PLAN, rounds=rounds, client=replace(PLAN.client, work=work, **client))
    trainer = Trainer(plan, data or quadratics(), line(), loss=half_square)
    for _ in range(rounds):
        trainer.step()
    return trainer


def gradients(data):
    """Every client's gradient, by hand."""
    parts = [data.train[client] for client in range(USERS)]
    return [lambda x, a=a, b=b: (a.T @ (a @ x - b[:, 0]) / len(a)).double() for a, b in parts]


def start():
    return line().weight.detach()[0].clone()


@pytest.mark.parametrize("rounds", [1, 3])
def test_fedcomgate_is_its_definition(rounds):
    data, x = quadratics(), start().double()
    delta = [torch.zeros(5, dtype=torch.float64)] * USERS
    for _ in range(rounds):
        ends = []
        for slope, own in zip(gradients(data), delta, strict=True):
            w = x.clone()
            for _ in range(STEPS):
                w = w - RATE * (slope(w.float()) - own)
            ends.append(x - w)
        mean = sum(ends) / USERS
        delta = [own + (end - mean) / (RATE * STEPS) for own, end in zip(delta, ends, strict=True)]
        x = x - mean
    trainer = trained("fedcomgate", rounds)
    assert trainer.values.numpy() == pytest.approx(x.numpy(), abs=1e-5)
    assert trainer.corrections.numpy() == pytest.approx(torch.stack(delta).numpy(), abs=1e-4)
    plain = trained("local", rounds).values.numpy()
    assert (plain == pytest.approx(x.numpy(), abs=1e-5)) == (rounds == 1)  # the first has nothing to correct


def test_fedaq_is_its_definition():
    data, mu, rounds = quadratics(), 0.5, 3
    x, xa = start().double(), start().double()
    gamma = max((RATE / (mu * STEPS)) ** 0.5, RATE)
    alpha = 1 / (gamma * mu)
    beta = alpha + 1
    for _ in range(rounds):
        ws, as_ = [], []
        for slope in gradients(data):
            w, a = x.clone(), xa.clone()
            for _ in range(STEPS):
                m = w / beta + (1 - 1 / beta) * a
                g = slope(m.float())
                a, w = m - RATE * g, m / alpha + (1 - 1 / alpha) * w - gamma * g
            ws.append(w)
            as_.append(a)
        x, xa = sum(ws) / USERS, sum(as_) / USERS
    trainer = trained("fedaq", rounds, convexity=mu)
    assert trainer.values.numpy() == pytest.approx(xa.numpy(), abs=1e-5)
    assert trainer.state.numpy() == pytest.approx(x.numpy(), abs=1e-5)


@pytest.mark.slow
def test_corrections_take_the_drift_away():
    """Clients who want different things: plain local steps stop beside the optimum, corrected ones go there."""
    data = quadratics()
    best = torch.linalg.lstsq(data.train.inputs, data.train.labels).solution[:, 0]
    drift, gate = (float((trained(work, 250).values - best).norm()) for work in ("local", "fedcomgate"))
    assert gate < 0.05
    assert drift > 5 * gate


def test_acceleration_needs_fewer_rounds():
    """Where all want the same, and steps are small, the second sequence is ahead."""
    data = quadratics()
    alike = FederatedData(
        "alike",
        Clients(
            data.train.inputs[:8].repeat(USERS, 1), data.train.labels[:8].repeat(USERS, 1), 8 * np.arange(USERS + 1)
        ),
        data.train.inputs[:8],
        data.train.labels[:8],
        1,
    )
    plain = trained("local", 60, alike).evaluate()[0]
    quick = trained("fedaq", 60, alike, convexity=0.05).evaluate()[0]
    assert quick < plain


def test_a_client_that_is_lost_keeps_its_correction():
    plan = change_plan(PLAN, lost=0.4, client=replace(PLAN.client, work="fedcomgate"), seed=3)
    trainer = Trainer(plan, quadratics(), line(), loss=half_square)
    for turn in range(plan.participation.rounds):
        before = trainer.corrections.clone()
        staying = trainer.participants.survive(trainer.participants.choose(turn), turn)
        trainer.step()
        moved = (trainer.corrections != before).any(dim=1)
        assert [client for client in range(USERS) if moved[client]] == sorted(staying)
    assert trainer.corrections.abs().max() > 0


@pytest.mark.parametrize("work", ["fedcomgate", "fedaq"])
@pytest.mark.parametrize("adapt", [None, Adapt(start=0.5)])
def test_a_run_that_goes_on_remembers(tmp_path, work, adapt):
    plan = change_plan(
        PLAN,
        adapt=adapt,
        clients=5,
        lost=0.2,
        checkpoint_every=2,
        client=replace(PLAN.client, work=work, batch=5),
        transforms=Transforms(l2_clip=10.0, rotate=True),
    )
    made = []

    def trainer(plan, data):
        made.append(Trainer(plan, data, model()))
        return made[-1]

    straight = trainer(plan, federation())
    while straight.done < plan.participation.rounds:
        straight.step()
    late = iter((False, False, False, True))
    with pytest.raises(TimeoutError):
        carry_out(plan, federation(), tmp_path / "run", make=trainer, out_of_time=lambda: next(late))
    carry_out(plan, federation(), tmp_path / "run", make=trainer)
    assert torch.equal(made[-1].values, straight.values)
    name = "corrections" if work == "fedcomgate" else "state"
    again, first = (getattr(one, name) for one in (made[-1], straight))
    assert torch.equal(again, first)
    assert first.abs().max() > 0


def test_what_clients_remember_is_in_no_file_that_others_read(tmp_path):
    plan = change_plan(PLAN, checkpoint_every=1, client=replace(PLAN.client, work="fedcomgate"))
    late, folder, seen = iter((False, True)), tmp_path / "run", []

    def trainer(plan, data):
        seen.append(Trainer(plan, data, model()))
        return seen[-1]

    def kept():
        return [path for path in folder.iterdir() if path.name.startswith("clients.")]

    with pytest.raises(TimeoutError):
        carry_out(plan, federation(), folder, make=trainer, out_of_time=lambda: next(late))
    (own,) = kept()
    assert own.name == "clients.2.safetensors"
    assert own.stat().st_mode & 0o777 == 0o600
    arrays, _ = read_checkpoint(folder)
    assert arrays.keys() == {"values", "moments"}
    moved = own.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="what clients remember cannot be read"):
        carry_out(plan, federation(), folder, make=trainer)
    moved.rename(own)
    carry_out(plan, federation(), folder, make=trainer)
    assert not kept()
    carry_out(plan, federation(), folder, make=trainer)  # which has nothing more to do, and needs none of it


def test_clients_who_remember_tell_who_took_part():
    """Two users, one of whom takes part in each of two rounds, by one bit: sampling does not hide as well as it would.

    Who remembers sends another bit in the second round if he was in the first. All that an outsider sees, enumerated.
    """
    high, delta = 0.75, 0.15
    mean = private_mean(
        mechanism=StochasticRounding(levels=2, margin=1.0),
        dim=1,
        clients=1,
        population=2,
        rounds=2,
        adversary="outsider",
        l2_clip=None,
        rotate=False,
        delta=delta,
    )

    def sends(who, world, first, seen):
        """In the second round by who was in the ``first``, and what was seen of it."""
        if first is None:
            return int(who == "i" and world == 2)
        return int(seen == 0 and (world == 1 if who == "i" else first == "i"))

    def law(world):
        found = np.zeros((2, 2))
        for first, second, y, z in product("ij", "ij", (0, 1), (0, 1)):
            one, two = sends(first, world, None, None), sends(second, world, first, y)
            found[y, z] += (high if one == y else 1 - high) * (high if two == z else 1 - high) / 4
        return found

    spare = np.maximum(law(1) - np.exp(mean.guarantee().epsilon) * law(2), 0).sum()
    assert spare > 1.15 * delta  # more than was promised to users who remember nothing
    plan = change_plan(
        PLAN, mechanism=StochasticRounding(levels=2, margin=1.0), population=2, clients=1, dim=1, rounds=2
    )
    account(plan, adversary="outsider")
    with pytest.raises(ValueError, match="whose clients remember"):
        account(change_plan(plan, client=replace(plan.client, work="fedcomgate")), adversary="outsider")


def test_a_ledger_of_clients_who_remember_has_no_outsider(tmp_path):
    plan = change_plan(
        PLAN,
        mechanism=StochasticRounding(levels=2, margin=3.0),
        client=replace(PLAN.client, work="fedcomgate"),
        dim=4,
        clients=2,
    )
    with Guard(plan.private_mean(), tmp_path, plan=plan, users=USERS) as guard:
        guard.charge(0)
    assert account_ledger(tmp_path)[0].epsilon > 0
    with pytest.raises(ValueError, match="whose clients remember"):
        account_ledger(tmp_path, adversary="outsider", population=USERS)


@pytest.mark.parametrize("adapt", [None, Adapt(start=0.01)])
def test_corrections_are_of_what_was_sent(adapt):
    """A client's own is clipped as it was sent, at a clip that moves, too: then corrections add up to nothing."""
    plan = change_plan(
        PLAN,
        adapt=adapt,
        client=replace(PLAN.client, work="fedcomgate"),
        transforms=Transforms(l2_clip=0.01, rotate=True),
    )
    trainer = Trainer(plan, quadratics(), line(), loss=half_square)
    trainer.step()
    assert trainer.corrections.abs().max() > 1e-4
    assert trainer.corrections.sum(dim=0).abs().max() < 1e-4 * USERS


def test_the_account_counts_both_vectors_of_fedaq():
    private = change_plan(
        PLAN,
        mechanism=StochasticRounding(clip=0.5, margin=3.0, levels=2),
        transforms=Transforms(l2_clip=1.0, rotate=True),
        clients=50,
        dim=64,
        rounds=2,
    )
    plain, gate, quick = (
        account(change_plan(private, client=replace(PLAN.client, work=work)))
        for work in ("local", "fedcomgate", "fedaq")
    )
    assert (plain.dim, gate.dim, quick.dim) == (64, 64, 128)
    assert gate.epsilon == plain.epsilon  # what clients remember is theirs
    assert quick.epsilon == pytest.approx(plain.epsilon, rel=0.1)  # one clip for both vectors
    assert quick.wire_bits_per_parameter == 2 * plain.wire_bits_per_parameter


@pytest.mark.parametrize("work", ["fedcomgate", "fedaq"])
def test_both_aggregators_reveal_the_same_sum(work):
    plan = change_plan(
        PLAN,
        mechanism=StochasticRounding(clip=3.0, margin=1.0, levels=4),
        transforms=Transforms(l2_clip=5.0, rotate=True),
        client=replace(PLAN.client, work=work),
        rounds=3,
    )
    ideal, real = (list(simulate(change_plan(plan, secagg=kind), model(), federation())) for kind in ("ideal", "real"))
    assert [one.loss for one in ideal] == [one.loss for one in real]


def test_what_does_not_go_together_is_refused():
    quick = replace(PLAN.client, work="fedaq")
    with pytest.raises(ValueError, match=r"server.optimizer = 'momentum': must be 'sgd'"):
        change_plan(PLAN, client=quick, server=ServerStep())
    with pytest.raises(ValueError, match=r"client.work"):
        ClientWork(work="fedprox")
    values = change_plan(PLAN, client=quick).to_dict()
    assert Plan.from_dict(values).client == quick
    assert values["client"].keys() == {"work", "epochs", "batch", "rate", "steps", "convexity"}


@pytest.mark.parametrize("work", ["local", "fedcomgate", "fedaq"])
def test_all_clients_at_once_are_each_of_them_alone(work):
    """What the tables of docs/methods.md are made with does what a trainer does."""
    data = pictures(clients=4, each=10, classes=10)
    plan = change_plan(
        PLAN,
        data="noise",
        model="linear",
        client=ClientWork(work=work, rate=0.1, steps=3, batch=5),
        server=ServerStep(optimizer="sgd", rate=0.1),
        transforms=Transforms(l2_clip=2.0, rotate=True),
        rounds=3,
        dim=7850,
    )
    alone, together = Trainer(plan, data), Run(plan, data)
    for _ in range(3):
        alone.step()
        together.step()
    assert together.values.numpy() == pytest.approx(alone.values.numpy(), abs=1e-5)
    assert together.evaluate() == pytest.approx(alone.evaluate(), abs=1e-4)
