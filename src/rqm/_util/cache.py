"""The folder of what a user's machine may forget."""

import os
from pathlib import Path


def folder() -> Path | None:
    """Where such files are kept: $RQM_CACHE, or the user's cache; None if $RQM_CACHE is `off`."""
    chosen = os.environ.get("RQM_CACHE")
    if chosen:
        return None if chosen == "off" else Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) / "rqm" if base else Path("~/.cache/rqm").expanduser()
