"""The ledger: never under-counts and never breaks, whatever happens to the process or the file."""

import json
import os
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest

from rqm.ledger.ledger import Ledger, read
from rqm.ledger.signing import LedgerError, Signer

ABOUT = {"plan": "a", "clients": 40}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


def fill(path, rounds):
    with Ledger(path, ABOUT) as ledger:
        return [ledger.charge(round_index) for round_index in rounds]


def test_charges_are_kept_and_counted(path):
    heads = fill(path, [0, 1, 1])
    heads += fill(path, [2])
    content = read(path)
    assert content.subject == ABOUT
    assert content.charges == Counter({0: 1, 1: 2, 2: 1})
    assert content.head == heads[-1]
    assert len(set(heads)) == 4
    assert content.heads > set(heads)  # and that of the first line
    with Ledger(path, ABOUT, expect_head=content.head) as ledger:
        assert all(head in ledger for head in heads)
        assert "f" * 64 not in ledger
        assert ledger.charges == content.charges


def test_a_round_that_cannot_be_is_not_charged(path):
    with Ledger(path, ABOUT) as ledger:
        for value in (-1, 10**18, 1.5, "x"):
            with pytest.raises((ValueError, TypeError), match="round"):
                ledger.charge(value)
    assert read(path).charges == Counter()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda lines: lines[:1] + lines[2:],
        lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
        lambda lines: [lines[0], lines[1].replace(b'"round": 0', b'"round": 7'), *lines[2:]],
        lambda lines: [*lines[:2], b"nonsense\n", *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: lines[1:],
        lambda lines: [*lines[:-1], b"\n"],
    ],
    ids=["a line taken out", "lines exchanged", "a line changed", "nonsense", "a line twice", "no beginning", "blank"],
)
def test_a_changed_file_is_refused(break_it, path):
    fill(path, range(4))
    path.write_bytes(b"".join(break_it(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(LedgerError, match="was changed, or a line before it is missing"):
        Ledger(path, ABOUT)
    with pytest.raises(LedgerError):
        read(path)


def test_an_older_copy_is_noticed_by_its_head(path):
    fill(path, range(3))
    old = path.read_bytes()
    heads = fill(path, range(3, 5))
    path.write_bytes(old)
    with Ledger(path, ABOUT) as ledger:
        assert heads[-1] not in ledger
    with pytest.raises(LedgerError, match="not the latest copy"):
        Ledger(path, ABOUT, expect_head=heads[-1])
    with pytest.raises(LedgerError, match="another plan"):
        Ledger(path, {**ABOUT, "clients": 41})


def test_a_torn_write_at_every_byte(path):
    fill(path, range(3))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for size in range(ends[0], len(whole) + 1):
        path.write_bytes(whole[:size])
        with Ledger(path, ABOUT) as ledger:
            assert sum(ledger.charges.values()) == sum(end - 1 <= size for end in ends) - 1  # a newline may lack
            ledger.charge(99)
        assert read(path).charges[99] == 1


def test_a_file_whose_first_line_is_incomplete(path):
    with Ledger(path, ABOUT):
        pass
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with Ledger(path, ABOUT) as ledger:
            ledger.charge(0)
        assert read(path).charges == Counter({0: 1})
        path.unlink()
    for data in (
        b'{"ledger": 2, "abo',
        b'{"ledger": 3, "abo',
        whole[:-9] + b"x",
        whole[:20] + b"JUNK" * 500,
        b" ",
        whole[:-1] + b" " + whole,
    ):
        path.write_bytes(data)
        with pytest.raises(LedgerError, match="line 1"):
            Ledger(path, ABOUT)
        assert path.read_bytes() == data
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="is empty"):
        read(path)


@pytest.mark.parametrize("version", [1, 2, 3, 5])
def test_other_formats_are_refused_with_a_remedy(path, version):
    fill(path, range(2))
    old = path.read_bytes().replace(b'{"ledger": 4', b'{"ledger": %d' % version)
    path.write_bytes(old)
    for use in (read, lambda path: Ledger(path, ABOUT)):
        with pytest.raises(LedgerError, match=f"it has format {version}, this version reads format 4: use the rqm"):
            use(path)
    assert path.read_bytes() == old


def test_two_processes_cannot_charge_at_once(path):
    with Ledger(path, ABOUT):
        with pytest.raises(LedgerError, match="another process is charging"):
            Ledger(path, ABOUT)
        code = f"from rqm.ledger.ledger import Ledger; from pathlib import Path; Ledger(Path({str(path)!r}), {ABOUT!r})"
        process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "another process is charging" in process.stderr
    fill(path, [0])


def test_a_full_disk_charges_nothing_that_could_be_released(path, monkeypatch):
    with Ledger(path, ABOUT) as ledger:
        previous = ledger.head
        monkeypatch.setattr("os.write", lambda *_: 3)
        with pytest.raises(OSError, match="disk is full"):
            ledger.charge(0)
        assert ledger.head == previous


CHILD = """
import sys
from pathlib import Path
from rqm.ledger.ledger import Ledger
with Ledger(Path(sys.argv[1]), {"plan": "a", "clients": 40}) as ledger:
    while True:
        round_index = sum(ledger.charges.values())
        ledger.charge(round_index)
        sys.stdout.write(f"{round_index}\\n")  # the release: after the charge
        sys.stdout.flush()
"""


def kill_at_random(path, kills):
    rng = np.random.default_rng(kills)
    released = 0
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE)
        first = child.stdout.readline()
        time.sleep(rng.uniform(0, 0.02))
        child.kill()
        output, _ = child.communicate()
        released += len((first + output).split())
        charged = count_charges(path)
        assert charged >= released  # never less than what was released
        assert charged <= released + kills  # and at most one charge a kill that was not
    fill(path, [])
    assert sum(read(path).charges.values()) >= released


def count_charges(path):
    return path.read_bytes().count(b"\n") - 1


def test_kill_9_never_under_counts(path):
    kill_at_random(path, 6)


@pytest.mark.slow
def test_kill_9_two_hundred_times(path):
    kill_at_random(path, 200)


def test_lines_are_json(path):
    fill(path, [5])
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first["about"] == ABOUT
    assert second["round"] == 5
    assert second["previous"] == first["hash"]


# -- attacks on an open ledger ------------------------------------------------------------------


def test_a_forked_child_cannot_charge(path):
    with Ledger(path, ABOUT) as ledger:
        ledger.charge(0)
        child = os.fork()
        if not child:
            try:
                ledger.charge(1)
            except LedgerError as error:
                os._exit(7 if "another process" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        ledger.charge(1)
    assert read(path).charges == Counter({0: 1, 1: 1})


def test_a_ledger_that_was_replaced_removed_or_written_to_is_not_charged(path):
    for harm in (
        lambda: path.rename(path.with_suffix(".away")),
        lambda: (path.with_suffix(".new").write_bytes(path.read_bytes()), path.with_suffix(".new").replace(path)),
        lambda: os.truncate(path, path.stat().st_size - 1),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(path.read_bytes() + b"{"),
    ):
        path.unlink(missing_ok=True)
        with Ledger(path, ABOUT) as ledger:
            ledger.charge(0)
            harm()
            with pytest.raises(LedgerError, match="nothing is released that was not charged"):
                ledger.charge(1)
            assert ledger.charges == Counter({0: 1})


def test_a_failed_fsync_charges_nothing_and_nothing_after_it(path, monkeypatch):
    with Ledger(path, ABOUT) as ledger:
        ledger.charge(0)

        def broken(_):
            raise OSError(5, "input/output error")

        monkeypatch.setattr("os.fsync", broken)
        with pytest.raises(OSError, match="input/output error"):
            ledger.charge(1)
        monkeypatch.undo()
        with pytest.raises(LedgerError, match="is closed"):
            ledger.charge(2)
    fill(path, [3])
    assert read(path).charges[3] == 1  # and may have charged round 1, which was not released


def test_a_closed_ledger_writes_into_no_other_file(path, tmp_path):
    ledger = Ledger(path, ABOUT)
    ledger.close()
    with (tmp_path / "other").open("wb"), pytest.raises(LedgerError, match="is closed"):  # gets the descriptor
        ledger.charge(0)
    assert (tmp_path / "other").read_bytes() == b""


def test_the_file_is_repaired_only_after_all_checks(path):
    fill(path, range(3))
    torn = path.read_bytes()[:-50]
    path.write_bytes(torn)
    for options in ({"expect_head": "f" * 64}, {"subject": {"plan": "b"}}):
        with pytest.raises(LedgerError):
            Ledger(path, **{"subject": ABOUT, **options})
        assert path.read_bytes() == torn
    path.unlink()
    with pytest.raises(LedgerError):
        Ledger(path, ABOUT, expect_head="f" * 64)
    assert not path.exists()


@pytest.mark.parametrize("is_signed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_no_flipped_byte_drops_a_charge(path, tmp_path, is_signed):
    signer = Signer(tmp_path / "key") if is_signed else None
    with Ledger(path, ABOUT, key=signer) as ledger:
        for round_index in (0, 12, 3):
            ledger.charge(round_index)
    whole = path.read_bytes()
    for position in [*range(len(whole) - 400, len(whole)), *range(0, len(whole), 7)]:
        for flip in (1, 0x20, 0x80, whole[position] ^ ord("}")):
            changed = bytearray(whole)
            changed[position] ^= flip or 2
            path.write_bytes(changed)
            try:
                with Ledger(path, ABOUT, key=signer) as ledger:
                    assert sum(ledger.charges.values()) == 3
            except LedgerError:
                continue
            raise AssertionError(f"byte {position} was changed unnoticed")
