"""Attacks that were carried out against the assembled thing, through Flower's own objects: refused, or harmless."""

import logging
from contextlib import suppress
from random import Random

import numpy as np
import pytest

pytest.importorskip("flwr")
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from rqm.flower import RunFailedError, client_mod, private_mod
from rqm.flower.messages import NEXT_RECORD, PLAN_RECORD, request_message
from rqm.ledger.ledger import LEDGER, LedgerError, read
from rqm.secagg import ProtocolError, wire
from rqm.secagg.masking import sealed_bytes
from rqm.secagg.wire import Kind
from tests.flower.local import (
    LocalGrid,
    arrays,
    gradient_app,
    plan_folder,
    plan_of,
    private_strategy,
    start,
    survivors,
)
from tests.flower.test_strategy import PRIVATE
from tests.simulation.small import model

CONFIG = {**PRIVATE, "rqm.threshold": 3, "rqm.rounds": 2}
HEADER = wire.HEADER.size


class Tampered(LocalGrid):
    """A grid in which some replies are changed on their way."""

    def __init__(self, tamper, config=CONFIG):
        super().__init__(gradient_app(private_mod), 6, config)
        self.tamper, self.requests = tamper, []

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        stages = {m.metadata.dst_node_id: m.content.config_records["rqm"]["stage"] for m in messages}
        self.requests += [(stages[m.metadata.dst_node_id], m) for m in messages]
        replies = super().send_and_receive(messages)
        return [self.tamper(r, r.metadata.src_node_id, stages[r.metadata.src_node_id]) or r for r in replies]


def answering(reply, body, bare=False, **more):
    """The same reply with another body; what it says of the next round stays, but for a ``bare`` one."""
    requests = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type="train")
    beside = {NEXT_RECORD: reply.content[NEXT_RECORD]} if NEXT_RECORD in reply.content and not bare else {}
    odd = body if isinstance(body, RecordDict) else RecordDict({"rqm": ConfigRecord({"message": body, **more})})
    content = RecordDict({**beside, **odd})
    return Message(content, reply_to=requests)


def train(tmp_path, tamper=lambda *_: None, config=CONFIG, **options):
    grid = Tampered(tamper, config)
    return *start(grid, config, tmp_path, **options), grid


def body_of(reply):
    return reply.content.config_records["rqm"]["message"]


def test_what_a_node_gives_as_its_error_is_no_line_of_the_log(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def tamper(reply, node, now):
        requests = Message(RecordDict(), dst_node_id=node, message_type="train")
        return Message(Error(0, "x\nINFO : rqm: (ε = 0.1, certified)"), reply_to=requests) if node == 101 else None

    assert survivors(train(tmp_path, tamper)[0]) == [5, 5]
    assert any("x\\nINFO" in entry for entry in caplog.messages)
    assert not any("\n" in entry for entry in caplog.messages if "rqm:" in entry)


# -- uncharged ----------------------------------------------------------------------------------


def test_a_charge_is_on_the_disk_before_anybody_is_asked_for_a_vector(tmp_path):
    requests = []

    class Watched(Tampered):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            fields = [entry for entry in messages[0].content.config_records.values() if "stage" in entry]
            requests.append([(entry["round_index"], Kind(entry["stage"]).name) for entry in fields])
            spent = read(plan_folder(tmp_path) / LEDGER).charges
            assert all(spent[entry["round_index"]] == 1 for entry in fields if entry["stage"] >= Kind.MASKED)
            return super().send_and_receive(messages)

    start(Watched(lambda *_: None), CONFIG, tmp_path)
    assert requests == [
        [(0, "KEYS")],
        [(0, "SHARES")],
        [(0, "MASKED")],
        [(0, "ACKS"), (1, "KEYS")],
        [(0, "REVEAL"), (1, "SHARES")],
        [(1, "MASKED")],
        [(1, "ACKS")],
        [(1, "REVEAL")],
    ]


class Stopped(FedAvg):
    """A strategy whose server dies after some rounds."""

    def __init__(self, rounds):
        super().__init__(fraction_evaluate=0.0)
        self.rounds = rounds

    def configure_train(self, server_round, *args):
        if server_round > self.rounds:
            raise KeyboardInterrupt
        return super().configure_train(server_round, *args)


def test_a_second_start_continues_the_same_ledger(tmp_path):
    config = {**CONFIG, "rqm.rounds": 4}
    del config["rqm.max-participations"]  # a round that was prepared and not begun counts as one
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, config=config, strategy=Stopped(2))
    ledger = plan_folder(tmp_path) / LEDGER
    assert read(ledger).charges == {0: 1, 1: 1}
    second, _, _ = train(tmp_path, config=config)
    assert read(ledger).charges == {0: 1, 1: 1, 2: 1, 3: 1}
    assert survivors(second) == [6, 6, 0, 0]  # no round is left that ε accounts for
    free, _, _ = train(tmp_path / "uninterrupted", config=config)
    assert second.train_metrics_clientapp[2]["epsilon"] == free.train_metrics_clientapp[4]["epsilon"]


