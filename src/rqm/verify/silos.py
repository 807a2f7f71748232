"""The records of silos: what one record that moves a silo's vector tells, in rounds for which it was drawn in secret.

``docs/verify.md`` has the proof.
"""

from collections import Counter
from math import log, sqrt
from typing import Any

import numpy as np

from .cancel import NARROWEST, WIDEST
from .chain import shown
from .gaussian import SLACK, best_tests, epsilon_of
from .laws import Array, Unsure, noise
from .losses import Losses
from .ordered import Order
from .ordered import epsilon as in_order
from .promise import real, whole

NOISE = ("discrete-gaussian", "skellam", "binomial")
KEYS = {"record_clip", "record_rate"}
"""What a mean holds besides, where the unit is a record."""
LARGE = 60_000
"""Honest silos times the steps of their noise, ten deviations wide, beyond which sums take too long."""
FARTHEST, LOST = 9.5, 1e-14
"""Deviations beyond which a Gaussian's outcome counts as lost; more than its chance, and than rounding errors."""
LOUDEST = 15
"""μ of a round in which hardly anything is hidden: beyond it there are too many losses to add up."""
SHARE = 1e-3
"""The part of δ that pays for sums of losses far out."""


def of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan's table of records says of a mean."""
    table = plan.get("records")
    if table is None:
        return {}
    if not isinstance(table, dict) or not {"clip", "batch"} <= set(table):
        raise Unsure(f"records = {shown(table)}: is not what a plan says of records")
    return {
        "unit": "record",
        "record_clip": table["clip"],
        "record_rate": table.get("rate"),
        "separation": table.get("batches"),
        "neighbours": table.get("neighbours"),
    }


def epsilon(mean: dict[str, Any], mech: dict[str, Any], spent: Counter[int]) -> tuple[float, int, int]:
    """ε of all that was charged, the releases that a record can be in, and the honest silos that it counts on."""
    if mean.get("neighbours") not in ("add-remove", "replace") or mean.get("coordinates"):
        raise Unsure(f"neighbours = {shown(mean.get('neighbours'))}: this verifier has no bound for such records")
    if mech["mechanism"] not in NOISE or mean["observer"] != "server" or mean["l2_clip"] is None:
        raise Unsure(f"mechanism = {shown(mech['mechanism'])}: this verifier has no bound for it and records")
    real(mean, "record_clip", 1e300)
    real(mean, "delta", 1)
    if mean["delta"] == 1:
        raise Unsure("delta = 1: must be below 1, for it promises nothing")
    clients = whole(mean, "clients", 2**31)
    honest = clients if mean["honest"] is None else whole(mean, "honest", clients)
    gone = 0 if mean["survivors"] is None else clients - whole(mean, "survivors", clients)
    if mean.get("cancel") is not None:
        return _in_order(mean, mech, spent, max(1, honest - 2 * gone))  # who is away is missing in two rounds' noise
    honest = max(1, honest - gone)
    if max(spent.values(), default=0) > 1 and mean.get("record_rate") is not None:
        raise Unsure("rounds were done again: this verifier has no bound for them and records that are drawn")
    count = sum(times for _, times in spent.most_common(_most(mean, spent)))
    mu = _mu(mech, honest, (2 if mean["neighbours"] == "replace" else 1) * mean["record_clip"])
    if not count:
        return 0.0, 0, honest
    if mean.get("record_rate") is None or mean["record_rate"] == 1:
        return epsilon_of(mu * sqrt(count), mean["delta"])[0], count, honest
    real(mean, "record_rate", 1)
    if mean["neighbours"] != "add-remove" or mean.get("separation") or mean["participations"]:
        raise Unsure("record_rate: this verifier knows it for records that are added or removed, in any round, alone")
    return _drawn(mu, mean["record_rate"], count, mean["delta"]), count, honest


