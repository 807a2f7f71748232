"""`rqm account`: what plans, or the ledgers of runs, guarantee to every user."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from rqm._util.text import many
from rqm.bounds import Adversary, Neighboring
from rqm.cli import completion
from rqm.cli.formatting import Result
from rqm.cli.options import SetOption
from rqm.cli.progress import progress

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee


class Account(NamedTuple):
    """What one run guarantees.

    Attributes:
        name: The variant of an experiment, or the ledger.
        guarantee: None if there is no noise, or nothing was charged.
        charges: Charges and head of the ledger; empty for a plan.
    """

    name: str
    guarantee: "Guarantee | None"
    charges: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        if self.guarantee is None:
            return {"name": self.name, "epsilon": 0.0 if self.charges else None, **self.charges}
        return {"name": self.name, **self.guarantee.to_dict(), **self.charges}

    def text(self) -> str:
        """The guarantee, and where its ledger ends."""
        if self.guarantee is None:
            return "nothing has been charged yet: ε = 0" if self.charges else "no noise, no privacy"
        if not self.charges:
            return str(self.guarantee)
        charges = many(self.charges["charges"], "charge")
        rounds = many(self.charges["rounds_charged"], "round")
        return f"{self.guarantee}\n\n{charges} for {rounds}; the ledger ends with {self.charges['head_hash']}."


def command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", autocompletion=completion.experiments)],
    delta: float | None = None,
    adversary: Adversary | None = None,
    neighboring: Neighboring | None = None,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    population: int | None = None,
    settings: SetOption = None,
    save: Path | None = None,
) -> Result:
    """Account for a whole training run: certified (ε, δ) for every user, with all assumptions.

    For a plan: the planned privacy loss. For a ledger, or the folder of a run: the loss of the rounds that were
    charged. Options change the question, not the plan. For several runs on the same users, the ε of all of them
    together comes last.

    Examples:

        rqm account emnist-theta25

        rqm account plan.toml --delta 1e-6 --honest-clients 72 --json

        rqm account runs/first runs/second

    Args:
        runs: Shipped experiments (rqm experiments), TOML files, ledgers, or folders of runs or sweeps.
        delta: δ; default that of the plan or ledger, else 1e-5 or 1/population.
        adversary: server (knows who takes part) or outsider (sees only the models).
        neighboring: The neighboring relation.
        honest_clients: Honest clients of every round, dropouts included.
        honest_fraction: The honest fraction of the population.
        population: N, the users that a round's clients are sampled from.
        save: Write a certificate: ε for any number of rounds, for machines without an accountant.
    """
    question: dict[str, Any] = {
        "delta": delta,
        "adversary": adversary,
        "neighboring": neighboring,
        "honest_clients": honest_clients,
        "honest_fraction": honest_fraction,
        "population": population,
    }
    accounts: list[Account] = []
    for run in runs:
        path = Path(run)
        if path.suffix == ".toml" or not path.exists():
            variants = _account_plans(run, settings or [], question, save)
        elif settings or save:
            option = f"set = {settings[0]}" if settings else f"save = {save}"
            raise ValueError(f"{option}: must come with a plan; {run} holds charges, which nothing changes")
        else:
            variants = _account_ledgers(path, question)
        for account in variants:
            name = run if len(variants) == 1 else f"{run} {account.name}"
            accounts.append(account._replace(name=name) if len(runs) > 1 else account)
    if len(runs) > 1:
        return _combine(accounts, delta)
    notes = [f"{account.name}: {account.text()}" for account in accounts]
    facts = [account.to_dict() for account in accounts]
    return Result(facts[0] if len(facts) == 1 else {"runs": facts}, notes=notes)


def _combine(accounts: list[Account], delta: float | None) -> Result:
    """What each of several runs guarantees, and all of them together."""
    from rqm.accounting.guarantee import compose_guarantees

    guarantees = []
    notes = []
    for account in accounts:
        if account.guarantee is None and not account.charges:
            raise ValueError(f"{account.name}: adds no noise: several runs together guarantee nothing")
        guarantees += [] if account.guarantee is None else [account.guarantee]
        notes.append(f"{account.name}: {account.to_dict().get('headline', account.text())}")
    combined = compose_guarantees(guarantees, delta)
    facts = {"name": "all runs together", **combined.to_dict(), "runs": [account.to_dict() for account in accounts]}
    return Result(facts, notes=[*notes, f"{facts['name']}: {combined}"])


def _account_plans(experiment: str, settings: list[str], question: dict[str, Any], save: Path | None) -> list[Account]:
    """Account for every variant of an experiment, and save the certificates."""
    from rqm.config.account import guarantee_of, planned_mean
    from rqm.config.experiments import find
    from rqm.config.sweep import Sweep
    from rqm.ledger.budget_guard import certificate, save_certificates

    accounts = []
    certificates = []
    for name, plan in Sweep.from_toml(find(experiment), settings).variants.items():
        if not plan.mechanism.adds_noise:
            accounts.append(Account(name, None, {}))
            continue
        with progress(f"accounting for {name}"):
            mean = planned_mean(plan, **question)
            accounts.append(Account(name, guarantee_of(mean, plan), {}))
            if save is None:
                continue
            if mean.threat_model.adversary != "server" or mean.threat_model.neighboring == "zero-out":
                raise ValueError(f"save = {save}: must come without --adversary and --neighboring")
            certificates.append(certificate(mean, name))
    if save is not None:
        save_certificates(save, certificates)
    return accounts


def _account_ledgers(path: Path, question: dict[str, Any]) -> list[Account]:
    """Account for the ledger of a run, or for all ledgers of a sweep."""
    from rqm.config.account import account_ledger
    from rqm.ledger.ledger import LEDGER

    ledgers = {path.name: path}
    if path.is_dir() and not (path / LEDGER).exists():
        files = sorted(path.glob(f"*/*/{LEDGER}"))
        ledgers = {file.parent.relative_to(path).as_posix(): file for file in files} or ledgers
    return [Account(name, *account_ledger(file, **question)) for name, file in ledgers.items()]