def test_a_ledger_put_back_between_two_starts_is_noticed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, strategy=Stopped(1), witness=tmp_path / "witness")
    path = plan_folder(tmp_path) / LEDGER
    path.write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    with pytest.raises(LedgerError, match="witness"):
        train(tmp_path, witness=tmp_path / "witness")


def test_who_has_taken_part_is_known_after_a_crash(tmp_path):
    config = {**CONFIG, "rqm.max-participations": 1, "rqm.rounds": 2}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, config=config, strategy=Stopped(1))
    grid = Tampered(lambda *_: None, config)
    with pytest.raises(RunFailedError, match="0 nodes of 0 connected can take part: must be at least 4"):
        start(grid, config, tmp_path)  # another process: nothing is in memory
    assert not grid.requests
    assert not grid.checks


# -- one client ends the run --------------------------------------------------------------------

ODD = [-1, [300], 2**62, True, 1.5, "text", [b"x"], [1, 2], b"", b"\0" * 10, b"\xff" * 5000]


@pytest.mark.parametrize(
    "stage",
    [
        Kind.KEYS,
        Kind.MASKED,
        *(pytest.param(stage, marks=pytest.mark.slow) for stage in (Kind.SHARES, Kind.ACKS, Kind.REVEAL)),
    ],
    ids=lambda s: s.name,
)
def test_odd_replies_cost_their_sender_its_place(stage, tmp_path):
    odd = iter(ODD * 2)

    def tamper(reply, node, now):
        return answering(reply, next(odd)) if node == 103 and now == stage else None

    for round_index in range(len(ODD) // 2 + 1):
        result, _, _ = train(tmp_path / str(round_index), tamper)
        assert survivors(result) == [5 if stage <= Kind.MASKED else 6] * 2


def test_bad_ciphertexts_of_one_client_cost_it_its_place_and_the_round_is_done_again(tmp_path):
    def tamper(reply, node, now):
        body = bytearray(body_of(reply))
        if now == Kind.SHARES and node == 101:
            for position in range(HEADER + 32 + 4, len(body), 4 + sealed_bytes(2)):
                body[position + 4 + sealed_bytes(2) - 1] ^= 1  # the last byte of what a neighbour is to open
            return answering(reply, bytes(body))
        return None

    config = {**CONFIG, "rqm.rounds": 4}
    result, private, grid = train(tmp_path, tamper, config)
    assert survivors(result) == [5] * 4
    assert read(plan_folder(tmp_path) / LEDGER).charges == {0: 2, 1: 2, 2: 2, 3: 1}  # done again, and charged again
    blamed = private.run.machine.node_state.blamed
    assert list(blamed) == [101]  # likely three times
    assert "contradict each other" in blamed[101]
    assert sum(m.metadata.dst_node_id == 101 for stage, m in grid.requests if stage == Kind.KEYS) == 3
    assert not (plan_folder(tmp_path) / "blamed.json").exists()  # but nothing is proved


def accuses(liar):
    """A node whose message is honest, but for the last list: it holds no good share of anybody."""

    def tamper(reply, node, now):
        if now != Kind.MASKED or node != liar:
            return None
        body = body_of(reply)
        count = next(n for n in range(3, 7) if body[-4 - 20 * n - 4 : -4 - 20 * n] == wire.number(n))
        tags = wire.read_entries(memoryview(body)[-4 - 20 * count - 4 :], 16, 64)[0]
        return answering(reply, body[:-4] + wire.encode(list(tags)))

    return tamper


@pytest.mark.parametrize("silent", [None, 105])
def test_one_who_accuses_all_is_left_out_alone(silent, tmp_path):
    """With t = k one accusation spoils a round, and so it does where others are lost; nobody is marked for good."""
    config = {name: value for name, value in CONFIG.items() if name not in ("rqm.threshold", "rqm.min-survivors")}
    config["rqm.min-survivors"] = 6 if silent is None else 5
    grid = Tampered(accuses(101), config)
    grid.lose = lambda node, stage, round_index: node == silent and stage == Kind.MASKED
    private = private_strategy(config, tmp_path)
    with suppress(RunFailedError):  # without the one that is silent too few may be left
        private.start(grid, arrays(model()))
    assert private.run.guard.charges
    assert set(private.run.machine.node_state.blamed) <= {101}
    assert not (plan_folder(tmp_path) / "blamed.json").exists()


@pytest.mark.parametrize("name", ["participants.json", "blamed.json"])
@pytest.mark.parametrize(
    "text", ['{"abc": 1}', '{"100": 1.5}', '{" 100": 1}', '{"100": -1}', '{"100": true}', "[]", "{"]
)
def test_a_damaged_file_beside_the_ledger_is_named(name, text, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, strategy=Stopped(1))
    (plan_folder(tmp_path) / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}: is damaged"):
        train(tmp_path)


@pytest.mark.parametrize("text", [None, "{}", '{"100": 1}'])
def test_who_took_part_cannot_be_forgotten(text, tmp_path):
    config = {**CONFIG, "rqm.max-participations": 1}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, config=config, strategy=Stopped(1))
    path = plan_folder(tmp_path) / "participants.json"
    path.unlink()
    if text:
        path.write_text(text)
    with pytest.raises(ValueError, match=r"participants.json: counts [01] participations"):
        train(tmp_path, config=config)


