"""Plans from values that all stand at the top level, as they do in a file."""

from dataclasses import asdict, fields, is_dataclass, replace

from rqm import Participation, ThreatModel
from rqm.config.plan import Plan


def make_plan(**values):
    """The plan with these values; those of its participation and threat model by their names."""
    return Plan.from_dict({name: _plain(value) for name, value in values.items()})


def change_plan(plan, **changes):
    """The plan with some values changed; those of its participation and threat model by their names."""
    for name, kind in (("participation", Participation), ("threat_model", ThreatModel)):
        inside = {one.name: changes.pop(one.name) for one in fields(kind) if one.name in changes}
        if inside:
            changes[name] = replace(getattr(plan, name), **inside)
    return replace(plan, **changes)


def _plain(value):
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return asdict(value) if is_dataclass(value) else value
