"""Can one tell from the trained model who took part? The likelihood-ratio attack, user by user.

Several models are trained, each on a random half of the users. The attacker
looks at how confident a model is on a user's examples, and compares it with what models with and without that user
do (Carlini et al. 2022, there for single examples). One model is attacked with what the others teach, in turn.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rqm._util.checks import FloatArray, real, whole
from rqm.data.federated_data import Clients, FederatedData
from rqm.plan.plan import Plan
from rqm.training.trainer import Trainer
from rqm.training.work import images

BoolArray = npt.NDArray[np.bool_]

RESAMPLES = 400


@dataclass(frozen=True)
class MembershipAudit:
    """How well members are told from others: ``found`` of them at a false-positive rate of ``rate``; 95 % intervals.

    An attack that knows nothing finds a share of ``rate``, and has an area under the curve of a half.
    """

    found: float
    found_low: float
    found_high: float
    area: float
    area_low: float
    area_high: float
    rate: float
    users: int
    models: int
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def audit_membership(
    plan: Plan,
    data: FederatedData,
    *,
    models: int = 16,
    users: int | None = None,
    rate: float = 0.01,
    watch: Callable[[int], object] = lambda model: None,
) -> tuple[MembershipAudit, FloatArray, FloatArray]:
    """Train ``models`` models on random halves of the users, and attack each; also the curve (false, true positives).

    ``users`` takes the first so many of the data's users, with the plan's ``examples`` each.
    """
    models, rate = whole("models", models, 4), real("rate", rate, "strictly between 0 and 1", 0, 1)
    if plan.participation.population is not None:
        everybody = data.train.resample(plan.participation.population, plan.examples, plan.seed)
    else:
        users = len(data.train) if users is None else whole("users", users, 4, len(data.train))
        everybody = _first(data.train, users, plan.examples)
    participation = replace(plan.participation, population=None)
    plan, count = replace(plan, participation=participation), len(everybody)
    rng = np.random.default_rng([plan.seed, 0x3E3])
    # Half of the users in each model. Were each user in just half of the models, those that are left out of a
    # comparison would tell against the truth.
    half = np.argsort(np.argsort(rng.random((models, count)), axis=1), axis=1) < count // 2
    confidence, accuracies = np.empty((models, count)), []
    for model in range(models):
        members = replace(data, train=_only(everybody, np.flatnonzero(half[model])))
        trainer = Trainer(replace(plan, seed=plan.seed + 1 + model), members)
        while trainer.done < plan.participation.rounds:
            trainer.step()
        confidence[model] = _confidence(trainer, everybody)
        accuracies.append(trainer.evaluate()[1] or 0.0)
        watch(model)
    scores = likelihood_ratios(confidence, half)
    false, true = curve(scores.ravel(), half.ravel())
    low, high = _intervals(scores, half, rate, rng)
    found, area = _at(false, true, rate), float(np.trapezoid(true, false))
    audit = MembershipAudit(
        found, low[0], high[0], area, low[1], high[1], rate, count, models, float(np.mean(accuracies))
    )
    return audit, false, true


def likelihood_ratios(confidence: FloatArray, half: BoolArray) -> FloatArray:
    """For every model and user, the log-likelihood ratio of being a member, learned from the other models.

    Confidences of members and of others are taken to be normal with one variance for each user.
    """
    models = len(confidence)
    out = np.empty_like(confidence)
    for model in range(models):
        rest = np.arange(models) != model
        inside, x = half[rest], confidence[rest]
        mean_in, mean_out = (np.where(part, x, 0).sum(0) / np.maximum(1, part.sum(0)) for part in (inside, ~inside))
        spread = np.where(inside, x - mean_in, x - mean_out).std(axis=0) + 1e-3
        here = confidence[model]
        ratio = ((here - mean_out) ** 2 - (here - mean_in) ** 2) / (2 * spread**2)
        out[model] = np.where(inside.any(axis=0) & ~inside.all(axis=0), ratio, 0.0)  # else nothing was learned
    return out


def curve(scores: FloatArray, member: BoolArray) -> tuple[FloatArray, FloatArray]:
    """False and true positives as shares, from the highest score down.

    >>> curve(np.array([3.0, 2.0, 1.0]), np.array([True, False, True]))
    (array([0., 0., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    order = np.argsort(-scores, kind="stable")
    hits = member[order]
    true, false = np.cumsum(hits) / max(1, hits.sum()), np.cumsum(~hits) / max(1, (~hits).sum())
    return np.concatenate([[0.0], false]), np.concatenate([[0.0], true])


def _at(false: FloatArray, true: FloatArray, rate: float) -> float:
    return float(true[np.searchsorted(false, rate, side="right") - 1])


def _intervals(scores: FloatArray, half: BoolArray, rate: float, rng: np.random.Generator) -> Any:
    """95 % intervals of the share that is found and of the area: bootstrap over users, and over models."""
    values = []
    for _ in range(RESAMPLES):
        rows, columns = (rng.integers(0, size, size) for size in scores.shape)
        false, true = curve(scores[rows][:, columns].ravel(), half[rows][:, columns].ravel())
        values.append((_at(false, true, rate), float(np.trapezoid(true, false))))
    return np.quantile(values, [0.025, 0.975], axis=0).tolist()


@torch.no_grad()
def _confidence(trainer: Trainer, users: Clients) -> FloatArray:
    """For every user the mean log-odds that the model gives the true labels of its examples."""
    trainer.model.eval()
    found = []
    for start in range(0, len(users), 100):
        parts = [users[user] for user in range(start, min(start + 100, len(users)))]
        x, y = (torch.cat([part[i] for part in parts]).to(trainer.device) for i in (0, 1))
        log_p = torch.log_softmax(trainer.model(images(x)).double(), dim=1)
        own = log_p.gather(1, y[:, None])
        others = log_p.scatter(1, y[:, None], -torch.inf).logsumexp(dim=1)
        odds = (own[:, 0] - others).cpu().numpy()
        ends = np.cumsum([len(part[1]) for part in parts])[:-1]
        found += [float(part.mean()) if len(part) else 0.0 for part in np.split(odds, ends)]
    trainer.model.train()
    return np.array(found)


def _first(clients: Clients, count: int, examples: int) -> Clients:
    """The first ``count`` users with at most ``examples`` each, all made."""
    if clients.prepare is not None:
        for client in range(count):
            clients.prepare(client)
    rows = [
        np.arange(a, min(b, a + examples))
        for a, b in zip(clients.offsets[:count], clients.offsets[1 : count + 1], strict=True)
    ]
    rows = rows if clients.rows is None else [clients.rows[part] for part in rows]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in rows])])
    return Clients(clients.inputs, clients.labels, offsets, rows=np.concatenate(rows))


def _only(clients: Clients, chosen: Any) -> Clients:
    """Some of the users."""
    assert clients.rows is not None
    rows = [clients.rows[clients.offsets[user] : clients.offsets[user + 1]] for user in chosen]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in rows])])
    return Clients(clients.inputs, clients.labels, offsets, rows=np.concatenate(rows))
