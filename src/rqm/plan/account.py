"""What a plan, or the ledger of a run, guarantees to every user."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rqm.encoding.private_mean import PrivateMean
from rqm.plan.folder import recorded_head
from rqm.plan.plan import PLAN, Plan
from rqm.plan.sizes import parameters
from rqm.privacy.ledger import LEDGER, LedgerError, holds, read
from rqm.privacy.setting import Neighbours, Observer

if TYPE_CHECKING:
    from rqm.privacy.guarantee import Guarantee


def account(
    plan: Plan,
    delta: float | None = None,
    *,
    observer: Observer | None = None,
    neighbours: Neighbours | None = None,
    honest: int | float | None = None,
    population: int | None = None,
    dim: int | None = None,
) -> "Guarantee":
    """What a run of this plan guarantees to every user, certified; what is not given is the plan's.

    Against the ``server`` a user is protected by the plan's cap on participations (all rounds if there is none). For
    the ``outsider`` the number of users N must be known: the plan's ``population``, or the argument. ``dim`` is the
    number of the model's parameters where it does not come with the package. Without an L2 clip and a rotation the
    value is that of all coordinates at their worst, and protects nobody.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: must be a rqm.Plan (of a mechanism alone: rqm.renyi)")
    asked = {"delta": delta, "observer": observer, "neighbours": neighbours, "honest": honest, "population": population}
    mean = planned_mean(plan, dim, **asked)
    if not mean.private:
        raise TypeError(f"{type(plan.mechanism).__name__} adds no noise: there is no privacy to account for")
    return per_parameter(mean.guarantee_of(None, plan.workload), mean, plan, dim)


def per_parameter(found: "Guarantee", mean: PrivateMean, plan: Plan | None, dim: int | None = None) -> "Guarantee":
    """The same with the bits of a parameter of the model, where a client sends more values than there are of them."""
    model = None if plan is None else dim or plan.dim or parameters(plan.model, plan.data)
    if model in (None, mean.dim) or found.wire_bits_per_parameter is None:
        return found
    return replace(found, wire_bits_per_parameter=found.wire_bits_per_parameter * mean.dim / (model or 1))


def planned_mean(plan: Plan, dim: int | None = None, **asked: Any) -> PrivateMean:
    """The private mean of a plan, with another question asked of it: what is not None replaces what the plan says."""
    if dim is not None:
        plan.check_size(dim)
    _same_population(plan.population, asked.get("population"))
    _forgetful(plan, asked.get("observer"))
    changes = {name: asked[name] for name in ("delta", "honest", "population") if asked.get(name) is not None}
    who = {name: asked.get(name) for name in ("observer", "neighbours")}
    return replace(plan, **changes).private_mean(dim).with_(**who)


def _same_population(known: int | None, asked: int | None) -> None:
    if known is not None and asked not in (None, known):
        raise ValueError(f"population = {asked}: must be {known}, the users that a round's clients are drawn from")


def _forgetful(plan: Plan | None, observer: Observer | None) -> None:
    """Refuse amplification by sampling where clients remember something.

    What they send then depends on when they took part before, which is to be a secret: later rounds tell of the sample
    of earlier ones, and the bounds of single rounds do not compose.
    """
    if observer == "outsider" and plan is not None and plan.client.work == "fedcomgate":
        raise ValueError(
            "observer = outsider: must not be asked of client.work = 'fedcomgate', whose clients remember when they "
            "took part: what they send later tells of it, and sampling hides nobody"
        )


def account_ledger(path: Path, **changes: Any) -> tuple["Guarantee | None", dict[str, Any]]:
    """What the ledger of a run (or its folder) says was spent, finished or not; None if nothing was charged.

    ``changes`` ask another question of the same charges: ``delta``, ``observer``, ``neighbours``, ``honest``,
    ``population``.
    """
    file = path / LEDGER if path.is_dir() else path
    recorded = recorded_head(file.parent)
    if not file.exists() and (path / PLAN).exists():
        if not Plan.of_run(path).mechanism.private:
            return None, {}
        if recorded is not None:
            raise LedgerError(f"{path}: its ledger ({LEDGER}) is gone, which ended with {recorded} or later")
        raise LedgerError(
            f"{path}: this run of version 0.1.0 kept no ledger; rqm train --resume charges what it released"
        )
    if not file.exists():
        raise LedgerError(f"{path}: holds no ledger ({LEDGER}), and no run")
    about, spent, head = read(file)
    if recorded is not None and not holds(file, recorded):
        raise LedgerError(f"{file}: lacks charges that came before the checkpoint beside it; it is an older copy")
    if about.get("seeded"):
        raise ValueError(f"{file}: was charged for answers from seeded words, which anyone can repeat: not private")
    mean = charged_mean(about)
    users = about.get("users")
    apart = None if mean.unit == "record" else mean.separation  # a record's is its silo's own order
    if apart is not None and isinstance(users, int) and apart > users // mean.clients:
        raise ValueError(
            f"{file}: counts on {apart} rounds between two participations, but {mean.clients} of {users} "
            "users a round come back sooner"
        )
    _same_population(mean.population or about.get("users"), changes.get("population"))
    fraction = isinstance(changes.get("honest", mean.honest), float)
    if (changes.get("observer") == "outsider" or fraction) and about.get("sampling") != UNIFORM:
        what = "honest = a fraction" if fraction else "observer = outsider"
        raise ValueError(
            f"{what}: must not be asked of this ledger, which does not say that its clients were drawn at random from "
            "all users (those who are there are no random sample of the population)"
        )
    plan = _plan(about)
    if plan is None and about.get("plan") is not None and changes.get("observer") == "outsider":
        raise LedgerError(f"{file}: its plan cannot be read, which must say that clients remember nothing")
    _forgetful(plan, changes.get("observer"))
    charged = {"head": head, "charges": sum(spent.values()), "rounds_charged": len(spent)}
    if not spent:
        return None, charged
    found = mean.with_(**changes).guarantee_of(spent, None if plan is None else plan.workload)
    return per_parameter(found, mean, plan), charged


def _plan(about: dict[str, Any]) -> Plan | None:
    """A ledger's plan, if there is one that can be read."""
    try:
        return Plan.from_dict(about["plan"])
    except (KeyError, TypeError, ValueError):
        return None


UNIFORM, AVAILABLE = "uniform", "available"
"""How a round's clients are drawn: from all users alike, or from those who are there."""


def charged_mean(about: dict[str, Any]) -> PrivateMean:
    """What a ledger's charges are for. Those of version 0.1.0 name a plan, δ, the coordinates and who is honest."""
    try:
        if "mean" in about:
            return PrivateMean.from_dict(about["mean"])
        return (
            Plan.from_dict(about["plan"]).private_mean(about["dim"]).with_(delta=about["delta"], honest=about["honest"])
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise LedgerError(f"the ledger does not say what it charges for ({error})") from None
