"""All mechanisms by name: those of this library, those that a program registers, and those that packages bring.

A package brings one by an entry point of the group ``rqm.mechanisms``, which every process that uses ``rqm`` finds: the
command line, a worker, a node of Flower.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from inspect import isabstract
from types import MappingProxyType
from typing import Any, TypeVar

from rqm._util.checks import known_keys, one_of, shown
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.banded import BandedGaussian
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.qsgd import QSGD
from rqm.mechanisms.response import RandomizedResponse
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.table import Table
from rqm.mechanisms.vqsgd import VQSGD

GROUP = "rqm.mechanisms"

Made = TypeVar("Made", bound=type[Mechanism])

_known: dict[str, type[Mechanism]] = {}


def register(made: Made) -> Made:
    """Make a mechanism known by its name; may be used as a decorator."""
    name = getattr(made, "kind", None)
    if not (isinstance(made, type) and issubclass(made, Mechanism)) or isabstract(made) or not isinstance(name, str):
        raise TypeError(f"{made!r}: must be a subclass of rqm.Mechanism with all that one must define, and a kind")
    params = getattr(made, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise TypeError(f"{made.__name__}: must be a frozen dataclass")
    if _known.setdefault(name, made) is not made:
        raise ValueError(f"kind = {name!r}: is taken by {_known[name].__name__}")
    return made


BUILT_IN = (
    RQM,
    PBM,
    Rounding,
    RandomizedResponse,
    DiscreteGaussian,
    Skellam,
    Binomial,
    Table,
    VQSGD,
    Noiseless,
    QSGD,
    Gaussian,
    BandedGaussian,
)
for _one in BUILT_IN:
    register(_one)


def kinds() -> MappingProxyType[str, type[Mechanism]]:
    """Every mechanism by its name."""
    _load()
    return MappingProxyType(_known)


@cache
def _load() -> None:
    for entry in entry_points(group=GROUP):
        try:
            register(entry.load())
        except Exception as error:
            raise ImportError(f"the mechanism {entry.name} ({entry.value}) cannot be loaded: {error}") from error


def model_mechanism(kind: str, clip: float, options: Mapping[str, Any]) -> Mechanism:
    """A mechanism for a whole model, before its noise is adjusted; an option that it does not have is refused."""
    one_of("mechanism", kind, sorted(kinds()))
    made = kinds()[kind]
    known_keys(options, sorted(made.options()), f"{kind}: ")
    own = {**made.for_models, **options}
    has_clip = any(one.name == "clip" for one in fields(made))  # type: ignore[arg-type]
    return made.from_dict({"clip": clip, **own} if has_clip else own)


def mechanism_from_dict(values: dict[str, Any]) -> Mechanism:
    """Build whichever mechanism ``to_dict`` described.

    >>> mechanism_from_dict({"mechanism": "pbm", "theta": 0.15})
    PBM(clip=1.0, theta=0.15, levels=16)
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"mechanism = {shown(values)}: must be a table of its name and its parameters")
    kind: Any = values.get("mechanism")
    one_of("mechanism", kind, sorted(kinds()))
    return kinds()[kind].from_dict(values)
