"""Rényi divergences of one coordinate in one round, for plans without an L2 clip, which have no other guarantee."""

from collections.abc import Sequence

from rqm.config.plan import Plan
from rqm.core.base import MAX_CLIENTS_WITH_INTERIOR_LEVELS


def has_coordinate_divergences(plan: Plan) -> bool:
    """Whether the divergences of a coordinate are of interest for this plan, and take seconds."""
    is_small = plan.participation.clients <= MAX_CLIENTS_WITH_INTERIOR_LEVELS
    return plan.mechanism.has_integer_messages and plan.transforms.l2_clip is None and is_small


def leak(plan: Plan, orders: Sequence[float] = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)) -> dict[str, list[float]] | None:
    """Rényi divergences of one coordinate in one round, as it is deployed.

    Args:
        plan: The plan.
        orders: Rényi orders.

    Returns:
        The orders with attained and certified values, and what the paper plots (other clients balanced at ±c);
        None if they are not of interest or not known.
    """
    if not has_coordinate_divergences(plan):
        return None
    from rqm.certify.renyi import renyi  # noqa: PLC0415 (takes the compiler)

    mechanism = plan.mechanism.discrete
    clients = plan.participation.clients
    try:
        worst = renyi(mechanism, orders, clients, distribution="sampled")
        paper = renyi(mechanism, orders, clients, "balanced")
    except ValueError:  # probabilities too small to be summed
        return None
    return {
        "orders": list(orders),
        "attained": [bound.lower for bound in worst],
        "certified": [bound.upper for bound in worst],
        "paper": [bound.lower for bound in paper],
    }
