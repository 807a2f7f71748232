"""Every mechanism of the paper's field in one small federation: equal ε, equal rounds, rates chosen alike, five seeds.

``python -m tools.systems calibrate`` finds the mechanisms at one ε and writes the experiment ``systems`` (minutes);
``python -m tools.systems train OUT --data DIR`` chooses rates and trains (a minute on a GPU with ``--jobs 12``);
``python -m tools.systems account OUT`` adds what a user is told. ``rqm train systems --sweep`` trains the same with
the rates that were chosen. The table is ``tools.tables``'s.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rqm.config.experiments import find
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.data import load
from tools.tuning import SEEDS, chosen

EXPERIMENT = "systems"
RESULTS = "systems.json"
EPSILON, DIM = 1.0, 7850
WHO: dict[str, Any] = {"clients": 1000, "population": 100_000, "rounds": 100, "delta": 1e-5, "max_participations": 1}
EQUAL = 10 / 14, 10 / 15
"""Of the coordinates, as many as make the bits of one that takes 10, where each takes 14 or 15."""


# -- finding them ---------------------------------------------------------------------------------


def calibrated() -> dict[str, dict[str, Any]]:
    """By name: what the variant of a plan says besides, at the same ε."""
    from rqm import calibrate  # noqa: PLC0415 (a GPU machine has no accountant)
    from rqm._util.checks import padded  # noqa: PLC0415

    def at(kind: str, part: float | None = None, **more: Any) -> dict[str, Any]:
        few = None if part is None else int(part * padded(DIM))
        found = calibrate(kind, epsilon=EPSILON, dim=DIM, l2_clip=1.0, coordinates=few, **WHO, **more)
        values: dict[str, Any] = {"mechanism": found.mechanism.to_dict()}
        values |= {"honest_clients": more["honest_clients"]} if "honest_clients" in more else {}
        values |= {"transforms": {"l2_clip": 1.0, "rotate": True, "coordinates": few}} if few else {}
        return values

    bit = at("rounding", levels=2)
    cold = {"adapt": {"quantile": 0.5, "start": 1.0}}
    return {
        "one bit": bit,
        "RQM (the paper's)": at("rqm", levels=16),
        "PBM (Chen et al. 2022)": at("pbm", levels=16),
        "discrete Gaussian (Kairouz et al. 2021)": at("discrete-gaussian"),
        "Skellam (Agarwal et al. 2021)": at("skellam"),
        "binomial, cpSGD (Agarwal et al. 2018)": at("binomial"),
        "MVU (Chaudhuri et al. 2022)": {"mechanism": mvu().to_dict()},
        "vqSGD, bits (Gandikota et al. 2021)": at("vqsgd"),
        "vqSGD, an index of its own": at("vqsgd", local=True, honest_clients=1),
        "randomized response, RAPPOR's bit, alone (Erlingsson et al. 2014)": at(
            "randomized-response", levels=2, honest_clients=1
        ),
        "local Gaussian": at("gaussian", local=True),
        "trusted server's Gaussian (McMahan et al. 2018)": at("gaussian"),
        "the same, clip at the median (Geyer et al. 2017; Andrew et al. 2021)": {**at("gaussian"), **cold},
        "one bit, clip at the median": {**bit, **cold},
        "one bit, noise that cancels": correlated(),
        "one bit of a sixteenth of the coordinates (for Li et al. 2019)": at("rounding", 1 / 16, levels=2),
        "RQM, as many bits as one": at("rqm", EQUAL[0], levels=16),
        "PBM, as many": at("pbm", EQUAL[0], levels=16),
        "discrete Gaussian, as many": at("discrete-gaussian", EQUAL[1]),
        "Skellam, as many": at("skellam", EQUAL[1]),
        "binomial, as many": at("binomial", EQUAL[1]),
        "no noise, no privacy (McMahan et al. 2017)": {"mechanism": {"mechanism": "noiseless", "clip": 1.0}},
    }


def mvu() -> Any:
    """The minimum variance unbiased table of four outcomes, of inputs at both ends of the clip, that reaches ε."""
    from rqm import private_mean  # noqa: PLC0415
    from rqm.accounting.calibration import coordinate_clip  # noqa: PLC0415
    from rqm.related.mvu import private_table  # noqa: PLC0415

    low, high, clip = 0.2, 0.6, coordinate_clip(1.0, 8192)
    for _ in range(9):
        middle = (low + high) / 2
        mech = private_table(middle, 4, rows=2, average=True).with_parameters(clip=clip)
        epsilon = private_mean(mechanism=mech, dim=DIM, **WHO).account().epsilon
        low, high = (middle, high) if epsilon <= EPSILON else (low, middle)
    return private_table(low, 4, rows=2, average=True).with_parameters(clip=clip)


def correlated() -> dict[str, Any]:
    """One bit, with correlated noise."""
    from rqm import private_mean  # noqa: PLC0415

    values = private_mean(epsilon=EPSILON, noise="correlated", dim=DIM, **WHO).to_dict()
    return {"mechanism": values["mechanism"], "noise": values["noise"]}


HEAD = """\
# Every mechanism of the paper, and ours, at ε = 1 for every user against the server (δ = 10⁻⁵).
# 1,000 of 100,000 users a round, each in one of 100 rounds, ten digits of two kinds each, 7,850 parameters.
# Made by python -m tools.systems; rates chosen there in the same way for all. For a GPU; results/systems.json.
data = "mnist-shards"
model = "linear"
clients = 1000
population = 100_000
max_participations = 1
examples = 10
delta = 1e-5
rounds = 100
evaluate_every = 100
checkpoint_every = 100
seeds = 5
transforms = { l2_clip = 1.0, rotate = true }
server = { optimizer = "momentum", rate = 0.1, momentum = 0.9, schedule = "linear" }
"""


def written(variants: dict[str, dict[str, Any]], rates: dict[str, float]) -> str:
    """The experiment as TOML, with the rates that were chosen."""
    parts = [HEAD]
    for name, values in variants.items():
        server = {"optimizer": "momentum", "rate": rates.get(name, 0.1), "momentum": 0.9, "schedule": "linear"}
        lines = [f"{key} = {_toml(value)}" for key, value in {**values, "server": server}.items()]
        parts.append("\n".join(["[[variants]]", f"name = {json.dumps(name, ensure_ascii=False)}", *lines]) + "\n")
    return "\n".join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def variants_of(text: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the variants of the experiment say, without their rates."""
    return {
        one["name"]: {key: value for key, value in one.items() if key not in ("name", "server")}
        for one in text["variants"]
    }


