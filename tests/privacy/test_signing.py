"""Who vouches for a ledger: a key that signs it, and a witness that notices when it is put back or written anew."""

import hashlib
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm.privacy.ledger import Ledger, LedgerError, read
from rqm.privacy.signing import Signer, Witness
from tests.privacy.test_ledger import ABOUT, fill


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


# -- the key ------------------------------------------------------------------------------------


def test_a_ledger_is_signed_and_goes_on_with_its_key_only(path, tmp_path):
    mine, other = Signer(tmp_path / "mine"), Signer(tmp_path / "other")
    with Ledger(path, ABOUT, key=mine) as ledger:
        ledger.charge(0)
    with Ledger(path, ABOUT, key=Signer(tmp_path / "mine")) as ledger:
        ledger.charge(1)
    for wrong in (other, None):
        with pytest.raises(LedgerError, match="is signed by the key"):
            Ledger(path, ABOUT, key=wrong)
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o600
    (tmp_path / "mine").write_text("no key\n")
    with pytest.raises(LedgerError, match="32 bytes in hexadecimal"):
        Signer(tmp_path / "mine")


def test_a_signed_ledger_is_not_followed_by_an_unsigned_one_in_its_place(path, tmp_path):
    """With the key of the user's state, which need not be given: older formats have no signatures."""
    mine = Signer(tmp_path / "mine", given=False)
    with Ledger(path, ABOUT, key=mine) as ledger:
        ledger.charge(0)
    for number in (1, 2, 3, 4, None, "3", [3], True):
        line = {"ledger": number, "about": ABOUT, "previous": "0" * 64}
        line["hash"] = hashlib.sha256(json.dumps(line, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(line) + "\n")
        with pytest.raises(LedgerError, match=r"is not signed|line 1 was changed"):
            Ledger(path, ABOUT, key=mine)
        if number in (1, 2) and number is not True:  # elsewhere one of an older version goes on
            (tmp_path / "old.jsonl").write_bytes(path.read_bytes())
            with Ledger(tmp_path / "old.jsonl", ABOUT, key=mine) as ledger:
                ledger.charge(0)


def test_six_charges_rewritten_as_three_are_refused(path, tmp_path):
    mine = Signer(tmp_path / "mine")
    with Ledger(path, ABOUT, key=mine) as ledger:
        for turn in range(6):
            ledger.charge(turn)
    forger = tmp_path / "forged.jsonl"
    with Ledger(forger, ABOUT) as ledger:  # without the key: the chain is whole
        for turn in range(3):
            ledger.charge(turn)
    lines = [json.loads(line) for line in forger.read_text().splitlines()]
    path.write_bytes(forger.read_bytes())
    with pytest.raises(LedgerError, match="is not signed"):
        Ledger(path, ABOUT, key=mine)
    lines[0]["key"] = mine.public  # so it must claim the key, and cannot sign
    path.write_text("".join(json.dumps({**line, "signature": "00" * 64}) + "\n" for line in lines))
    with pytest.raises(LedgerError, match="line 1 was changed"):  # the key is part of what is hashed
        Ledger(path, ABOUT, key=mine)
    previous = "0" * 64
    for line in lines:
        body = {**{name: value for name, value in line.items() if name != "hash"}, "previous": previous}
        previous = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        line.update(body, hash=previous, signature="00" * 64)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(LedgerError, match="line 1 is not signed by its key"):
        Ledger(path, ABOUT, key=mine)


# -- the witness --------------------------------------------------------------------------------


def test_a_witness_notices_every_ledger_that_was_put_back(path, tmp_path):
    witness, copies = Witness(tmp_path / "elsewhere"), []
    with Ledger(path, ABOUT, witness=witness) as ledger:
        for turn in range(4):
            copies.append(path.read_bytes())
            ledger.charge(turn)
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
def test_a_witness_notices_every_ledger_that_was_written_anew(tmp_path_factory, keep, data):
    folder = tmp_path_factory.mktemp("ledger")
    path, witness = folder / "ledger.jsonl", Witness(folder / "witness")
    with Ledger(path, ABOUT, witness=witness) as ledger:
        for turn in range(6):
            ledger.charge(turn)
    path.unlink()
    with Ledger(path, ABOUT) as ledger:
        for turn in keep:
            ledger.charge(turn)
    if keep[:6] == list(range(6)):
        return
    with pytest.raises(LedgerError, match="the witness"):
        Ledger(path, ABOUT, witness=witness)


def test_a_witness_that_cannot_be_reached_stops_releases_not_charges(path, tmp_path):
    told = tmp_path / "told"
    with Ledger(path, ABOUT, witness=Witness(f"cmd: sh -c 'cat >> {told}'")) as ledger:
        head = ledger.charge(0)
    assert json.loads(told.read_text().splitlines()[-1])["head"] == head
    with pytest.raises(LedgerError, match="the witness was not reached"):
        Ledger(path, ABOUT, witness=Witness("cmd: false"))
    with Ledger(path, ABOUT) as ledger:
        ledger.witness = Witness(tmp_path / "no" / "such" / "folder")
        with pytest.raises(LedgerError, match="the witness was not reached"):
            ledger.charge(1)
    assert read(path)[1] == Counter({0: 1, 1: 1})  # charged, and not released
    with pytest.raises(ValueError, match="must be a file"):
        Witness("cmd:")


def test_no_two_ledgers_are_alike_and_a_charge_done_again_is_another(path, tmp_path):
    """Else one of two runs with the same plan looks like an older copy of the other, and two releases like one."""
    witness = Witness(tmp_path / "book")
    other = tmp_path / "other.jsonl"
    for one, rounds in ((path, 3), (other, 1)):
        with Ledger(one, ABOUT, witness=witness) as ledger:
            for turn in range(rounds):
                ledger.charge(turn)
    with Ledger(other, ABOUT, witness=witness):
        pass  # not an older copy of the first
    old = path.read_bytes()
    heads = fill(path, [3])
    path.write_bytes(old)
    assert fill(path, [3]) != heads


def test_a_witness_that_missed_a_charge_is_told_and_its_torn_line_is_cut_off(path, tmp_path):
    book = tmp_path / "book"
    with Ledger(path, ABOUT, witness=Witness(book)) as ledger:
        ledger.charge(0)
    whole = book.read_bytes()
    book.write_bytes(whole[:-20])  # killed while the witness wrote
    with Ledger(path, ABOUT, witness=Witness(book)):
        pass
    assert book.read_bytes() == whole
