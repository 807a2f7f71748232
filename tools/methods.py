"""FedPAQ, FedCOMGATE and FedAQ on digits dealt out by label: rounds and bits to a loss, and accuracy at one ε.

``python -m tools.methods OUT --data DIR`` writes JSON files and prints the tables of docs/methods.md. It does
what ``rqm train`` does for the model ``linear``, with all clients of a round at once: the steps are those of
``rqm.training.methods``, what is sent is a ``PrivateMean``'s, and a test holds both together.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rqm import Plan, account, calibrate
from rqm._util.stats import mean_and_interval as interval
from rqm.data import load
from rqm.data.clients import FederatedData
from rqm.mechanisms.qsgd import QSGD
from rqm.plan.plan import ClientWork, ServerStep, Transforms
from rqm.randomness import SeededRandom
from rqm.training.methods import METHODS
from rqm.training.participants import Participants
from rqm.training.streams import LOCAL, NOISE, START, generator, number

CLASSES, PIXELS = 10, 784
NAMES = {"local": "FedPAQ", "fedcomgate": "FedCOMGATE", "fedaq": "FedAQ"}
SEEDS = 5
FREE = Plan(
    data="mnist-shards",
    model="linear",
    mechanism=QSGD(levels=127),
    clients=100,
    rounds=40,
    evaluate_every=1,
    client=ClientWork(work="local", steps=10, batch=20, rate=0.1),
    server=ServerStep(optimizer="sgd", rate=0.1),
)
"""Without noise: everybody takes part in every round, 8 bits a coordinate."""
USERS, EPSILON, DELTA = 2000, 8.0, 1e-5
PRIVATE = replace(
    FREE,
    clients=1000,
    population=USERS,
    examples=10,
    participations=10,
    separation=2,
    rounds=20,
    delta=DELTA,
    evaluate_every=20,
    client=replace(FREE.client, steps=5, batch=10),
    transforms=Transforms(l2_clip=2.0, rotate=True),
)
"""With noise: a thousand of two thousand users, each in ten rounds at most, one bit a coordinate."""


class Together:
    """A ``Worker`` for many clients at once: a row of values and of a gradient each."""

    def __init__(self, values: torch.Tensor, count: int) -> None:
        self.values = values.repeat(count, 1)
        self.gradient = torch.zeros_like(self.values)


class Run:
    """A run of a plan with the model ``linear``, all clients of a round at once."""

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        if plan.population is not None:
            data = replace(data, train=data.train.redrawn(plan.population, plan.examples, plan.seed))
        torch.manual_seed(number(plan.seed, START))
        layer = torch.nn.Linear(PIXELS, CLASSES)
        self.values = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()])
        self.plan, self.data, self.mean = plan, data, plan.private_mean()
        self.method: Any = METHODS[plan.client.work](plan, len(data.train), self.values)
        self.participants, self.turn = Participants(plan, len(data.train)), 0

    def batches(self, chosen: list[int]) -> Iterator[torch.Tensor]:
        """For each step the examples of all clients: the same as each would take alone."""
        work, offsets = self.plan.client, self.data.train.offsets
        rows = []
        for client in chosen:
            rng = generator(self.plan.seed, LOCAL, self.turn, client)
            taken: list[int] = []
            while len(taken) < (work.steps or 1) * work.batch:
                taken += rng.permutation(int(self.data.train.sizes[client])).tolist()
            rows.append(offsets[client] + np.array(taken[: (work.steps or 1) * work.batch]))
        places = np.array(rows)
        if self.data.train.rows is not None:
            places = self.data.train.rows[places]
        yield from torch.split(torch.from_numpy(places), work.batch, dim=1)

    def step(self) -> None:
        """One round."""
        chosen = self.participants.choose(self.turn)
        worker = Together(self.values, len(chosen))

        def gradient(batch: torch.Tensor) -> None:
            x = self.data.train.inputs[batch].flatten(2).float() / 255
            weight, bias = worker.values[:, :-CLASSES].view(-1, CLASSES, PIXELS), worker.values[:, -CLASSES:]
            scores = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
            error = torch.softmax(scores, 2) - functional.one_hot(self.data.train.labels[batch], CLASSES)
            error /= batch.shape[1]
            worker.gradient = torch.cat([torch.bmm(error.transpose(1, 2), x).flatten(1), error.sum(1)], 1)

        self.method.begin()
        sent = torch.cat(self.method.steps(worker, tuple(chosen), self.batches(chosen), gradient), 1)
        total = torch.zeros(self.mean.coordinates, dtype=torch.int32 if self.mean.integers else torch.float64)
        self.mean.add(sent, total, SeededRandom(self.plan.seed, NOISE, self.turn), round=self.turn)
        mean = self.mean.decode(total, len(chosen), round=self.turn, check=False)
        rate = self.plan.server.rate_at(self.turn, self.plan.rounds)
        self.values = self.values - rate * self.method.take(mean, self.turn, self.plan.transforms.l2_clip).float()
        self.turn += 1

    def evaluate(self) -> tuple[float, float]:
        """Loss and accuracy on the test set."""
        x = self.data.test_inputs.flatten(1).float() / 255
        scores = x @ self.values[:-CLASSES].view(CLASSES, PIXELS).T + self.values[-CLASSES:]
        hits = (scores.argmax(1) == self.data.test_labels).double().mean()
        return float(functional.cross_entropy(scores, self.data.test_labels)), float(hits)


def curve(plan: Plan, data: FederatedData) -> list[tuple[float, float]]:
    """Loss and accuracy after every round that is evaluated."""
    run, seen = Run(plan, data), []
    while run.turn < plan.rounds:
        run.step()
        if run.turn % plan.evaluate_every == 0:
            seen.append(run.evaluate())
    return seen


def variants(plan: Plan, rates: dict[str, tuple[float, float]]) -> dict[str, Plan]:
    """The plan with each kind of steps, at its own rate and convexity."""
    found = {}
    for work, (rate, convexity) in rates.items():
        client = replace(plan.client, work=work, rate=rate, convexity=convexity)  # type: ignore[arg-type]
        found[NAMES[work]] = replace(plan, client=client, server=replace(plan.server, rate=rate))
    return found


def one_bit(plan: Plan) -> Plan:
    """The same with one bit a coordinate of what is sent, calibrated to ε."""
    dim = plan.private_mean().dim
    who: dict[str, Any] = {"clients": plan.clients, "rounds": plan.rounds, "population": plan.population}
    found = calibrate(
        "rounding",
        epsilon=EPSILON,
        delta=DELTA,
        dim=dim,
        participations=plan.participations,
        separation=plan.separation,
        l2_clip=plan.transforms.l2_clip or 1.0,
        levels=2,
        **who,
    )
    return replace(plan, mechanism=found.mechanism)


def reached(losses: list[float], target: float) -> float:
    """The first round at which the loss is that low."""
    return next((turn for turn, loss in enumerate(losses, start=1) if loss <= target), inf)


RATES_FREE = {"local": (1.0, 0.1), "fedcomgate": (0.3, 0.1), "fedaq": (0.3, 0.001)}
RATES_PRIVATE = {"local": (1.0, 0.1), "fedcomgate": (0.3, 0.1), "fedaq": (1.0, 1.0)}
"""Rates and convexities, chosen with another seed (``--tune``)."""
TARGETS = 0.5, 0.4, 0.36


def tune(data: FederatedData, free: bool) -> None:
    """Print the last loss of each kind of steps at some rates, with a seed that no table uses."""
    base = replace(FREE, rounds=25, evaluate_every=25, seed=100) if free else replace(PRIVATE, seed=100)
    tried = [("local", 0.1), ("fedcomgate", 0.1), ("fedaq", 0.001), ("fedaq", 0.01), ("fedaq", 0.1)]
    for work, convexity in tried:
        for rate in (0.1, 0.3, 1.0, 3.0):
            plan = variants(base, {work: (rate, convexity)})[NAMES[work]]
            began = time.monotonic()
            found = curve(plan if free else one_bit(plan), data)[-1]
            print(work, convexity, rate, found, f"{time.monotonic() - began:.0f} s", flush=True)


def free(data: FederatedData) -> dict[str, Any]:
    """Without noise: rounds and bits to a loss."""
    facts = {}
    for name, plan in variants(FREE, RATES_FREE).items():
        losses = [[loss for loss, _ in curve(replace(plan, seed=seed), data)] for seed in range(SEEDS)]
        facts[name] = {"losses": losses, "rate": plan.client.rate}
    print(rounds_table(facts))
    return facts


def rounds_table(facts: dict[str, Any]) -> str:
    """Rounds, and bits of a client, until the test loss is as low as some targets: ∞ if a seed never is."""
    heads = [f"rounds to a loss of {target:g} (megabits a client)" for target in TARGETS]
    lines = [
        f"| steps | {' | '.join(heads)} | loss after {FREE.rounds} rounds |",
        "|---|" + "---|" * (1 + len(TARGETS)),
    ]
    for name, plan in variants(FREE, RATES_FREE).items():
        losses, bits = facts[name]["losses"], plan.mechanism.bits * plan.private_mean().dim / 1e6
        cells = []
        for target in TARGETS:
            first, wide = interval([reached(one, target) for one in losses])
            cells.append(f"{first:.1f} ± {wide:.1f} ({first * bits:.1f})" if np.isfinite(first) else "never in all")
        last, spread = interval([one[-1] for one in losses])
        lines.append(f"| {name} | {' | '.join(cells)} | {last:.4f} ± {spread:.4f} |")
    return "\n".join(lines)


def private(data: FederatedData) -> dict[str, Any]:
    """With one bit a coordinate, at one ε: accuracy."""
    print("| steps | a user's ε | noise of the sum, in L2 clips | accuracy | loss |\n|---|---|---|---|---|")
    facts = {}
    for name, plan in variants(PRIVATE, RATES_PRIVATE).items():
        made = one_bit(plan)
        promised = account(made)
        ends = [curve(replace(made, seed=seed), data)[-1] for seed in range(SEEDS)]
        facts[name] = {
            "ends": ends,
            "epsilon": promised.epsilon,
            "rate": plan.client.rate,
            "mechanism": made.mechanism.to_dict(),
        }
        (loss, wide), (hits, spread) = (interval([end[k] for end in ends]) for k in (0, 1))
        told = f"{promised.epsilon:.3f} | {promised.noise_multiplier:.3f}"
        print(f"| {name} | {told} | {100 * hits:.1f} ± {100 * spread:.1f} % | {loss:.3f} ± {wide:.3f} |", flush=True)
    return facts


PARTS = {"free": free, "private": private}

if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    _parser.add_argument("out", type=Path)
    _parser.add_argument("--data", type=Path)
    _parser.add_argument("--only", choices=PARTS)
    _parser.add_argument("--tune", action="store_true", help="choose rates instead, with another seed")
    _given = _parser.parse_args()
    _data = load("mnist-shards", _given.data)
    for _name, _part in PARTS.items():
        if _given.only not in (None, _name):
            continue
        if _given.tune:
            tune(_data, _name == "free")
        else:
            (_given.out / f"methods-{_name}.json").write_text(json.dumps(_part(_data), indent=1) + "\n")
