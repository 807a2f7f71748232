"""A round's sum by the true protocol, all parties in this process."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rqm.channel import Channel
from rqm.plan.plan import Plan

COMPLETE = 64
"""Up to so many clients everybody is everybody's neighbour."""


def protocol(plan: Plan, count: int, round_: bytes, degree: int = 0, threshold: int = 0) -> Any:
    """The parameters of a round, unsigned; a degree or threshold that is not given is chosen.

    Up to 64 clients: everybody is a neighbour, and the threshold is what the plan's survivors reach, else two thirds.
    Beyond: neighbours for 5 % corrupt clients and twice the losses that the plan expects.
    """
    from rqm.secagg import Params, security  # noqa: PLC0415 (a bare GPU machine has no ciphers)

    assert isinstance(plan.mechanism, Channel)  # as the plan has checked
    clients, least = plan.clients, plan.survivors
    # What is accounted for is a sum of so many; without losses in the plan, of all: no sum of fewer is to be revealed.
    minimum = max(2, least) if least else 0 if plan.lost else clients
    if not degree and clients > COMPLETE:
        degree, threshold = security(clients, corrupt=0.05, dropout=min(0.4, 2 * plan.lost + 0.02))
    degree = degree or clients - 1
    threshold = threshold or max(degree // 2 + 1, min(degree, (least or 2 * degree // 3 + 2) - 1))
    return Params(
        clients=clients, count=count, levels=plan.mechanism.levels, round=round_, degree=degree, threshold=threshold,
        minimum=minimum, bits=plan.mechanism.sum_bits(clients), modular=plan.mechanism.modular,
    )  # fmt: skip


def secure_sum(
    plan: Plan, count: int, values: Callable[[int], Any], lost: list[int], rng: np.random.Generator
) -> tuple[Any, int] | None:
    """The sum of the clients' levels and the bytes that clients sent; None if too few were left.

    The clients in ``lost`` fall silent before they send their masked vector, at one of the first three stages.
    """
    from rqm.secagg import Aborted  # noqa: PLC0415
    from rqm.secagg.local import STAGES, aggregate  # noqa: PLC0415

    stages = rng.integers(0, 3, size=len(lost))
    try:
        total, survivors, cost = aggregate(
            protocol(plan, count, os.urandom(16)),
            values,
            {u: STAGES[stage] for u, stage in zip(lost, stages, strict=True)},
        )
    except Aborted:
        return None
    assert survivors == [u for u in range(plan.clients) if u not in set(lost)]
    return total, cost.bytes_up
