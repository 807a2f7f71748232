"""All audits, small enough for two cores and a few minutes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rqm._util.files import write_json
from rqm.advice.design import private_table
from rqm.audit import jobs
from rqm.audit.mutants import audit_mutants
from rqm.audit.privacy import audit_privacy
from rqm.audit.sampler import audit_sampler
from rqm.data import load
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.registry import kinds
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.table import Table

DELTA = 0.01
"""Of normal-like noise, whose ε at δ = 0 sits in tails that no number of draws reaches."""


def shipped() -> dict[str, Channel]:
    """Every mechanism that sends integers, at parameters whose ε a measurement can reach."""
    found = {
        name: made.from_dict(dict(values)).channel
        for made in kinds().values()
        if made.integers and made is not Table
        for name, values in (made.examples or {made.kind: {}}).items()
    }
    return {**found, "table by linear program": private_table(3.0, 8, rows=9)}


def audit_everything(out: Path, watch: Callable[[str], object] = lambda now: None) -> dict[str, Any]:
    """Run every audit; write JSON into a folder; ``good`` says that nothing was contradicted."""
    found: dict[str, Any] = {"sampler": {}, "privacy": []}
    for name, mech in shipped().items():
        watch(f"sampler and privacy of {name}")
        found["sampler"][name] = audit_sampler(mech, draws=500_000).to_dict()
        for clients, draws, delta in ((1, 4_000_000, DELTA if mech.modular else 0.0), (3, 500_000, 0.0)):
            one = audit_privacy(mech, clients, draws=draws, delta=delta)
            found["privacy"].append({"mechanism": name, **one.to_dict()})
    watch("the paper's claim")
    paper = audit_privacy(RQM(keep=0.23), draws=20_000_000, claim="paper")
    found["paper"] = paper.to_dict()
    watch("a run with canaries")
    plans, data = jobs.variants("audit")
    found["training"] = jobs.training(plans, data)
    watch("inversion")
    found["inversion"] = jobs.inversion(load("glyphs"), pictures=2, clients=8, iterations=80)
    watch("membership")
    plans, data = jobs.variants("membership")
    found["membership"] = jobs.membership(plans, data, models=8, users=120)
    watch("mutants")
    found["mutants"] = [one.to_dict() for one in audit_mutants()]
    found["good"] = (
        all(one["passed"] for one in found["sampler"].values())
        and paper.contradicted  # or the audit has lost its power
        and not any(one["contradicted"] for one in [*found["privacy"], *found["training"].values()])
        and all(one["caught"] for one in found["mutants"])
    )
    write_json(out / "audit.json", found)
    for name in ("inversion", "membership"):
        write_json(out / f"{name}.json", found[name])
    return found


def markdown(found: dict[str, Any]) -> str:
    """The tables of ``audit_everything``."""
    return "\n\n".join([*_of_mechanisms(found), *_of_runs(found)]) + "\n"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _numbers(one: dict[str, Any], *keys: str) -> list[str]:
    return [_number(one[key]) for key in keys]


def _verdict(one: dict[str, Any]) -> str:
    return "CONTRADICTED" if one["contradicted"] else "holds"


def _of_mechanisms(found: dict[str, Any]) -> list[str]:
    """Samplers, and what coordinates leak."""
    samplers = [
        [name, _number(one["p_value"]), "passed" if one["passed"] else "FAILED"]
        for name, one in found["sampler"].items()
    ]
    coordinates = [
        [one["mechanism"], str(one["clients"]), *_numbers(one, "delta", "claimed", "measured"), _verdict(one)]
        for one in found["privacy"]
    ]
    paper = found["paper"]
    return [
        "Samplers against their exact laws (p-value of the worst test, over all tests)",
        _table(["mechanism", "p", ""], samplers),
        "ε of one coordinate, alone and in a sum of three: claimed (certified) and measured (confidence 99.9 %)",
        _table(["mechanism", "clients", "δ", "claimed", "measured", ""], coordinates),
        f"The paper's claim for RQM (1.0, 0.23), at ±c only: {_number(paper['claimed'])}, measured at least "
        f"{_number(paper['measured'])}: {'contradicted' if paper['contradicted'] else 'not contradicted'}",
    ]


def _of_runs(found: dict[str, Any]) -> list[str]:
    """Whole runs, attacks, and mutants."""
    runs = [
        [name, *_numbers(one, "claimed", "measured"), f"{one['correct']} of {one['guesses']} right", _verdict(one)]
        for name, one in found["training"].items()
    ]
    pictures = [
        [kind, _number(one["similarity"]), f"{one['identified']:.0%}"]
        for kind, one in found["inversion"]["kinds"].items()
    ]
    members = [
        [
            name,
            f"{one['found']:.1%} ({one['found_low']:.1%} to {one['found_high']:.1%})",
            _number(one["area"]),
            f"{one['accuracy']:.1%}",
        ]
        for name, one in found["membership"].items()
    ]
    mutants = [
        [one["name"], one["mistake"], "caught" if one["caught"] else "SURVIVED", one["audit"], one["evidence"]]
        for one in found["mutants"]
    ]
    return [
        "ε of a whole run, by planted canaries (confidence 95 %)",
        _table(["run", "claimed", "measured", "guesses", ""], runs),
        "Pictures rebuilt from gradients (inversion.png)",
        _table(["what the attacker sees", "similarity", "identified"], pictures),
        "Members found among users at 1 % false positives (membership.png)",
        _table(["run", "found", "area", "accuracy"], members),
        "Mutants",
        _table(["mutant", "mistake", "", "by", "evidence"], mutants),
    ]
