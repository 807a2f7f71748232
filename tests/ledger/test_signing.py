"""A key that signs a ledger, and a witness that notices when it is restored from a copy or rewritten."""

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.ledger.ledger import Ledger, read
from rqm.ledger.signing import LedgerError, Signer, Witness
from tests.ledger.test_ledger import ABOUT, fill


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


# -- the key ------------------------------------------------------------------------------------


def test_a_ledger_is_signed_and_continued_only_with_its_key(path, tmp_path):
    signer, second = Signer(tmp_path / "mine"), Signer(tmp_path / "other")
    with Ledger(path, ABOUT, key=signer) as ledger:
        ledger.charge(0)
    with Ledger(path, ABOUT, key=Signer(tmp_path / "mine")) as ledger:
        ledger.charge(1)
    for wrong in (second, None):
        with pytest.raises(LedgerError, match="is signed by the key"):
            Ledger(path, ABOUT, key=wrong)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600
    (tmp_path / "mine").write_text("no key\n")
    with pytest.raises(LedgerError, match="32 bytes in hexadecimal"):
        Signer(tmp_path / "mine")


def test_an_unsigned_ledger_is_refused_where_there_is_a_key(path, tmp_path):
    """Whatever its format says: only the present one is read, and it must be signed."""
    key = Signer(tmp_path / "mine")
    with Ledger(path, ABOUT, key=key) as ledger:
        ledger.charge(0)
    for version in (1, 2, 3, 4, 5, None, "4", [4], True):
        line = {"ledger": version, "about": ABOUT, "nonce": "0" * 16, "previous": "0" * 64}
        line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        for file in (path, tmp_path / "elsewhere.jsonl"):
            file.write_text(json.dumps(line) + "\n")
            with pytest.raises(LedgerError, match="is not signed" if version == 4 else "line 1 was changed"):
                Ledger(file, ABOUT, key=key)


def test_six_charges_rewritten_as_three_are_refused(path, tmp_path):
    signer = Signer(tmp_path / "mine")
    with Ledger(path, ABOUT, key=signer) as ledger:
        for round_index in range(6):
            ledger.charge(round_index)
    forger = tmp_path / "forged.jsonl"
    with Ledger(forger, ABOUT) as ledger:  # without the key: the chain is whole
        for round_index in range(3):
            ledger.charge(round_index)
    lines = [json.loads(line) for line in forger.read_text().splitlines()]
    path.write_bytes(forger.read_bytes())
    with pytest.raises(LedgerError, match="is not signed"):
        Ledger(path, ABOUT, key=signer)
    lines[0]["key"] = signer.public  # so it must claim the key, and cannot sign
    path.write_text("".join(json.dumps({**line, "signature": "00" * 64}) + "\n" for line in lines))
    with pytest.raises(LedgerError, match="line 1 was changed"):  # the key is part of what is hashed
        Ledger(path, ABOUT, key=signer)
    previous = "0" * 64
    for line in lines:
        body = {**{name: value for name, value in line.items() if name != "hash"}, "previous": previous}
        previous = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        line.update(body, hash=previous, signature="00" * 64)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(LedgerError, match="line 1 is not signed by its key"):
        Ledger(path, ABOUT, key=signer)


# -- the witness --------------------------------------------------------------------------------


def test_a_witness_notices_every_restored_ledger(path, tmp_path):
    witness, copies = Witness(tmp_path / "elsewhere"), []
    with Ledger(path, ABOUT, witness=witness) as ledger:
        for round_index in range(4):
            copies.append(path.read_bytes())
            ledger.charge(round_index)
    last = path.read_bytes()
    for old in [*copies, b""]:
        path.write_bytes(old)
        with pytest.raises(LedgerError, match="the witness"):
            Ledger(path, ABOUT, witness=witness)
    path.unlink()
    with pytest.raises(LedgerError, match="the witness knows"):
        Ledger(path, ABOUT, witness=witness)
    path.write_bytes(last)
    with Ledger(path, ABOUT, witness=witness) as ledger:
        ledger.charge(9)


@given(keep=st.lists(st.integers(0, 5), min_size=0, max_size=6), data=st.data())
def test_a_witness_notices_every_rewritten_ledger(tmp_path_factory, keep, data):
    folder = tmp_path_factory.mktemp("ledger")
    path, witness = folder / "ledger.jsonl", Witness(folder / "witness")
    with Ledger(path, ABOUT, witness=witness) as ledger:
        for round_index in range(6):
            ledger.charge(round_index)
    path.unlink()
    with Ledger(path, ABOUT) as ledger:
        for round_index in keep:
            ledger.charge(round_index)
    if keep[:6] == list(range(6)):
        return
    with pytest.raises(LedgerError, match="the witness"):
        Ledger(path, ABOUT, witness=witness)


def test_a_witness_that_cannot_be_reached_stops_releases_not_charges(path, tmp_path):
    reports = tmp_path / "reports"
    with Ledger(path, ABOUT, witness=Witness(f"cmd: sh -c 'cat >> {reports}'")) as ledger:
        head = ledger.charge(0)
    assert json.loads(reports.read_text().splitlines()[-1])["head"] == head
    with pytest.raises(LedgerError, match="the witness could not be reached"):
        Ledger(path, ABOUT, witness=Witness("cmd: false"))
    with Ledger(path, ABOUT) as ledger:
        ledger.witness = Witness(tmp_path / "no" / "such" / "folder")
        with pytest.raises(LedgerError, match="the witness could not be reached"):
            ledger.charge(1)
    assert read(path).charges == Counter({0: 1, 1: 1})  # charged, and not released
    with pytest.raises(ValueError, match="must be a file"):
        Witness("cmd:")


def test_no_two_ledgers_are_alike_and_a_charge_done_again_is_another(path, tmp_path):
    """Else one of two runs with the same plan looks like an older copy of the other, and two releases like one."""
    witness = Witness(tmp_path / "book")
    second = tmp_path / "other.jsonl"
    for file, rounds in ((path, 3), (second, 1)):
        with Ledger(file, ABOUT, witness=witness) as ledger:
            for round_index in range(rounds):
                ledger.charge(round_index)
    with Ledger(second, ABOUT, witness=witness):
        pass  # not an older copy of the first
    old = path.read_bytes()
    heads = fill(path, [3])
    path.write_bytes(old)
    assert fill(path, [3]) != heads


def test_a_witness_that_missed_a_charge_receives_it_and_its_torn_line_is_cut_off(path, tmp_path):
    book = tmp_path / "book"
    with Ledger(path, ABOUT, witness=Witness(book)) as ledger:
        ledger.charge(0)
    whole = book.read_bytes()
    book.write_bytes(whole[:-20])  # killed while the witness wrote
    with Ledger(path, ABOUT, witness=Witness(book)):
        pass
    assert book.read_bytes() == whole


def test_a_key_and_a_witness_without_an_end_are_not_read(path):
    with pytest.raises(LedgerError, match="key = /dev/zero: must hold 32 bytes"):
        Signer(Path("/dev/zero"))
    with pytest.raises(ValueError, match="/dev/zero: is a device or a pipe"):
        Ledger(path, ABOUT, witness=Witness("/dev/zero"))
