"""Private training on Flower with secure aggregation, in simulation and in deployment.

Everything is imported when it is first used: a client's process starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rqm._util.imports import how_to_install

if TYPE_CHECKING:
    from rqm.flower.client_encoding import gathered
    from rqm.flower.client_mod import mod_for, private_mod, seeded_mod
    from rqm.flower.privacy_accountant import DiscreteAccountant, DiscreteEvent
    from rqm.flower.run_settings import Settings
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

_MODULES = {
    "DiscreteAccountant": "privacy_accountant",
    "DiscreteEvent": "privacy_accountant",
    "PrivateStrategy": "strategy",
    "Settings": "run_settings",
    "gathered": "client_encoding",
    "mod_for": "client_mod",
    "private_mod": "client_mod",
    "seeded_mod": "client_mod",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rqm.flower' has no attribute {name!r}")
    try:
        return getattr(import_module(f"rqm.flower.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        raise how_to_install(error) from None
