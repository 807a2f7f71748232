"""Flower's logger as its first import leaves it: what runs Flower in this process may disable it for later tests."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _flower_logs(monkeypatch):
    logger = logging.getLogger("flwr")
    for name, value in (("disabled", False), ("propagate", True), ("level", logging.INFO)):
        monkeypatch.setattr(logger, name, value)