# -- training them --------------------------------------------------------------------------------


@cache
def _data(folder: Path | None) -> Any:
    return load("mnist-shards", folder)


def end(plan: Plan, data: Any, rate: float, seed: int) -> tuple[float, float]:
    """Loss and accuracy at the end of a run."""
    from rqm.simulation.loop import RunState  # noqa: PLC0415 (torch)

    trainer = RunState(replace(plan, seed=seed, server=replace(plan.server, rate=rate)), data)
    while trainer.rounds_done < plan.participation.rounds:
        record = trainer.step()
    assert record.loss is not None
    assert record.accuracy is not None
    return record.loss, record.accuracy


def system(folder: Path | None, name: str) -> tuple[str, dict[str, Any]]:
    """Choose a rate for one variant, and train it."""
    plan, data = Sweep.from_toml(find(EXPERIMENT)).variants[name], _data(folder)
    rate, tried = chosen(lambda rate, seed: end(plan, data, rate, seed)[1])
    return name, {"rate": rate, "tried": tried, "ends": [end(plan, data, rate, seed) for seed in SEEDS]}


def shared_out(work: Callable[[str], tuple[str, Any]], names: list[str], jobs: int, path: Path) -> dict[str, Any]:
    """All of them, each in a process of its own; what is done is on the disk."""
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(work, name) for name in names]):
            name, one = future.result()
            found[name] = one
            path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
            print(name, one["rate"], one["tried"], one["ends"], flush=True)
    return {name: found[name] for name in names}


def account_all(path: Path) -> None:
    """Add what a user is told, and the bits, to the results; and the rates to the experiment."""
    from rqm import account  # noqa: PLC0415

    found = json.loads(path.read_text())
    for name, plan in Sweep.from_toml(find(EXPERIMENT)).variants.items():
        told, mean = account(plan) if plan.mechanism.adds_noise else None, plan.private_mean()
        bits = 32.0 if told is None or told.wire_bits_per_parameter is None else told.wire_bits_per_parameter
        if plan.threat_model.honest_clients == 1:  # nobody's sum is needed: a message may travel as it is
            bits = plan.mechanism.message_bits(mean.coordinates) / mean.dim
        found[name] |= {
            "epsilon": None if told is None else told.epsilon,
            "honest": None if told is None else told.min_honest,
            "noise": None if told is None else told.noise_std_over_gaussian,
            "iterates": None if told is None else told.correlated_noise_ratio,
            "bits": bits,
        }
        print(name, found[name]["epsilon"], found[name]["bits"], flush=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    import tomllib

    _parser = argparse.ArgumentParser(description=__doc__)
    _parser.add_argument("part", choices=("calibrate", "train", "account"))
    _parser.add_argument("out", type=Path, nargs="?", default=Path("results"))
    _parser.add_argument("--data", type=Path)
    _parser.add_argument("--jobs", type=int, default=2)
    _given = _parser.parse_args()
    _file = _given.out / RESULTS
    if _given.part == "train":
        _names = list(Sweep.from_toml(find(EXPERIMENT)).variants)
        _done = shared_out(partial(system, _given.data), _names, _given.jobs, _file)
        _file.write_text(json.dumps(_done, indent=1, ensure_ascii=False) + "\n")
    else:
        _toml_file = Path(__file__).parents[1] / "src" / "rqm" / "plan" / "experiments" / f"{EXPERIMENT}.toml"
        if _given.part == "account":
            account_all(_file)
        _rates = (
            {_name: _one["rate"] for _name, _one in json.loads(_file.read_text()).items()} if _file.exists() else {}
        )
        _known = calibrated() if _given.part == "calibrate" else variants_of(tomllib.loads(_toml_file.read_text()))
        _toml_file.write_text(written(_known, _rates))
