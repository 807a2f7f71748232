"""How much does a whole training run leak, measured? A lower bound on ε from one run with planted canaries.

A canary is a user whose update is a known vector v or −v, by a fair coin: "one user replaced" in its strongest form,
since v is as long as the clip allows. The attacker sees what the server sees, every decoded mean, and guesses each
coin from the projection on v. If the run is (ε, δ)-differentially private, only so many guesses can be right (Steinke,
Nasr and Jagielski 2023, Theorem 5.2). All canaries share one run, so the audit costs no more than training.
"""

from dataclasses import asdict, dataclass
from math import exp, inf
from typing import Any

import numpy as np
import torch
from scipy import optimize, stats

from rqm._util.checks import real, whole
from rqm.data.federated_data import FederatedData
from rqm.plan.plan import Plan
from rqm.randomness import SeededRandom
from rqm.training.observer import Observer
from rqm.training.trainer import Trainer

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
"""Of the canaries, how many the attacker dares to guess, the surest first; each share is tried, at its own price."""
MOST = 60.0
"""Bounds on ε are not looked for beyond."""


@dataclass(frozen=True)
class TrainingAudit:
    """What is claimed of a run against its server, one user replaced, and what was measured with ``confidence``."""

    claimed: float
    measured: float
    confidence: float
    contradicted: bool
    delta: float
    canaries: int
    guesses: int
    correct: int
    rounds: int
    clients: int
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return {key: "inf" if value == inf else value for key, value in asdict(self).items()}


def audit_training(
    plan: Plan,
    data: FederatedData,
    claimed: float,
    delta: float | None = None,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    length: float = 1.0,
) -> TrainingAudit:
    """Train as the plan says, with the first ``canaries`` users who are sampled replaced by canaries.

    ``claimed`` is the ε at ``delta`` (by default the plan's) to be tested, as ``rqm.account`` states it for
    ``adversary="server"``. ``length`` stretches the canaries beyond what the clip should allow.
    """
    canaries, delta = whole("canaries", canaries, 10), plan.any_mean.replaced(delta=delta).delta
    confidence = real("confidence", confidence, "between 0 and 1", 0, 1)
    assert delta is not None
    if not claimed >= 0:
        raise ValueError(f"claimed = {claimed}: must be an ε of at least 0")
    crowd = _Canaries(plan, canaries, length)
    trainer = Trainer(plan, data, observer=crowd)
    crowd.size_for(trainer)
    while trainer.done < plan.participation.rounds:
        trainer.step()
    scores, coins = crowd.result()
    measured, guesses, correct = one_run_bound(scores, coins, delta, confidence)
    accuracy = trainer.evaluate()[1] or 0.0
    return TrainingAudit(
        claimed,
        measured,
        confidence,
        bool(measured > claimed),
        delta,
        len(coins),
        guesses,
        correct,
        plan.participation.rounds,
        plan.participation.clients,
        accuracy,
    )


