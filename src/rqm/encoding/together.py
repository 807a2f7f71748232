"""What goes together in a ``PrivateMean``, and the mechanism that it finds where none is given."""

from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rqm._util.checks import known_keys, padded, shown, whole
from rqm.encoding import records
from rqm.encoding.memory import check_cancel
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.registry import mechanism_from_dict

if TYPE_CHECKING:
    from rqm.encoding.private_mean import PrivateMean

FORMAT = 1


def sent(dim: int, rotate: bool, coordinates: int | None) -> int:
    """Integers that a client sends: as many as were asked for, or all of a vector, padded if it is rotated."""
    most = padded(dim) if rotate else dim
    return most if coordinates is None else whole("coordinates", coordinates, 1, most)


def read(values: Mapping[str, Any], names: list[str], later: Collection[str]) -> dict[str, Any]:
    """What a private mean's ``to_dict`` has written: all of the names, but for those that came later."""
    if not isinstance(values, Mapping):
        raise TypeError(f"private_mean = {shown(values)}: must be a table of names and values")
    values = dict(values)
    if values.pop("private_mean", None) != FORMAT:
        raise ValueError(f"private_mean: must be {FORMAT}, the format that this version reads")
    known_keys(values, names)
    missing = [name for name in names if name not in values and name not in later]
    if missing:
        raise ValueError(f"{missing[0]}: missing; a private mean is written with all of {', '.join(names)}")
    return {**values, "mechanism": mechanism_from_dict(values["mechanism"])}


def check(mean: "PrivateMean", mech: Mechanism) -> None:
    """Refuse a mechanism that does not go with the rest."""
    records.check(mean, mech)
    if mean.cancel is not None:
        check_cancel(mean.cancel, mech, mean.setting)
    if mean.few:
        _check_few(mean, mech)
    if mech.integers and mean.modulus > 2**31:
        raise ValueError(
            f"clients = {mean.clients}: a sum over so many of {mech.channel.levels} levels does not fit 31 bits"
        )
    if mech.whole is not None and (mean.few or mean.cancel is not None):
        raise ValueError(f"mechanism = {mech.kind!r}: must come without cancel, and with all coordinates")
    if mech.hides_alone and mech.integers and mean.honest != 1:
        raise ValueError(f"honest = {mean.honest}: must be 1, since a client's message is accounted for by itself")
    if mech.needs_l2_clip and mean.l2_clip is None:
        raise ValueError(f"l2_clip = None: must be given for the mechanism {mech.kind}, whose noise it scales")
    if mech.correlation is not None and mean.setting.cap != 1 and mech.correlation.bands > (mean.separation or 1):
        raise ValueError(
            f"mechanism.bands = {mech.correlation.bands}: must be at most {mean.separation or 1}, the separation "
            "of a user's participations, unless each user takes part once (participations = 1)"
        )


def _check_few(mean: "PrivateMean", mech: Mechanism | None) -> None:
    """Refuse a choice of coordinates where they are not alike, or must stay the same."""
    if mean.l2_clip is None or not mean.rotate:
        raise ValueError(
            f"coordinates = {mean.coordinates}: must come with an L2 clip and a rotation, after which all are alike"
        )
    if mean.cancel is not None or (mech is not None and mech.correlation is not None):
        raise ValueError(
            f"coordinates = {mean.coordinates}: must not be given where noise is taken back in later rounds, for which "
            "others are chosen"
        )


def find(mean: "PrivateMean", epsilon: float | None) -> dict[str, Any]:
    """The mechanism for ε, and the transient noise that goes with it."""
    from rqm.privacy.calibrate import best_cancelled, best_few, best_fit  # noqa: PLC0415 (compiler)
    from rqm.privacy.silos import best_in_order, best_of_records  # noqa: PLC0415

    if epsilon is None:
        raise ValueError("epsilon = None: must be given, or else a mechanism")
    records.check(mean, None)
    if mean.few:
        _check_few(mean, None)
    if mean.l2_clip is None or not mean.rotate:
        raise ValueError("mechanism = None: must be given where vectors are not clipped in L2 and rotated")
    if mean.cancel is not None and mean.cancel is not True:
        raise ValueError(f"cancel = {shown(mean.cancel)}: must be True where no mechanism is given")
    fit: Any = best_cancelled if mean.cancel is not None else best_few if mean.few else best_fit
    if mean.record_clip is not None:
        fit = partial(best_of_records if mean.cancel is None else best_in_order, record_clip=mean.record_clip)
    try:
        mech, cancel = fit(epsilon, mean.setting, dim=mean.coordinates, l2_clip=mean.bound)
    except ValueError as error:
        raise ValueError(f"epsilon = {epsilon:g}: no mechanism reaches it here ({error})") from None
    return {"mechanism": mech, "cancel": cancel}
