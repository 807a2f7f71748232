"""FedAvg, FedCOMGATE and FedAQ: their definitions, their state, their accounting, and what they improve."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from rqm import Noiseless, Plan, StochasticRounding, account, private_mean
from rqm.config.account import account_ledger
from rqm.config.plan import Adapt, ClientWork, ServerStep, Transforms
from rqm.config.run_files import read_checkpoint
from rqm.data.federated_data import Clients, FederatedData
from rqm.ledger.budget_guard import Guard
from rqm.simulation.loop import RunState
from rqm.simulation.run_folder import carry_out
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model, pictures
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
    """Clients with the loss ‖A_i x − b_i‖² / 2 and different optima; all gradients are exact."""
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
    trainer = RunState(plan, data or quadratics(), line(), loss=half_square)
    for _ in range(rounds):
        trainer.step()
    return trainer


def gradients(data):
    """The gradient of each client, in closed form."""
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
        for slope, correction in zip(gradients(data), delta, strict=True):
            w = x.clone()
            for _ in range(STEPS):
                w = w - RATE * (slope(w.float()) - correction)
            ends.append(x - w)
        mean = sum(ends) / USERS
        delta = [correction + (end - mean) / (RATE * STEPS) for correction, end in zip(delta, ends, strict=True)]
        x = x - mean
    trainer = trained("fedcomgate", rounds)
    assert trainer.values.numpy() == pytest.approx(x.numpy(), abs=1e-5)
    assert trainer.updates.client_state.numpy() == pytest.approx(torch.stack(delta).numpy(), abs=1e-4)
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
    assert trainer.tensors["state"].numpy() == pytest.approx(x.numpy(), abs=1e-5)


@pytest.mark.slow
def test_corrections_remove_the_drift_of_local_steps():
    """With different optima, plain local steps stop short of the common optimum; corrected steps reach it."""
    data = quadratics()
    best = torch.linalg.lstsq(data.train.inputs, data.train.labels).solution[:, 0]
    drift, corrected = (float((trained(work, 250).values - best).norm()) for work in ("local", "fedcomgate"))
    assert corrected < 0.05
    assert drift > 5 * corrected


def test_acceleration_needs_fewer_rounds():
    """With one optimum for all clients and small steps, FedAQ is ahead."""
    data = quadratics()
    equal_clients = FederatedData(
        "alike",
        Clients(
            data.train.inputs[:8].repeat(USERS, 1), data.train.labels[:8].repeat(USERS, 1), 8 * np.arange(USERS + 1)
        ),
        data.train.inputs[:8],
        data.train.labels[:8],
        1,
    )
    plain = trained("local", 60, equal_clients).evaluate()[0]
    accelerated = trained("fedaq", 60, equal_clients, convexity=0.05).evaluate()[0]
    assert accelerated < plain


def test_a_client_that_drops_out_keeps_its_correction():
    plan = change_plan(PLAN, client_dropout=0.4, client=replace(PLAN.client, work="fedcomgate"), seed=3)
    trainer = RunState(plan, quadratics(), line(), loss=half_square)
    for round_index in range(plan.participation.rounds):
        previous = trainer.updates.client_state.clone()
        survivors = trainer.cohorts.draw(round_index).survivors
        trainer.step()
        has_changed = (trainer.updates.client_state != previous).any(dim=1)
        assert [client for client in range(USERS) if has_changed[client]] == sorted(survivors)
    assert trainer.updates.client_state.abs().max() > 0


def test_the_state_of_clients_is_in_no_published_file(tmp_path):
    plan = change_plan(PLAN, checkpoint_every=1, client=replace(PLAN.client, work="fedcomgate"))
    out_of_time_answers, folder = iter((False, True)), tmp_path / "run"

    def trainer(plan, data):
        return RunState(plan, data, model())

    def client_files():
        return [path for path in folder.iterdir() if path.name.startswith("clients.")]

    with pytest.raises(TimeoutError):
        carry_out(plan, federation(), folder, make=trainer, out_of_time=lambda: next(out_of_time_answers))
    (client_file,) = client_files()
    assert client_file.name == "clients.2.safetensors"
    assert client_file.stat().st_mode & 0o777 == 0o600
    arrays, _ = read_checkpoint(folder)
    assert arrays.keys() == {"values", "moments"}
    elsewhere = client_file.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="what clients remember cannot be read"):
        carry_out(plan, federation(), folder, make=trainer)
    elsewhere.rename(client_file)
    carry_out(plan, federation(), folder, make=trainer)
    assert not client_files()
    carry_out(plan, federation(), folder, make=trainer)  # which has nothing more to do, and needs none of it


def test_clients_with_a_state_reveal_who_took_part():
    """Two users and two rounds with one client: sampling hides less than it would without a state.

    A client with a state sends another bit in the second round if it was in the first. All outputs are enumerated.
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

    def bit_of(client, world, first_client, output):
        """The bit of a client; in the second round by the client and the output of the first one."""
        if first_client is None:
            return int(client == "i" and world == 2)
        return int(output == 0 and (world == 1 if client == "i" else first_client == "i"))

    def pmf(world):
        probabilities = np.zeros((2, 2))
        for first_client, second_client, y, z in product("ij", "ij", (0, 1), (0, 1)):
            first_bit, second_bit = (
                bit_of(first_client, world, None, None),
                bit_of(second_client, world, first_client, y),
            )
            probabilities[y, z] += (high if first_bit == y else 1 - high) * (high if second_bit == z else 1 - high) / 4
        return probabilities

    excess = np.maximum(pmf(1) - np.exp(mean.guarantee().epsilon) * pmf(2), 0).sum()
    assert excess > 1.15 * delta  # more than the bound for clients without a state
    plan = change_plan(
        PLAN, mechanism=StochasticRounding(levels=2, margin=1.0), population=2, clients=1, dim=1, rounds=2
    )
    account(plan, adversary="outsider")
    with pytest.raises(ValueError, match="whose clients remember"):
        account(change_plan(plan, client=replace(plan.client, work="fedcomgate")), adversary="outsider")


