"""All audits, small enough for two cores and a few minutes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rqm._files import write_json
from rqm.audit import jobs
from rqm.audit.mutants import audit_mutants
from rqm.audit.privacy import audit_privacy
from rqm.audit.sampler import audit_sampler
from rqm.channel import Channel
from rqm.datasets import load
from rqm.design import private_table
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.report.attacks import draw

DELTA = 0.01
"""Of normal-like noise, whose ε at δ = 0 sits in tails that no number of draws reaches."""
_NOISE: dict[str, Any] = {"scale": 1.0, "steps": 5, "bits": 6}


def shipped() -> dict[str, Channel]:
    """Every mechanism that comes with the package, at parameters whose ε a measurement can reach."""
    return {
        "RQM (1.0, 0.42)": RQM(), "RQM (1.0, 0.23)": RQM(keep=0.23), "RQM (0.66, 0.33)": RQM(margin=0.66, keep=0.33),
        "PBM (0.1)": PBM(theta=0.1, levels=8), "1 bit": Rounding(levels=2, margin=1.0),
        "randomized response": RandomizedResponse(levels=8, epsilon=3.0), "table by linear program":
        private_table(3.0, 8, rows=9), "discrete Gaussian": DiscreteGaussian(**_NOISE), "Skellam": Skellam(**_NOISE),
        "binomial": Binomial(**_NOISE),
    }  # fmt: skip


def audit_everything(out: Path, watch: Callable[[str], object] = lambda now: None) -> dict[str, Any]:
    """Run every audit; write JSON and pictures into a folder; ``good`` says that nothing was contradicted."""
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
        draw(out / f"{name}.json")
    return found


def markdown(found: dict[str, Any]) -> str:
    """The tables of ``audit_everything``."""

    def table(heads: list[str], rows: list[list[str]]) -> str:
        return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])

    def number(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:.4g}"

    paper, runs, who = found["paper"], found["training"], found["membership"]
    parts = [
        "Samplers against their exact laws (p-value of the worst test, over all tests)",
        table(["mechanism", "p", ""], [
            [name, number(one["p_value"]), "passed" if one["passed"] else "FAILED"]
            for name, one in found["sampler"].items()
        ]),
        "ε of one coordinate, alone and in a sum of three: claimed (certified) and measured (confidence 99.9 %)",
        table(["mechanism", "clients", "δ", "claimed", "measured", ""], [
            [one["mechanism"], str(one["clients"]), *(number(one[key]) for key in ("delta", "claimed", "measured")),
             "CONTRADICTED" if one["contradicted"] else "holds"] for one in found["privacy"]
        ]),
        f"The paper's claim for RQM (1.0, 0.23), at ±c only: {number(paper['claimed'])}, measured at least "
        f"{number(paper['measured'])}: {'contradicted' if paper['contradicted'] else 'not contradicted'}",
        "ε of a whole run, by planted canaries (confidence 95 %)",
        table(["run", "claimed", "measured", "guesses", ""], [
            [name, number(one["claimed"]), number(one["measured"]), f"{one['correct']} of {one['guesses']} right",
             "CONTRADICTED" if one["contradicted"] else "holds"] for name, one in runs.items()
        ]),
        "Pictures rebuilt from gradients (inversion.png)",
        table(["what the attacker sees", "similarity", "identified"], [
            [kind, number(one["similarity"]), f"{100 * one['identified']:.0f} %"]
            for kind, one in found["inversion"]["kinds"].items()
        ]),
        "Members found among users at 1 % false positives (membership.png)",
        table(["run", "found", "area", "accuracy"], [
            [name, f"{100 * one['found']:.1f} % ({100 * one['found_low']:.1f} to {100 * one['found_high']:.1f})",
             number(one["area"]), f"{100 * one['accuracy']:.1f} %"] for name, one in who.items()
        ]),
        "Mutants",
        table(["mutant", "mistake", "", "by", "evidence"], [
            [one["name"], one["mistake"], "caught" if one["caught"] else "SURVIVED", one["audit"], one["evidence"]]
            for one in found["mutants"]
        ]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
