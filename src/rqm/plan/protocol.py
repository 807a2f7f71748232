"""The parameters of a round's secure aggregation, as a plan decides them: for simulation, servers and clients."""

import struct
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, final

from rqm.accounting.participation import charge_counts
from rqm.plan.plan import Plan

if TYPE_CHECKING:
    from rqm.secagg import Params

COMPLETE = 128
"""Up to so many clients everybody is everybody's neighbour, which leaves nothing to chance."""


def corrupt(plan: Plan) -> int:
    """How many of a round's clients may work for the server: all but those whom the guarantee counts as honest."""
    who, threat = plan.participation, plan.threat_model
    if threat.honest_fraction is None:
        return 0 if threat.honest_clients is None else who.clients - threat.honest_clients
    from rqm.accounting.accountant import Question  # noqa: PLC0415 (takes the compiler)

    release = plan.any_mean.release
    question = Question(release, who, threat, plan.any_mean.delta or 0.0, charge_counts(who, None))
    return who.clients - question.honest - who.dropouts


@final
@dataclass(frozen=True)
class Link:
    """A round's place in a chain of rounds, each of which takes back the noise of the one before.

    ``chain`` names the chain, ``turn`` counts its rounds. The last ``second`` clients were in the sum that is named
    ``follows``; at the beginning of a chain there are none.
    """

    chain: bytes
    turn: int
    second: int = 0
    follows: bytes = b""

    def about(self, kind: str) -> bytes:
        """What a round of this kind at this place is about, as a hash: all of its clients agree on it."""
        return sha256(b"rqm link" + bytes.fromhex(kind) + struct.pack("<Q", self.turn) + self.chain).digest()

    def after(self, kind: str) -> bytes:
        """What the one round is about that may follow."""
        return replace(self, turn=self.turn + 1).about(kind)


def protocol(
    plan: Plan,
    dim: int,
    round_: bytes,
    threshold: int = 0,
    roster: bytes = b"",
    *,
    second: int = 0,
    link: Link | None = None,
) -> "Params":
    """The parameters of a round for a model of ``dim`` parameters, signed by a roster if its hash is given.

    All in it encode by the same plan.

    Everybody is a neighbour, and the threshold (if none is given) is as many as the plan's survivors leave, else two
    thirds. Twice the threshold is more than all neighbours and the ``corrupt`` ones once more, or a server could unmask
    somebody with them; plans with too few survivors for that are refused. Of more than 128 clients each draws
    neighbours, as many as ``security`` asks for. Besides, ``second`` clients of the round before take back what they
    added to its sum; of them, as of the others, no fewer than survivors may be in the sum. With a ``link`` clients
    also share what is behind their noise, and all are neighbours.
    """
    from rqm.secagg import Params, security  # noqa: PLC0415 (a bare GPU machine has no ciphers)

    mean = plan.private_mean(dim)
    second = second if link is None else link.second
    clients, least, bad = plan.participation.clients, plan.participation.min_survivors, corrupt(plan)
    of_each = (least or clients) if mean.has_second_message else 0
    holds = 0 if link is None else _holds(clients, of_each, bad)
    if second:
        least = least and 2 * least
        clients, bad = clients + second, 2 * bad
    # What is accounted for is a sum of so many; without losses in the plan, of all: no sum of fewer is to be revealed.
    minimum = max(2, least) if least else 0 if plan.lost else clients
    degree = clients - 1
    fewest = (degree + bad) // 2 + 1
    left = (least or clients) - 1  # neighbours of a client at the end
    _check_threshold(clients, bad, left, threshold)
    if clients > COMPLETE and not threshold and fewest <= left and link is None:
        stay = minimum or clients - int(min(0.4, 2 * plan.lost + 0.02) * clients)
        degree, threshold, minimum = security(clients, stay, bad)
        of_each += minimum - stay if of_each else 0
    threshold = threshold or max(fewest, min(degree, left if least else 2 * degree // 3 + 1))
    return Params(
        clients=clients,
        count=mean.coordinates,
        levels=plan.mechanism.channel.levels if mean.noise is None else mean.modulus,
        round=round_,
        degree=degree,
        threshold=threshold,
        minimum=minimum,
        bits=mean.modulus.bit_length() - 1,
        modular=plan.mechanism.channel.modular or mean.noise is not None,
        roster=roster,
        context=bytes.fromhex(mean.kind) if link is None else link.about(mean.kind),
        settling_clients=second,
        previous_sum=b"" if link is None else link.follows,
        min_per_kind=of_each,
        noise_threshold=holds,
    )


def _check_threshold(clients: int, bad: int, left: int, threshold: int) -> None:
    """Refuse a threshold, given or left by the survivors, that the corrupt ones could come round."""
    fewest = (clients - 1 + bad) // 2 + 1
    if bad and (fewest > left or 0 < threshold < fewest):
        raise ValueError(
            f"min_survivors = {left + 1}, threshold = {threshold or left}: must be at least {fewest + 1} and {fewest} "
            f"for {clients} clients of whom {bad} may work with the server, or it could unmask somebody with them"
        )


def _holds(clients: int, least: int, bad: int) -> int:
    """How many of a round's clients find the secret behind the noise of another who is gone in the next round.

    More than the corrupt ones; and if noise is to be taken back in two sums that follow one another, each with so many
    of those who added it, one of the honest would have to be in both.
    """
    if 2 * least <= clients + bad:
        raise ValueError(
            f"min_survivors = {least}: must be more than {(clients + bad) // 2} of {clients} clients, {bad} of whom "
            "may work with the server, where noise cancels, or it could have the same noise taken back in two sums"
        )
    return max(bad + 1, min(max(2, 2 * least // 3), clients - 1))