def test_a_mark_that_is_taken_away_meanwhile_is_no_mark(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path))
    locked = client_mod.lock

    def cleaned(file, *, wait):
        (tmp_path / "spent" / "me").unlink()
        return locked(file, wait=wait)

    monkeypatch.setattr(client_mod, "lock", cleaned)
    with pytest.raises(ProtocolError, match="deleted meanwhile"):
        client_mod.mark_answered("me", 5)


def test_impossible_sums_are_discarded_and_charged(tmp_path):
    """One client adds more than any client can hold; nobody can tell who, but the sum is none."""

    def tamper(reply, node, now):
        if now == Kind.MASKED and node == 104:
            body = body_of(reply)
            return answering(reply, body[:HEADER] + Random(1).randbytes(size) + body[HEADER + size :])
        return None

    size = plan_of(CONFIG).params(b"x").masked_size
    private, grid = private_strategy(CONFIG, tmp_path), Tampered(tamper)
    with pytest.raises(RunFailedError, match="no clients can have sent such a sum"):
        private.start(grid, arrays(model()))
    assert private.run.guard.epsilon() > 0
    assert read(plan_folder(tmp_path) / LEDGER).charges == {0: 1, 1: 1}
    assert not (plan_folder(tmp_path) / "model.npz").exists()


# -- odd requests -------------------------------------------------------------------------------

STRANGE = [None, -1, 2**40, 2**62, 0, 1.5, True, "x", b"", b"\0" * 300, [1], [2**62], [b"x"], float("nan")]


def test_a_client_answers_odd_requests_with_an_error(tmp_path):
    chance = Random(4)
    grid = LocalGrid(gradient_app(private_mod), 6, CONFIG)
    valid = {"stage": 1, "round": b"x", "round_index": 0, "client": 0, "message": b""}
    plan = request_message(100, plan_of(CONFIG)).content[PLAN_RECORD]
    errors = 0
    for _ in range(400):
        record = dict(valid)
        for name in chance.sample(sorted(record), chance.randint(1, 3)):
            value = chance.choice(STRANGE)
            record.pop(name) if value is None else record.update({name: value})
        content = RecordDict({"rqm": ConfigRecord(record), PLAN_RECORD: plan})
        if chance.random() < 0.3:
            content["arrays"] = ArrayRecord({"a": Array("float32", (3,), "numpy.ndarray", chance.randbytes(20))})
        reply = grid.app(Message(content, dst_node_id=100, message_type="train"), grid.contexts[100])
        errors += reply.has_error()
    assert errors > 300


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: dict(list(model.items())[1:]), "0.weight: is missing among the arrays"),
        (lambda model: {**model, "0.bias": Array(np.zeros(9, np.float32))}, "has 52 trained values: must be 51"),
        (lambda model: {**model, "0.bias": Array("float32", (8,), "numpy.ndarray", b"x")}, "cannot be read"),
        (lambda model: {**model, "0.bias": Array(np.zeros(8, np.complex64))}, "must be floats"),
    ],
    ids=["missing", "larger", "unreadable", "complex"],
)
def test_a_model_that_is_not_the_plans_is_refused(change, reason, tmp_path):
    class Lying(Tampered):
        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            for message in messages:
                if "arrays" in message.content:
                    message.content["arrays"] = ArrayRecord(change(dict(arrays(model()).items())))
            return super().send_and_receive(messages)

    grid = Lying(lambda *_: None)
    with pytest.raises(RunFailedError):
        start(grid, CONFIG, tmp_path)
    errors = [reply.error.reason for stage, reply in grid.observed if stage == Kind.MASKED]
    assert len(errors) == 6  # the run ends with the first round that all refuse
    assert all(reason in error for error in errors)
