"""The verifier of ledgers and of runs: sound ones are verified, others never, and nothing makes it fail."""

import ast
import json
import struct
from itertools import product
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rqm.verify
from rqm import PBM, RQM, DiscreteGaussian, Gaussian, StochasticRounding, private_mean
from rqm.config.account import account_ledger
from rqm.ledger.ledger import LEDGER as LEDGER_NAME
from rqm.ledger.ledger import read
from rqm.mechanisms.additive import Binomial
from rqm.related.vqsgd import VQSGD
from rqm.simulation.loop import RunState
from rqm.simulation.run_folder import carry_out
from rqm.simulation.secure_sum import IdealSum, ProtocolSum
from rqm.verify import verify
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model
from tests.verify.ledgers import LEDGER, MEAN, change_mean, describe, hashes, ledger_bytes, plan_table


def test_the_verifier_imports_nothing_of_the_package():
    for path in Path(rqm.verify.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(not name.startswith("rqm") for name in names)
            assert not isinstance(node, ast.ImportFrom) or node.level < 2


# -- the folder of a run --------------------------------------------------------------------------


def checkpoint_bytes(parameters, rounds, head):
    state = {"round": rounds, "ledger_head": head}
    header = {"__metadata__": {"state": json.dumps(state)}, "values": {"dtype": "F32", "shape": [parameters]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.fixture
def verify_run(tmp_path):
    """Verify a run of 3 rounds, with one of its files replaced, or with other values in it."""
    ledger = ledger_bytes([0, 1, 2])
    stated = MEAN.account({0: 3}).epsilon
    files = {
        "ledger.jsonl": ledger,
        "plan.json": plan_table(),
        "metrics.jsonl": b'{"round": 1}\n{"round": 2}\n{"round": 3}\n',
        "checkpoint.safetensors": checkpoint_bytes(100, 3, hashes(ledger)[-1]),
        "summary.json": {"epsilon": stated, "delta": 1e-6, "parameters": 100, "ledger_head": hashes(ledger)[-1]},
    }

    def run(name=None, content=None, **values):
        for file, default in files.items():
            new = default
            if file == name:
                new = {**default, **values} if content is None else content
            (tmp_path / file).write_bytes(new if isinstance(new, bytes) else json.dumps(new).encode())
        return verify(tmp_path)

    return run


def test_a_sound_run_is_verified(verify_run):
    assert verify_run().status == "verified", verify_run()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ledger.jsonl", ledger_bytes([0, 1])),  # a charge is missing
        ("ledger.jsonl", ledger_bytes([0, 1, 1])),
        ("plan.json", plan_table(clients=30)),
        ("plan.json", []),
        ("metrics.jsonl", b'{"round": 1}\n{"round": 4}\n'),
        ("metrics.jsonl", b'{"round": 0}\n'),
        ("checkpoint.safetensors", checkpoint_bytes(101, 3, hashes(LEDGER)[3])),
        ("checkpoint.safetensors", checkpoint_bytes(10**4000, 3, hashes(LEDGER)[3])),
        ("checkpoint.safetensors", checkpoint_bytes(100, 3, "0" * 64)),
        ("checkpoint.safetensors", checkpoint_bytes(100, 4, hashes(LEDGER)[3])),
        ("checkpoint.safetensors", checkpoint_bytes(100, 3, ["x"])),
        ("summary.json", {"delta": 1e-5}),
        ("summary.json", {"parameters": 99}),
        ("summary.json", {"ledger_head": "0" * 64}),
        ("summary.json", {"epsilon": 0.0}),
        ("summary.json", {"epsilon": "much"}),
        ("summary.json", {"epsilon": True}),
        ("summary.json", {"epsilon": float("nan")}),
    ],
)
def test_a_file_that_says_more_than_was_charged_is_wrong(verify_run, name, content):
    assert verify_run(name, content).status == "wrong"


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoint.safetensors", "summary.json"])
def test_a_file_that_cannot_be_read_is_not_verified(verify_run, name):
    assert verify_run(name, b"\xff{\n").status == "cannot verify"


def test_one_doubt_does_not_hide_what_is_wrong(verify_run, tmp_path):
    """All checks run: the witness cannot be read, the metrics neither, and the summary is wrong."""
    verify_run("summary.json", {"delta": 1e-5})
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff{\n")
    report = verify(tmp_path, witness=tmp_path / "nothing")
    assert (report.status, len(report.wrong), len(report.unsure)) == ("wrong", 1, 2)
    assert report.epsilon is not None


def test_an_epsilon_that_cannot_be_confirmed_is_not_verified(verify_run):
    stated = MEAN.account({0: 3}).epsilon
    assert verify_run().lower < stated / 1.2
    assert verify_run("summary.json", epsilon=stated / 1.2).status == "cannot verify"
    assert verify_run("summary.json", epsilon=2 * stated).status == "verified"  # less than was spent is never true


CHARGED = private_mean(
    dim=2000,
    clients=40,
    mechanism=StochasticRounding(clip=0.1, levels=2, margin=9.0),
    delta=1e-6,
    l2_clip=None,
    rotate=False,
    rounds=4,
    honest_clients=20,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"dim": 1500},
        {"delta": 1e-4},
        {"honest_clients": 28},
        {"honest_fraction": 0.7, "population": 4000, "sampling": "uniform"},
        {"rounds": 3},
    ],
)
def test_an_epsilon_of_other_releases_is_not_confirmed(tmp_path, wrong):
    """Stated by an accountant with a wrong dimension, δ, number of honest clients or of rounds."""
    (tmp_path / "ledger.jsonl").write_bytes(ledger_bytes(range(4), describe(CHARGED)))
    for mean, statuses in ((CHARGED, {"verified"}), (CHARGED.with_values(**wrong), {"wrong", "cannot verify"})):
        stated = mean.account(dict.fromkeys(range(mean.participation.rounds), 1)).epsilon
        (tmp_path / "summary.json").write_text(json.dumps({"epsilon": stated}))
        assert verify(tmp_path).status in statuses


