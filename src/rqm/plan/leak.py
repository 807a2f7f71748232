"""What one coordinate of one round leaks: for plans without an L2 budget, of which nothing more can be said."""

from typing import Any

from rqm.encoding.private_mean import QUICK_CLIENTS
from rqm.plan.plan import Plan

ORDERS = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]


def has_leak(plan: Plan) -> bool:
    """Whether a coordinate's leak says something about this plan, and is quick to find."""
    is_small = plan.participation.clients <= QUICK_CLIENTS
    return plan.mechanism.integers and plan.transforms.l2_clip is None and is_small


def leak(plan: Plan, orders: list[float] = ORDERS) -> dict[str, list[float]] | None:
    """Rényi divergences at some orders: attained and certified, and what the paper plots (others balanced at ±c)."""
    if not has_leak(plan):
        return None
    from rqm.certify.renyi import renyi  # noqa: PLC0415

    mech = plan.mechanism.channel
    try:
        worst = renyi(mech, orders, plan.participation.clients, distribution="sampled")  # as deployed
        paper = renyi(mech, orders, plan.participation.clients, "balanced")
    except ValueError:  # a law that is too steep to be summed
        return None
    found: dict[str, Any] = {
        "orders": orders,
        "attained": [bound.lower for bound in worst],
        "certified": [bound.upper for bound in worst],
        "paper": [bound.lower for bound in paper],
    }
    return found
