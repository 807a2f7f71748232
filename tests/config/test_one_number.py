"""Every ε that is stated anywhere, of a plan or of what was charged, is one number; every option means something."""

import json
from html import escape
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rqm import PBM, RQM, StochasticRounding, account
from rqm._util.files import write_json
from rqm.config.plan import PLAN, Transforms
from rqm.ledger.budget_guard import Guard
from rqm.mechanisms.additive import DiscreteGaussian, Skellam
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.table import Table
from rqm.related.randomized_response import RandomizedResponse
from rqm.report.page import build_page, to_toml
from rqm.report.run_folder_reader import read_run
from rqm.simulation.findings import described
from tests.commands import rqm
from tests.plans import change_plan, make_plan


def mechanisms(clients):
    clip = st.floats(1e-5, 2.0)
    wide = [
        st.builds(StochasticRounding, clip=clip, levels=st.just(2), margin=st.floats(0.0, 60.0)),
        st.builds(PBM, clip=clip, theta=st.floats(0.001, 0.49), levels=st.integers(2, 8)),
        st.builds(RQM, clip=clip, levels=st.just(4), margin=st.floats(3.1, 60.0), keep=st.floats(0.1, 0.9)),
        st.builds(DiscreteGaussian, clip=clip, scale=st.floats(0.3, 3.0), steps=st.just(3), bits=st.integers(6, 8)),
        st.builds(Skellam, clip=clip, scale=st.floats(0.3, 3.0), steps=st.just(3), bits=st.just(7)),
        st.builds(Gaussian, noise_multiplier=st.floats(0.3, 20.0), local=st.booleans()),
    ]
    inside = [
        st.builds(RQM, clip=clip, levels=st.just(4), margin=st.floats(0.3, 1.0), keep=st.floats(0.1, 0.9)),
        st.builds(RandomizedResponse, clip=clip, levels=st.just(3), epsilon=st.floats(0.5, 4.0)),
        st.builds(Table, clip=clip),
    ]
    return st.one_of(*wide, *(inside if clients <= 4 else []))


@st.composite
def plans(draw):
    """Any plan that can be accounted for: own models of any size too, colluders, losses, caps."""
    clients = draw(st.integers(1, 40))
    population = draw(st.one_of(st.none(), st.integers(clients, 10**7)))
    rounds = draw(st.integers(1, 12))
    mechanism = draw(mechanisms(clients))
    clipped = isinstance(mechanism, Gaussian) or draw(st.booleans())
    honest = [
        st.just({}),
        st.builds(lambda count: {"honest_clients": count}, st.integers(1, clients)),
        *([st.builds(lambda part: {"honest_fraction": part}, st.floats(0.05, 1.0))] if population else []),
    ]
    own, honesty = draw(st.booleans()), draw(st.one_of(*honest))
    caps = (
        st.one_of(st.none(), st.just(1)) if "honest_fraction" in honesty else st.one_of(st.none(), st.integers(1, 20))
    )
    return make_plan(
        data="mnist-writers",
        model="mine" if own else "linear",
        dim=draw(st.integers(1, 3 * 10**7)) if own else None,
        mechanism=mechanism,
        clients=clients,
        population=population,
        rounds=rounds,
        max_participations=draw(caps),
        **honesty,
        min_survivors=draw(st.one_of(st.none(), st.integers(1, clients))),
        client_dropout=draw(st.sampled_from([0.0, 0.1])),
        delta=draw(st.one_of(st.none(), st.floats(1e-9, 0.1))),
        seed=draw(st.integers(0, 9)),
        device="cpu",
        transforms=Transforms(draw(st.floats(0.01, 3.0)) if clipped else None, draw(st.booleans())),
    )


def toml(plan, **more):
    return to_toml({**{key: value for key, value in plan.to_dict().items() if value is not None}, **more})


def told(*args):
    done = rqm("account", *args, "--json")
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def all_say_one_number(plan, options):
    """The guard, ``account``, the command on the plan and on the run's folder, and the report."""
    wanted = account(plan)
    with TemporaryDirectory() as place:
        folder, file = Path(place) / "run", Path(place) / "plan.toml"
        folder.mkdir()
        file.write_text(toml(plan))
        write_json(folder / PLAN, plan.to_dict())
        mean = plan.private_mean()
        with Guard(mean, folder, plan=plan) as guard:
            for turn in range(plan.participation.rounds):
                guard.charge(turn)
            assert guard.epsilon() == wanted.epsilon
        of_plan, of_run = told(file), told(folder)
        for one in (of_plan, of_run):
            for key, value in wanted.to_dict().items():
                assert one[key] == ("inf" if value == inf else value), key
        shown = read_run(folder)
        assert shown.guarantee == described(wanted)
        assert shown.findings["privacy"]["charged"]["head_hash"] == of_run["head_hash"]
        page = build_page([folder])
        assert escape(wanted.headline) in page
        for name, value in options.items():
            check_option(plan, file, folder, name, value, wanted)


