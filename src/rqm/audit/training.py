"""ε of a whole training run, measured with canaries in one run (Steinke, Nasr and Jagielski 2023).

A canary is a user whose update is a known vector v or −v, by a fair coin. That is "one user replaced" in
its strongest form, since v is as long as the clip allows. The attacker sees what the server sees, every
decoded mean, and guesses each coin from the projection on v. Under (ε, δ)-differential privacy only so
many guesses can be right (Theorem 5.2). All canaries share one run.
"""

from collections import defaultdict
from dataclasses import dataclass
from math import exp, inf
from typing import Any

import numpy as np
import torch
from scipy import stats

from rqm._util.checks import real, whole
from rqm._util.numeric import find_root
from rqm.audit.measurement import EpsilonAudit
from rqm.config.plan import Plan
from rqm.data.federated_data import FederatedData
from rqm.simulation.loop import Observer, RunState

CANARY_STREAM = 0xCA9A
"""The stream of a plan's seed that canaries are drawn from."""


@dataclass(frozen=True, kw_only=True)
class TrainingAudit(EpsilonAudit):
    """What is claimed of a run against its server, one user replaced, and what was measured.

    Attributes:
        canaries: Canaries that took part.
        guesses: Coins that were guessed.
        correct: Guesses that were right.
        rounds: Rounds of the run.
        clients: Clients of a round.
        accuracy: Test accuracy of the trained model.
    """

    canaries: int
    guesses: int
    correct: int
    rounds: int
    clients: int
    accuracy: float


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
    """Train as planned, with the first users who are sampled replaced by canaries.

    Args:
        plan: The plan.
        data: Its data.
        claimed: The ε to be tested, as `rqm.account` states it for `adversary="server"`.
        delta: δ of the claim; None: the plan's.
        canaries: Number of canaries.
        confidence: The probability with which the measured value is a lower bound.
        length: L2 norm of the canaries, in units of what the clip allows. Above 1 to test the clip.

    Returns:
        The claimed and the measured ε.
    """
    count, delta = whole("canaries", canaries, 10), plan.any_mean.with_values(delta=delta).delta
    confidence = real("confidence", confidence, "between 0 and 1", 0, 1)
    assert delta is not None
    if not claimed >= 0:
        raise ValueError(f"claimed = {claimed}: must be an ε of at least 0")
    planted = Canaries(plan, count, length)
    trainer = RunState(plan, data, observer=planted)
    planted.template = trainer.values
    for _ in range(plan.participation.rounds):
        trainer.step()
    coins = np.array(list(planted.coins.values()))
    scores = np.array([planted.scores[client] for client in planted.coins])
    measured, guesses, correct = one_run_bound(scores, coins, delta, confidence)
    return TrainingAudit(
        claimed=claimed,
        measured=measured,
        delta=delta,
        confidence=confidence,
        canaries=len(coins),
        guesses=guesses,
        correct=correct,
        rounds=plan.participation.rounds,
        clients=plan.participation.clients,
        accuracy=trainer.evaluate()[1] or 0.0,
    )