class _Canaries(Observer):
    """Plants canaries in a run, and keeps for each the sum of what the server saw of it."""

    plants = True

    def __init__(self, plan: Plan, most: int, length: float) -> None:
        self.plan, self.most, self.length = plan, most, length
        self.template = torch.empty(0)
        self.size = 0.0
        self.coins: dict[int, int] = {}
        self.scores: dict[int, float] = {}
        self.present: list[int] = []  # canaries in round ``turn``
        self.turn = -1
        self.rng = np.random.default_rng([plan.seed, 0xCA9A])

    def size_for(self, trainer: Trainer) -> None:
        """Canaries are as long as is allowed, times ``length``."""
        self.template = torch.zeros_like(trainer.values)
        bound, clip = self.plan.transforms.l2_clip, getattr(self.plan.mechanism, "clip", inf)
        most = inf if bound is None else bound / len(self.template) ** 0.5
        self.size = self.length * min(most, inf if self.plan.transforms.rotate else clip)

    def vector(self, client: int) -> torch.Tensor:
        """The canary's direction: random signs, of the largest size that is not clipped."""
        dim = len(self.template)
        words = SeededRandom(self.plan.seed, 0xCA9A, client).words(-(-dim // 64))
        signs = np.unpackbits(words.view(np.uint8))[:dim].view(np.int8)
        return (2 * torch.from_numpy(signs).to(self.template) - 1) * self.size

    def sends(self, client: int, turn: int) -> torch.Tensor | None:
        """What this user sends, if it is a canary."""
        if client not in self.coins:
            if len(self.coins) == self.most:
                return None
            self.coins[client] = 2 * int(self.rng.integers(2)) - 1
            self.scores[client] = 0.0
        if self.turn != turn:  # a round before this one was discarded
            self.turn = turn
            self.present.clear()
        self.present.append(client)
        return self.coins[client] * self.vector(client)

    def learns(self, turn: int, mean: torch.Tensor) -> None:
        """Project the decoded mean on every canary that took part."""
        mean = mean.float()
        for client in self.present:
            self.scores[client] += float(mean @ self.vector(client))
        self.present.clear()

    def result(self) -> tuple[Any, Any]:
        """Scores and coins, in one order."""
        return np.array(list(self.scores.values())), np.array(list(self.coins.values()))


class Megaphone(Observer):
    """All clients of a run send the same vector, ``length`` times as long as is allowed: how long does it arrive?

    ``sent`` is the plan that they really carry out, if that is another than the one that is accounted for.
    """

    plants = True

    def __init__(self, plan: Plan, data: FederatedData, length: float, sent: Plan | None = None) -> None:
        crowd = _Canaries(plan, 0, length)
        self.trainer, self.heard = Trainer(sent or plan, data, observer=self), list[float]()
        crowd.size_for(self.trainer)
        self.vector = crowd.vector(0)
        self.allowed = float(self.vector.norm()) / length
        self.along = self.vector / self.vector.norm()

    def sends(self, client: int, turn: int) -> torch.Tensor:
        """The same for everybody."""
        return self.vector.clone()

    def learns(self, turn: int, mean: torch.Tensor) -> None:
        """How far the mean goes that way."""
        self.heard.append(float(mean.float() @ self.along))

    def loudness(self, confidence: float) -> tuple[float, float]:
        """A lower bound on the length that arrives (Student, over the rounds), and the one that is allowed."""
        while self.trainer.done < self.trainer.plan.participation.rounds:
            self.trainer.step()
        spread = np.std(self.heard, ddof=1) / len(self.heard) ** 0.5
        return float(np.mean(self.heard) + stats.t.ppf(1 - confidence, len(self.heard) - 1) * spread), self.allowed


def one_run_bound(scores: Any, coins: Any, delta: float, confidence: float) -> tuple[float, int, int]:
    """The largest ε that the guesses rule out, and how many were made and right, at the share that does best.

    The shares are each tested at their part of the error, so that choosing the best of them is paid for.

    >>> coins = np.where(np.arange(1000) % 2, 1, -1)
    >>> one_run_bound(coins, coins, 1e-5, 0.95)[0] > 4  # all right
    True
    """
    order = np.argsort(-np.abs(scores), kind="stable")
    right = (np.sign(scores) == coins)[order]
    best = (0.0, len(coins), int(right.sum()))
    for share in SHARES:
        guesses = max(1, int(share * len(coins)))
        correct = int(right[:guesses].sum())
        bound = _ruled_out(len(coins), guesses, correct, delta, (1 - confidence) / len(SHARES))
        best = max(best, (bound, guesses, correct), key=lambda one: one[0])
    return best


def _ruled_out(total: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest ε at which so many right guesses have a probability of at most ``error``."""

    def excess(epsilon: float) -> float:
        return p_value(total, guesses, correct, epsilon, delta) - error

    if excess(0.0) > 0:
        return 0.0
    return float(MOST if excess(MOST) <= 0 else optimize.brentq(excess, 0, MOST, xtol=1e-6) - 1e-6)


def p_value(total: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """At most how likely ``correct`` of ``guesses`` are right, of ``total`` coins, under (ε, δ)-differential privacy.

    Steinke et al. 2023, Theorem 5.2: a binomial's tail for ε, and a part for δ.
    """
    law = stats.binom(guesses, 1 / (1 + exp(-epsilon)))
    below = np.cumsum(law.pmf(np.arange(correct - 1, -1, -1)))  # of correct − i … correct − 1 right ones
    most = float((below / np.arange(1, correct + 1)).max()) if correct else 0.0
    return min(1.0, float(law.sf(correct - 1)) + 2 * total * delta * most)
