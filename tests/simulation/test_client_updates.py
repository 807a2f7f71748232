"""Groups of small clients against one client after another: the same rows, the same sums, the same models."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm import RQM, Noiseless
from rqm.config.plan import Adapt, ClientWork, ServerStep, Transforms
from rqm.data.federated_data import FederatedData
from rqm.related.vqsgd import VQSGD
from rqm.simulation.client_updates import ClientGroups
from rqm.simulation.loop import Observer, RunState
from rqm.simulation.models import FlatModel, example_losses
from tests.plans import change_plan, make_plan
from tests.simulation.small import (
    LAYERED_MODELS,
    collected,
    expected_gradient,
    federation,
    model,
    pictures,
    ragged_clients,
)

PLAN = make_plan(data="noise", model="small-cnn", clients=9, mechanism=RQM(clip=0.05), rounds=3, device="cpu")


@pytest.mark.parametrize(("make", "shape"), LAYERED_MODELS)
@pytest.mark.parametrize("is_local", [False, True])
def test_each_client_gets_its_own_gradient(make, shape, is_local):
    torch.manual_seed(0)
    network, clients = make(), ragged_clients(shape, sizes=(5, 3, 5, 1, 3, 3))
    flat = FlatModel(network)
    groups = ClientGroups(clients, example_losses, len(flat.values), is_local=is_local)
    client_ids = [1, 4, 5] if is_local else [3, 1, 5, 0, 2]  # of one size, or of three sizes
    if is_local:
        stack = groups.stack(flat, client_ids)
        stack.compute_gradient(torch.arange(3).repeat(3, 1))
        rows, losses = stack.gradient, stack.losses[0]
    else:
        rows, losses = groups.gradients(flat, client_ids)
    for row, loss, client_id in zip(rows, losses, client_ids, strict=True):
        gradient, expected_loss = expected_gradient(network, clients, client_id)
        torch.testing.assert_close(row, gradient, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(loss, expected_loss)


def with_ragged_clients():
    clients = ragged_clients((6,))
    return FederatedData("blobs", clients, clients.inputs[:0], clients.labels[:0], 4)


class TiedWeight(nn.Module):
    """A weight that is also used outside its layer."""

    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x):
        return self.out(self.layer(x) @ self.layer.weight)


class Centered(nn.Module):
    """Subtracts the mean of the batch, so that examples are mixed."""

    def forward(self, x):
        return x - x.mean(0)


@pytest.mark.parametrize("work", ["gradient", "local"])
@pytest.mark.parametrize(
    ("make", "is_grouped"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4)), True),
        (TiedWeight, False),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)), False),
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Softmax(dim=0), nn.Linear(6, 4)), False),
        (lambda: nn.Sequential(Centered(), nn.Linear(6, 4)), False),
    ],
    ids=["dense layers", "tied weight", "another kind of layer", "examples that are mixed", "a centered batch"],
)
def test_models_that_groups_cannot_handle_are_recognized(make, is_grouped, work):
    torch.manual_seed(0)
    plan = change_plan(PLAN, data="blobs", model="own", clients=3, client=ClientWork(work, batch=2))
    assert (RunState(plan, with_ragged_clients(), make()).updates.groups is not None) == is_grouped


def test_gradients_of_activations_in_place_are_recognized():
    network = nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 4))
    plan = change_plan(PLAN, data="blobs", model="own", clients=3)
    assert RunState(plan, with_ragged_clients(), network).updates.groups is None


@pytest.mark.parametrize("is_local", [False, True])
def test_groups_hold_each_client_once_and_are_bounded(is_local):
    rng = np.random.default_rng(0)
    clients = ragged_clients((2,), sizes=tuple(rng.integers(0, 30, size=200)))
    client_ids = rng.permutation(200).tolist()
    groups = ClientGroups(clients, example_losses, 2**18, is_local=is_local).split(client_ids)
    assert sorted(position for group in groups for position in group) == list(range(200))
    sizes = [clients.sizes[[client_ids[position] for position in group]] for group in groups]
    assert max(len(group) for group in groups) == (8 if is_local else 32)
    assert all(size.sum() <= 128 for size in sizes)
    assert all((size > 0).all() for size in sizes if len(size) > 1)
    assert not is_local or all(len(set(size.tolist())) == 1 for size in sizes)


WORK = {
    "gradient": change_plan(PLAN),
    "clipped and rotated": change_plan(PLAN, transforms=Transforms(l2_clip=0.5, rotate=True)),
    "a clip that moves": change_plan(
        PLAN, transforms=Transforms(l2_clip=0.5, rotate=True), adapt=Adapt(start=1.0), mechanism=RQM(clip=0.05)
    ),
    "local": change_plan(PLAN, client=ClientWork("local", epochs=2, batch=2, rate=0.1)),
    "fedcomgate": change_plan(
        PLAN, client=ClientWork("fedcomgate", epochs=2, batch=2, rate=0.1), server=ServerStep("sgd")
    ),
    "fedaq": change_plan(PLAN, client=ClientWork("fedaq", epochs=2, batch=2, rate=0.1), server=ServerStep("sgd")),
    "floats": change_plan(PLAN, mechanism=Noiseless(clip=10.0)),
    "vectors as a whole": change_plan(PLAN, mechanism=VQSGD(), transforms=Transforms(l2_clip=1.0), model="linear"),
}


@pytest.mark.parametrize("plan", WORK.values(), ids=WORK)
def test_a_round_in_groups_is_that_of_one_client_after_another(plan):
    data = pictures(clients=12, each=3)
    grouped, single, initial = (RunState(plan, data) for _ in range(3))
    assert grouped.updates.groups is not None
    single.updates.groups = None
    for _ in range(2):
        assert grouped.step().clients_loss == pytest.approx(single.step().clients_loss, rel=1e-4)
    change = (single.values - initial.values).norm()
    assert (grouped.values - single.values).norm() < 1e-2 * change  # a draw in ten thousand may differ


def test_what_is_sent_does_not_depend_on_the_number_of_threads(monkeypatch):
    data, models = pictures(clients=12, each=3), []
    for cores in (1, 2, 3):
        monkeypatch.setattr("rqm.simulation.client_updates.usable_cores", lambda cores=cores: cores)
        trainer = RunState(PLAN, data)
        assert trainer.updates.threads.count == cores
        trainer.step()
        models.append(trainer.values)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])


def test_a_client_with_nan_does_not_change_the_others():
    plan = change_plan(PLAN, data="blobs", model="own", mechanism=Noiseless(clip=10.0), clients=5)
    data = federation()
    trainer = RunState(plan, data, model())
    assert trainer.updates.groups is not None
    expected, _ = collected(trainer, [1, 6, 8], 0)
    data.train.inputs[data.train.offsets[4] : data.train.offsets[5]] = torch.nan
    total, losses = collected(trainer, [1, 4, 6, 8], 0)
    torch.testing.assert_close(total, expected)
    assert torch.isnan(losses).tolist() == [False, True, False, False]


def test_large_clients_and_those_an_audit_plants_in_are_computed_one_after_another():
    class Plants(Observer):
        plants = True

    assert RunState(PLAN, pictures(clients=9, each=128)).updates.groups is None
    assert RunState(PLAN, pictures(clients=9), observer=Plants()).updates.groups is None
    blobs = change_plan(PLAN, data="blobs", model="own")
    assert RunState(blobs, federation(), model(), loss=functional.cross_entropy).updates.groups is None  # only a mean
