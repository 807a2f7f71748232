"""A node's own policy: held against whatever a server asks for, and counted by the node itself."""

import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest

from rqm import RQM, Gaussian, StochasticRounding
from rqm.accounting.accountant import Question
from rqm.config.account import account_ledger
from rqm.config.plan import Transforms
from rqm.config.round_parameters import protocol
from rqm.ledger.node_policy import POLICY, TEMPLATE, TRUSTING, NodeGuard, Policy, PolicyError, corrupt
from rqm.secagg import Identity
from rqm.verify import verify
from tests.plans import change_plan, make_plan

PLAN = make_plan(
    mechanism=RQM(clip=0.2, margin=60.0, levels=16),
    clients=20,
    min_survivors=15,
    honest_clients=15,
    rounds=50,
    transforms=Transforms(l2_clip=1.0, rotate=True),
)
MEAN = PLAN.private_mean(500)
POLICY_OF = Policy(
    epsilon=3.0,
    delta=1e-6,
    release_epsilon=2.0,
    l2_clip=1.0,
    clients=20,
    max_participations=3,
    honest_clients=15,
    trust_server_with_keys=True,
)


@pytest.fixture
def guard(tmp_path):
    return NodeGuard(POLICY_OF, tmp_path)


def test_the_template_is_a_policy(tmp_path):
    (tmp_path / POLICY).write_text(TEMPLATE)
    assert Policy.from_toml(tmp_path / POLICY).corrupt(100) == 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": 2, "min_survivors": 2, "honest_clients": None}, "clients = 2: must be at least 20"),
        ({"min_survivors": 5}, "min_survivors = 5: must be more than 5, who may collude with the server"),
        (
            {"honest_clients": None},
            "honest_clients = 20: must be at most 15, or the secure sum is not made for 5 of 20 clients who",
        ),
        ({"honest_clients": 16}, "honest_clients = 16: must be at most 15"),
        (
            {"min_survivors": 10, "honest_clients": 20, "max_participations": 1},
            "honest_clients = 20: must be at most 15",
        ),
        ({"min_survivors": None, "client_dropout": 0.1}, "min_survivors = 1: must be more than 5"),
        ({"transforms": Transforms()}, "l2_clip: must be given"),
        ({"transforms": Transforms(l2_clip=1.5, rotate=True)}, "l2_clip = 1.5: must be at most 1.0"),
        (
            {"mechanism": StochasticRounding(clip=0.2, levels=2**14, margin=0.0)},
            r"release_epsilon = .* at this node's δ = 1e-06: must be at most 2.0",
        ),
        (
            {"mechanism": RQM(clip=0.2, margin=3.0)},
            r"release_epsilon = .* at this node's δ = 1e-06: must be at most 2.0",
        ),
        ({"mechanism": Gaussian(5.0)}, "mechanism = gaussian: must be one of rqm"),
    ],
)
def test_a_server_cannot_ask_for_less(guard, change, message):
    with pytest.raises(PolicyError, match=message):
        guard.allow(change_plan(PLAN, **change).private_mean(500), b"1")
    assert not list(guard.folder.glob("*/*"))  # nothing was charged


@pytest.mark.parametrize(
    ("honest", "bad"),
    [
        ({"honest_clients": 15}, 5),
        ({"honest_clients": None, "honest_fraction": 0.75}, 5),
        ({"honest_clients": None, "honest_fraction": 0.9}, 2),
        ({"honest_clients": 20}, 0),
    ],
)
def test_whatever_the_server_asks_for_the_secure_sum_holds_against_those_of_the_policy(honest, bad):
    """Survivors, honest clients and threshold are the server's choice: who may be corrupt depends on none of them."""
    policy = replace(POLICY_OF, **honest)
    assert policy.corrupt(20) == bad
    allowed = 0
    for survivors in range(2, 21):
        for claimed in (*range(1, 21), None):
            plan = change_plan(PLAN, min_survivors=survivors, honest_clients=claimed)
            mean = plan.private_mean(500)
            counted = policy.counted(mean)
            question = Question.of(counted.release, counted.participation, counted.threat_model, counted.delta)
            for threshold in range(20):
                with suppress(ValueError):
                    params = protocol(plan, 10, b"1", threshold)
                    policy.check(mean)
                    allowed += 1
                    assert 2 * params.threshold > 19 + bad
                    assert params.minimum == survivors > bad
                    assert question.honest == survivors - bad
    assert allowed > 10