# -- runs of all methods --------------------------------------------------------------------------

PLAN = make_plan(
    model="own",
    mechanism=StochasticRounding(clip=0.8, margin=9.0, levels=2),
    clients=8,
    rounds=3,
    evaluate_every=3,
    client={"work": "local", "steps": 2, "batch": 4},
    server={"optimizer": "sgd", "rate": 0.1},
    transforms={"l2_clip": 1.0, "rotate": True},
)
ADAPT = {"quantile": 0.5, "rate": 0.2, "start": 0.3, "share": 0.1}


def with_values(**values):
    table = {**PLAN.to_dict(), **values}
    return make_plan(**{name: value for name, value in table.items() if value is not None})


def with_work(work, **values):
    return with_values(client={**PLAN.to_dict()["client"], "work": work}, **values)


RUNS = {
    "vqSGD": with_values(mechanism=VQSGD(epsilon=8.0)),
    "vqSGD, real": with_values(mechanism=VQSGD(epsilon=8.0), secagg="real"),
    "local vqSGD": with_values(mechanism=VQSGD(epsilon=3.0, local=True), honest_clients=1),
    "adaptive clip": with_values(adapt=ADAPT),
    "adaptive clip, zero-out": with_values(adapt=ADAPT, neighboring="zero-out"),
    "adaptive clip, real": with_values(adapt=ADAPT, secagg="real"),
    "FedCOMGATE": with_work("fedcomgate"),
    "FedAQ": with_work("fedaq"),
    "FedAQ, adaptive clip": with_work("fedaq", adapt=ADAPT),
}


def trained(plan, folder):
    return carry_out(plan, federation(), folder, make=lambda plan, data: RunState(plan, data, model()))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_verified_as_it_was_charged(name, tmp_path):
    summary = trained(RUNS[name], tmp_path / "run")
    report = verify(tmp_path / "run", dim=summary["parameters"])
    assert (report.wrong, report.unsure) == ([], [])
    guarantee, _ = account_ledger(tmp_path / "run")
    assert summary["epsilon"] == pytest.approx(guarantee.epsilon)
    assert guarantee.epsilon * 0.999 <= report.epsilon <= 1.1 * guarantee.epsilon
    assert report.assumptions == [assumption.text("user") for assumption in guarantee.assumptions]
    assert verify(tmp_path / "run", dim=summary["parameters"] + 1).wrong  # another model is noticed


