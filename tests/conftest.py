"""Shared by all tests: profiles and small oracles that do not use the code under test."""

from hypothesis import HealthCheck, settings

settings.register_profile("rqm", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("rqm")
