"""Shared by all tests: how hypothesis draws its examples."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rqm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=40
)
settings.register_profile("explore", settings.get_profile("rqm"), derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("rqm")
