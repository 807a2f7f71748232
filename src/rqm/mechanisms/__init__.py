"""One file a mechanism: each a small frozen dataclass that builds its law."""

from dataclasses import fields as dataclass_fields
from typing import Any

from rqm._checks import known_keys
from rqm.channel import Channel
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.table import Table

KINDS: dict[str, type[Channel] | type[Noiseless] | type[Gaussian]] = {
    kind.kind: kind
    for kind in (
        RQM,
        PBM,
        Rounding,
        RandomizedResponse,
        DiscreteGaussian,
        Skellam,
        Binomial,
        Table,
        Noiseless,
        Gaussian,
    )
}


def mechanism_from_dict(fields: dict[str, Any]) -> Channel | Noiseless | Gaussian:
    """Build whichever mechanism ``to_dict`` described.

    >>> mechanism_from_dict({"mechanism": "pbm", "theta": 0.15})
    PBM(clip=1.0, theta=0.15, levels=16)
    """
    kind = fields.get("mechanism")
    if kind not in KINDS:
        raise ValueError(f"mechanism = {kind!r}: must be one of {', '.join(sorted(KINDS))}")
    made: Any = KINDS[kind]
    if kind == Table.kind and set(fields) == {"mechanism", "file"}:
        return Table.load(fields["file"])
    known_keys(fields, ["mechanism", *(f.name for f in dataclass_fields(made))], "mechanism.")
    return KINDS[kind].from_dict(fields)
