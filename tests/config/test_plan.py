"""Plans: to TOML and back, settings, and errors that name the key."""

import json

import pytest

from rqm import PBM, RQM, Noiseless
from rqm.config.experiments import find, names
from rqm.config.plan import PLAN, ClientWork, Plan, ServerStep, assign
from rqm.config.sweep import Sweep


def test_a_plan_survives_being_written_down():
    plan = Plan(
        mechanism=PBM(theta=0.1), client=ClientWork("local", rate=0.1), server=ServerStep("adam", schedule="cosine")
    )
    assert Plan.from_dict(plan.to_dict()) == plan
    assert Plan.from_dict({}) == Plan()
    assert Plan.from_dict({"mechanism": {"mechanism": "noiseless"}}).mechanism == Noiseless()


def test_settings_change_what_the_file_says(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('rounds = 3\n[mechanism]\nmechanism = "rqm"\nlevels = 8\n[server]\nrate = 0.5\n')
    plan = Plan.from_toml(path, ["server.rate=0.25", "mechanism.keep=0.3", "model=linear", "client.work=local"])
    assert plan.mechanism == RQM(levels=8, keep=0.3)
    assert (plan.participation.rounds, plan.server.rate, plan.model, plan.client.work) == (3, 0.25, "linear", "local")
    path.write_text("rounds = = 3")
    with pytest.raises(ValueError, match="not a TOML file"):
        Plan.from_toml(path)
    for bad in ("rounds", "=3"):
        with pytest.raises(ValueError, match="key=value"):
            assign({}, bad)
    with pytest.raises(ValueError, match="not a table"):
        assign({"rounds": 3}, "rounds.more=1")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ronds": 3}, "ronds: unknown key; did you mean rounds?"),
        ({"server": {"rte": 1}}, "did you mean server.rate?"),
        ({"mechanism": {"mechanism": "rqm", "keap": 0.4}}, "keap: unknown key; did you mean mechanism.keep?"),
        ({"mechanism": {"mechanism": "rqn"}}, "mechanism = 'rqn': must be one of banded-gaussian, binomial, "),
        ({"rounds": 0}, "rounds = 0: must be a whole number ≥ 1"),
        ({"server": {"optimizer": "lamb"}}, "server.optimizer = 'lamb': must be one of sgd, momentum, adam"),
        ({"client": {"rate": -1.0}}, "client.rate = -1.0"),
        ({"mechanism": 3}, "mechanism = 3: must be a table"),
        ({"model": 3}, "model = 3: must be a string"),
    ],
)
def test_a_bad_key_or_value_is_named(values, words):
    with pytest.raises((ValueError, TypeError)) as error:
        Plan.from_dict(values)
    assert words in str(error.value)


def test_schedules_fall_to_zero():
    assert ServerStep(rate=2.0).rate_at(9, 10) == 2.0
    assert ServerStep(rate=2.0, schedule="linear").rate_at(5, 10) == 1.0
    assert ServerStep(rate=2.0, schedule="cosine").rate_at(5, 10) == pytest.approx(1.0)


def test_every_shipped_experiment_is_a_plan():
    assert {"glyphs", "mnist-writers"} <= set(names())
    for name in names():
        assert all(plan.participation.rounds > 0 for plan in Sweep.from_toml(find(name)).variants.values())
    with pytest.raises(ValueError, match="nope"):
        find("nope")


def test_another_mechanism_is_chosen_without_the_parameters_of_the_one_before(tmp_path):
    file = tmp_path / "plan.toml"
    file.write_text('mechanism = {mechanism = "rqm", clip = 0.5, keep = 0.3}\n')
    changed = Plan.from_toml(file, ["mechanism.mechanism=pbm", "mechanism.theta=0.2"])
    assert changed.mechanism == PBM(theta=0.2)
    same = Plan.from_toml(file, ["mechanism.mechanism=rqm", "mechanism.margin=2.0"])
    assert (same.mechanism.keep, same.mechanism.margin) == (0.3, 2.0)


def test_every_model_has_a_size_and_every_set_its_classes():
    from rqm.config.model_sizes import CLASSES, PARAMETERS
    from rqm.data.datasets import SOURCES
    from rqm.simulation.models import MODELS

    assert MODELS.keys() == PARAMETERS.keys()
    assert CLASSES.keys() == SOURCES.keys() | {"glyphs"}


@pytest.mark.parametrize("values", [[], None, 3, "x", [["rounds", 3]], (), True])
def test_a_plan_that_is_no_table_is_refused_not_taken_as_the_default(values, tmp_path):
    with pytest.raises(TypeError, match=r"plan = .*: must be a table"):
        Plan.from_dict(values)
    (tmp_path / PLAN).write_text(json.dumps(values))
    with pytest.raises(ValueError, match="must be a table") as caught:
        Plan.of_run(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / PLAN))


def test_a_saved_plan_that_leaves_out_a_key_is_refused_not_completed_by_defaults(tmp_path):
    values = Plan().to_dict()
    for name in values:
        (tmp_path / PLAN).write_text(json.dumps({key: value for key, value in values.items() if key != name}))
        with pytest.raises(ValueError, match=f"{PLAN}: {name}: must be given"):
            Plan.of_run(tmp_path)
    (tmp_path / PLAN).write_text(json.dumps(values))
    assert Plan.of_run(tmp_path) == Plan()


@pytest.mark.parametrize("part", ["mechanism", "transforms", "client", "server"])
@pytest.mark.parametrize("value", [[], None, 3, "x", [1], False])
def test_a_part_that_is_no_table_is_refused(part, value, tmp_path):
    with pytest.raises(TypeError, match=f"{part} = .*: must be a table"):
        Plan.from_dict({part: value})
    (tmp_path / PLAN).write_text(json.dumps({part: value}))
    with pytest.raises(ValueError, match=f"{part} = .*: must be a table"):
        Plan.of_run(tmp_path)
    with pytest.raises(TypeError, match=f"{part} = .*: must be"):
        Plan(**{part: value})


@pytest.mark.parametrize(
    "text",
    [
        *("seeds = 0", "seeds = 1.5", "seeds = 18446744073709551616", "variants = 3", "variants = [1]"),
        *("[variants]\na = 1", "[[variants]]\nname = 'a'\nmechanism = 3", "[[variants]]\nrounds = 3", "\xff\0"),
        *("mechanism = []", "server = 'x'", "a.b.c = 1", "rounds = " + "[" * 50_000),
        *("rounds = 0x" + "f" * 5000, "rounds = " + "9" * 5000),
    ],
)
def test_an_experiment_that_cannot_be_is_a_value_or_type_error(text, tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises((ValueError, TypeError)) as caught:
        Sweep.from_toml(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("setting", ["rounds=" + "[" * 50_000, ".".join("a" * 100) + "=1"])
def test_a_setting_that_goes_too_deep_is_a_value_error(setting):
    with pytest.raises(ValueError, match="set = "):
        Plan.from_dict(settled(setting))


def settled(*settings):
    values = {}
    for setting in settings:
        assign(values, setting)
    return values


def test_a_mechanism_that_is_no_table_is_not_asked_for_its_name():
    with pytest.raises(ValueError, match="mechanism is not a table"):
        settled("mechanism=3", "mechanism.mechanism=rqm")
