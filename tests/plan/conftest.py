"""What the tests of plans share with those of the verifier."""

from tests.verify.conftest import check

__all__ = ["check"]
