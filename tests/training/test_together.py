"""Many small clients at once on a CPU against one after the other: the same rows, the same sums, the same models."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from rqm import RQM, Noiseless
from rqm.plan.plan import Adapt, ClientWork, ServerStep, Transforms
from rqm.related.vqsgd import VQSGD
from rqm.training.loop import RunState
from rqm.training.together import EXAMPLES, FLOATS, Together
from rqm.training.workers import Worker
from tests.plans import change_plan, make_plan
from tests.training.small import collected, federation, model, pictures
from tests.training.test_batched import Tied, Twice, convolutions, plain, ragged

PLAN = make_plan(data="noise", model="small-cnn", clients=9, mechanism=RQM(clip=0.05), rounds=3, device="cpu")


def together(net, clients, local=False):
    worker = Worker(net)

    def each(net, x, y):
        return functional.cross_entropy(net(x), y, reduction="none")

    return Together(clients, each, len(worker.values), local=local), worker


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)), (6,)),
        (Twice, (5, 3)),
        (convolutions, (2, 8, 7)),
    ],
)
def test_every_client_gets_its_own_gradient(make, shape):
    torch.manual_seed(0)
    net, clients = make(), ragged(shape, sizes=(5, 3, 5, 1, 3, 3))
    many, worker = together(net, clients)
    assert many.agrees(worker)
    chosen = [3, 1, 5, 0, 2]  # three sizes, one after the other
    rows, losses = many.gradients(worker, chosen)
    for row, client in enumerate(chosen):
        gradient, loss = plain(net, clients, client)
        torch.testing.assert_close(rows[row], gradient, rtol=1e-4, atol=1e-6)
        assert losses[row] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        Tied,
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 4)),
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Softmax(dim=0), nn.Linear(6, 4)),
    ],
    ids=["tied weight", "another kind of layer", "examples that are mixed"],
)
def test_models_that_are_not_so_are_found_out(make, local):
    torch.manual_seed(0)
    many, worker = together(make(), ragged((6,)), local)
    assert not many.agrees(worker)


def test_groups_hold_everybody_once_and_not_too_much():
    rng = np.random.default_rng(0)
    clients = ragged((2,), sizes=tuple(rng.integers(0, 30, size=200)))
    chosen = rng.permutation(200).tolist()
    for local in (False, True):
        many = Together(clients, lambda *_: None, 2**18, local=local)
        groups = many.groups(chosen)
        assert sorted(place for group in groups for place in group) == list(range(200))
        sizes = [clients.sizes[[chosen[place] for place in group]] for group in groups]
        assert max(len(group) for group in groups) == FLOATS["cpu"] // 2**18 // (4 if local else 1)
        assert all(size.sum() <= EXAMPLES["cpu"] for size in sizes)
        assert all((size > 0).all() for size in sizes if len(size) > 1)
        assert not local or all(len(set(size.tolist())) == 1 for size in sizes)


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
def test_a_round_is_that_of_one_client_after_the_other(plan):
    data = pictures(clients=12, each=3)
    many, alone = RunState(plan, data), RunState(plan, data)
    assert many.updates.work.together is not None
    alone.updates.work.together = None
    for _ in range(2):
        one, other = many.step(), alone.step()
        assert one.clients_loss == pytest.approx(other.clients_loss, rel=1e-4)
    moved = (alone.values - RunState(plan, data).values).norm()
    assert (many.values - alone.values).norm() < 1e-2 * moved  # a draw in ten thousand may fall the other way


def test_what_is_sent_does_not_depend_on_the_number_of_workers(monkeypatch):
    from rqm.training import workers

    data, found = pictures(clients=12, each=3), []
    for cores in (1, 2, 3):
        monkeypatch.setattr(workers, "usable_cores", lambda cores=cores: cores)
        trainer = RunState(PLAN, data)
        assert trainer.updates.work.workers.count == cores
        trainer.step()
        found.append(trainer.values)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_a_broken_client_spoils_nobody_else():
    plan = change_plan(PLAN, data="blobs", model="own", mechanism=Noiseless(clip=10.0))
    data = federation()
    with_it, without = (RunState(change_plan(plan, clients=5), data, model()) for _ in range(2))
    assert with_it.updates.work.together is not None
    before, _ = collected(without, [1, 6, 8], 0)
    data.train.inputs[data.train.offsets[4] : data.train.offsets[5]] = torch.nan
    total, losses = collected(with_it, [1, 4, 6, 8], 0)
    torch.testing.assert_close(total, before)
    assert torch.isnan(losses).tolist() == [False, True, False, False]


def test_large_clients_and_those_an_audit_plants_in_go_one_after_the_other():
    from rqm.training.observer import Observer

    class Plants(Observer):
        plants = True

    assert RunState(PLAN, pictures(clients=9, each=EXAMPLES["cpu"])).updates.work.together is None
    assert RunState(PLAN, pictures(clients=9), observer=Plants()).updates.work.together is None
    mean_only = RunState(
        change_plan(PLAN, data="blobs", model="own"),
        federation(),
        model(),
        loss=functional.cross_entropy,
    )
    assert mean_only.updates.work.together is None  # a loss that gives no number for every example
