"""The paper's claims about Rényi divergences, each with what is attained and what is certified.

``python -m tools.claims OUT`` writes claims.json (some minutes), of which ``tools.tables`` makes the tables of
docs/reproduction.md: for the paper's nine RQMs (Δ, q), each against PBM at its θ, alone and among 40 clients, whether
RQM leaks less at some orders, as published and at equal variance; and Theorem 5.2 against the exact D_∞.
"""

import argparse
from concurrent.futures import ProcessPoolExecutor
from math import inf, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any

from rqm import PBM, RQM, renyi
from rqm._util.files import write_json
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.report.paper_figures import PAPER_SETTINGS

ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
CLIENTS = (1, 40)


def leaked(mech: DiscreteMechanism, clients: int) -> dict[str, list[float]]:
    """D_α at the orders: attained, certified, and as the paper computes it, all others at ±c."""
    found = renyi(mech, list(ORDERS), clients)
    papers = renyi(mech, list(ORDERS), clients, "balanced")
    return {
        "attained": [one.lower for one in found],
        "certified": [one.upper for one in found],
        "paper": [one.upper for one in papers],
    }


def equal(mech: RQM) -> PBM:
    """PBM of as many levels whose largest variance is that of an RQM."""
    return PBM(clip=mech.clip, levels=mech.levels, theta=mech.clip / sqrt(4 * (mech.levels - 1) * mech.variance_max))


def claim(asked: tuple[float, float, float, int]) -> dict[str, Any]:
    """One RQM and its PBM, among so many clients."""
    theta, margin, keep, clients = asked
    began, rqm = perf_counter(), RQM(margin=margin, keep=keep)
    rivals = {"published": PBM(theta=theta), "equal": equal(rqm)}
    return {
        "theta": theta,
        "margin": margin,
        "keep": keep,
        "clients": clients,
        "variance": {name: mech.variance_max for name, mech in {"rqm": rqm, **rivals}.items()},
        "rqm": leaked(rqm, clients),
        **{name: {"theta": mech.theta, **leaked(mech, clients)} for name, mech in rivals.items()},
        "seconds": round(perf_counter() - began, 1),
    }


def theorem(margin: float, keep: float) -> dict[str, Any]:
    """Theorem 5.2, the exact D_∞ of one client, and what the paper takes for it: that at c and −c."""
    mech = RQM(margin=margin, keep=keep)
    worst = renyi(mech, inf)
    return {
        "margin": margin,
        "keep": keep,
        "bound": mech.theorem_bound,
        "exact": worst.upper,
        "at_ends": renyi(mech, inf, 1, "balanced").upper,
        "x": worst.witness.x,
        "x_prime": worst.witness.x_prime,
    }


def verdict(rqm: dict[str, list[float]], pbm: dict[str, list[float]], order: int) -> str:
    """Whether RQM leaks less than PBM at an order: certainly, certainly not, or it is open.

    >>> verdict({"attained": [0.5], "certified": [0.6]}, {"attained": [0.55], "certified": [0.55]}, 0)
    'open'
    """
    if rqm["certified"][order] <= pbm["attained"][order]:
        return "less"
    return "more" if rqm["attained"][order] > pbm["certified"][order] else "open"


# -- tables ---------------------------------------------------------------------------------------


def _name(one: dict[str, Any]) -> str:
    return f"({one['margin']:g}c, {one['keep']:g})".replace("(1c", "(c")


def ratios(found: dict[str, Any], clients: int, rival: str) -> list[list[str]]:
    """Rows of RQM's D_α over PBM's, from attained to certified, each with its verdict."""
    rows = []
    for one in (one for one in found["claims"] if one["clients"] == clients):
        cells = []
        for k in range(len(found["orders"])):
            low = one["rqm"]["attained"][k] / one[rival]["certified"][k]
            high = one["rqm"]["certified"][k] / one[rival]["attained"][k]
            said = verdict(one["rqm"], one[rival], k)
            ratio = " to ".join(dict.fromkeys(f"{end:.3f}" for end in (low, high)))
            cells.append(f"{'**more**' if said == 'more' else said} {ratio}")
        rows.append([_name(one), f"{one[rival]['theta']:.4g}", *cells])
    return rows


def counts(found: dict[str, Any]) -> list[list[str]]:
    """How often RQM leaks less, more, or it is open, over all settings and orders."""
    rows = []
    for clients in CLIENTS:
        some = [(one, k) for one in found["claims"] if one["clients"] == clients for k in range(len(found["orders"]))]
        papers = [one["rqm"]["paper"][k] <= one["published"]["paper"][k] for one, k in some]
        who = "alone" if clients == 1 else f"{clients} clients"
        rows.append([f"{who}, as the paper computes it", str(sum(papers)), str(len(papers) - sum(papers)), "0"])
        for rival, name in (
            ("published", "the worst case, at the paper's θ"),
            ("equal", "the worst case, at equal variance"),
        ):
            said = [verdict(one["rqm"], one[rival], k) for one, k in some]
            rows.append([f"{who}, {name}", *(str(said.count(word)) for word in ("less", "more", "open"))])
    return rows


def theorems(found: dict[str, Any]) -> list[list[str]]:
    """Rows of Theorem 5.2, of the exact D_∞, and of the pair that attains it."""
    return [
        [
            _name(one),
            *(f"{one[key]:.4f}" for key in ("bound", "exact", "at_ends")),
            f"{one['x']:.4g}c, {one['x_prime']:.4g}c".replace("-", "−").replace("1c", "c"),
        ]
        for one in found["theorem"]
    ]


def main() -> None:
    """Compute all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    settings = [(theta, *one) for theta, every in PAPER_SETTINGS.values() for one in every]
    with ProcessPoolExecutor(asked.workers) as pool:
        cells = list(pool.map(claim, [(*one, clients) for clients in CLIENTS for one in settings]))
    theorems = [theorem(margin, keep) for _, margin, keep in settings]
    write_json(asked.out / "claims.json", {"orders": ORDERS, "claims": cells, "theorem": theorems})


if __name__ == "__main__":
    main()
