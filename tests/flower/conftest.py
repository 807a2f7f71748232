"""Flower's logger as its first import leaves it: another test of the same process may have changed it."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _flower_logs(monkeypatch):
    logger = logging.getLogger("flwr")
    level = logger.level
    for name, value in (("disabled", False), ("propagate", True)):
        monkeypatch.setattr(logger, name, value)
    logger.setLevel(logging.INFO)  # not by setattr: loggers remember which levels are enabled until setLevel is called
    yield
    logger.setLevel(level)