def _in_order(mean: dict[str, Any], mech: dict[str, Any], spent: Counter[int], honest: int) -> tuple[float, int, int]:
    """The same where silos take a part of their noise back in their next message; or as if that part were known."""
    real(mean, "cancel", WIDEST)
    if mean["cancel"] < NARROWEST:
        raise Unsure(f"cancel = {shown(mean['cancel'])}: must be at least {NARROWEST}")
    if mean.get("record_rate") is not None or whole(mean, "separation", 2**62, none=True) is None:
        raise Unsure("cancel: must come with a separation, of records that are not drawn")
    count = sum(times for _, times in spent.most_common(_most(mean, spent)))
    moved = (2 if mean["neighbours"] == "replace" else 1) * mean["record_clip"]
    coordinates = whole(mean, "dim", 2**40)
    coordinates = 1 << (coordinates - 1).bit_length() if mean["rotate"] else coordinates
    if not count:
        return 0.0, 0, honest
    order = Order(float(mean["cancel"]), int(mean["separation"]), coordinates, moved)
    stays = epsilon_of(_mu(mech, honest, moved) * sqrt(count), mean["delta"])[0]
    return min(stays, in_order(mech, order, honest, count, mean["delta"])), count, honest


def _most(mean: dict[str, Any], spent: Counter[int]) -> int | None:
    """The most rounds of those charged that a record was in."""
    most = whole(mean, "participations", 2**62, none=True)
    if mean.get("separation") is None:
        return None if most is None else int(most)
    if spent and max(spent) - min(spent) >= len(spent):
        raise Unsure(f"separation = {mean['separation']}: rounds are missing, so records may have come back too early")
    apart = -(-len(spent) // whole(mean, "separation", 2**62))
    return int(apart if most is None else min(apart, most))


def _mu(mech: dict[str, Any], honest: int, moved: float) -> float:
    """μ of a release if a record moves a silo's vector so far: by the steepest slope within a step, all the way."""
    if honest * 20 * mech["scale"] * mech["steps"] / 2 > LARGE:
        raise Unsure(f"{honest} honest silos, steps = {mech['steps']}: takes this verifier too long")
    law = noise(mech, honest)
    best = best_tests(law, np.roll(law, 1), 0.0, 0.0)
    if best is None:
        raise Unsure("the noise has outcomes that never come")
    slope = 2 * float(best.slopes[[0, 2]].max())  # over two of its units
    return float(slope * moved / mech["clip"] * mech["steps"] / 2 * SLACK)


def _drawn(mu: float, rate: float, count: int, delta: float) -> float:
    """ε of rounds in each of which the record is with that chance: added, or removed, whichever is worse."""
    if not mu < LOUDEST:
        raise Unsure(f"μ = {mu:.4g} of a round: this verifier adds up losses below {LOUDEST}")
    gap = min(1e-3, max(2e-5, 0.04 / count))
    with np.errstate(all="ignore"):
        return max(_losses(mu, rate, gap, way).times(count, SHARE * delta).epsilon(delta) for way in (1, -1))


def _losses(mu: float, rate: float, gap: float, way: int) -> Losses:
    """log P/Q under P, rounded up: P mixes N(0, 1) and N(μ, 1), Q is the former (1); or the other way round (−1)."""
    from scipy.special import ndtr  # noqa: PLC0415 (takes a while)

    def chance(x: Array) -> Array:
        """That an outcome is below, under P."""
        return np.asarray(ndtr(x) if way < 0 else (1 - rate) * ndtr(x) + rate * ndtr(x - mu))

    high = log(1 - rate + rate * np.exp(mu * (mu + FARTHEST) - mu * mu / 2))
    low = log(1 - rate)
    bottom, top = (low, high) if way > 0 else (-high, -low)
    start, stop = int(np.floor(bottom / gap)), int(np.ceil(top / gap))
    ends = gap * np.arange(start, stop + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = (np.exp(way * ends) - 1 + rate) / rate
        x = np.where(inside > 0, (np.log(np.maximum(inside, 1e-300)) + mu * mu / 2) / mu, -np.inf)
    below = chance(x) if way > 0 else 1 - chance(x)  # the chance of a loss of at most so much
    law = np.maximum(np.diff(np.concatenate([[0.0], below])), 0)
    return Losses(law * (1 + 1e-12), start, gap, LOST)
