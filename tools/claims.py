"""The paper's claim that RQM leaks less than PBM, setting by setting and order by order, for forty clients.

``python -m tools.claims OUT`` writes ``claims.json`` and prints the table of docs/reproduction.md. For every order it
says who is proven to leak less, whatever the other clients send: what is certified of one against what is attained by
the other.
"""

import json
import sys
from pathlib import Path

from rqm import PBM, RQM, renyi
from rqm.mechanisms.channel import Channel

CLIENTS = 40
ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SETTINGS = {
    0.25: ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33)),
    0.15: ((2.33, 0.42), (4.0, 0.5), (1.0, 0.23)),
    0.35: ((0.429, 0.49), (1.0, 0.65), (0.25, 0.37)),
}


def bounds(mech: Channel) -> list[tuple[float, float]]:
    """What is attained and what is certified at every order."""
    return [(one.lower, one.upper) for one in renyi(mech, list(ORDERS), CLIENTS)]


def verdict(own: tuple[float, float], rival: tuple[float, float]) -> str:
    """Who leaks less, for certain."""
    if own[1] < rival[0]:
        return "RQM"
    return "PBM" if rival[1] < own[0] else "open"


def main() -> None:
    """All settings of the paper."""
    facts, rows = [], ["| | " + " | ".join(f"α = {order:g}" for order in ORDERS) + " |", "|---|" + "---|" * len(ORDERS)]
    for theta, those in SETTINGS.items():
        rival = bounds(PBM(theta=theta))
        for margin, keep in those:
            own = bounds(RQM(margin=margin, keep=keep))
            told = [verdict(one, other) for one, other in zip(own, rival, strict=True)]
            facts.append({"theta": theta, "margin": margin, "keep": keep, "rqm": own, "pbm": rival, "less": told})
            cells = [f"{who} ({high / low:.3f})" for who, (low, high) in zip(told, own, strict=True)]
            rows.append(f"| Δ = {margin:g}c, q = {keep:g} against θ = {theta:g} | {' | '.join(cells)} |")
            (Path(sys.argv[1]) / "claims.json").write_text(json.dumps({"orders": ORDERS, "settings": facts}, indent=1))
            print(rows[-1], flush=True)
    print("\n".join(rows))


if __name__ == "__main__":
    main()
