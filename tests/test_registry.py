"""A mechanism from elsewhere, in this one file: every package uses it, the command line and Flower's processes too."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import rqm
from rqm import Gaussian, Mechanism, SecureRandom, TableMechanism, registry
from rqm.config.account import account_ledger
from rqm.config.plan import Transforms
from rqm.core.from_dict import mean_from_dict
from rqm.registry import kinds, mechanism_from_dict
from tests.mechanisms.lazy import Lazy
from tests.plans import make_plan

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def registered_kinds():
    """Registered for this module alone: other tests of the process must not see it."""
    rqm.register(Lazy)
    yield
    registry._registered.pop(Lazy.kind)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """What pip would install of a package that brings this mechanism: found by every process with this path."""
    folder = tmp_path_factory.mktemp("package")
    info = folder / "lazy-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lazy\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[rqm.mechanisms]\nlazy = {Lazy.__module__}:Lazy\n")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def command(package, *args):
    """The command line in a process of its own, where only the entry point names the mechanism."""
    done = subprocess.run(
        [sys.executable, "-m", "rqm", *map(str, args)], env=package, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_privacy_is_that_of_the_coin(package):
    """One bit that is right with probability 3/4 + …: ε is the logarithm of the odds at the ends of the clip."""
    result = json.loads(command(package, "privacy", "--mechanism", "lazy", "--lazy", 0.5, "--alpha", "inf", "--json"))
    right = 0.5 * (0.5 + 0.5 / 2) + 0.25
    assert result["upper"] == pytest.approx(np.log(right / (1 - right)))
    assert result["mechanism"] == {"mechanism": "lazy", "clip": 1.0, "margin": 1.0, "lazy": 0.5}
    assert "--lazy" in command(package, "privacy", "--help")


def test_it_is_unbiased_and_audited(package):
    assert json.loads(command(package, "audit", "sampler", "--mechanism", "lazy", "--draws", 100000, "--json"))[
        "passed"
    ]
    x = np.full(200_000, 0.3)
    mech = Lazy()
    assert mech.decode(mech.encode(x, SecureRandom()).astype(np.int64), 1).mean() == pytest.approx(0.3, abs=0.05)


def test_calibrated_accounted_and_advised():
    target = {"clients": 100, "epsilon": 3, "delta": 1e-6, "dim": 2**12}
    result = rqm.calibrate("lazy", rounds=4, lazy=0.5, **target)
    assert 0.996 * 3 <= result.epsilon <= 3
    assert result.mechanism.lazy == 0.5
    plan = make_plan(
        mechanism=result.mechanism,
        clients=100,
        rounds=4,
        max_participations=1,
        model="mine",
        dim=2**12,
        transforms=Transforms(l2_clip=1.0, rotate=True),
        delta=1e-6,
    )
    assert rqm.account(plan).epsilon == result.epsilon
    names = [entry.name for entry in rqm.advise(**target).candidates]
    assert "lazy rounding" in names
    local = {entry.name: entry for entry in rqm.advise(clients=1, epsilon=1.0, levels=2).candidates}
    assert local["lazy rounding"].mse == pytest.approx(local["1 bit"].mse, rel=1e-2)  # no better, and found to be so


def test_a_private_mean_of_it_survives_json():
    mean = rqm.private_mean(mechanism=Lazy(clip=0.1, margin=20.0), dim=100, clients=50)
    assert mean_from_dict(json.loads(json.dumps(mean.to_dict()))) == mean


@pytest.mark.slow
def test_it_trains_and_is_accounted_in_a_process_of_its_own(package, tmp_path):
    settings = ["--set", "mechanism.mechanism=lazy", "--set", "mechanism.clip=0.02", "--set", "mechanism.lazy=0.125"]
    plan = tmp_path / "plan.toml"
    plan.write_text(
        'data = "glyphs"\nmodel = "linear"\nrounds = 2\nclients = 4\ntransforms = {l2_clip = 1.0, rotate = true}\n'
        'mechanism = {mechanism = "lazy"}\n'
    )
    command(package, "train", plan, *settings, "--out", tmp_path / "run")
    result = json.loads(command(package, "account", tmp_path / "run", "--json"))
    assert result["rounds"] == 2
    assert (tmp_path / "run" / "report.html").exists()


CONFIG = {
    "rqm.mechanism.mechanism": "lazy",
    "rqm.mechanism.clip": 0.1,
    "rqm.mechanism.margin": 6.0,
    "rqm.l2-clip": 1.0,
    "rqm.epsilon": 1e6,
    "rqm.failure-share": 0.0,
}


def test_it_goes_through_flowers_messages(tmp_path):
    pytest.importorskip("flwr")
    from rqm.flower import private_mod
    from tests.flower.local import LocalGrid, gradient_app, plan_folder, start

    config = {**CONFIG, "rqm.clients": 6, "rqm.rounds": 2}
    start(LocalGrid(gradient_app(private_mod), 6, config), config, tmp_path)
    (result, charged) = account_ledger(plan_folder(tmp_path))
    assert charged["charges"] == 2
    assert result.epsilon > 0


@pytest.mark.slow
def test_it_runs_in_flowers_own_processes(package, tmp_path):
    """A SuperLink and SuperNodes on loopback: each process finds the mechanism by its entry point."""
    pytest.importorskip("flwr")
    config = {**CONFIG, "rqm.clients": 3, "rqm.rounds": 1, "rqm.min-survivors": 2}
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
    from tests.flower.users import POLICY, written

    app = written(tmp_path / "app")
    (app / "policy.toml").write_text(POLICY.replace("= 4", "= 3").replace('["rqm"]', '["lazy"]'))
    registered_kinds = app / "pyproject.toml"  # a run's configuration can change the app's values, not take any away
    options = {key.removeprefix("rqm.mechanism."): value for key, value in config.items() if "rqm.mechanism." in key}
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
    registered_kinds.write_text(re.sub(r"(?<=rqm\.mechanism\]\n)(.+\n)+", lines, registered_kinds.read_text()))
    program = [sys.executable, str(app / "federation.py"), "--nodes", "3", "--ledger", str(tmp_path)]
    done = subprocess.run([*program, "--set", text], env=package, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "'survivors': 3" in done.stdout
    info = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])["about"]
    assert info["mean"]["mechanism"]["mechanism"] == "lazy"


def test_the_registry_refuses_what_is_not_a_mechanism():
    with pytest.raises(TypeError, match=r"must be a subclass of rqm\.Mechanism"):
        rqm.register(int)
    with pytest.raises(TypeError, match="with all abstract methods"):
        rqm.register(type("Half", (TableMechanism,), {"kind": "half"}))

    class Loose(TableMechanism):
        kind = "loose"
        output_range = log_rows = None

    with pytest.raises(TypeError, match="Loose: must be a frozen dataclass"):
        rqm.register(Loose)
    twin = dataclass(frozen=True)(type("Twin", (Lazy,), {"kind": "rqm"}))
    with pytest.raises(ValueError, match="'rqm': is taken by RQM"):
        rqm.register(twin)
    assert rqm.register(Lazy) is Lazy


def test_every_mechanism_tells_about_itself():
    for name, made in kinds().items():
        mech = made()
        assert isinstance(mech, Mechanism)
        assert mech.kind == name
        assert mechanism_from_dict(mech.to_dict()) == mech
        assert mech.bits >= 1
        assert mech.label
        assert all(entry.help.endswith((".", "…")) for entry in made.options().values()), name
        if mech.has_integer_messages:
            assert mech.discrete is mech or mech.vector_mechanism is mech
            channel = mech.discrete
            for x in channel.breakpoints[[0, len(channel.breakpoints) // 2, -1]]:
                assert np.abs(channel.pmf(x) - channel.sampled_pmf(x).astype(float)).sum() < 1e-5
        else:
            with pytest.raises(TypeError, match="sends floats"):
                _ = mech.discrete
        if mech.min_noise is None:
            with pytest.raises(TypeError, match="no noise to adjust"):
                mech.with_noise(1.0)
        else:
            quiet, loud = (mech.with_noise(mech.min_noise + amount) for amount in (1.0, 9.0))
            spread = [
                noisy.discrete.variance_max if noisy.has_integer_messages else noisy.sum_noise_std(1)
                for noisy in (quiet, loud)
            ]
            assert spread[0] < spread[1]


def test_what_cannot_be_described_is_refused():
    for value, words in (({"mechanism": ["rqm"]}, "must be one of"), (5, "must be a table"), ({}, "must be one of")):
        with pytest.raises((ValueError, TypeError), match=words):
            mechanism_from_dict(value)
    with pytest.raises(ValueError, match=r"mechanism\.sigma: unknown key"):
        mechanism_from_dict({"mechanism": "gaussian", "sigma": 1.0})
    with pytest.raises(ValueError, match="'rqm': must be 'gaussian' here"):
        Gaussian.from_dict({"mechanism": "rqm"})
