"""Records of a silo: what it sends is the sum of their vectors, each clipped, and no record moves
that sum by more.

Nothing else leaves the silo: no number of records, no mean over them. The sum is scaled down to a
public bound, which brings no two of them further apart, so all that the guarantee rests on is the
clip of every record (``docs/proofs/participation.md#lemma-8``). Sums are of float64, in which
what they lose is far below a record's clip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rqm._util.checks import floats, shown
from rqm.encoding.transforms import FLOAT_ROOM, prepare, tensors

if TYPE_CHECKING:
    from rqm.encoding.private_mean import PrivateMean

GROUP = 128
"""Records that are added up together, and then these sums: so float64 loses less than ``FLOAT_ROOM``
of a record …"""
LARGEST = 2**14
"""… and the public bound over a record's clip, for the same reason when it is scaled and rotated."""


@final
@dataclass(frozen=True, eq=False)
class Gathered:
    """The sum of so many records' vectors, each within the record's clip; it does not leave the silo
    as it is."""

    total: Any
    records: int


def record_length(mean: "PrivateMean") -> float:
    """What a record's vector is scaled to: a little less than C, since sums are rounded to the
    encoder's positions."""
    assert mean.record_clip is not None
    length = (1 - FLOAT_ROOM) * mean.record_clip
    if mean.mechanism.has_integer_messages:
        channel, recipe = mean.mechanism.discrete, mean.mechanism.discrete.sampler
        room = mean.record_clip / channel.clip * (recipe.high - recipe.low) / 2 - sqrt(mean.coordinates)
        length = min(length, (1 - FLOAT_ROOM) * room / recipe.scale)
    if not length > mean.record_clip / 2:
        raise ValueError(
            f"record_clip = {mean.record_clip:g}: is no more than some of the encoder's positions: must be larger, or "
            "the mechanism's clip smaller"
        )
    return length


def gather(mean: "PrivateMean", rows: Any, before: Gathered | None = None) -> Gathered:
    """Clip so many records' vectors, a row each, and add them to those ``before``.

    A record whose vector is not finite counts as zero.
    """
    if mean.record_clip is None:
        raise ValueError("unit = 'user': records are gathered where the unit is a record")
    other = tensors(rows)
    rows = floats("rows", rows).astype(np.float64) if other is None else other.copied(rows).double()
    if tuple(rows.shape) == (0,):  # no record was drawn
        rows = rows.reshape(0, mean.dim)
    if rows.ndim != 2 or rows.shape[1] != mean.dim:
        raise ValueError(f"rows have shape {tuple(rows.shape)}: must be (records, {mean.dim})")
    clipped, _ = prepare(rows, record_length(mean), None)
    for start in range(0, len(rows), GROUP):  # in groups, and so nearly exact
        some = clipped[start : start + GROUP]
        before = joined(some.sum(axis=0) if other is None else other.total(some), len(some), before)
    if before is None:
        return Gathered(clipped.sum(axis=0) if other is None else other.total(clipped), 0)
    return before


def joined(total: Any, records: int, before: Gathered | None) -> Gathered:
    """A sum of so many records' clipped vectors, in float64, and those ``before``."""
    count = records + (0 if before is None else before.records)
    return Gathered(total if before is None else before.total + total, count)


def stacked(rows: Sequence[Gathered]) -> Any:
    """The sums of some silos, a row each."""
    if not all(isinstance(one, Gathered) for one in rows):
        raise TypeError("rows: must be what PrivateMean.gather returned, one for each silo, where the unit is a record")
    totals = [one.total for one in rows]
    other = tensors(totals[0])
    return np.stack(totals) if other is None else other.rows(totals)


def check_records(mean: "PrivateMean") -> None:
    """Refuse what does not go with records, or what no bound is known for.

    Args:
        mean: The private mean.

    Raises:
        ValueError: If no bound is known.
    """
    mechanism, threat = mean.mechanism, mean.threat_model
    if threat.unit == "user":
        for name in ("record_clip", "sampling_rate"):
            if getattr(mean, name) is not None:
                raise ValueError(f"{name} = {shown(getattr(mean, name))}: must come with unit = 'record'")
        return
    if mean.record_clip is None or mean.l2_clip is None:
        name = "record_clip" if mean.record_clip is None else "l2_clip"
        raise ValueError(
            f"{name} = None: must be given for records: their own clip, and a public bound on a silo's sum"
        )
    if not mean.record_clip <= mean.l2_clip <= LARGEST * mean.record_clip:
        raise ValueError(
            f"l2_clip = {mean.l2_clip:g}: must be from 1 to {LARGEST} times a record's clip ({mean.record_clip:g})"
        )
    if mean.is_subset:
        raise ValueError(f"coordinates = {mean.coordinates}: no bound is known for records; leave it out")
    _check_rounds(mean)
    if (
        mechanism.correlation is not None
        or mechanism.vector_mechanism is not None
        or (mechanism.has_integer_messages and not mechanism.discrete.uses_l2_norm)
    ):
        raise ValueError(
            f"mechanism = {mechanism.kind!r}: no bound is known for records; must be integer noise (discrete-gaussian, "
            "skellam, binomial), levels outside the clip, or gaussian"
        )


def _check_rounds(mean: "PrivateMean") -> None:
    """Refuse Poisson sampling and correlated noise where no bound is known for records."""
    mechanism = mean.mechanism
    if mean.noise is not None:
        if mean.sampling_rate is not None:
            raise ValueError(
                "sampling_rate: must not be given with correlated noise, which needs a fixed order of records"
            )
        if mean.participation.window == 1:
            raise ValueError(
                "min_separation = 1: must be larger with correlated noise: a record returns after so many rounds"
            )
        if mechanism.has_integer_messages and mechanism.discrete.additive is None:
            raise ValueError(
                f"mechanism = {mechanism.kind!r}: must be integer noise of the silo's own (discrete-gaussian) with "
                "correlated noise"
            )
    who = mean.participation
    if mean.sampling_rate is not None:
        if mean.threat_model.neighboring != "add-or-remove-one":
            raise ValueError(
                "neighboring = 'replace-one': must be 'add-or-remove-one' with Poisson sampling (sampling_rate), "
                "whose bound holds for that"
            )
        if who.limit < who.rounds:
            raise ValueError(
                "sampling_rate: must be given without max_participations and min_separation: each round samples anew"
            )
