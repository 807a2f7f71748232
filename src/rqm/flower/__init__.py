"""Private training on Flower with secure aggregation, in simulation and in deployment.

Everything is imported when it is first used: a client's process starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rqm._util.imports import how_to_install

if TYPE_CHECKING:
    from rqm.flower.client_mod import PrivateClientApp, private_mod
    from rqm.flower.privacy_accountant import DiscreteAccountant, DiscreteEvent
    from rqm.flower.private_run import RunFailedError
    from rqm.flower.run_settings import BudgetSpentError, Settings
    from rqm.flower.silo_training import gathered
    from rqm.flower.strategy import PrivateStrategy, private

__all__ = [
    "BudgetSpentError",
    "DiscreteAccountant",
    "DiscreteEvent",
    "PrivateClientApp",
    "PrivateStrategy",
    "RunFailedError",
    "Settings",
    "gathered",
    "private",
    "private_mod",
]

_MODULES = {
    "BudgetSpentError": "run_settings",
    "DiscreteAccountant": "privacy_accountant",
    "DiscreteEvent": "privacy_accountant",
    "PrivateClientApp": "client_mod",
    "PrivateStrategy": "strategy",
    "RunFailedError": "private_run",
    "Settings": "run_settings",
    "gathered": "silo_training",
    "private": "strategy",
    "private_mod": "client_mod",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rqm.flower' has no attribute {name!r}")
    try:
        return getattr(import_module(f"rqm.flower.{_MODULES[name]}"), name)
    except ModuleNotFoundError as error:
        raise how_to_install(error) from None
