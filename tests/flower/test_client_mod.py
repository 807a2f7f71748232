"""The client's app and mod: outermost, silent about data; and what is answered to messages of no private run."""

import pytest

pytest.importorskip("flwr")
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

import rqm
from rqm.flower import PrivateClientApp, RunFailedError, client_mod, private_mod
from rqm.flower.messages import NEXT_RECORD, PLAN_RECORD, RECORD, request_message
from rqm.flower.shared_plan import Request
from rqm.secagg import ProtocolError
from rqm.secagg.wire import Kind
from tests.flower.local import LocalGrid, accuracy, arrays, plan_of, private_strategy, survivors, training_app
from tests.simulation.small import federation, model

NODES = 6
CONFIG = {"rqm.epsilon": 500.0, "rqm.clients": NODES, "num-server-rounds": 2, "rqm.failure-share": 0.0}
DATA = federation(clients=NODES)
PLAN = plan_of(CONFIG)


def as_mod(*mods):
    """An app in which `private_mod` is one of the mods."""
    return training_app(None, DATA, app=ClientApp(mods=list(mods)))


def as_app(*mods):
    """An app that is private by construction."""
    return training_app(None, DATA, app=PrivateClientApp(mods=list(mods)))


def run(app, folder, config=None, **options):
    config = {**CONFIG, **(config or {})}
    grid = LocalGrid(app, NODES, config)
    private = private_strategy(config, folder)
    return private.start(grid, arrays(model()), **options), grid


# -- other mods -----------------------------------------------------------------------------------


class Mod:
    """A mod that needs the app's configuration, as Flower's own do; it notes what it sees."""

    def __init__(self, change=None):
        self.seen, self.change = [], change

    def __call__(self, message, context, call_next):
        config = message.content["config"]  # a KeyError on all nodes if there is none
        self.seen.append((config["lr"], sorted(message.content)))
        reply = call_next(message, context)
        return self.change(message, reply) if self.change else reply


LR = {"train_config": ConfigRecord({"lr": 0.3})}


def test_a_mod_before_private_mod_finds_the_apps_configuration_at_every_stage(tmp_path):
    outer = Mod()
    result, _ = run(as_mod(outer, private_mod), tmp_path, **LR)
    assert survivors(result) == [NODES, NODES]
    assert {lr for lr, _ in outer.seen} == {0.3}
    assert len(outer.seen) == NODES * (1 + 5 + 3)  # a check, five exchanges, and three more with a round prepared
    with_model = [names for _, names in outer.seen if "arrays" in names]
    assert len(with_model) == 2 * NODES  # the model travels once a round
    assert all(PLAN_RECORD in names for _, names in outer.seen)


@pytest.mark.parametrize(
    "make", [lambda mod: as_mod(private_mod, mod), as_app], ids=["after private_mod", "in the app"]
)
def test_a_mod_inside_changes_what_is_encoded(make, tmp_path):
    """It sees training alone, and what it adds is clipped and masked as all the rest."""

    def still(message, reply):
        reply.content["arrays"] = message.content["arrays"]
        reply.content["secret"] = ConfigRecord({"labels": "all of them"})
        return reply

    inner = Mod()
    learned, _ = run(make(inner), tmp_path / "learned", **LR)
    assert len(inner.seen) == 2 * NODES
    frozen, grid = run(make(Mod(still)), tmp_path / "still", **LR)
    assert accuracy(learned.arrays) > accuracy(frozen.arrays) + 0.1
    assert not any("secret" in reply.content for _, reply in grid.observed)


def test_what_a_mod_outside_adds_leaves_the_node(tmp_path):
    """So it is outside of ε, as the documents say; the app is not asked by it."""

    def leak(message, reply):
        reply.content["leak"] = ConfigRecord({"x": 1})
        return reply

    _, grid = run(as_mod(Mod(leak), private_mod), tmp_path, **LR)
    assert all("leak" in reply.content for _, reply in grid.observed)
    _, grid = run(as_app(Mod(leak)), tmp_path / "app", **LR)
    assert not any("leak" in reply.content for _, reply in grid.observed)


# -- messages -------------------------------------------------------------------------------------


def ask(app, content, kind="train", node=100):
    grid = LocalGrid(app, NODES, CONFIG)
    return grid.app(Message(content, dst_node_id=node, message_type=kind), grid.contexts[node])


@pytest.mark.parametrize("make", [lambda: as_mod(private_mod), as_app], ids=["mod", "app"])
def test_errors_are_answered_not_raised(make):
    app = make()
    plain = ask(app, RecordDict({"arrays": arrays(model()), "config": ConfigRecord({"lr": 0.1})}))
    assert "not a message of a private run" in plain.error.reason
    assert "rqm.train-metrics, rqm.eval-metrics" in plain.error.reason
    late = Request(Kind.MASKED, b"x", 0, 0, b"")
    assert "in no round" in ask(app, request_message(100, PLAN, [late]).content).error.reason
    only_request = request_message(100, PLAN, [late]).content
    del only_request[PLAN_RECORD]
    assert "not a message of a private run" in ask(app, only_request).error.reason


@pytest.mark.parametrize("kind", ["evaluate", "query", "train.other", "evaluate.mine"])
def test_an_app_answers_no_other_type_of_message(kind):
    """Whatever it has registered, and whatever plan comes with it: the answer would leave unprotected."""
    app = as_app()

    @app.query()
    def query(message, context):
        return Message(RecordDict({"data": ConfigRecord({"x": 1})}), reply_to=message)

    for content in ({"arrays": arrays(model())}, {**request_message(100, PLAN).content, "arrays": arrays(model())}):
        reply = ask(app, RecordDict(content), kind)
        assert reply.has_error()
        assert "not a message of a private run" in reply.error.reason


def test_a_vector_beside_another_request_is_refused_and_says_so_for_each():
    request = Request(Kind.MASKED, b"x", 0, 0, b"")
    reply = ask(as_app(), request_message(100, PLAN, [request, request]).content)
    assert set(reply.content.config_records) == {RECORD, NEXT_RECORD}
    assert all("must be requested alone" in record["refused"] for record in reply.content.config_records.values())


def test_the_check_depends_on_no_data():
    """It is answered without training, and says only that the node is simulated."""

    def never(message, context, call_next):
        pytest.fail("the app is called")

    reply = ask(as_app(never), request_message(100, PLAN).content)
    assert dict(reply.content[RECORD]) == {"simulated": True}


# -- marks ----------------------------------------------------------------------------------------


def test_a_stage_is_answered_once_and_an_earlier_one_never_again(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_STATE", str(tmp_path))
    client_mod.mark_answered("me", 3)
    client_mod.mark_answered("other", 3)
    for stage in (1, 3):
        with pytest.raises(ProtocolError, match="answers nothing twice"):
            client_mod.mark_answered("me", stage)
    client_mod.mark_answered("me", 5)


# -- what an app gives the server -----------------------------------------------------------------


def test_an_app_without_training_fails_with_flowers_reason(tmp_path):
    with pytest.raises(RunFailedError, match=r"training fails on all 6 nodes: .*train"):
        run(PrivateClientApp(), tmp_path)


def test_the_names_of_the_package_are_the_modules():
    assert rqm.flower.PrivateClientApp is PrivateClientApp
    assert rqm.flower.private_mod is private_mod
    assert all(getattr(rqm.flower, name) is not None for name in rqm.flower.__all__)
    with pytest.raises(AttributeError, match="no attribute 'seeded_mod'"):
        _ = rqm.flower.seeded_mod
