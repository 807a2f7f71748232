"""Every change of a ledger's bytes is noticed: by the hash chain, the signatures, a witness or a known head."""

import json
import random

import pytest

from rqm.ledger.ledger import Ledger
from rqm.ledger.signing import Signer
from rqm.verify import verify
from tests.verify.ledgers import (
    FAST_DESCRIPTION,
    FAST_LEDGER,
    KEY,
    LEDGER,
    OTHER_KEY,
    hashes,
    ledger_bytes,
    public_key,
    witness_bytes,
)


def is_noticed(report):
    """Whether a report differs from that of a sound ledger."""
    return report.status != "verified" or any("no newline" in note for note in report.notes)


# -- the hash chain -------------------------------------------------------------------------------


def test_a_sound_ledger_is_verified(verify_bytes):
    expected = {"head": hashes(LEDGER)[-1], "dim": 100, "delta": 1e-6, "honest_clients": 20, "rounds": 5}
    report = verify_bytes(LEDGER, witness_bytes(LEDGER), key=public_key(KEY), **expected)
    assert (report.status, report.notes) == ("verified", [])
    assert (report.charges, report.rounds, report.max_participations, report.min_honest) == (5, 4, 4, 20)
    assert (report.head_hash, report.key) == (hashes(LEDGER)[-1], public_key(KEY))


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_ledger_of_the_package_is_verified(tmp_path, is_signed):
    key = Signer(tmp_path / "key") if is_signed else None
    with Ledger(tmp_path / "some.jsonl", FAST_DESCRIPTION, key=key) as ledger:
        heads = [ledger.charge(round_index) for round_index in (0, 1, 1)]
    report = verify(tmp_path / "some.jsonl", key=key and key.public)
    assert (report.status, report.charges, report.head_hash) == ("verified", 3, heads[-1])


def test_every_changed_byte_is_noticed(tmp_path):
    path, draw = tmp_path / "some.jsonl", random.Random(1)
    ledger = ledger_bytes([0, 1], FAST_DESCRIPTION)
    for index in range(len(ledger)):
        for byte in {ledger[index] ^ 32, draw.randrange(256)} - {ledger[index]}:
            path.write_bytes(ledger[:index] + bytes([byte]) + ledger[index + 1 :])
            assert is_noticed(verify(path)), (index, byte)


@pytest.mark.parametrize("is_signed", [True, False])
def test_every_small_edit_is_noticed(tmp_path, is_signed):
    path, draw = tmp_path / "some.jsonl", random.Random(2)
    ledger = FAST_LEDGER if is_signed else ledger_bytes([0, 1, 2, 2, 3], FAST_DESCRIPTION, key=None)
    prefixes = [b"".join(ledger.splitlines(keepends=True)[:count]) for count in range(1, 7)]
    for _ in range(2000):
        index = draw.randrange(len(ledger))
        changed = ledger[:index] + draw.randbytes(draw.randrange(3)) + ledger[index + draw.randrange(4) :]
        path.write_bytes(changed)
        assert is_noticed(verify(path)) or changed in prefixes, changed  # whole lines are missed only by a witness


def test_missing_exchanged_and_repeated_lines_are_noticed(verify_bytes):
    lines = FAST_LEDGER.splitlines(keepends=True)
    for i in range(len(lines) - 1):
        assert verify_bytes(b"".join(lines[:i] + lines[i + 1 :])).status == "wrong"
        assert verify_bytes(b"".join([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]])).status == "wrong"
        assert verify_bytes(b"".join([*lines[: i + 1], *lines[i:]])).status == "wrong"


@pytest.mark.parametrize("nonce", ["", "0" * 15, "0" * 17, "G" * 16, "A" * 16, "0" * 15 + "\n", 0, None, ["0" * 16]])
@pytest.mark.parametrize("number", [0, 2])
def test_a_nonce_of_the_wrong_form_is_noticed(verify_bytes, nonce, number):
    nonces = [f"{n:016x}" for n in range(4)]
    assert verify_bytes(ledger_bytes([0, 1, 2], FAST_DESCRIPTION, nonces=nonces)).status == "verified"
    nonces[number] = nonce
    report = verify_bytes(ledger_bytes([0, 1, 2], FAST_DESCRIPTION, nonces=nonces))
    assert len(report.wrong) == 1
    assert f"line {number + 1} has the nonce {nonce!r}" in report.wrong[0]


def test_another_format_is_refused_with_the_remedy(verify_bytes):
    for version in (3, 5, "4", True):
        report = verify_bytes(ledger_bytes([0], FAST_DESCRIPTION, first={"ledger": version}))
        assert report.status == "cannot verify"
        assert (
            "this version verifies format 4; use `rqm verify` of the version that wrote the ledger" in report.unsure[0]
        )


