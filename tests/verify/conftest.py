"""Verifying bytes."""

import pytest

from rqm.verify import verify


@pytest.fixture
def check(tmp_path):
    """Verify these bytes, with what else is known."""

    def run(data, witness=None, **known):
        path = tmp_path / "some.jsonl"
        path.write_bytes(data)
        if witness is not None:
            (tmp_path / "heads").write_bytes(witness)
            known["witness"] = tmp_path / "heads"
        return verify(path, **known)

    return run