def test_few_survivors_do_not_hide_who_may_be_corrupt():
    """With min_survivors = 1 the guarantee counts one honest client; the others may still work with the server."""
    plan = change_plan(PLAN, population=1000, sampling="uniform", honest_clients=None, honest_fraction=0.8)
    for survivors in (1, 2, 15):
        few = change_plan(plan, min_survivors=survivors)
        assert corrupt(few.private_mean(500)) == corrupt(plan.private_mean(500)) > 5
        with pytest.raises(ValueError, match=rf"min_survivors = {survivors}, .* who|it could unmask a client"):
            protocol(few, 10, b"1")


def test_what_was_paid_is_counted_by_what_the_owner_believes_now(guard):
    guard.charge(MEAN, 0)
    doubting = replace(POLICY_OF, honest_clients=10)
    wary = change_plan(PLAN, honest_clients=10, min_survivors=16).private_mean(500)
    costs = [doubting.counted(mean).with_values(delta=0.5e-6).account({0: 1}).epsilon for mean in (MEAN, wary)]
    before = POLICY_OF.counted(MEAN).with_values(delta=0.5e-6).account({0: 1}).epsilon
    assert before < costs[0]
    for most, good in ((sum(costs) * 1.001, True), ((before + sum(costs) + costs[1]) / 2, False)):
        guard = NodeGuard(replace(doubting, epsilon=most), guard.home)
        if good:
            guard.allow(wary, b"1")
        else:
            with pytest.raises(PolicyError, match=r"epsilon = .* of all releases at this node's δ = 1e-06: must be"):
                guard.allow(wary, b"2")


def test_a_round_has_no_more_clients_than_the_roster(tmp_path):
    keys = [Identity.new(tmp_path / "identity.key").public] + [bytes([u]) * 32 for u in range(18)]
    (tmp_path / "roster.txt").write_text("\n".join(key.hex() for key in keys))
    policy = replace(POLICY_OF, trust_server_with_keys=False, roster=tmp_path / "roster.txt")
    with pytest.raises(PolicyError, match="clients = 20: must be at most 19, the clients in the roster"):
        NodeGuard(policy, tmp_path).allow(MEAN, b"1")


def test_nobody_waits_while_a_cost_is_worked_out(guard, monkeypatch):
    """What another process charges meanwhile is seen."""
    afford, asked = NodeGuard._check_budget, []

    def slow(self, mean, counts):
        afford(self, mean, counts)
        asked.append(sum(count for _, count in counts))
        if len(asked) == 1:
            guard.charge(MEAN, 7)

    monkeypatch.setattr(NodeGuard, "_check_budget", slow)
    guard.charge(MEAN, 0)
    assert asked == [1, 1, 2]
    (path,) = guard.folder.glob("*/ledger.jsonl")
    assert verify(path).charges == 2


def test_a_round_is_begun_once(guard):
    guard.allow(MEAN, b"1")
    guard.allow(MEAN, b"2")
    with pytest.raises(PolicyError, match="a round that it has begun before"):
        NodeGuard(POLICY_OF, guard.home).allow(MEAN, b"1")


def test_a_ledger_that_was_begun_and_never_written_counts_nothing(guard):
    """Its process was killed before the first line was whole."""
    guard.charge(MEAN, 0)
    (path,) = guard.folder.glob("*/ledger.jsonl")
    for name, text in (("one", b""), ("two", path.read_bytes()[:30])):
        (guard.folder / name).mkdir()
        (guard.folder / name / "ledger.jsonl").write_bytes(text)
    guard.charge(MEAN, 1)
    assert verify(path).charges == 2


def test_a_node_counts_for_itself(guard):
    """Whatever the server says of turns, of participations or of who is honest."""
    for turn in (0, 0, 7):
        guard.allow(MEAN, os.urandom(8))
        guard.charge(MEAN, turn)
    with pytest.raises(PolicyError, match="max_participations = 4: must be at most 3"):
        guard.allow(change_plan(PLAN, max_participations=1, honest_clients=14, delta=0.1).private_mean(500), b"4")
    (path,) = guard.folder.glob("*/ledger.jsonl")
    assert verify(path).max_participations == 3
    found, _ = account_ledger(path)
    assert found.epsilon == pytest.approx(POLICY_OF.counted(MEAN).account(Counter({0: 3})).epsilon)
    assert (found.delta, found.min_honest) == (1e-6, 10)  # of 15 survivors


