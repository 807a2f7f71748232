"""The parameters of a round's secure aggregation, as a plan decides them: for simulation, servers and clients."""

from typing import TYPE_CHECKING

from rqm.plan.plan import Plan

if TYPE_CHECKING:
    from rqm.secagg import Params

COMPLETE = 64
"""Up to so many clients everybody is everybody's neighbour."""


def protocol(plan: Plan, count: int, round_: bytes, degree: int = 0, threshold: int = 0) -> "Params":
    """The parameters of a round, unsigned; a degree or threshold that is not given is chosen.

    Up to 64 clients: everybody is a neighbour, and the threshold is what the plan's survivors reach, else two thirds.
    Beyond: neighbours for 5 % corrupt clients and twice the losses that the plan expects.
    """
    from rqm.secagg import Params, security  # noqa: PLC0415 (a bare GPU machine has no ciphers)

    mech = plan.mechanism.channel
    clients, least = plan.clients, plan.survivors
    # What is accounted for is a sum of so many; without losses in the plan, of all: no sum of fewer is to be revealed.
    minimum = max(2, least) if least else 0 if plan.lost else clients
    if not degree and clients > COMPLETE:
        degree, threshold = security(clients, corrupt=0.05, dropout=min(0.4, 2 * plan.lost + 0.02))
    degree = degree or clients - 1
    threshold = threshold or max(degree // 2 + 1, min(degree, (least or 2 * degree // 3 + 2) - 1))
    return Params(
        clients=clients,
        count=count,
        levels=mech.levels,
        round=round_,
        degree=degree,
        threshold=threshold,
        minimum=minimum,
        bits=mech.sum_bits(clients),
        modular=mech.modular,
    )
