"""Everything that the verifier must notice, byte by byte: in a ledger, beside it, and whatever else it is given."""

import json
import random
import struct
from itertools import product
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rqm import PBM, RQM, Gaussian
from rqm.mechanisms.additive import Binomial, DiscreteGaussian
from rqm.verify import verify
from tests.verify.ledgers import KEY, LEDGER, MEAN, OTHER, QUICK, SAID, about, hashes, heads, plan, public, written


def test_a_sound_ledger_is_verified(check):
    found = check(LEDGER, heads(LEDGER), key=public(KEY), head=hashes(LEDGER)[-1], dim=100, delta=1e-6, honest=20)
    assert (found.status, found.notes, found.charges, found.rounds, found.participations) == ("verified", [], 5, 4, 4)


def noticed(found):
    """Whether anything is said that a sound ledger does not make it say."""
    return found.status != "verified" or any("no newline" in one for one in found.notes)


def test_every_changed_byte_is_noticed(tmp_path):
    """Every byte of the file, replaced by some others: with the key and without."""
    path, draw = tmp_path / "some.jsonl", random.Random(1)
    data = written([0, 1], SAID)
    for place in range(len(data)):
        for new in {data[place] ^ 32, draw.randrange(256)} - {data[place]}:
            path.write_bytes(data[:place] + bytes([new]) + data[place + 1 :])
            assert noticed(verify(path)), (place, new)


@pytest.mark.parametrize("signed", [True, False])
def test_every_small_edit_is_noticed(tmp_path, signed):
    """Thousands of edits: some bytes taken out, others put in."""
    path, draw = tmp_path / "some.jsonl", random.Random(2)
    data = QUICK if signed else written([0, 1, 2, 2, 3], SAID, key=None)
    starts = [b"".join(data.splitlines(keepends=True)[:count]) for count in range(1, 7)]
    for _ in range(2000):
        place = draw.randrange(len(data))
        new = data[:place] + draw.randbytes(draw.randrange(3)) + data[place + draw.randrange(4) :]
        path.write_bytes(new)
        assert noticed(verify(path)) or new in starts, new  # less by whole lines: only a witness can tell


def test_every_truncation_is_noticed_given_a_witness(check):
    data = written([0, 1], SAID)
    for size in range(len(data)):
        assert noticed(check(data[:size], heads(data))), size


def test_lines_that_were_taken_out_moved_or_doubled_are_noticed(check):
    lines = QUICK.splitlines(keepends=True)
    for i in range(len(lines) - 1):
        assert check(b"".join(lines[:i] + lines[i + 1 :])).status == "wrong"
        assert check(b"".join([*lines[:i], lines[i + 1], lines[i], *lines[i + 2 :]])).status == "wrong"
        assert check(b"".join([*lines[: i + 1], *lines[i:]])).status == "wrong"


def test_a_rollback_by_whole_lines_is_noticed_by_a_witness_a_head_or_who_knows_the_rounds(check):
    lines = LEDGER.splitlines(keepends=True)
    for count in range(1, len(lines)):
        old = b"".join(lines[:count])
        assert check(old).status == "verified"  # from inside nobody can tell
        assert check(old, heads(LEDGER)).status == "wrong"
        assert check(old, head=hashes(LEDGER)[-1]).status == "wrong"
        assert check(old, rounds=5).status == "wrong"


def test_a_rollback_that_was_charged_anew_in_the_same_words_is_noticed_by_a_witness(check):
    """The lines of rounds that are done again are the same to the byte: only the order of what was told shows it."""
    told = heads(LEDGER).splitlines(keepends=True)
    assert check(LEDGER, b"".join([*told[:4], *told[3:]])).status == "verified"  # opened again, and told again
    assert check(LEDGER, b"".join([*told[:5], *told[3:]])).status == "wrong"


def test_another_ending_is_noticed_by_a_witness(check):
    assert check(written([0, 1, 2, 3, 4]), heads(LEDGER)).status == "wrong"


def test_a_rewrite_by_another_key_is_noticed_given_the_key(check, tmp_path):
    fake = written([0, 1], key=OTHER)
    (tmp_path / "key").write_text(public(KEY) + "\n")
    assert check(fake).status == "verified"
    assert check(fake, key=public(KEY)).status == check(fake, key=tmp_path / "key").status == "wrong"
    assert check(fake, heads(LEDGER)).status == "wrong"
    assert check(written([0, 1], key=None), key=public(KEY)).status == "wrong"


def test_a_signature_by_another_key_is_noticed(check):
    lines, others = (written([0, 1], key=key).splitlines(keepends=True) for key in (KEY, OTHER))
    mixed = json.loads(lines[1]) | {"signature": json.loads(others[1])["signature"]}
    assert check(lines[0] + json.dumps(mixed).encode() + b"\n").wrong == [
        f"line 2 is not signed by the key '{public(KEY)}'"
    ]


