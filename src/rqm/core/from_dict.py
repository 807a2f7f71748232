"""Read what `to_dict` of a `PrivateMean` or a `PrivateRecordMean` described."""

from collections.abc import Mapping
from typing import Any

from rqm._util.checks import known_keys, shown
from rqm.accounting.participation import Participation, ThreatModel
from rqm.core.base import FORMAT_VERSION, PLAIN_FIELDS, BaseMean
from rqm.core.private_mean import PrivateMean
from rqm.core.record_mean import PrivateRecordMean
from rqm.correlated.scheme import NoiseScheme
from rqm.registry import mechanism_from_dict


def mean_from_dict(values: Mapping[str, Any]) -> BaseMean:
    """Build the private mean that `to_dict` described.

    Args:
        values: All values.

    Returns:
        A `PrivateMean`, or a `PrivateRecordMean` where the unit is a record.

    Raises:
        TypeError: If the values are no table.
        ValueError: If a value is missing, unknown or not allowed, or the format is another.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"private_mean = {shown(values)}: must be a table of names and values")
    values = dict(values)
    if (version := values.pop("private_mean", None)) != FORMAT_VERSION:
        raise ValueError(
            f"private_mean = {shown(version)}: must be {FORMAT_VERSION}, the format of this version of rqm; describe "
            "the mean again with to_dict()"
        )
    names = [*PLAIN_FIELDS, "coordinates", "noise", "mechanism"]
    tables = {table: list(table.__dataclass_fields__) for table in (Participation, ThreatModel)}
    all_names = [*names, *tables[Participation], *tables[ThreatModel]]
    known_keys(values, all_names, needed=all_names)
    arguments = {name: values[name] for name in names}
    arguments["mechanism"] = mechanism_from_dict(values["mechanism"])
    arguments["noise"] = None if values["noise"] is None else NoiseScheme.of(values["noise"])
    for name, table in (("participation", Participation), ("threat_model", ThreatModel)):
        arguments[name] = table(**{key: values[key] for key in tables[table]})
    classes: dict[str, type[BaseMean]] = {made.unit: made for made in (PrivateMean, PrivateRecordMean)}
    return classes[arguments["threat_model"].unit].from_arguments(arguments)
