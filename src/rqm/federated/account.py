"""The privacy of a plan: a user's (ε, δ) for the whole run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rqm.channel import Channel
from rqm.federated.plan import Plan
from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.composition import Observer
from rqm.privacy.guarantee import Guarantee, Setting, guarantee
from rqm.privacy.ledger import LEDGER, participations, read
from rqm.privacy.vector import Neighbours


def account(
    plan: Plan,
    delta: float = 1e-5,
    *,
    observer: Observer = "server",
    neighbours: Neighbours = "replace",
    honest: int | float | None = None,
    population: int | None = None,
    dim: int | None = None,
) -> Guarantee:
    """What a run of this plan guarantees to every user, certified.

    Against the ``server`` a user is protected by the plan's cap on participations (all rounds if there is none). For
    the ``outsider`` the number of users N must be known: the plan's ``population``, or the argument. ``dim`` is the
    number of the model's parameters, looked up for the models that come with the package. Without an L2 clip and a
    rotation the value is that of all coordinates at their worst, and protects nobody.
    """
    setting, dim, bound = setting_of(
        plan, delta, observer=observer, neighbours=neighbours, honest=honest, population=population, dim=dim
    )
    assert isinstance(plan.mechanism, (Channel, Gaussian))
    return guarantee(plan.mechanism, setting, dim=dim, l2_clip=bound)


def account_ledger(path: Path) -> tuple[Guarantee | None, dict[str, Any]]:
    """What the ledger of a run (or its folder) says was spent, finished or not; None if nothing was charged."""
    about, spent, head = read(path / LEDGER if path.is_dir() else path)
    plan = Plan.from_dict(about["plan"])
    count = participations(spent, plan.participations)
    charged = {"head": head, "charges": sum(spent.values()), "rounds_charged": len(spent)}
    if not count:
        return None, charged
    done = replace(plan, rounds=sum(spent.values()), participations=count)
    return account(done, about["delta"], honest=about["honest"]), charged


def setting_of(
    plan: Plan,
    delta: float,
    *,
    observer: Observer = "server",
    neighbours: Neighbours = "replace",
    honest: int | float | None = None,
    population: int | None = None,
    dim: int | None = None,
) -> tuple[Setting, int, float]:
    """Who watches what in a run of this plan; the coordinates that are sent, and the L2 bound on them."""
    mechanism, transforms = plan.mechanism, plan.transforms
    if not isinstance(mechanism, (Channel, Gaussian)):
        raise TypeError(f"{type(mechanism).__name__} adds no noise: there is no privacy to account for")
    if observer == "outsider" and plan.participations is not None:
        raise ValueError(
            f"observer = outsider: must come without a cap ({plan.participations} participations): who has used up his "
            "turns is not sampled any more, and the bound for sampling does not hold"
        )
    if observer == "outsider" and (population or plan.population) is None:
        raise ValueError("population = None: must be the number of users that a round's clients are sampled from")
    dim = transforms.sent(parameters(plan) if dim is None else dim)
    if transforms.l2_clip is not None:
        bound = transforms.l2_clip
    else:
        assert isinstance(mechanism, Channel)
        bound = mechanism.clip * dim**0.5  # what the clip of every coordinate implies
    users = population or plan.population or max(plan.clients, 2)
    survivors = plan.survivors or (1 if plan.lost else None)
    setting = Setting(
        plan.clients, users, plan.rounds, delta, observer, plan.participations, neighbours, honest, survivors
    )
    return setting, dim, bound


def parameters(plan: Plan) -> int:
    """The number of parameters of a plan's model on its data."""
    from rqm.datasets import SOURCES  # noqa: PLC0415 (takes torch)
    from rqm.federated.models import MODELS  # noqa: PLC0415

    if plan.model not in MODELS:
        raise ValueError(f"model = {plan.model}: must be among {', '.join(MODELS)}, or give dim")
    classes = SOURCES[plan.data].classes if plan.data in SOURCES else 62  # of the generated characters
    return sum(p.numel() for p in MODELS[plan.model](classes).parameters())
