"""Federated data sets: by name (`load`), or from data in memory or on disk (`FederatedData`)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqm.data.datasets import load
    from rqm.data.federated_data import Clients, FederatedData

__all__ = ["Clients", "FederatedData", "load"]

_MODULES = {"Clients": "federated_data", "FederatedData": "federated_data", "load": "datasets"}  # these need torch


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"rqm.data.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'rqm.data' has no attribute {name!r}")