def test_an_unsigned_ledger_says_so(check):
    found = check(written([0], key=None))
    assert found.status == "verified"
    assert "not signed" in found.notes[0]


def test_a_line_without_its_newline_is_counted_and_said(check):
    found = check(LEDGER[:-1])
    assert (found.status, found.charges) == ("verified", 5)
    assert noticed(found)
    torn = check(LEDGER[:-9])
    assert (torn.status, torn.charges) == ("cannot verify", 4)


def test_a_ledger_may_be_one_line_ahead_of_its_witness_and_no_more(check):
    told = heads(LEDGER).splitlines(keepends=True)
    assert check(LEDGER, b"".join(told[:-1])).status == "verified"
    assert check(LEDGER, b"".join(told[:-2])).status == "wrong"
    assert check(LEDGER, b"").status == "wrong"
    assert check(LEDGER, heads(QUICK) + heads(LEDGER)).status == "verified"  # several share a witness


@pytest.mark.parametrize(("name", "value"), [("dim", 101), ("delta", 1e-5), ("honest", 19), ("rounds", 6)])
def test_what_the_auditor_knows_better_is_wrong(check, name, value):
    found = check(LEDGER, **{name: value})
    assert len(found.wrong) == 1
    assert str(value) in found.wrong[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clients", 21),
        ("rounds", 9),
        ("delta", 1e-05),
        ("honest", 3),
        ("survivors", 4),
        ("participations", 4),
        ("population", 99),
        ("mechanism", {"mechanism": "pbm"}),
        ("transforms", {"l2_clip": 2.0, "rotate": True}),
        ("dim", 99),
        ("lost", 0.1),
    ],
)
def test_a_plan_that_says_otherwise_is_wrong(check, name, value):
    assert check(written([0], about(plan=plan()))).status == "verified"
    assert check(written([0], about(plan=plan(**{name: value})))).status == "wrong"


@pytest.mark.parametrize(
    ("delta", "population", "status"), [(1e-5, None, "verified"), (0.5, None, "wrong"), (1e-5, 10**6, "wrong")]
)
def test_a_plan_that_leaves_delta_open_means_its_default(check, delta, population, status):
    said = about(MEAN.with_(delta=delta, population=population))
    assert check(written([0], said | {"plan": plan(population=population, delta=None)})).status == status


def unknown():
    """First lines with something in them that the verifier does not know, or that cannot be."""
    for values in ({}, {"clients": 20}, plan(more=1), plan(transforms={"l2_clip": 1.0})):
        yield about(plan=values)
    yield from (about(more=1), about(users=19), about(users="x"), about(users=True), about(sampling="mine"))
    yield from (about(sampling=None), {name: value for name, value in about().items() if name != "plan"})
    mean = about()["mean"]
    for name, value in {
        "delta": 1,
        "rounds": "x",
        "seed": None,
        "private_mean": 2,
        "more": 1,
        "neighbours": [],
    }.items():
        yield about() | {"mean": {**mean, name: value}}
    yield about(MEAN.with_(population=20, honest=0.5), users=10**6)
    for value in ("x", {}, None, 1, 0.0, [0.5]):
        rqm = {"mechanism": "rqm", "clip": 1.0, "margin": 9.0, "levels": 2, "keep": value}
        yield about() | {"mean": {**mean, "mechanism": rqm}}
    for value in (False, [], "0"):
        yield about() | {"mean": {**mean, "mechanism": {**mean["mechanism"], "margin": value}}}


@pytest.mark.parametrize("said", list(unknown()))
def test_what_it_does_not_know_it_cannot_verify(check, said):
    assert check(written([0], said)).status == "cannot verify"


def test_one_honest_client_is_not_all_of_them(check):
    """1 == 1.0 in Python: the mean counts on all users, the plan and the auditor on one client."""
    said = about()
    said["mean"] |= {"honest": 1.0, "population": 1000}
    assert check(written([0], {**said, "plan": plan(honest=1, population=1000)})).status == "wrong"
    assert check(written([0], said), honest=1).status == "wrong"


def test_a_clip_outside_of_transforms_hides_nothing(check):
    hidden = plan(transforms={"l2_clip": 50.0, "rotate": True}, l2_clip=1.0)
    assert check(written([0], about(plan=hidden))).status == "cannot verify"
    assert check(written([0], about(plan=plan(transforms={"l2_clip": 50.0, "rotate": True})))).status == "wrong"


