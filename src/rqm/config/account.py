"""What a plan, or the ledger of a run, guarantees to every user or record."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rqm.accounting.participation import Charges, default_delta
from rqm.bounds import Adversary, Neighboring
from rqm.config.plan import PLAN, Plan, check_sampler
from rqm.config.run_files import recorded_head
from rqm.core.base import BaseMean
from rqm.ledger.budget_guard import charged_mean
from rqm.ledger.ledger import LEDGER, read
from rqm.ledger.signing import LedgerError

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee


def account(
    plan: Plan,
    delta: float | None = None,
    *,
    adversary: Adversary | None = None,
    neighboring: Neighboring | None = None,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    population: int | None = None,
    dim: int | None = None,
) -> "Guarantee":
    """What a run of this plan guarantees to every user or record, certified.

    Args:
        plan: The plan.
        delta: δ; None: the plan's.
        adversary: "server" or "outsider"; None: the plan's. Against the server a user is
            protected by the plan's limit on participations.
        neighboring: The neighboring relation; None: the plan's.
        honest_clients: Honest clients of every round; None: the plan's.
        honest_fraction: The honest fraction of the population; None: the plan's.
        population: The number of users, which must be known for an outsider; None: the plan's.
        dim: The number of the model's parameters where the model does not come with the package.

    Returns:
        The guarantee. Without an L2 clip and a rotation it is that of all coordinates at their
        worst, and gives no protection in practice.
    """
    if not isinstance(plan, Plan):
        raise TypeError(f"plan is a {type(plan).__name__}: must be a rqm.Plan (of a mechanism alone: rqm.renyi)")
    changes = {"delta": delta, "adversary": adversary, "neighboring": neighboring, "population": population}
    changes |= {"honest_clients": honest_clients, "honest_fraction": honest_fraction}
    mean = planned_mean(plan, dim, **changes)
    if not mean.is_private:
        raise TypeError(f"{type(plan.mechanism).__name__} adds no noise: there is no privacy to account for")
    return guarantee_of(mean, plan, dim)


def compose(*runs: "Guarantee | Plan | Path | str", delta: float | None = None) -> "Guarantee":
    """What several runs on the same users guarantee together (adaptive composition).

    Args:
        *runs: Guarantees, plans, or ledgers and folders of runs. They may differ in everything but
            the unit, the neighboring relation and the adversary.
        delta: δ of all runs together; None: the largest δ of a run.

    Returns:
        One guarantee; its assumptions are those of all runs.

    Raises:
        ValueError: If a run adds no noise, or runs do not have the same unit, neighboring relation
            and adversary.
    """
    from rqm.accounting.guarantee import Guarantee, compose_guarantees  # noqa: PLC0415 (takes the compiler)

    guarantees = []
    for run in runs:
        if isinstance(run, Guarantee):
            guarantees.append(run)
        elif isinstance(run, Plan):
            guarantees.append(account(run))
        else:
            guarantee, charged = account_ledger(Path(run))
            if guarantee is None and not charged:
                raise ValueError(f"{run}: adds no noise: nothing is guaranteed for several runs together")
            guarantees += [] if guarantee is None else [guarantee]
    return compose_guarantees(guarantees, delta)


def guarantee_of(
    mean: BaseMean, plan: Plan | None, dim: int | None = None, charges: Charges | None = None
) -> "Guarantee":
    """What the rounds of a plan guarantee, with the bits for each parameter of the model.

    Args:
        mean: What clients send, which may be more values than there are parameters.
        plan: The plan, if it is known.
        dim: The number of parameters where the plan does not know it.
        charges: How often each round was charged; None: as planned.

    Returns:
        The guarantee.
    """
    if plan is None:
        return mean.guarantee(charges=charges)
    guarantee = mean.guarantee(charges=charges, workload=plan.workload)
    return replace(guarantee, parameters=dim or plan.size or mean.dim)


def planned_mean(plan: Plan, dim: int | None = None, **changes: Any) -> BaseMean:
    """The private mean of a plan, with another question asked of it: what is not None replaces what
    the plan says."""
    if dim is not None:
        plan.check_size(dim)
    population = changes.get("population")
    if plan.delta is None and changes.get("delta") is None and population is not None:
        changes["delta"] = default_delta(population)
    return _with_question(plan.private_mean(dim), plan, plan.participation.population, changes)


def _with_question(mean: BaseMean, plan: Plan | None, users: int | None, changes: dict[str, Any]) -> BaseMean:
    """A private mean with another question asked of it, if a bound is known for its answer."""
    population = changes.get("population")
    if users is not None and population not in (None, users):
        raise ValueError(f"population = {population}: must be {users}, the users that a round's clients are drawn from")
    mean = mean.with_values(**changes)
    if plan is None:
        return mean
    check_sampler(mean.participation, mean.threat_model)
    # What clients who remember send depends on when they took part before, which sampling is to hide: later rounds
    # reveal the sample of earlier ones, and the bounds of single rounds do not compose.
    if mean.threat_model.adversary == "outsider" and plan.client.work == "fedcomgate":
        raise ValueError(
            "adversary = 'outsider': must not be asked of client.work = 'fedcomgate', whose clients remember when they "
            "took part: what they send later depends on it, and sampling hides no one"
        )
    return mean


def account_ledger(path: Path, **changes: Any) -> tuple["Guarantee | None", dict[str, Any]]:
    """What the ledger of a run says was spent, finished or not.

    Args:
        path: The ledger, or the folder of the run.
        **changes: Another question about the same charges: δ, the adversary, and so on; None: as
            in the ledger.

    Returns:
        The guarantee, or None if nothing was charged; and the ledger's head and charges.

    Raises:
        LedgerError: If there is no ledger, or it cannot be trusted. ValueError: If the ledger
        does not say what the question needs.
    """
    file = path / LEDGER if path.is_dir() else path
    recorded = recorded_head(file.parent)
    if not file.exists() and (path / PLAN).exists():
        if not Plan.of_run(path).mechanism.adds_noise:
            return None, {}
        ending = "" if recorded is None else f", which ended with {recorded} or later"
        raise LedgerError(f"{path}: its ledger ({LEDGER}) is missing{ending}")
    if not file.exists():
        raise LedgerError(f"{path}: holds no ledger ({LEDGER}), and no run")
    ledger = read(file)
    if recorded is not None and recorded not in ledger.heads:
        raise LedgerError(f"{file}: lacks charges that came before the checkpoint beside it; it is an older copy")
    if ledger.subject.get("seeded"):
        raise ValueError(f"{file}: was charged for answers from seeded words, which anyone can repeat: not private")
    mean = charged_mean(ledger.subject)
    plan = _plan(ledger.subject)
    users = ledger.subject.get("users")
    who = mean.participation
    is_ordered = mean.threat_model.unit == "user" and who.min_separation > 1
    if is_ordered and isinstance(users, int) and who.min_separation > users // who.clients:
        raise ValueError(
            f"{file}: assumes {who.min_separation} rounds between two participations, but {who.clients} of {users} "
            "users a round return sooner"
        )
    if changes.get("adversary") == "outsider" and plan is None and ledger.subject.get("plan") is not None:
        raise LedgerError(f"{file}: its plan cannot be read, which must say that clients remember nothing")
    mean = _with_question(mean, plan, who.population or users, changes)
    charged = {"head_hash": ledger.head, "charges": sum(ledger.charges.values()), "rounds_charged": len(ledger.charges)}
    if not ledger.charges:
        return None, charged
    return guarantee_of(mean, plan, charges=ledger.charges), charged


def _plan(about: dict[str, Any]) -> Plan | None:
    """A ledger's plan, if there is one that can be read."""
    try:
        return Plan.from_dict(about["plan"])
    except (KeyError, TypeError, ValueError):
        return None