class Canaries(Observer):
    """Replaces clients by canaries, and adds up what the server sees of each.

    Attributes:
        template: A tensor of the model's size and type.
        coins: The sign of each canary, by its client.
        scores: The sum of the decoded means of its rounds, projected on it.
    """

    plants = True

    def __init__(self, plan: Plan, count: int, length: float) -> None:
        self.plan, self.count, self.length = plan, count, length
        self.template = torch.empty(0)
        self.coins, self.scores = dict[int, int](), dict[int, float]()
        self.present = defaultdict[int, list[int]](list)  # by round
        self.coin_source = np.random.default_rng([plan.seed, CANARY_STREAM])

    def vector(self, client: int) -> torch.Tensor:
        """The direction of a canary: random signs times the largest value that is not clipped."""
        dim = len(self.template)
        transforms = self.plan.transforms
        size = inf if transforms.l2_clip is None else transforms.l2_clip / dim**0.5
        if not transforms.rotate:
            size = min(size, getattr(self.plan.mechanism, "clip", inf))
        bits = np.random.default_rng([self.plan.seed, CANARY_STREAM, client]).integers(0, 2, dim, dtype=np.int8)
        return (2 * torch.from_numpy(bits).to(self.template) - 1) * size * self.length

    def sends(self, client: int, round_index: int) -> torch.Tensor | None:
        """What a client sends if it is a canary.

        Args:
            client: The client.
            round_index: The round.

        Returns:
            Its update; None for that of its data.
        """
        if client not in self.coins:
            if len(self.coins) == self.count:
                return None
            self.coins[client] = 2 * int(self.coin_source.integers(2)) - 1
            self.scores[client] = 0.0
        self.present[round_index].append(client)
        return self.coins[client] * self.vector(client)

    def learns(self, round_index: int, mean: torch.Tensor) -> None:
        """Project a decoded mean on every canary that took part.

        Args:
            round_index: The round. Discarded rounds have no mean.
            mean: Its decoded mean.
        """
        for client in self.present.pop(round_index, []):
            self.scores[client] += float(mean.float() @ self.vector(client))


def one_run_bound(scores: Any, coins: Any, delta: float, confidence: float) -> tuple[float, int, int]:
    """A lower bound on ε from guesses of coins.

    Several fractions of the coins are guessed, those with the largest scores. Each is tested at an
    equal part of the error, so that the best may be chosen.

    Args:
        scores: A number for each coin. Its sign is the guess.
        coins: The coins, 1 or −1.
        delta: δ.
        confidence: The probability with which the result is a lower bound.

    Returns:
        The bound, and how many guesses it is based on and how many of them are right.

    >>> coins = np.where(np.arange(1000) % 2, 1, -1)
    >>> one_run_bound(coins, coins, 1e-5, 0.95)[0] > 4  # all right
    True
    """
    order = np.argsort(-np.abs(scores), kind="stable")
    is_right = (np.sign(scores) == coins)[order]
    fractions = (1.0, 0.5, 0.25, 0.1, 0.05, 0.02)
    error = (1 - confidence) / len(fractions)
    bounds = []
    for fraction in fractions:
        guesses = max(1, int(fraction * len(coins)))
        correct = int(is_right[:guesses].sum())
        bounds.append((_refuted_epsilon(len(coins), guesses, correct, delta, error), guesses, correct))
    return max(bounds, key=lambda bound: bound[0])


def _refuted_epsilon(total: int, guesses: int, correct: int, delta: float, error: float) -> float:
    """The largest ε under which the guesses have a probability of at most `error`."""

    def excess(epsilon: float) -> float:
        return p_value(total, guesses, correct, epsilon, delta) - error

    if excess(0.0) > 0:
        return 0.0
    largest = 60.0  # more would take e⁶⁰ canaries
    return largest if excess(largest) <= 0 else find_root(excess, 0, largest, xtol=1e-6) - 1e-6


def p_value(total: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of right guesses under (ε, δ)-differential privacy.

    Steinke et al. 2023, Theorem 5.2: the tail of a binomial distribution for ε, and a term for δ.

    Args:
        total: Number of coins.
        guesses: How many of them were guessed.
        correct: How many of the guesses are right, at least.
        epsilon: ε.
        delta: δ.

    Returns:
        The bound.
    """
    binomial = stats.binom(guesses, 1 / (1 + exp(-epsilon)))
    sums = np.cumsum(binomial.pmf(np.arange(correct - 1, -1, -1)))  # of correct − i, …, correct − 1 right guesses
    delta_term = 2 * total * delta * float((sums / np.arange(1, correct + 1)).max(initial=0))
    return min(1.0, float(binomial.sf(correct - 1)) + delta_term)