def test_a_ledger_of_clients_with_a_state_refuses_an_outsider(tmp_path):
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
def test_corrections_use_the_clipped_vectors(adapt):
    """They are clipped as they were sent, also at an adaptive clip. Corrections then add up to zero."""
    plan = change_plan(
        PLAN,
        adapt=adapt,
        client=replace(PLAN.client, work="fedcomgate"),
        transforms=Transforms(l2_clip=0.01, rotate=True),
    )
    trainer = RunState(plan, quadratics(), line(), loss=half_square)
    trainer.step()
    assert trainer.updates.client_state.abs().max() > 1e-4
    assert trainer.updates.client_state.sum(dim=0).abs().max() < 1e-4 * USERS


def test_the_account_counts_both_vectors_of_fedaq():
    private = change_plan(
        PLAN,
        mechanism=StochasticRounding(clip=0.5, margin=3.0, levels=2),
        transforms=Transforms(l2_clip=1.0, rotate=True),
        clients=50,
        dim=64,
        rounds=2,
    )
    plain, corrected, accelerated = (
        account(change_plan(private, client=replace(PLAN.client, work=work)))
        for work in ("local", "fedcomgate", "fedaq")
    )
    assert (plain.dim, corrected.dim, accelerated.dim) == (64, 64, 128)
    assert corrected.epsilon == plain.epsilon  # the state of clients is not sent
    assert accelerated.epsilon == pytest.approx(plain.epsilon, rel=0.1)  # one clip for both vectors
    assert accelerated.wire_bits_per_parameter == 2 * plain.wire_bits_per_parameter


def test_invalid_combinations_are_refused():
    accelerated = replace(PLAN.client, work="fedaq")
    with pytest.raises(ValueError, match=r"server.optimizer = 'momentum': must be 'sgd'"):
        change_plan(PLAN, client=accelerated, server=ServerStep())
    with pytest.raises(ValueError, match=r"client.work"):
        ClientWork(work="fedprox")
    values = change_plan(PLAN, client=accelerated).to_dict()
    assert Plan.from_dict(values).client == accelerated
    assert values["client"].keys() == {"work", "epochs", "batch", "rate", "steps", "convexity"}


@pytest.mark.parametrize("work", ["local", "fedcomgate", "fedaq"])
def test_the_tool_for_the_documentation_trains_the_same_model(work):
    """`tools.methods` makes the tables of docs/methods.md."""
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
    trainer, run = RunState(plan, data), Run(plan, data)
    for _ in range(3):
        trainer.step()
        run.step()
    assert run.values.numpy() == pytest.approx(trainer.values.numpy(), abs=1e-5)
    assert run.evaluate() == pytest.approx(trainer.evaluate(), abs=1e-4)