def test_a_last_line_without_newline_is_counted_and_reported(verify_bytes):
    report = verify_bytes(LEDGER[:-1])
    assert (report.status, report.charges) == ("verified", 5)
    assert is_noticed(report)
    unfinished = verify_bytes(LEDGER[:-9])
    assert (unfinished.status, unfinished.charges) == ("cannot verify", 4)


# -- heads and witnesses --------------------------------------------------------------------------


def test_every_truncation_is_noticed_with_a_witness(verify_bytes):
    ledger = ledger_bytes([0, 1], FAST_DESCRIPTION)
    for size in range(len(ledger)):
        assert is_noticed(verify_bytes(ledger[:size], witness_bytes(ledger))), size


def test_an_older_copy_is_noticed_with_a_witness_a_head_or_a_number_of_rounds(verify_bytes):
    lines = LEDGER.splitlines(keepends=True)
    for count in range(1, len(lines)):
        older = b"".join(lines[:count])
        assert verify_bytes(older).status == "verified"  # a prefix of a ledger is a ledger
        assert verify_bytes(older, witness_bytes(LEDGER)).status == "wrong"
        assert verify_bytes(older, head=hashes(LEDGER)[-1]).status == "wrong"
        assert verify_bytes(older, rounds=5).status == "wrong"


def test_charges_after_a_known_head_are_counted(verify_bytes):
    report = verify_bytes(LEDGER, head=hashes(LEDGER)[3])
    assert report.status == "verified"
    assert f"2 charges came after the head {hashes(LEDGER)[3]}" in report.notes


def test_an_older_copy_that_was_continued_is_noticed_with_a_witness(verify_bytes):
    """Even if the server reuses the nonces, so that the lines are the same to the byte: by the order of the reports."""
    reports = witness_bytes(LEDGER).splitlines(keepends=True)
    assert verify_bytes(LEDGER, b"".join([*reports[:4], *reports[3:]])).status == "verified"  # opened again: one report
    assert verify_bytes(LEDGER, b"".join([*reports[:5], *reports[3:]])).status == "wrong"
    nonces = [f"{n:016x}" for n in (0, 1, 2, 3, 4, 99)]  # the last charge was repeated with a nonce of its own
    continued = ledger_bytes([0, 1, 2, 2, 3], nonces=nonces)
    assert verify_bytes(continued, witness_bytes(LEDGER)).status == "wrong"
    assert verify_bytes(continued, witness_bytes(LEDGER) + witness_bytes(continued)).status == "wrong"


def test_other_charges_after_the_same_beginning_are_noticed_with_a_witness(verify_bytes):
    assert verify_bytes(ledger_bytes([0, 1, 2, 3, 4]), witness_bytes(LEDGER)).status == "wrong"


def test_a_ledger_may_be_one_line_ahead_of_its_witness(verify_bytes):
    reports = witness_bytes(LEDGER).splitlines(keepends=True)
    assert verify_bytes(LEDGER, b"".join(reports[:-1])).status == "verified"
    assert verify_bytes(LEDGER, b"".join(reports[:-2])).status == "wrong"
    assert verify_bytes(LEDGER, b"").status == "wrong"


def test_several_ledgers_share_a_witness(verify_bytes):
    assert verify_bytes(LEDGER, witness_bytes(FAST_LEDGER) + witness_bytes(LEDGER)).status == "verified"


# -- signatures -----------------------------------------------------------------------------------


def test_a_ledger_rewritten_with_another_key_is_noticed_with_the_key(verify_bytes, tmp_path):
    rewritten = ledger_bytes([0, 1], key=OTHER_KEY)
    (tmp_path / "key").write_text(public_key(KEY) + "\n")
    assert verify_bytes(rewritten).status == "verified"
    assert verify_bytes(rewritten, key=public_key(KEY)).status == "wrong"
    assert verify_bytes(rewritten, key=tmp_path / "key").status == "wrong"
    assert verify_bytes(rewritten, witness_bytes(LEDGER)).status == "wrong"
    assert verify_bytes(ledger_bytes([0, 1], key=None), key=public_key(KEY)).status == "wrong"


def test_a_signature_by_another_key_is_noticed(verify_bytes):
    lines, others = (ledger_bytes([0, 1], key=key).splitlines(keepends=True) for key in (KEY, OTHER_KEY))
    mixed = json.loads(lines[1]) | {"signature": json.loads(others[1])["signature"]}
    report = verify_bytes(lines[0] + json.dumps(mixed).encode() + b"\n")
    assert report.wrong == [f"line 2 is not signed by the key '{public_key(KEY)}'"]


def test_an_unsigned_ledger_is_reported(verify_bytes):
    report = verify_bytes(ledger_bytes([0], key=None))
    assert report.status == "verified"
    assert "not signed" in report.notes[0]
