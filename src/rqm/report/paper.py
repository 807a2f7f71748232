"""The numbers of the paper's privacy figures: every curve comes with the attained and the certified worst case.

They are rows of plain values; ``rqm.report.figures`` draws them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rqm.certify.renyi import RenyiBound, renyi
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM

Step = Callable[[], None]
Rows = list[dict[str, Any]]

CLIENTS = (1, 2, 3, 5, 8, 12, 16, 20, 25, 30, 40, 50)
ORDERS = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 300, 1000)
MANY = 40
SEED = 0
KEPT = (0, 3, 4, 7, 9, 10, 14, 15)
"""The paper's example of kept levels."""

PAPER = {
    "25": (0.25, ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33))),
    "15": (0.15, ((2.33, 0.42), (4.0, 0.5), (1.0, 0.23))),
    "35": (0.35, ((0.429, 0.49), (1.0, 0.65), (0.25, 0.37))),
}
"""PBM's θ, and the paper's (Δ/c, q) for RQM beside it: the first of each also stands in the figures of D_α."""


@dataclass(frozen=True)
class Figure:
    """A figure by name: what it shows, in how many steps its numbers are found, and how."""

    shows: str
    steps: int
    numbers: Callable[[Step], Rows]


# -- figure 1: how RQM works ----------------------------------------------------------------------


def _subsampling(step: Step) -> Rows:
    """Fig. 1a: one draw of the kept levels, and the two that x = c may be rounded to."""
    mech = RQM(clip=1.5)
    values, x = mech.grid.values, mech.clip
    below = max(i for i in KEPT if values[i] <= x)
    above = min(i for i in KEPT if values[i] > x)
    up = float((x - values[below]) / (values[above] - values[below]))
    chance = {below: 1 - up, above: up}
    step()
    return [
        {"level": i, "value": value, "kept": i in KEPT, "probability_given_kept": chance.get(i, 0.0), "clip": x}
        for i, value in enumerate(values.tolist())
    ]


def _laws(step: Step) -> Rows:
    """Fig. 1b: the law of the output at x = c under both mechanisms."""
    laws = {mech.kind: mech.pmf(mech.clip).tolist() for mech in (RQM(clip=1.5), PBM(clip=1.5))}
    step()
    return [{"level": z, **{kind: law[z] for kind, law in laws.items()}} for z in range(16)]


# -- figures 2 and 3: Rényi divergence ------------------------------------------------------------


def _mechanisms(theta: str, variants: int) -> list[DiscreteMechanism]:
    pbm, pairs = PAPER[theta]
    chosen: list[DiscreteMechanism] = [RQM(clip=1.5, margin=margin, keep=keep) for margin, keep in pairs[:variants]]
    return [*chosen, PBM(clip=1.5, theta=pbm)]


def _row(mech: DiscreteMechanism, over: str, paper: RenyiBound, bound: RenyiBound | None = None) -> dict[str, Any]:
    """One point of a curve over clients or orders; worst cases are dear, and known at some points only."""
    worst: dict[str, Any] = {"paper_balanced": "", "attained": "", "certified": ""}
    if bound is not None:
        balanced = renyi(mech, bound.alpha, bound.clients, "balanced").lower
        worst = {"paper_balanced": balanced, "attained": bound.lower, "certified": bound.upper}
    about = {"over": over, "mechanism": mech.label, "alpha": paper.alpha, "clients": paper.clients}
    return {**about, "paper_random": paper.lower, **worst, "per": "coordinate and round"}


def _against_clients(mech: DiscreteMechanism, step: Step) -> Iterator[dict[str, Any]]:
    for n in CLIENTS:
        yield _row(mech, "clients", renyi(mech, 2, n, "random", seed=SEED), renyi(mech, 2, n))
        step()
    for n in sorted(set(range(1, max(CLIENTS) + 1)) - set(CLIENTS)):
        yield _row(mech, "clients", renyi(mech, 2, n, "random", seed=SEED))


def _against_orders(mech: DiscreteMechanism, clients: int, step: Step) -> Iterator[dict[str, Any]]:
    given = renyi(mech, ORDERS, clients, "random", seed=SEED)
    for paper, bound in zip(given, renyi(mech, ORDERS, clients), strict=True):
        yield _row(mech, "alpha", paper, bound)
    step()
    for paper in renyi(mech, np.geomspace(1.1, 1000, 60).tolist(), clients, "random", seed=SEED):
        yield _row(mech, "alpha", paper)


def _renyi(theta: str) -> Callable[[Step], Rows]:
    def numbers(step: Step) -> Rows:
        rows: Rows = []
        for mech in _mechanisms(theta, 1):
            rows += _against_clients(mech, step)
            rows += _against_orders(mech, MANY, step)
            rows += _against_orders(mech, 1, step)
        return rows

    return numbers


def _tradeoff(theta: str) -> Callable[[Step], Rows]:
    def numbers(step: Step) -> Rows:
        return [row for mech in _mechanisms(theta, 3) for row in _against_orders(mech, MANY, step)]

    return numbers


FIGURES = {
    "subsampling": Figure("Fig. 1a: keeping levels at random, then rounding", 1, _subsampling),
    "laws": Figure("Fig. 1b: the law of the output under RQM and PBM", 1, _laws),
    "renyi-theta25": Figure("Fig. 2: D₂ against n, D_α against α, θ = 0.25", 28, _renyi("25")),
    "renyi-theta15": Figure("appendix: the same, θ = 0.15", 28, _renyi("15")),
    "renyi-theta35": Figure("appendix: the same, θ = 0.35", 28, _renyi("35")),
    "tradeoff-theta25": Figure("Fig. 3, right: D_α of three RQMs and PBM, θ = 0.25", 4, _tradeoff("25")),
    "tradeoff-theta15": Figure("appendix: the same, θ = 0.15", 4, _tradeoff("15")),
    "tradeoff-theta35": Figure("appendix: the same, θ = 0.35", 4, _tradeoff("35")),
}
