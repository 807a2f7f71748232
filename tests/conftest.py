"""Shared by all tests: how hypothesis draws its examples, and where keys and marks are kept."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rqm", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True, max_examples=40
)
settings.register_profile("explore", settings.get_profile("rqm"), derandomize=False, max_examples=200, print_blob=True)
settings.load_profile("rqm")

STATE = TemporaryDirectory(prefix="rqm-state-")
os.environ["RQM_STATE"] = STATE.name  # nothing of the user's is touched; children inherit it
os.environ["RQM_CACHE"] = "off"  # tests test what is worked out, not what was
(Path(STATE.name) / "policy.toml").write_text("trust_server = true\n")  # nodes of tests that are not about policies