def test_epsilon_is_for_ever_and_over_all_kinds_of_rounds(guard):
    other = change_plan(PLAN, mechanism=RQM(clip=0.2, margin=61.0)).private_mean(500)
    policy = replace(POLICY_OF, max_participations=100)
    guard = NodeGuard(policy, guard.home)
    turn, means = 0, (MEAN, other)
    with suppress(PolicyError):
        for turn in range(100):
            guard.charge(means[turn % 2], turn)
    with pytest.raises(
        PolicyError, match=r"epsilon = .* of all releases at this node's δ = 1e-06: must be at most 3.0"
    ):
        guard.allow(means[turn % 2], b"1")
    alone, both = (policy.counted(MEAN).with_values(delta=d).account for d in (1e-6, 0.5e-6))
    assert alone({0: 1}).epsilon < 2.0
    assert turn >= 2
    assert 2 * both({0: (turn + 1) // 2}).epsilon < 3.0 * 1.05
    assert both({0: turn // 2 + 1}).epsilon + both({0: (turn + 1) // 2}).epsilon > 3.0 * 0.95


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 8.0", "epsilon = -1", "epsilon = -1"),
        ("delta = 1e-5", "delta = 2", "delta = 2"),
        ("honest_fraction = 0.8", "honest_clients = 30", "honest_clients = 30: must be"),
        ("honest_fraction = 0.8", "honest_clients = 16\nhonest_fraction = 0.8", "only one"),
        ("honest_fraction = 0.8", "honest_fraction = 1.0", "honest_fraction = 1.0: must be above 0 and below 1"),
        ("honest_fraction = 0.8", "honest_fraction = nan", "honest_fraction = nan: must be"),
        ("honest_fraction = 0.8", "", "honest_clients, honest_fraction: one of the two must be given"),
        ("roster =", "# roster =", "trust_server_with_keys = true"),
        ("# trust", "trust", "roster: must be given, or else"),
        ("roster =", "trust_server_with_keys = 1 #", "must be true or false"),
        ('"roster.txt"', "3", "roster = 3: must be the name of a file"),
        ("clients = 20", "", "clients: missing"),
        ("clients = 20", "clients = 20\nmore = 1", "more"),
        ("epsilon = 8.0", "epsilon = [", "8|epsilon|Invalid"),
        ('["rqm", "rounding", "pbm"]', '"rqm"', "must be a list of names"),
    ],
)
def test_a_policy_that_is_not_one_is_refused(tmp_path, old, new, message):
    path = tmp_path / POLICY
    path.write_text(TEMPLATE.replace(old, new, 1))
    with pytest.raises(PolicyError, match=message) as error:
        Policy.from_toml(path)
    assert str(path) in str(error.value)


def test_where_a_policy_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path / "state"))
    with pytest.raises(PolicyError, match=r"no policy, .* in nothing: rqm init --policy .*state/policy.toml"):
        NodeGuard.of({})
    (tmp_path / "mine.toml").write_text(TEMPLATE)
    assert NodeGuard.of({"rqm-policy": str(tmp_path / "mine.toml")}).policy.epsilon == 8.0
    with pytest.raises(PolicyError, match=r"nothing.toml"):
        NodeGuard.of({"rqm-policy": str(tmp_path / "nothing.toml")})
    (tmp_path / "state" / POLICY).write_text(TEMPLATE.replace("8.0", "7.0"))
    assert NodeGuard.of({}).policy.epsilon == 7.0


@pytest.mark.parametrize(
    ("text", "trusts"),
    [
        (TRUSTING, True),
        ("trust_server = false", False),
        ("trust_server = 1", False),
        (TEMPLATE + "trust_server = true\n", False),
        ("trust_server_with_keys = true", False),
        ("", False),
    ],
)
def test_only_so_many_words_trust_the_server_with_everything(text, trusts, tmp_path):
    (tmp_path / POLICY).write_text(text)
    if trusts:
        assert NodeGuard.of({"rqm-policy": str(tmp_path / POLICY)}) is None
    else:
        with pytest.raises(PolicyError):
            NodeGuard.of({"rqm-policy": str(tmp_path / POLICY)})


def test_a_plan_is_certified_without_beginning_a_round(guard):
    """As before the first round; nothing is charged, and the round can begin afterwards."""
    guard.certify(MEAN)
    guard.certify(MEAN)
    assert not list(guard.folder.glob("*/*"))
    with pytest.raises(PolicyError, match="clients = 2: must be at least 20"):
        guard.certify(change_plan(PLAN, clients=2, min_survivors=2, honest_clients=None).private_mean(500))
    for round_index in range(3):
        guard.charge(MEAN, round_index)
    with pytest.raises(PolicyError, match="max_participations = 4: must be at most 3"):
        guard.certify(MEAN)
