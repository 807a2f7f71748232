"""Flower: private training with secure aggregation on its Message API, in simulation and in deployment."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rqm._util.imports import how_to_install

try:
    from rqm.flower.mod import mod_for, private_mod, seeded_mod
    from rqm.flower.settings import Settings
except ModuleNotFoundError as error:
    raise how_to_install(error) from None

if TYPE_CHECKING:
    from rqm.flower.accountant import DiscreteAccountant, DiscreteEvent
    from rqm.flower.silo import gathered
    from rqm.flower.strategy import PrivateStrategy

__all__ = [
    "DiscreteAccountant",
    "DiscreteEvent",
    "PrivateStrategy",
    "Settings",
    "gathered",
    "mod_for",
    "private_mod",
    "seeded_mod",
]

_LAZY = {
    "DiscreteAccountant": "rqm.flower.accountant",
    "DiscreteEvent": "rqm.flower.accountant",
    "PrivateStrategy": "rqm.flower.strategy",
    "gathered": "rqm.flower.silo",
}  # the server's, with torch: a client's process starts without


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rqm.flower' has no attribute {name!r}")
