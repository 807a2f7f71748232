"""`rqm keys`: from two new identities to a roster, and a rotation."""

from rqm.secagg import Roster
from tests.commands import rqm


def test_identities_a_roster_and_a_rotation(tmp_path):
    first, second, third = (rqm("keys", "new", tmp_path / name).stdout.strip() for name in ("a", "b", "c"))
    path = tmp_path / "roster.txt"
    assert rqm("keys", "roster", path, first).stdout.startswith("1 key,")
    path.write_text(f"{first}  # the first\n")
    printed = rqm("keys", "roster", path, second).stdout
    assert printed == rqm("keys", "roster", path).stdout
    assert printed.split()[-1] == Roster.read(path).hash.hex()
    assert rqm("keys", "rotate", path, first, third).returncode == 0
    text = f"{third}  # the first\n{second}\n"
    assert path.read_text() == text
    bad = [("roster", path, second), ("roster", path, "xyz"), ("rotate", path, "ab" * 32, first)]
    for args in (*bad, ("new", tmp_path / "a")):
        done = rqm("keys", *args)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done
    assert path.read_text() == text