@pytest.mark.parametrize("name", RUNS)
def test_a_round_is_on_the_disk_before_clients_are_asked(name, tmp_path, monkeypatch):
    """And one that the budget does not pay for is not asked for."""
    plan, charges = RUNS[name], []
    one_round = plan.private_mean(51).account({0: 1}).epsilon
    secure_sum = ProtocolSum if plan.secagg == "real" else IdealSum
    reveal = secure_sum.reveal

    def recorded(self, updates, cohort):
        charges.append(read(tmp_path / "run" / LEDGER_NAME).charges[cohort.round_index])
        return reveal(self, updates, cohort)

    monkeypatch.setattr(secure_sum, "reveal", recorded)
    summary = trained(change_plan(plan, budget_epsilon=1.01 * one_round), tmp_path / "run")
    assert charges == [1]
    assert summary["rounds"] == 1
    assert summary["budget_spent"]
    assert summary["epsilon"] == pytest.approx(one_round)


# -- any bytes ------------------------------------------------------------------------------------


def strange_ledgers():
    yield from (b"", b"\n", b"\x00" * 99, bytes(range(256)), b"[" * 10**6 + b"\n", b'{"a":' * 10**6 + b"\n", b"null\n")
    yield from (b'{"ledger": 9}\n', b'{"ledger": [[]]}\n', b'{"ledger": ' + b"9" * 5000 + b"}\n")
    mean = describe()["mean"]
    for description in ({}, {"mean": []}, {"mean": {}}, {"mean": None}, {"mean": mean, "plan": 3}):
        yield ledger_bytes([0], description)
    for name, value in product(mean, (None, -1, 0, 2**70, 10**400, 1e308, float("nan"), inf, "x", [], {}, True)):
        yield ledger_bytes([0, 0], change_mean(describe(), **{name: value}))
    for kind in (MEAN.mechanism, RQM(levels=4, margin=9.0), PBM(), DiscreteGaussian(), Binomial(), Gaussian()):
        mechanism = json.loads(json.dumps(kind.to_dict()))
        for name, value in product(
            mechanism, (None, -1, 0, 2, 2**70, 10**400, 1e308, 1e-308, float("nan"), "x", [0.5])
        ):
            yield ledger_bytes([0], change_mean(describe(), mechanism={**mechanism, name: value}))
    noise = {"transient_std": 5.0, "residual_std": 1.5, "gain": 5}
    for name, value in product(noise, (None, -1, 0, 2**70, 10**400, 1e308, 1e-308, float("nan"), "x", [0.5], True)):
        yield ledger_bytes([0], change_mean(describe(), noise={**noise, name: value}))
    for first in ({"ledger": True}, {"key": "x"}, {"key": []}, {"key": "0" * 64}, {"about": []}, {"round": 1}):
        yield ledger_bytes([0], first=first)
    yield from (ledger_bytes([round_index]) for round_index in (-1, True, 1.5, None, "x", [], 10**400))


def test_no_bytes_make_the_verifier_fail(verify_bytes):
    for ledger in strange_ledgers():
        report = verify_bytes(ledger)
        assert json.loads(json.dumps(report.to_dict()))["status"] == report.status
        assert str(report)


@given(st.binary(max_size=200))
def test_no_random_bytes_are_verified(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "some.jsonl"
    path.write_bytes(data)
    assert verify(path).status != "verified"
    assert verify(path, witness=path).status != "verified"


def test_what_is_no_file_is_not_verified(tmp_path):
    for path in (tmp_path, tmp_path / "nothing", "/dev/zero", "\x00", "x" * 5000):
        assert verify(path).status == "cannot verify"
