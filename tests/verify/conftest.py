import pytest

from rqm.verify import verify


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
