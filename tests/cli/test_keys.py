"""``rqm keys``: from two new identities to a roster, and a rotation."""

from rqm.secagg import Roster
from tests.commands import rqm


def test_identities_a_roster_and_a_rotation(tmp_path):
    one, two, three = (rqm("keys", "new", tmp_path / name).stdout.strip() for name in ("one", "two", "three"))
    path = tmp_path / "roster.txt"
    assert rqm("keys", "roster", path, one).stdout.startswith("1 key,")
    path.write_text(f"{one}  # the first\n")
    said = rqm("keys", "roster", path, two).stdout
    assert said == rqm("keys", "roster", path).stdout
    assert said.split()[-1] == Roster.read(path).hash.hex()
    assert rqm("keys", "rotate", path, one, three).returncode == 0
    assert path.read_text() == f"{three}  # the first\n{two}\n"


def test_what_is_wrong_changes_nothing(tmp_path):
    one, path = rqm("keys", "new", tmp_path).stdout.strip(), tmp_path / "roster.txt"
    rqm("keys", "roster", path, one)
    before = path.read_bytes()
    for args in (("roster", path, one), ("roster", path, "xyz"), ("rotate", path, "ab" * 32, one), ("new", tmp_path)):
        done = rqm("keys", *args)
        assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done
    assert path.read_bytes() == before
