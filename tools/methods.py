"""FedPAQ, FedCOMGATE and FedAQ on digits dealt out by label: rounds and bits to a loss, and accuracy at one ε.

``python -m tools.methods OUT --data DIR`` chooses rates and writes JSON files, of which ``tools.tables`` makes the
tables of docs/methods.md. It does what ``rqm train`` does for the model ``linear``, all clients at once: steps are
those of ``rqm.simulation.local_methods``, what is sent is a ``PrivateMean``'s, and a test holds both together.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from rqm.config.experiments import find
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.data import load
from rqm.data.federated_data import FederatedData
from rqm.randomness import SeededRandom
from rqm.simulation.local_methods import METHODS
from rqm.simulation.loop import CohortSampler
from rqm.simulation.streams import LOCAL, NOISE, START, torch_seed
from tools.systems import shared_out
from tools.tuning import SEEDS, chosen

CLASSES, PIXELS = 10, 784
EXPERIMENTS = {"free": "local-steps", "private": "local-steps-private"}
CONVEXITIES = {"free": (0.0001, 0.001, 0.01, 0.1, 1.0), "private": (0.001, 0.01, 0.1, 1.0)}
"""Of FedAQ, which has one more parameter than the others."""
TARGETS = 0.5, 0.4, 0.36
"""Losses until which rounds are counted."""


def plans(part: str) -> dict[str, Plan]:
    """By name: the methods of an experiment, at the rates that were chosen."""
    return Sweep.from_toml(find(EXPERIMENTS[part])).variants


class ClientModels:
    """The models of many clients, one row each."""

    def __init__(self, values: torch.Tensor, count: int, data: FederatedData) -> None:
        self.values, self.train = values.repeat(count, 1), data.train
        self.gradient = torch.zeros_like(self.values)

    def compute_gradient(self, batch: torch.Tensor) -> None:
        """Compute the gradients on a batch: for each client the rows of examples."""
        x = self.train.inputs[batch].flatten(2).float() / 255
        weight, bias = self.values[:, :-CLASSES].view(-1, CLASSES, PIXELS), self.values[:, -CLASSES:]
        scores = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
        error = torch.softmax(scores, 2) - functional.one_hot(self.train.labels[batch], CLASSES)
        error /= batch.shape[1]
        self.gradient = torch.cat([torch.bmm(error.transpose(1, 2), x).flatten(1), error.sum(1)], 1)


class Run:
    """A run of a plan with the model ``linear``, all clients of a round at once."""

    def __init__(self, plan: Plan, data: FederatedData) -> None:
        if plan.participation.population is not None:
            data = replace(data, train=data.train.resample(plan.participation.population, plan.examples, plan.seed))
        torch.manual_seed(torch_seed(plan.seed, START))
        layer = torch.nn.Linear(PIXELS, CLASSES)
        self.values = torch.cat([layer.weight.detach().flatten(), layer.bias.detach()]).to(data.test_inputs.device)
        self.plan, self.data, self.mean = plan, data, plan.private_mean()
        self.method: Any = METHODS[plan.client.work](plan, len(data.train), self.values)
        self.cohorts, self.turn = CohortSampler(plan, len(data.train)), 0

    def batches(self, chosen: list[int]) -> Iterator[torch.Tensor]:
        """For each step the examples of all clients: the same as each would take alone."""
        work, offsets = self.plan.client, self.data.train.offsets
        rows = []
        for client in chosen:
            rng = np.random.default_rng([self.plan.seed, LOCAL, self.turn, client])
            taken: list[int] = []
            while len(taken) < (work.steps or 1) * work.batch:
                taken += rng.permutation(int(self.data.train.sizes[client])).tolist()
            rows.append(offsets[client] + np.array(taken[: (work.steps or 1) * work.batch]))
        places = np.array(rows)
        if self.data.train.rows is not None:
            places = self.data.train.rows[places]
        yield from torch.split(torch.from_numpy(places).to(self.values.device), work.batch, dim=1)

    def step(self) -> None:
        """One round."""
        chosen = self.cohorts.clients(self.turn)
        models = ClientModels(self.values, len(chosen), self.data)
        self.method.begin_round()
        sent = torch.cat(self.method.steps(models, chosen, self.batches(chosen)), 1)
        kind = torch.int32 if self.mean.has_integer_messages else torch.float64
        total = torch.zeros(self.mean.coordinates, dtype=kind, device=self.values.device)
        self.mean.add_messages(sent, total, SeededRandom(self.plan.seed, NOISE, self.turn), round_index=self.turn)
        mean = self.mean.decode(total, len(chosen), round_index=self.turn, check=False)
        rate = self.plan.server.rate_at(self.turn, self.plan.participation.rounds)
        self.values = self.values - rate * self.method.apply(mean, self.turn, self.plan.transforms.l2_clip).float()
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
    while run.turn < plan.participation.rounds:
        run.step()
        if run.turn % plan.evaluate_every == 0:
            seen.append(run.evaluate())
    return seen


def at(plan: Plan, rate: float, convexity: float, seed: int) -> Plan:
    """The plan at another rate, of clients and server."""
    client = replace(plan.client, rate=rate, convexity=convexity)
    return replace(plan, client=client, server=replace(plan.server, rate=rate), seed=seed)


@cache
def _data(folder: Path | None) -> FederatedData:
    found = load("mnist-shards", folder)
    return found.to(torch.device("cuda")) if torch.cuda.is_available() else found


def method(folder: Path | None, task: str) -> tuple[str, dict[str, Any]]:
    """Choose a rate for one method and one convexity, and train it."""
    part, name, convexity = task.split(":")
    plan, mu, data = plans(part)[name], float(convexity), _data(folder)

    def score(rate: float, seed: int) -> float:
        loss, hits = curve(at(plan, rate, mu, seed), data)[-1]
        return -loss if part == "free" else hits

    rate, tried = chosen(score)
    curves = [curve(at(plan, rate, mu, seed), data) for seed in SEEDS]
    best = max(tried.values())
    return task, {"rate": rate, "convexity": mu, "best": best, "tried": tried, "ends": [one[-1] for one in curves]} | (
        {"losses": [[loss for loss, _ in one] for one in curves]} if part == "free" else {}
    )


def tasks() -> list[str]:
    """All that is to be done: of FedAQ once for every convexity."""
    return [
        f"{part}:{name}:{convexity}"
        for part in EXPERIMENTS
        for name, plan in plans(part).items()
        for convexity in (CONVEXITIES[part] if plan.client.work == "fedaq" else (0.1,))
    ]


def best_of(found: dict[str, Any], part: str) -> dict[str, Any]:
    """By name: of every method the convexity that was best at its best rate, by the seeds to choose by."""
    kept, best = ("rate", "convexity", "best", "tried"), {}
    for name in plans(part):
        every = [one for task, one in found.items() if task.startswith(f"{part}:{name}:")]
        first = max(every, key=lambda one: one["best"])
        best[name] = {**first, "others": [{key: one[key] for key in kept} for one in every if one is not first]}
    return best


def reached(losses: list[float], target: float) -> float:
    """The first round at which the loss is that low."""
    return next((turn for turn, loss in enumerate(losses, start=1) if loss <= target), inf)


def account_all(path: Path) -> None:
    """Add what a user is told to the results."""
    from rqm import account  # noqa: PLC0415 (a GPU machine has no accountant)

    found = json.loads(path.read_text())
    for name, plan in plans("private").items():
        told = account(plan)
        found[name] |= {"epsilon": told.epsilon, "noise": told.noise_multiplier, "bits": told.wire_bits_per_parameter}
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description=__doc__)
    _parser.add_argument("out", type=Path)
    _parser.add_argument("--data", type=Path)
    _parser.add_argument("--jobs", type=int, default=2)
    _parser.add_argument("--account", action="store_true", help="only add what a user is told")
    _given = _parser.parse_args()
    if _given.account:
        account_all(_given.out / "methods-private.json")
        raise SystemExit
    _found = shared_out(partial(method, _given.data), tasks(), _given.jobs, _given.out / "methods-tasks.json")
    for _part in EXPERIMENTS:
        _text = json.dumps(best_of(_found, _part), indent=1, ensure_ascii=False)
        (_given.out / f"methods-{_part}.json").write_text(_text + "\n")
