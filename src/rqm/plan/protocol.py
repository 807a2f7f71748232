"""The parameters of a round's secure aggregation, as a plan decides them: for simulation, servers and clients."""

from typing import TYPE_CHECKING

from rqm.plan.plan import Plan

if TYPE_CHECKING:
    from rqm.secagg import Params

COMPLETE = 128
"""Up to so many clients everybody is everybody's neighbour, which leaves nothing to chance."""


def corrupt(plan: Plan) -> int:
    """How many of a round's clients may work for the server: all but those whom the guarantee counts as honest."""
    honest = plan.honest
    if isinstance(honest, float):
        setting = plan.any_mean.setting
        honest = setting.floor().honest + (0 if setting.survivors is None else plan.clients - setting.survivors)
    return 0 if honest is None else plan.clients - honest


def protocol(
    plan: Plan, dim: int, round_: bytes, threshold: int = 0, roster: bytes = b"", *, second: int = 0
) -> "Params":
    """The parameters of a round for a model of ``dim`` parameters, signed by a roster if its hash is given.

    All in it encode by the same plan.

    Everybody is a neighbour, and the threshold (if none is given) is as many as the plan's survivors leave, else two
    thirds. Twice the threshold is more than all neighbours and the ``corrupt`` ones once more, or a server could unmask
    somebody with them; plans with too few survivors for that are refused. Of more than 128 clients each draws
    neighbours, as many as ``security`` asks for. Besides, ``second`` clients of the round before take back what they
    added to its sum.
    """
    from rqm.secagg import Params, security  # noqa: PLC0415 (a bare GPU machine has no ciphers)

    mean = plan.private_mean(dim)
    clients, least, bad = plan.clients, plan.survivors, corrupt(plan)
    if second:
        # either message must come from ``least``: so of both together no more may be missing than of the fewer
        least = least and clients + second - max(0, min(clients, second) - least)
        clients, bad = clients + second, 2 * bad
    # What is accounted for is a sum of so many; without losses in the plan, of all: no sum of fewer is to be revealed.
    minimum = max(2, least) if least else 0 if plan.lost else clients
    degree = clients - 1
    fewest = (degree + bad) // 2 + 1
    left = (least or clients) - 1  # neighbours of a client at the end
    if bad and (fewest > left or 0 < threshold < fewest):
        raise ValueError(
            f"survivors = {left + 1}, threshold = {threshold or left}: must be at least {fewest + 1} and {fewest} for "
            f"{clients} clients of whom {bad} may work with the server, or it could unmask somebody with them"
        )
    if clients > COMPLETE and not threshold and fewest <= left:
        stay = minimum or clients - int(min(0.4, 2 * plan.lost + 0.02) * clients)
        degree, threshold, minimum = security(clients, stay, bad)
    threshold = threshold or max(fewest, min(degree, left if least else 2 * degree // 3 + 1))
    return Params(
        clients=clients,
        count=mean.coordinates,
        levels=plan.mechanism.channel.levels if mean.cancel is None else mean.modulus,
        round=round_,
        degree=degree,
        threshold=threshold,
        minimum=minimum,
        bits=mean.modulus.bit_length() - 1,
        modular=plan.mechanism.channel.modular or mean.cancel is not None,
        roster=roster,
        about=bytes.fromhex(mean.kind),
    )
