"""Federated data sets: by name (``load``), from files, or one's own (``FederatedData``)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rqm.data.clients import Clients, FederatedData
    from rqm.data.sources import load

__all__ = ["Clients", "FederatedData", "load"]

_LAZY = {"Clients": "rqm.data.clients", "FederatedData": "rqm.data.clients", "load": "rqm.data.sources"}  # with torch


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rqm.data' has no attribute {name!r}")
