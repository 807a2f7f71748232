"""Membership inference: does the trained model show who took part?

The likelihood-ratio attack (Carlini et al. 2022), for users instead of examples. Several models are
trained, each on a random half of the users. The attacker compares the confidence of one model on a
user's examples with that of the other models, which were trained with or without that user.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rqm._util.checks import FloatArray, real, whole
from rqm.config.plan import Plan
from rqm.data.federated_data import Clients, FederatedData
from rqm.simulation.loop import RunState
from rqm.simulation.models import to_floats

BoolArray = npt.NDArray[np.bool_]
Curve = tuple[FloatArray, FloatArray]
"""False-positive rates in increasing order, and the true-positive rate of each."""


@dataclass(frozen=True)
class MembershipAudit:
    """How well members are distinguished from other users.

    Attributes:
        true_positive_rate: The fraction of the members that are detected, and its 95 % interval. An
            attack by chance detects a fraction of `false_positive_rate`.
        area: The area under the curve, and its 95 % interval. It is 0.5 by chance.
        false_positive_rate: The fraction of other users that are taken for members.
        users: Number of users.
        models: Number of models.
        accuracy: Their mean test accuracy.
        curve: False and true positive rates, for all thresholds.
    """

    true_positive_rate: list[float]
    area: list[float]
    false_positive_rate: float
    users: int
    models: int
    accuracy: float
    curve: Curve

    def to_dict(self) -> dict[str, Any]:
        """All values and up to 200 points of the curve, ready for JSON."""
        points = np.unique(np.geomspace(1, len(self.curve[0]), 200).astype(int)) - 1
        false, true = (rates[points].round(6).tolist() for rates in self.curve)
        return {
            **dict(zip(("found", "found_low", "found_high"), self.true_positive_rate, strict=True)),
            **dict(zip(("area", "area_low", "area_high"), self.area, strict=True)),
            "rate": self.false_positive_rate,
            "users": self.users,
            "models": self.models,
            "accuracy": self.accuracy,
            "false_positives": false,
            "true_positives": true,
        }


def audit_membership(
    plan: Plan,
    data: FederatedData,
    *,
    models: int = 16,
    users: int | None = None,
    rate: float = 0.01,
    watch: Callable[[int], object] = lambda model: None,
) -> MembershipAudit:
    """Train models on random halves of the users, and attack each with what the others show.

    Args:
        plan: How the models are trained. A population that it declares is resampled from the data.
        data: Its data.
        models: Number of models, at least 4.
        users: How many of the data's users to take, with the plan's `examples` each; None: all.
            Ignored where the plan declares a population.
        rate: The false-positive rate at which members are counted.
        watch: Called with the number of each model that is trained.

    Returns:
        The success of the attack, with bootstrap intervals over users and models.
    """
    models = whole("models", models, 4)
    rate = real("rate", rate, "strictly between 0 and 1", 0, 1)
    if plan.participation.population is not None:
        everyone = data.train.resample(plan.participation.population, plan.examples, plan.seed)
    else:
        users = len(data.train) if users is None else whole("users", users, 4, len(data.train))
        everyone = _subset(data.train, np.arange(users), plan.examples)
    plan = replace(plan, participation=replace(plan.participation, population=None))
    users = len(everyone)
    rng = np.random.default_rng([plan.seed, 0x3E3])
    # Exactly half of the users of each model. If each user were in exactly half of the models, the comparison with the
    # other models would be biased against the truth.
    is_member = rng.permuted(np.tile(np.arange(users) < users // 2, (models, 1)), axis=1)
    confidences = np.empty((models, users))
    accuracies = []
    for model in range(models):
        members = replace(data, train=_subset(everyone, np.flatnonzero(is_member[model]), plan.examples))
        trainer = RunState(replace(plan, seed=plan.seed + 1 + model), members)
        for _ in range(plan.participation.rounds):
            trainer.step()
        confidences[model] = _user_confidences(trainer, everyone)
        accuracies.append(trainer.evaluate()[1] or 0.0)
        watch(model)
    scores = likelihood_ratios(confidences, is_member)
    resampled = []
    for _ in range(400):
        index = np.ix_(*(rng.integers(0, size, size) for size in scores.shape))
        resampled.append(_summarize(roc_curve(scores[index], is_member[index]), rate))
    curve = roc_curve(scores, is_member)
    bounds = np.vstack([_summarize(curve, rate), np.quantile(resampled, [0.025, 0.975], axis=0)])
    detected, area = bounds.T.tolist()
    return MembershipAudit(detected, area, rate, users, models, float(np.mean(accuracies)), curve)


def _summarize(curve: Curve, rate: float) -> tuple[float, float]:
    """The true-positive rate at a false-positive rate, and the area under the curve."""
    false, true = curve
    return float(true[np.searchsorted(false, rate, side="right") - 1]), float(np.trapezoid(true, false))


def likelihood_ratios(confidences: FloatArray, is_member: BoolArray) -> FloatArray:
    """The log-likelihood ratio of membership for each model and user, learned from the other models.

    Confidences are assumed to be normal, with one variance for the members and non-members of a user.

    Args:
        confidences: The confidence of each model (row) on the examples of each user (column).
        is_member: Whether the model was trained on the user.

    Returns:
        The ratios; 0 where the other models all have the user, or none has.
    """
    ratios = np.zeros_like(confidences)
    for model, confidence in enumerate(confidences):
        inside = np.delete(is_member, model, axis=0)
        x = np.delete(confidences, model, axis=0)
        mean_in, mean_out = (np.where(mask, x, 0).sum(0) / np.maximum(1, mask.sum(0)) for mask in (inside, ~inside))
        deviation = np.where(inside, x - mean_in, x - mean_out).std(axis=0) + 1e-3
        ratio = ((confidence - mean_out) ** 2 - (confidence - mean_in) ** 2) / (2 * deviation**2)
        ratios[model] = np.where(inside.any(axis=0) & ~inside.all(axis=0), ratio, 0.0)
    return ratios


def roc_curve(scores: FloatArray, is_member: BoolArray) -> Curve:
    """False and true positive rates for all thresholds, from the highest score down.

    Args:
        scores: Scores; members should have high ones.
        is_member: Whether each belongs to a member.

    Returns:
        The two rates.

    >>> roc_curve(np.array([3.0, 2.0, 1.0]), np.array([True, False, True]))
    (array([0., 0., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    hits = is_member.ravel()[np.argsort(-scores, axis=None, kind="stable")]
    false, true = (np.append(0.0, np.cumsum(mask) / max(1, mask.sum())) for mask in (~hits, hits))
    return false, true


@torch.no_grad()
def _user_confidences(trainer: RunState, users: Clients) -> FloatArray:
    """For each user, the mean log-odds that the model gives the true labels of its examples."""
    confidences = np.zeros(len(users))
    trainer.model.eval()
    for user in range(len(users)):
        x, y = (tensor.to(trainer.device) for tensor in users[user])
        if len(y):
            log_p = torch.log_softmax(trainer.model(to_floats(x)).double(), dim=1)
            other_labels = log_p.scatter(1, y[:, None], -torch.inf).logsumexp(dim=1)
            confidences[user] = float((log_p.gather(1, y[:, None])[:, 0] - other_labels).mean())
    trainer.model.train()
    return confidences


def _subset(clients: Clients, chosen: npt.NDArray[np.int64], max_examples: int) -> Clients:
    """Some of the clients, each with its first examples."""
    clients.prepare_clients(chosen.tolist())
    starts = clients.offsets[chosen]
    sizes = np.minimum(clients.sizes[chosen], max_examples)
    rows = np.concatenate([np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)])
    rows = rows if clients.rows is None else clients.rows[rows]
    return Clients(clients.inputs, clients.labels, np.append(0, np.cumsum(sizes)), rows=rows)
