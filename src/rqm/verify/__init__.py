"""An independent verifier of ledgers. It shares nothing with the rest of the package, and imports nothing of it."""

from .verification_report import Report
from .verifier import verify

__all__ = ["Report", "verify"]
