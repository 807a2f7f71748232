"""Shared by all tests: how hypothesis draws its examples."""

from hypothesis import HealthCheck, settings

settings.register_profile("rqm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
settings.register_profile("explore", settings.get_profile("rqm"), derandomize=False, print_blob=True)
settings.load_profile("rqm")
