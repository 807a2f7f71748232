"""All mechanisms at equal privacy: one client alone, forty clients as in the paper, a whole model.

``python -m tools.mechanisms OUT`` writes JSON files and plots, of which ``tools.tables`` makes the tables of
docs/which-mechanism.md (seven minutes on two cores).
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from rqm import PBM, RQM, Participation, StochasticRounding, ThreatModel, renyi
from rqm.accounting.calibration import least_noise
from rqm.advice.adviser import advise, sweep
from rqm.advice.candidates import Request
from rqm.advice.optimized_tables import lattice_table, level_keeps, single_keep
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.report.plots import plot_error_by_epsilon, save
from tools.tables import ALONE


def alone(out: Path) -> None:
    """One client, one coordinate of 4 bits, pure differential privacy."""
    request = Request(
        participation=Participation(1), threat_model=ThreatModel(), delta=1e-5, epsilon=1.0, bits=4, pure=True
    )
    candidates = sweep([replace(request, epsilon=epsilon) for epsilon in ALONE])
    lines: dict[str, list[list[float]]] = {}
    for candidate in candidates:
        lines.setdefault(candidate.name, []).append([candidate.epsilon, candidate.mse])
    _save(out / "mechanisms-alone.json", lines)
    save(plot_error_by_epsilon(candidates, "one client alone, 4 bits, pure ε"), out / "mechanisms-alone.png")


def forty(out: Path) -> None:
    """Forty clients, order 2, 4 bits: variances at the same divergence, attained and certified."""
    paper = RQM()
    target = renyi(paper, 2, 40)
    single = single_keep(2, 40, target.lower)
    found: dict[str, DiscreteMechanism] = {
        "RQM, the paper's (Δ = c, q = 0.42)": paper,
        "RQM, best single keep": single,
        "RQM, a keep for each level": level_keeps(2, 40, target.lower, start=single),
        "PBM, the paper's (θ = 0.25)": PBM(),
        "lattice table": lattice_table(2, 40, target.lower),
        "lattice table, at what is certified of the paper's RQM": lattice_table(2, 40, target.upper),
    }
    found["RQM, q = 0.42, certified"] = certified(lambda margin: RQM(margin=margin), target.lower)
    found["PBM, certified"] = certified(lambda size: PBM(theta=0.5 / (1 + size)), target.lower)
    found["1 bit, certified"] = certified(lambda margin: StochasticRounding(margin=margin, levels=2), target.lower)
    facts = []
    for name, mech in found.items():
        bound = renyi(mech, 2, 40)
        facts.append(
            {
                "name": name,
                "mechanism": mech.to_dict(),
                "variance_max": mech.variance_max,
                "attained": bound.lower,
                "certified": bound.upper,
                "bits": mech.bits,
            }
        )
    _save(out / "mechanisms-forty.json", facts)


def certified(mechanism: Callable[[float], DiscreteMechanism], divergence: float) -> DiscreteMechanism:
    """The mechanism with the least noise whose certified D₂ of forty clients is at most `divergence`."""
    return mechanism(least_noise(lambda noise: renyi(mechanism(noise), 2, 40).upper, divergence, 1.0, 1 - 1e-4))


def model(out: Path) -> None:
    """A whole model of 2²⁰ coordinates, 100 of 3,400 users a round for 1,500 rounds, ε = 10 against an outsider."""
    advice = advise(
        clients=100,
        dim=2**20,
        epsilon=10,
        delta=1 / 3400,
        population=3400,
        rounds=1500,
        adversary="outsider",
        bits=32,
    )
    _save(out / "mechanisms-model.json", advice.to_dict())


def _save(path: Path, facts: Any) -> None:
    path.write_text(json.dumps(facts, indent=1, default=str).replace(str(inf), "null") + "\n")


if __name__ == "__main__":
    _out = Path(sys.argv[1])
    for _part in (alone, forty, model):
        _part(_out)
