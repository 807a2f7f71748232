from collections import Counter

import pytest

from rqm.verify import verify
from tests.verify.ledgers import describe, ledger_bytes


@pytest.fixture
def verify_bytes(tmp_path):
    """Verify a ledger of these bytes, with a witness and whatever else the auditor knows."""

    def run(ledger, witness=None, **expected):
        path = tmp_path / "some.jsonl"
        path.write_bytes(ledger)
        if witness is not None:
            (tmp_path / "heads").write_bytes(witness)
            expected["witness"] = tmp_path / "heads"
        return verify(path, **expected)

    return run


@pytest.fixture
def confirm(verify_bytes):
    """Verify that ε of a ledger is the accountant's, and at most a tenth more."""

    def run(mean, charges):
        report = verify_bytes(ledger_bytes(charges, describe(mean)))
        assert (report.status, report.wrong, report.unsure) == ("verified", [], [])
        stated = mean.account(Counter(charges)).epsilon
        assert stated * 0.999 <= report.epsilon <= 1.1 * stated
        assert report.lower <= stated
        return report

    return run
