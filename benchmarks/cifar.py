"""pfl's published CIFAR-10 configuration: 50 users a round with 50 pictures each (IID), one epoch in batches of ten.

Its network, with dropout as published and without. Pictures are generated: for the time they take it does not matter
what is on them. Ours (with RQM's encoding) against Apple's pfl 0.6.0 with a central Gaussian and against Flower's
simulation engine with plain averaging, which do no encoding.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from statistics import median

import numpy as np
import torch

from benchmarks import Entry, Result, measure
from benchmarks import cifar_model as networks
from benchmarks.encode import peer_python
from benchmarks.round import Pfl
from benchmarks.scale import flower
from rqm.accounting.participation import Participation
from rqm.config.plan import ClientWork, Plan, ServerStep
from rqm.data.federated_data import Clients, FederatedData
from rqm.mechanisms.rqm import RQM
from rqm.simulation.loop import RunState

CLIENTS, EACH = 50, 50
OURS, SURE = "a round with RQM", "a round with RQM, no dropout"
PFL, PFL_SURE = "pfl 0.6.0, central Gaussian", "pfl 0.6.0, central Gaussian, no dropout"
FLOWER = "Flower's simulation, plain averaging"
PLAN = Plan(
    data="noise",
    model="own",
    participation=Participation(CLIENTS, 10**9, sampling="uniform"),
    mechanism=RQM(clip=1e-3),
    client=ClientWork("local", epochs=1, batch=10, rate=0.1),
    server=ServerStep("sgd", rate=0.1),
    evaluate_every=10**9,
)


def federation() -> FederatedData:
    """Pictures of noise for a hundred users."""
    rng = torch.Generator().manual_seed(0)
    inputs = torch.rand((100 * EACH, 3, 32, 32), generator=rng)
    labels = torch.randint(10, (len(inputs),), generator=rng)
    train = Clients(inputs, labels, EACH * np.arange(101))
    return FederatedData("noise", train, inputs[:EACH], labels[:EACH], 10)


def bench() -> Result:
    """Everybody in turns, Flower's engine in a process beside."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    data, notes, peers = federation(), list[str](), list[str]()
    torch.manual_seed(0)
    plan = replace(PLAN, device=device)
    ours, sure = (RunState(plan, data, net) for net in (networks.CifarCNN(), networks.CifarCNNSure()))
    runs: dict[str, tuple[Callable[[], object], int]] = {OURS: (ours.step, 1), SURE: (sure.step, 1)}
    with ExitStack() as stack:
        python = peer_python()
        if python is None:
            notes.append("pfl was not measured: it is not installed (make peers).")
        else:
            for name, which in ((PFL, "cifar"), (PFL_SURE, "cifar-sure")):
                pfl = Pfl(python, which, CLIENTS, EACH, networks.__file__)
                stack.callback(pfl.process.kill)
                runs[name] = (pfl.round, 1)
            peers.append(PFL)
        entries = measure(runs, repeats=3)
    if find_spec("ray") is None:
        notes.append("Flower's simulation was not measured: it is not installed (make setup).")
    else:
        entries[FLOWER] = Entry(median(flower(CLIENTS, EACH, "cifar")), 1)
        peers.append(FLOWER)
    result = Result("cifar", OURS, peers, entries, notes=notes, unit="rounds a second")
    if PFL_SURE in entries:
        result.named_ratios["without dropout, over pfl without dropout"] = result.ratio(SURE, PFL_SURE)
    notes.append(f"On {device}; pictures are generated, of the shapes of CIFAR-10.")
    return result