def check_option(plan, file, folder, name, value, wanted):
    """On the plan and on the charges an option gives what ``account`` gives for it, or all refuse it in one line."""
    for place in (file, folder):
        fixed = {"delta": wanted.delta} if place == folder and name != "delta" else {}  # that of a ledger stays
        try:
            other = account(plan, **fixed, **{name: value})
        except ValueError as error:
            other = str(error)
        said = told(place, f"--{name.replace('_', '-')}", value)
        if isinstance(other, str):
            assert isinstance(said, str)
            assert len(said.splitlines()) == 1
            assert other.partition(": ")[2].partition(";")[0][:40] in said
        else:
            assert said["epsilon"] == ("inf" if other.epsilon == inf else other.epsilon)
            assert said[name] == value
    if isinstance(other, str):
        return
    if name == "delta" and wanted.epsilon < 1e300:
        assert (other.epsilon <= wanted.epsilon) == (value >= wanted.delta) or other.epsilon == wanted.epsilon
    if name == "honest_clients" and plan.threat_model.honest_fraction is None:
        planned = plan.threat_model.honest_clients or plan.participation.clients
        assert (other.epsilon >= wanted.epsilon) == (value <= planned) or np.isclose(other.epsilon, wanted.epsilon)
    if name == "neighboring":
        assert other.epsilon <= wanted.epsilon * (1 + 1e-9)


options = st.fixed_dictionaries(
    {},
    optional={
        "delta": st.sampled_from([1e-8, 1e-5, 0.01]),
        "neighboring": st.just("zero-out"),
        "honest_clients": st.integers(1, 3),
        "honest_fraction": st.sampled_from([0.5, 0.9]),
        "population": st.sampled_from([50, 10**6]),
        "adversary": st.just("outsider"),
    },
)


@settings(max_examples=30)
@given(plans(), options)
def test_account_guard_command_and_report_say_one_number(plan, options):
    all_say_one_number(plan, options)


@pytest.mark.slow
@settings(max_examples=1000)
@given(plans(), options)
def test_a_thousand_plans_say_one_number(plan, options):
    all_say_one_number(plan, options)


def test_the_check_has_power(monkeypatch):
    """An account that forgets the dimension that was charged, as version 0.1.0's did, is found out."""
    plan = make_plan(
        data="mnist-writers",
        model="mine",
        dim=10**6,
        clients=30,
        rounds=2,
        mechanism=StochasticRounding(1e-3, 40.0, 2),
        transforms=Transforms(l2_clip=1.0, rotate=True),
    )
    all_say_one_number(plan, {})
    from rqm.config import account as module

    true = module.charged_mean
    monkeypatch.setattr(module, "charged_mean", lambda about: true(about).with_values(dim=7850))
    with pytest.raises(AssertionError):
        all_say_one_number(plan, {})


def flattened(table, prefix="rqm."):
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flattened(value, f"{prefix}{key}.")
        elif value is not None:
            yield prefix + key, value


@settings(max_examples=4)
@given(plans())
def test_flower_says_the_same_number(plan):
    pytest.importorskip("flwr")
    from rqm.flower import Settings
    from rqm.flower.shared_plan import SharedPlan

    assume(isinstance(plan.mechanism, DiscreteMechanism) and plan.mechanism.kind != "table")
    assume(plan.transforms.l2_clip is not None and plan.participation.clients > 1)
    assume(plan.threat_model.honest_fraction is None)  # of those who are there
    dim = plan.dim % 5000 + 1 if plan.dim else plan.private_mean().dim
    transforms = Transforms(plan.transforms.l2_clip, rotate=True)
    plan = change_plan(
        plan, dim=dim if plan.dim else None, sampling="available", transforms=transforms, client_dropout=0.0
    )
    plan = change_plan(plan, population=None)
    participation, threat_model = plan.participation, plan.threat_model
    wanted = account(plan)
    assume(wanted.epsilon < 1e9)
    chosen = Settings(
        epsilon=1e9,
        clients=participation.clients,
        rounds=participation.rounds,
        delta=wanted.delta,
        l2_clip=plan.transforms.l2_clip,
        min_survivors=participation.min_survivors,
        honest_clients=threat_model.honest_clients,
        max_participations=participation.max_participations,
        mechanism=plan.mechanism,
        failure_share=0.0,
        seed=plan.seed,
    )
    survivors, honest = participation.min_survivors or participation.clients, threat_model.honest_clients
    corrupt = 0 if honest is None else participation.clients - honest
    assume(2 * (survivors - 1) > participation.clients - 1 + corrupt)  # or no threshold of the secure sum is safe
    shared = chosen.plan(("w",), dim)
    assert shared.mean.guarantee().epsilon == wanted.epsilon
    assert SharedPlan.from_json(shared.to_json()) == shared
    with TemporaryDirectory() as place, Guard(shared.mean, Path(place)) as guard:
        for turn in range(participation.rounds):
            guard.charge(turn)
        assert guard.epsilon() == wanted.epsilon
        stated = told(Path(place))
        assert (stated["epsilon"], stated["dim"]) == (wanted.epsilon, shared.mean.coordinates)
        assert "sampling = 'available': must be" in told(Path(place), "--adversary", "outsider")


def test_every_variant_of_a_sweep_is_accounted_for_on_its_own(tmp_path):
    base = make_plan(
        data="mnist-writers",
        model="linear",
        clients=10,
        rounds=3,
        mechanism=StochasticRounding(0.1, 30.0, 2),
        transforms=Transforms(l2_clip=1.0, rotate=True),
    )
    changes = [
        {"name": "more", "clients": 20},
        {"name": "strict", "delta": 1e-9},
        {"name": "colluders", "honest_clients": 4},
        {"name": "larger", "model": "mine", "dim": 100_000},
    ]
    text = toml(base) + "".join("\n[[variants]]\n" + to_toml(one) for one in changes)
    (tmp_path / "plan.toml").write_text(text)
    runs = {one["name"]: one["epsilon"] for one in told(tmp_path / "plan.toml")["runs"]}
    for one in changes:
        plan = change_plan(base, **{key: value for key, value in one.items() if key != "name"})
        assert runs[one["name"]] == account(plan).epsilon
    assert len(set(runs.values())) == 4
