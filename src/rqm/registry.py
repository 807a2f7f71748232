"""All mechanisms by name: those of this package, those that a program registers, and those of other packages.

Another package adds a mechanism by an entry point of the group `rqm.mechanisms`. Every process that uses `rqm`
loads it: the command line, workers and nodes of Flower.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from types import MappingProxyType
from typing import Any, TypeVar

from rqm._util.checks import known_keys, one_of, shown
from rqm.mechanisms.base import Mechanism

MechanismClass = TypeVar("MechanismClass", bound=type[Mechanism])

_registered: dict[str, type[Mechanism]] = {}


def register(made: MechanismClass) -> MechanismClass:
    """Register a mechanism under its name (`kind`); may be used as a decorator.

    Args:
        made: A frozen dataclass that implements `Mechanism`.

    Returns:
        The class.

    Raises:
        TypeError: If it is no such class.
        ValueError: If another mechanism has the name.
    """
    name = getattr(made, "kind", None)
    if not (isinstance(made, type) and issubclass(made, Mechanism)) or isabstract(made) or not isinstance(name, str):
        raise TypeError(f"{made!r}: must be a subclass of rqm.Mechanism with all abstract methods and a kind")
    params = getattr(made, "__dataclass_params__", None)
    if params is None or not params.frozen:
        raise TypeError(f"{made.__name__}: must be a frozen dataclass")
    if _registered.setdefault(name, made) is not made:
        raise ValueError(f"kind = {name!r}: is taken by {_registered[name].__name__}")
    return made


BUILT_IN: tuple[type[Mechanism], ...] = tuple(
    EntryPoint("", f"rqm.{module}:{name}", "rqm.mechanisms").load()
    for module, name in (
        ("mechanisms.rqm", "RQM"),
        ("mechanisms.pbm", "PBM"),
        ("mechanisms.stochastic_rounding", "StochasticRounding"),
        ("related.randomized_response", "RandomizedResponse"),
        ("mechanisms.additive", "DiscreteGaussian"),
        ("mechanisms.additive", "Skellam"),
        ("mechanisms.additive", "Binomial"),
        ("mechanisms.table", "Table"),
        ("related.vqsgd", "VQSGD"),
        ("mechanisms.noiseless", "Noiseless"),
        ("related.qsgd", "QSGD"),
        ("mechanisms.gaussian", "Gaussian"),
        ("mechanisms.banded", "BandedGaussian"),
    )
)
for _mechanism in BUILT_IN:
    register(_mechanism)


def kinds() -> MappingProxyType[str, type[Mechanism]]:
    """Every mechanism by its name."""
    _load_entry_points()
    return MappingProxyType(_registered)


@cache
def _load_entry_points() -> None:
    for entry in entry_points(group="rqm.mechanisms"):
        try:
            register(entry.load())
        except Exception as error:
            raise ImportError(f"the mechanism {entry.name} ({entry.value}) cannot be loaded: {error}") from error


def model_mechanism(kind: str, clip: float, options: Mapping[str, Any]) -> Mechanism:
    """A mechanism for a whole model, before its noise is calibrated.

    Args:
        kind: Its name.
        clip: The clip of a coordinate, if it has one.
        options: Other parameters.

    Returns:
        The mechanism.

    Raises:
        ValueError: If there is no such mechanism, or it has no such option.
    """
    one_of("mechanism", kind, sorted(kinds()))
    made = kinds()[kind]
    known_keys(options, sorted(made.options()), f"{kind}: ")
    values = {**made.for_models, **options}
    has_clip = any(entry.name == "clip" for entry in fields(made))  # type: ignore[arg-type]
    return made.from_dict({"clip": clip, **values} if has_clip else values)


def mechanism_from_dict(values: dict[str, Any]) -> Mechanism:
    """The mechanism that `to_dict` described, of any kind.

    >>> mechanism_from_dict({"mechanism": "pbm", "theta": 0.15})
    PBM(clip=1.0, theta=0.15, levels=16)
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"mechanism = {shown(values)}: must be a table of its name and its parameters")
    kind: Any = values.get("mechanism")
    one_of("mechanism", kind, sorted(kinds()))
    return kinds()[kind].from_dict(values)
