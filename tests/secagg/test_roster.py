"""Rosters and identities as files: what is none is refused, by its name."""

import pytest

from rqm.secagg import Identity, ProtocolError, Roster
from rqm.secagg.roster import KeyRegistry, is_signed

KEYS = [Identity(bytes([u]) * 32) for u in range(3)]


def test_a_roster_is_its_keys_in_any_order(tmp_path):
    path = tmp_path / "roster.txt"
    path.write_text(
        "# ours\n\n" + "\n".join(f" {identity.public.hex()}   # node {u}" for u, identity in enumerate(KEYS))
    )
    assert Roster.read(path) == Roster.of(identity.public for identity in reversed(KEYS))
    assert Roster.read(path).hash != Roster.of([KEYS[0].public]).hash


@pytest.mark.parametrize(
    "text", ["", "# nobody", "xyz", "A" * 64, "ab" * 31, ("ab" * 32 + "\n") * 2, "ab" * 32 + " name", "é"]
)
def test_what_is_no_roster_is_named(tmp_path, text):
    path = tmp_path / "roster.txt"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"roster.txt: is no roster"):
        Roster.read(path)


def test_keys_of_a_roster_have_32_bytes():
    with pytest.raises(ValueError, match=r"a key of the roster is b'short': must be 32 bytes"):
        Roster.of([b"short"])


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


def test_a_signature_is_by_its_owner_and_of_its_text():
    signature = KEYS[1].sign(b"this")[32:]
    assert is_signed(KEYS[1].public, signature, b"this")
    for key, altered, text in (
        (KEYS[1].public, signature, b"that"),
        (KEYS[2].public, signature, b"this"),
        (KEYS[1].public, signature[:-1], b"this"),
        (b"", signature, b"this"),
    ):
        assert not is_signed(key, altered, text)


@pytest.mark.parametrize(
    ("advertised", "match"),
    [
        (b"a" * 64 + KEYS[1].public, "client 1 has a key or an identity that is in use"),
        (b"z" * 32 + b"b" * 32 + KEYS[1].public, "client 1 has a key or an identity that is in use"),
        (b"y" * 32 + b"z" * 32 + KEYS[0].public, "client 1 has a key or an identity that is in use"),
        (b"y" * 32 + b"z" * 32 + b"x" * 32, "client 1 is not in the roster"),
    ],
)
def test_each_key_and_identity_of_a_round_occurs_once(advertised, match):
    registry = KeyRegistry(Roster.of(identity.public for identity in KEYS))
    registry.add(0, b"a" * 32 + b"b" * 32 + KEYS[0].public)
    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(ProtocolError, match=match):
            registry.add(1, advertised)
    registry.add(1, b"y" * 32 + b"z" * 32 + KEYS[1].public)
