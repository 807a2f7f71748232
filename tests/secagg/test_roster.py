"""Rosters and identities as files: what is none is refused, by its name."""

import pytest

from rqm.secagg import Identity, ProtocolError, Roster

KEYS = [Identity(bytes([u]) * 32) for u in range(3)]


def test_a_roster_is_its_keys_in_any_order(tmp_path):
    path = tmp_path / "roster.txt"
    path.write_text("# ours\n\n" + "\n".join(f" {one.public.hex()}   # node {u}" for u, one in enumerate(KEYS)))
    assert Roster.read(path) == Roster.of(one.public for one in reversed(KEYS))
    assert Roster.read(path).hash != Roster.of([KEYS[0].public]).hash


@pytest.mark.parametrize(
    "text", ["", "# nobody", "xyz", "A" * 64, "ab" * 31, ("ab" * 32 + "\n") * 2, "ab" * 32 + " name", "é"]
)
def test_what_is_no_roster_is_named(tmp_path, text):
    path = tmp_path / "roster.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"roster.txt: is no roster"):
        Roster.read(path)


def test_an_identity_is_kept_for_its_owner_alone(tmp_path):
    path = tmp_path / "identity.key"
    made = Identity.new(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Identity.read(path).public == made.public
    with pytest.raises(ValueError, match="is not overwritten"):
        Identity.new(path)
    path.write_text("xyz")
    with pytest.raises(ValueError, match=r"identity.key: must hold 32 bytes"):
        Identity.read(path)


def test_only_those_in_the_roster_sign(tmp_path):
    roster, stranger = Roster.of(one.public for one in KEYS), Identity(b"x" * 32)
    assert roster.verify(KEYS[1].sign(b"this"), b"this", "client 1") == KEYS[1].public
    for body, text, reason in (
        (KEYS[1].sign(b"this"), b"that", "not signed by"),
        (stranger.sign(b"this"), b"this", "not in the roster"),
        (KEYS[1].public + stranger.sign(b"this")[32:], b"this", "not signed by"),
        (b"", b"this", "not in the roster"),
    ):
        with pytest.raises(ProtocolError, match=reason):
            roster.verify(body, text, "client 1")
