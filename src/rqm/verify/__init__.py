"""An independent verifier of ledgers: it shares nothing with the rest of the package, and imports nothing of it."""

from .chain import Report
from .reader import verify

__all__ = ["Report", "verify"]