# -- the folder of a run --------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """The folder of a run of 3 rounds, and a way to change one of its files."""
    data = written([0, 1, 2])
    stated = MEAN.spent({0: 3}).epsilon
    files = {
        "ledger.jsonl": data,
        "plan.json": plan(),
        "metrics.jsonl": b'{"round": 1}\n{"round": 2}\n{"round": 3}\n',
        "checkpoint.safetensors": model(100, 3, hashes(data)[-1]),
        "summary.json": {"epsilon": stated, "delta": 1e-6, "parameters": 100, "ledger_head": hashes(data)[-1]},
    }

    def changed(name=None, new=None, **values):
        for file, old in files.items():
            value = new if file == name and new is not None else {**old, **values} if file == name else old
            (tmp_path / file).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return verify(tmp_path)

    return changed


def model(size, done, head):
    state = {"round": done, "ledger_head": head}
    header = {"__metadata__": {"state": json.dumps(state)}, "values": {"dtype": "F32", "shape": [size]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


def test_a_sound_run_is_verified(run):
    assert run().status == "verified", run()


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("ledger.jsonl", written([0, 1])),  # a charge is missing
        ("ledger.jsonl", written([0, 1, 1])),
        ("plan.json", plan(clients=30)),
        ("metrics.jsonl", b'{"round": 1}\n{"round": 4}\n'),
        ("checkpoint.safetensors", model(101, 3, hashes(LEDGER)[3])),
        ("checkpoint.safetensors", model(10**4000, 3, hashes(LEDGER)[3])),
        ("checkpoint.safetensors", model(100, 3, "0" * 64)),
        ("checkpoint.safetensors", model(100, 4, hashes(LEDGER)[3])),
        ("checkpoint.safetensors", model(100, 3, ["x"])),
        ("summary.json", {"delta": 1e-5}),
        ("summary.json", {"parameters": 99}),
        ("summary.json", {"ledger_head": "0" * 64}),
        ("summary.json", {"epsilon": 0.0}),
        ("summary.json", {"epsilon": "much"}),
        ("summary.json", {"epsilon": float("nan")}),
    ],
)
def test_a_file_that_tells_of_more_than_was_charged_is_wrong(run, name, new):
    assert run(name, new).status == "wrong"


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoint.safetensors", "summary.json"])
def test_a_file_that_cannot_be_read_cannot_be_verified(run, name):
    assert run(name, b"\xff{\n").status == "cannot verify"


def test_an_epsilon_that_nobody_can_confirm_is_not_confirmed(run):
    stated = MEAN.spent({0: 3}).epsilon
    found = run()
    assert found.lower < stated / 1.2
    assert run("summary.json", epsilon=stated / 1.2).status == "cannot verify"
    assert run("summary.json", epsilon=2 * stated).status == "verified"  # more than was spent is true, too


# -- any bytes ------------------------------------------------------------------------------------


def strange():
    mean = about()["mean"]
    yield from (b"", b"\n", b"\x00" * 99, bytes(range(256)), b"[" * 10**6 + b"\n", b'{"a":' * 10**6 + b"\n", b"null\n")
    yield from (b'{"ledger": 9}\n', b'{"ledger": [[]]}\n', b'{"ledger": ' + b"9" * 5000 + b"}\n")
    for said in ({}, {"mean": []}, {"mean": {}}, {"mean": None}, {"mean": mean, "plan": 3}):
        yield written([0], said)
    for name, value in product(mean, (None, -1, 0, 2**70, 10**400, 1e308, float("nan"), inf, "x", [], {}, True)):
        yield written([0, 0], {**about(), "mean": {**mean, name: value}})
    for kind in (MEAN.mechanism, RQM(levels=4, margin=9.0), PBM(), DiscreteGaussian(), Binomial(), Gaussian()):
        mech = json.loads(json.dumps(kind.to_dict()))
        for name, value in product(mech, (None, -1, 0, 2, 2**70, 10**400, 1e308, 1e-308, float("nan"), "x", [0.5])):
            yield written([0], {**about(), "mean": {**mean, "mechanism": {**mech, name: value}}})
    for first in ({"ledger": True}, {"key": "x"}, {"key": []}, {"key": "0" * 64}, {"about": []}, {"round": 1}):
        yield written([0], first=first)
    yield from (written([turn]) for turn in (-1, True, 1.5, None, "x", [], 10**400))


def test_no_bytes_make_it_fail(check):
    for data in strange():
        found = check(data)
        assert json.loads(json.dumps(found.to_dict()))["status"] == found.status
        assert str(found)


@given(st.binary(max_size=200))
def test_no_random_bytes_are_verified(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "some.jsonl"
    path.write_bytes(data)
    assert verify(path).status != "verified"
    assert verify(path, witness=path).status != "verified"


def test_what_is_no_file_cannot_be_verified(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", "/dev/zero", "\x00", "x" * 5000):
        assert verify(path).status == "cannot verify"
