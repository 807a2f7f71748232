"""Flower: private training with secure aggregation on its Message API, in simulation and in deployment."""

from rqm.flower.accountant import DiscreteAccountant, DiscreteEvent
from rqm.flower.mod import mod_for, private_mod, seeded_mod
from rqm.flower.settings import Settings
from rqm.flower.strategy import PrivateStrategy

__all__ = ["DiscreteAccountant", "DiscreteEvent", "PrivateStrategy", "Settings", "mod_for", "private_mod", "seeded_mod"]
