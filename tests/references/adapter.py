"""Computes the result of a scenario with the library as it is today.

This is the only file of the references that knows the library's API. The scenarios use the library's public names;
the recorded JSON of commands and ledgers has the names from before the redesign, which `new_keys` maps to today's.
Each function takes a scenario and returns plain values: numbers, hashes of arrays, or the JSON that a command prints.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from itertools import chain
from math import inf, isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

import rqm
from rqm import (
    CorrelatedNoise,
    Participation,
    Plan,
    PrivateMean,
    PrivateRecordMean,
    SeededRandom,
    ThreatModel,
    mechanism_from_dict,
)
from rqm.accounting.accountant import Question, account, account_together
from rqm.accounting.profiles import renyi_without_replacement, sampled_without_replacement
from rqm.accounting.record_release import RecordRelease
from rqm.accounting.release import Release
from rqm.bounds import HonestAfterParticipation, RdpCurve, epsilon, gaussian_epsilon, gaussian_mu
from rqm.certify import affine_rdp, gaussian_dp, kinks, privacy_loss, shifts, trials
from rqm.config.account import planned_mean
from rqm.config.experiments import find
from rqm.config.sweep import Sweep
from rqm.correlated.scheme import Exposure
from rqm.data.federated_data import Clients, FederatedData
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless
from rqm.related.count_sketch import Sketch
from rqm.related.qsgd import QSGD, packed
from rqm.related.rappor import Rappor
from rqm.secagg import Client, Params, Server
from rqm.secagg.roster import Identity, Roster
from rqm.secagg.wire import STAGES, Kind
from rqm.simulation.loop import RunState
from rqm.simulation.run_folder import metrics_line
from rqm.simulation.simulate import simulate
from tests.commands import rqm as run_command
from tests.references.scenarios import vectors

Scenario = dict[str, Any]
Result = dict[str, Any]

# -- names ----------------------------------------------------------------------------------------

PARTICIPATION = (
    *("clients", "rounds", "population", "sampling", "max_participations", "min_separation", "min_survivors"),
)
THREAT_MODEL = ("adversary", "neighboring", "unit", "honest_clients", "honest_fraction")
MEAN = ("dim", "l2_clip", "rotate", "coordinates", "record_clip", "sampling_rate", "delta", "seed")

PLAN_NAMES = {name: name for name in (*PARTICIPATION, *THREAT_MODEL)} | {
    **{name: name for name in ("data", "model", "examples", "seed", "evaluate_every", "delta")},
    **{name: name for name in ("client", "server", "mechanism", "noise")},
    "secure_sum": "secagg",
    "dropout_rate": "client_dropout",
    "adaptive_clip": "adapt",
}
"""Names of a plan's values, in scenarios and in plan files."""

RECORD_NAMES = {"record_clip": "clip", "batch": "batch", "silos": "silos", "sampling_rate": "sampling_rate"}
"""The same for its table of records."""

NEW_KEYS = {
    "neighbours": "neighboring",
    "observer": "adversary",
    "participations": "max_participations",
    "separation": "min_separation",
    "survivors": "min_survivors",
    "honest": "honest_clients",
    "iterate_noise_over_independent": "correlated_noise_ratio",
    "iterate_noise": "correlated_noise_ratio",
    "record_rate": "sampling_rate",
    "cancel": "noise",
    "bits_of_both": "two_message_bits",
    "law": "distribution",
    "head": "head_hash",
    "chosen_of": "rotated_dim",
    "lost": "client_dropout",
}
"""Keys of printed JSON, old to new; what is not listed keeps its name. See `new_keys`."""

NEW_VALUES = {"replace": "replace-one", "add-remove": "add-or-remove-one"}

PROSE_KEYS = {"sentence", "reason", "why", "wrong", "unsure", "per", "threat_model", "left_out"}
"""Keys whose values are texts for people. They are recorded, but no test compares them."""

VOLATILE_KEYS = {"head", "head_hash", "hash", "previous", "nonce", "signature", "key", "path", "notes"}
"""Keys whose values differ from run to run. They are not recorded."""


def taken(scenario: Scenario, names: Iterable[str] | Mapping[str, str]) -> Scenario:
    """The values of a scenario under these names, renamed if the names are a map."""
    names = names if isinstance(names, Mapping) else dict(zip(names, names, strict=True))
    return {new: scenario[name] for name, new in names.items() if scenario.get(name) is not None}


def new_keys(value: Any) -> Any:
    """Printed JSON with today's keys, as the redesign prints it: renamed keys, and no texts for people."""
    if isinstance(value, dict):
        return {NEW_KEYS.get(key, key): new_keys(inner) for key, inner in value.items() if key not in PROSE_KEYS}
    if isinstance(value, list):
        return [new_keys(inner) for inner in value]
    return NEW_VALUES.get(value, value) if isinstance(value, str) else value


def correlated_noise(scenario: Scenario) -> CorrelatedNoise | None:
    """The correlated noise of a scenario."""
    return None if scenario.get("noise") is None else CorrelatedNoise(**scenario["noise"])


def private_mean(scenario: Scenario) -> PrivateMean:
    """The private mean of a scenario."""
    made = PrivateRecordMean if scenario.get("unit") == "record" else PrivateMean
    return made(
        **{"l2_clip": scenario["l2_clip"], **taken(scenario, MEAN)},
        mechanism=mechanism_from_dict(scenario["mechanism"]),
        participation=Participation(**taken(scenario, PARTICIPATION)),
        threat_model=ThreatModel(**taken(scenario, THREAT_MODEL)),
        noise=correlated_noise(scenario),
    )


def plan_table(scenario: Scenario) -> Scenario:
    """The plan of a scenario, as a plan file has it."""
    table = taken(scenario, PLAN_NAMES)
    if scenario.get("unit") == "record":
        table["records"] = taken(scenario, RECORD_NAMES)
    if "client" in table:
        table["client"] = {name: value for name, value in table["client"].items() if value is not None}
    return {**table, "transforms": taken(scenario, ("l2_clip", "rotate", "coordinates"))}


CACHING_PACKAGES = tuple(
    f"rqm.{name}." for name in ("accounting", "certify", "correlated", "encoding", "advice", "training")
)


def clear_caches() -> None:
    """Clear the caches of this process: results of earlier searches can change those of later ones."""
    for name, module in list(sys.modules.items()):
        if name.startswith(CACHING_PACKAGES):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


# -- plain values ---------------------------------------------------------------------------------


def number(value: Any) -> Any:
    """A float that JSON can hold: infinity is the text "inf"."""
    if value is None or isinstance(value, (int, str)):
        return value
    value = float(value)
    return value if isfinite(value) else "inf" if value == inf else "nan"


def numbers(values: Any) -> list[Any]:
    """A list of such floats."""
    return [number(value) for value in values]


def order(value: Any) -> float:
    """A Rényi order, of which infinity is written as a text."""
    return inf if value == "inf" else float(value)


def digest(array: Any) -> str:
    """The first half of the SHA-256 hash of an array: of its type, its shape and its bytes."""
    values = np.ascontiguousarray(array.detach().cpu().numpy() if isinstance(array, torch.Tensor) else array)
    return sha256(f"{values.dtype.str} {values.shape} ".encode() + values.tobytes()).hexdigest()[:32]


def digests(arrays: Mapping[str, Any]) -> Result:
    """The hashes of some arrays."""
    return {name: digest(array) for name, array in arrays.items()}


# -- encodings ------------------------------------------------------------------------------------


def in_library(rows: list[list[float]], library: str) -> Any:
    """Vectors as an array of NumPy (64 bits) or a tensor of torch (32 bits)."""
    return np.array(rows) if library == "numpy" else torch.tensor(rows, dtype=torch.float32)


def stacked(arrays: list[Any]) -> Any:
    """Arrays of either library, one row each."""
    return torch.stack(arrays) if isinstance(arrays[0], torch.Tensor) else np.stack(arrays)


def encode_values(scenario: Scenario) -> Result:
    """One message, the sum of all messages, and the decoded mean of a single mechanism."""
    mechanism, clients = mechanism_from_dict(scenario["mechanism"]), scenario["clients"]
    rows = in_library(vectors(clients, scenario["dim"], seed=1), scenario["library"])
    if isinstance(mechanism, QSGD):
        norm, levels = mechanism.quantized(rows[0], SeededRandom(5, 0))
        message = np.frombuffer(packed(norm, levels), dtype=np.uint8)
        total = mechanism.sample_messages(rows, SeededRandom(5, 1)).sum(0)
    elif isinstance(mechanism, Noiseless):
        message, total = mechanism.encode(rows[0]), mechanism.clip_messages(rows).sum(0)
    elif mechanism.vector_mechanism is not None:
        rows = rows / scenario["dim"] ** 0.5  # within the L2 clip
        message = mechanism.encode(rows[0], SeededRandom(5, 0))
        total = mechanism.encode_sum(rows, SeededRandom(5, 1), 0 * message, threads=1)
    else:
        message = mechanism.encode(rows[0], SeededRandom(5, 0), threads=1)
        total = mechanism.encode_sum(rows, SeededRandom(5, 1), threads=1)
    return digests({"message": message, "sum": total, "decoded": mechanism.decode(total, clients)})


def secret(*numbers: int) -> bytes:
    """32 bytes that follow from some numbers."""
    return sha256(json.dumps(numbers).encode()).digest()


def encode_vectors(scenario: Scenario) -> Result:
    """All messages, their sum and the decoded mean, of a private mean of integers.

    Where noise is correlated, each client removes in this round what it added in the previous round.
    """
    mean, clients, round_index = private_mean(scenario), scenario["clients"], scenario.get("round_index", 0)
    rows = in_library(vectors(clients, scenario["dim"], seed=2, scale=0.25), scenario["library"])
    states = [_noise_state(mean, round_index, client) for client in range(clients)]
    messages = stacked(
        [
            mean.encode_simulated(row, SeededRandom(6, client), round_index=round_index, noise_state=state)
            for client, (row, state) in enumerate(zip(rows, states, strict=True))
        ]
    )
    total, arrays = messages.sum(0), {"messages": messages}
    if scenario.get("noise"):
        settlements = [mean.settle(_noise_state(mean, round_index - 1, client)) for client in range(clients)]
        arrays |= {"states": _noise_arrays(mean, states), "settlements": np.stack(settlements)}
        settled = np.stack(settlements).sum(0)
        total = (total + (settled if isinstance(rows, np.ndarray) else torch.from_numpy(settled))) % mean.modulus
    arrays |= {"sum": total, "decoded": mean.decode(total, clients, round_index=round_index)}
    return digests(arrays | _simulated_sum(mean, rows, round_index))


def _noise_state(mean: PrivateMean, round_index: int, client: int) -> Any:
    """A client's noise of a round."""
    return None if mean.noise is None else mean.noise.begin(secret(round_index, client), mean.coordinates)


def _noise_arrays(mean: PrivateMean, states: list[Any]) -> Any:
    """The noise of all clients: what is added and canceled, where they differ."""
    assert mean.noise is not None
    return np.stack(
        [np.stack([state.added, state.canceled]) if mean.noise.residual_variance else state.added for state in states]
    )


def _simulated_sum(mean: PrivateMean, rows: Any, round_index: int) -> dict[str, Any]:
    """The sum of all clients' messages as the simulator draws it, which takes tensors of torch."""
    if isinstance(rows, np.ndarray):
        return {}
    total = torch.zeros(mean.coordinates, dtype=torch.int32)
    finite = mean.add_messages(rows.clone(), total, SeededRandom(8, 0), round_index=round_index)
    arrays = {"simulated_sum": total, "finite": finite}
    if mean.noise is not None:
        state = mean.noise.sample_sum(len(rows), torch.zeros_like(total), SeededRandom(8, 1))
        arrays |= {"simulated_noise": state.added, "simulated_settlement": state.canceled}
    return arrays


def encode_records(scenario: Scenario) -> Result:
    """The clipped sums of silos' records, their messages, and the decoded mean."""
    mean, clients, round_index = private_mean(scenario), scenario["clients"], scenario["round_index"]
    gathered, messages, states = [], [], []
    for silo, count in enumerate(scenario["records"]):
        rows = in_library(vectors(count, scenario["dim"], seed=10 + silo), scenario["library"])
        half = mean.sum_records(rows[: count // 2])
        gathered.append(mean.sum_records(rows[count // 2 :], half))
        state = _noise_state(mean, round_index, silo)
        states += [] if state is None else [state]
        messages.append(
            mean.encode_simulated(gathered[-1], SeededRandom(6, silo), round_index=round_index, noise_state=state)
        )
    total = stacked(messages).sum(0) % mean.modulus
    arrays = {
        "gathered": stacked([records.total for records in gathered]),
        "messages": stacked(messages),
        "sum": total,
        "decoded": mean.decode(total, clients, round_index=round_index),
    }
    return digests(arrays | ({"states": _noise_arrays(mean, states)} if states else {}))


def sum_floats(scenario: Scenario) -> Result:
    """The revealed sums of floats, and the decoded means, of all rounds."""
    mean, clients = private_mean(scenario), scenario["clients"]
    noise = mean.server_noise(lambda round_index: 1000 + round_index)
    sums, means = [], []
    for round_index in range(scenario["rounds"]):
        rows = in_library(vectors(clients, scenario["dim"], seed=20 + round_index, scale=0.25), "torch")
        total = torch.zeros(mean.coordinates, dtype=torch.float64)
        mean.add_messages(rows, total, SeededRandom(9, round_index), round_index=round_index)
        revealed = mean.reveal(total, clients, noise, round_index=round_index)
        sums.append(revealed.clone())
        means.append(mean.decode(revealed, clients, round_index=round_index))
    return digests({"float_sums": torch.stack(sums), "float_means": torch.stack(means)})


def encode_reports(scenario: Scenario) -> Result:
    """The permanent and the reported bits of RAPPOR for some users, and the counts of the bits."""
    rappor = Rappor(**scenario["parameters"])
    permanent = rappor.permanent("a value", 3, SeededRandom(11, 0), users=scenario["users"])
    reported = rappor.report(permanent, SeededRandom(11, 1))
    counts = rappor.counts(reported.sum(axis=0)[None], np.array([scenario["users"]]))
    return digests({"permanent": permanent, "reported": reported, "counts": counts})


def sketch_vectors(scenario: Scenario) -> Result:
    """The count sketches of some vectors, and what they are mapped back to."""
    sketch = Sketch(dim=scenario["dim"], count=scenario["count"], seed=7)
    rows = sketch.forward(np.array(vectors(3, scenario["dim"], seed=40)))
    return digests({"sketches": rows, "vectors": sketch.inverse(rows)})


# -- settings and experiments ---------------------------------------------------------------------

GUARANTEE_NAMES = {
    "epsilon": "epsilon",
    "delta": "delta",
    "accountant": "accountant",
    "order": "order",
    "participations": "max_participations",
    "min_honest": "honest_clients",
    "charges": "charged_rounds",
    "dim": "coordinates",
    "per_coordinate": "per_coordinate",
    "noise_multiplier": "noise_multiplier",
    "noise_std_over_gaussian": "noise_std_over_gaussian",
    "bits_per_coordinate": "bits_per_coordinate",
    "bits_under_secagg": "bits_under_secagg",
    "wire_bits_per_parameter": "wire_bits_per_parameter",
    "correlated_noise_ratio": "correlated_noise_ratio",
}
"""Fields of a guarantee that are recorded, and their names there. The others repeat the setting."""


def charges(scenario: Scenario) -> dict[int, int] | None:
    """How often each round was charged; None: once, as planned."""
    if "charges" not in scenario:
        return None
    return {index: times for first, last, times in scenario["charges"] for index in range(first, last + 1)}


def guarantee_values(mean: PrivateMean, guarantee: Any, charged: dict[int, int] | None) -> Result:
    """The numbers of a guarantee, and the GDP parameter μ of one release; without what is None."""
    values = {name: number(getattr(guarantee, own)) for own, name in GUARANTEE_NAMES.items()}
    windows = [one.rounds for one in guarantee.assumptions if isinstance(one, HonestAfterParticipation)]
    values["min_separation"] = windows[0] if windows else None
    if guarantee.subset is not None:
        values |= {name: number(getattr(guarantee.subset, name)) for name in ("second_clip", "clipped_away")}
    values["release_mu"] = release_mu(mean, charged)
    return {name: value for name, value in values.items() if value is not None}


def release_mu(mean: PrivateMean, charged: dict[int, int] | None) -> Any:
    """μ of one release, where it is finite: with the fewest honest clients, and the accountant's failure."""
    release, threat = mean.release.reduced(), mean.threat_model
    if mean.mechanism.vector_mechanism is not None:  # a vector of zeros is sent as any other vector is
        threat = replace(threat, neighboring="replace-one")
    question = Question.of(release, mean.participation, threat, mean.delta, charged)
    if not question.counts:
        return None
    if release.noise is None:
        mu = release.mu(question.neighboring, question.honest, question.failure)
    else:
        window = question.participation.window  # of the rounds that were charged
        mu = release.correlated_bound(question.neighboring, question.honest, window, question.failure).claim.mu
    return float(mu) if isfinite(mu) else None


def guarantee(scenario: Scenario) -> Result:
    """The guarantee of a setting, and the expected mean squared error of a decoded value, where it is known."""
    mean, charged = private_mean(scenario), charges(scenario)
    values = guarantee_values(mean, mean.guarantee(charges=charged), charged)
    if mean.rotate and mean.l2_clip is not None and mean.mechanism.vector_mechanism is None:
        values["mean_squared_error"] = number(mean.expected_error(mean.l2_clip))
    return values


def experiment_guarantees(scenario: Scenario) -> Result:
    """The guarantees of a shipped experiment's variants; an error's type where the question is refused."""
    guarantees: Result = {}
    for name, plan in Sweep.from_toml(find(scenario["experiment"])).variants.items():
        if not plan.mechanism.adds_noise or plan.any_mean.release.has_interior_levels != scenario["interior_levels"]:
            continue
        try:
            mean = planned_mean(plan, adversary=scenario["adversary"])
            guarantees[name] = guarantee_values(mean, mean.guarantee(workload=plan.workload), None)
        except ValueError as error:
            guarantees[name] = {"error": type(error).__name__}
    return guarantees


# -- bounds ---------------------------------------------------------------------------------------


def renyi_bounds(scenario: Scenario) -> Result:
    """Attained and certified Rényi divergences at some orders, with the inputs that attain them."""
    bounds = rqm.renyi(
        mechanism_from_dict(scenario["mechanism"]),
        [order(alpha) for alpha in scenario["orders"]],
        scenario["clients"],
        scenario.get("others", "worst"),
        distribution=scenario["distribution"],
        seed=0,
    )
    return {
        "lower": numbers(bound.lower for bound in bounds),
        "upper": numbers(bound.upper for bound in bounds),
        "worst_inputs": [
            [bound.witness.x, bound.witness.x_prime, *chain.from_iterable(bound.witness.other_inputs.items())]
            for bound in bounds
        ],
    }


def vector_rdp(scenario: Scenario) -> Result:
    """Rényi divergences of a whole vector."""
    mechanism, orders = mechanism_from_dict(scenario["mechanism"]), [order(alpha) for alpha in scenario["orders"]]
    honest, dim, distribution = scenario["honest_clients"], scenario["dim"], scenario["distribution"]
    vector: Scenario = {"l2_clip": scenario["l2_clip"], "neighboring": scenario["neighboring"]}
    if mechanism.additive is not None:
        farthest, squared = shifts.shift_range(mechanism.additive, **vector)
        values = shifts.shifted_rdp(
            mechanism.additive, orders, honest=honest, dim=dim, farthest=farthest, squared=squared
        )
    elif mechanism.is_affine:
        values = affine_rdp.affine_rdp(mechanism, orders, honest=honest, dim=dim, distribution=distribution, **vector)
    else:
        values = [dim * bound.upper for bound in rqm.renyi(mechanism, orders, honest, distribution=distribution)]
    return {"divergences": numbers(values)}


def vector_gdp(scenario: Scenario) -> Result:
    """The GDP parameter μ of a whole vector; with a sensitivity, of one that lies anywhere and moves so far."""
    mechanism, sensitivity = mechanism_from_dict(scenario["mechanism"]), scenario.get("sensitivity")
    common: Scenario = {"honest": scenario["honest_clients"], "dim": scenario["dim"]}
    vector: Scenario = {"l2_clip": scenario["l2_clip"], "neighboring": scenario["neighboring"]}
    tail: Scenario = {"failure": scenario["failure"], "distribution": scenario["distribution"]}
    if mechanism.additive is not None and sensitivity is not None:
        mu = shifts.shifted_gdp_anywhere(mechanism.additive, sensitivity=sensitivity, **common)
    elif mechanism.additive is not None:
        farthest, squared = shifts.shift_range(mechanism.additive, **vector)
        mu = shifts.shifted_gdp(
            mechanism.additive, **common, farthest=farthest, squared=squared, failure=scenario["failure"]
        )
    elif not mechanism.is_affine:
        squared = (2 * scenario["l2_clip"] / mechanism.clip) ** 2
        mu = kinks.interior_gdp(mechanism, **common, squared=squared, farthest=4.0, **tail)
    elif sensitivity is not None:
        mu = gaussian_dp.affine_gdp_anywhere(mechanism, **common, sensitivity=sensitivity, **tail)
    else:
        mu = gaussian_dp.affine_gdp(mechanism, **common, **vector, **tail)
    return {"mu": number(mu)}


def pooled_trials_gdp(scenario: Scenario) -> Result:
    """μ² of a coordinate that is a sum of trials: over the squared distance of the inputs, and at most."""
    bound = trials.summed_trials(
        tuple(scenario["chances"]),
        scenario["trials"],
        scenario["clients"],
        scenario["neighboring"],
        scenario["failure"],
    )
    return {"squared_mu_per_square": number(bound.per_square), "squared_mu": number(bound.largest)}


def correlated_gdp(scenario: Scenario) -> Result:
    """μ of one participation under correlated noise."""
    exposure = Exposure(
        "user",
        honest=scenario["honest_clients"],
        separation=scenario["min_separation"],
        dim=scenario["dim"],
        sensitivity=scenario["l2_clip"] * (2 if scenario["neighboring"] == "replace-one" else 1),
        failure=scenario["failure"],
        neighboring=scenario["neighboring"],
    )
    bound = CorrelatedNoise(**scenario["noise"]).bound(mechanism_from_dict(scenario["mechanism"]), exposure)
    return {"mu": number(bound.claim.mu)}


def fixed_order_epsilon(scenario: Scenario) -> Result:
    """ε of a record in a fixed order, under transient noise."""
    exposure = Exposure(
        "record",
        honest=scenario["honest_clients"],
        separation=scenario["min_separation"],
        dim=scenario["dim"],
        sensitivity=scenario["sensitivity"],
        count=scenario["participations"],
        failure=RecordRelease.tail_fraction * scenario["delta"],
    )
    bound = CorrelatedNoise(**scenario["noise"]).bound(mechanism_from_dict(scenario["mechanism"]), exposure)
    return {"epsilon": number(epsilon(bound, scenario["delta"]))}


def record_epsilon(scenario: Scenario) -> Result:
    """ε of a record that is drawn at random; `releases` are pairs of how often, and how many rounds."""
    times = [times for times, rounds in scenario["releases"] for _ in range(rounds)]
    release = RecordRelease(
        Gaussian(1 / scenario["mu"]), 1, 1.0, record_clip=1.0, sampling_rate=scenario["sampling_rate"]
    )
    threat = ThreatModel(unit="record", neighboring="add-or-remove-one")
    result = account(release, Participation(1, len(times)), threat, scenario["delta"], dict(enumerate(times)))
    return {"epsilon": number(result.epsilon)}


def sampled_rdp(scenario: Scenario) -> Result:
    """Rényi divergences of a Gaussian mechanism on clients that are sampled without replacement."""
    orders = np.arange(2.0, max(scenario["orders"]) + 1)
    full = RdpCurve(tuple(orders.tolist()), orders * 4 / (2 * scenario["noise_multiplier"] ** 2))
    sampled = renyi_without_replacement(full, scenario["clients"] / scenario["population"])
    return {"divergences": numbers(sampled.values[alpha - 2] for alpha in scenario["orders"])}


def coordinate_profile(scenario: Scenario) -> Result:
    """δ of some coordinates at some ε, by privacy loss distributions; of a random sample of a population."""
    honest = scenario["honest_clients"]
    profile = privacy_loss.coordinates_profile(
        mechanism_from_dict(scenario["mechanism"]),
        honest=honest,
        coordinates=scenario["releases"],
        distribution=scenario["distribution"],
    )
    if profile is None:
        return {"deltas": None}
    if "population" in scenario:
        profile = sampled_without_replacement(profile, honest / scenario["population"])
    return {"deltas": [number(profile.delta(np.array([epsilon]))[0]) for epsilon in scenario["epsilons"]]}


def gaussian_epsilons(scenario: Scenario) -> Result:
    """ε of a Gaussian mechanism with GDP parameter μ."""
    return {"epsilons": [gaussian_epsilon(scenario["mu"], delta) for delta in scenario["deltas"]]}


def gaussian_mus(scenario: Scenario) -> Result:
    """The largest μ that is (ε, δ)-private."""
    return {"mus": [gaussian_mu(scenario["epsilon"], delta) for delta in scenario["deltas"]]}


def composed_epsilon(scenario: Scenario) -> Result:
    """ε of releases of several mechanisms, as Flower's accountant composes them."""
    parts = [
        (
            Release(mechanism_from_dict(release["mechanism"]), release["dim"], release["l2_clip"]),
            Participation(**taken(release, PARTICIPATION)),
            ThreatModel(**taken(release, THREAT_MODEL)),
        )
        for release in scenario["releases"]
    ]
    result = account_together(parts, scenario["delta"])
    return {"epsilon": number(result.epsilon), "accountant": result.accountant, "order": result.order}


# -- training runs --------------------------------------------------------------------------------


def blobs(table: Scenario) -> FederatedData:
    """Two-dimensional points in three classes, for clients of given sizes."""
    sizes, test = table["sizes"], table["test_examples"]
    count = sum(sizes) + test
    centers = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    labels = np.array([int(3 * value[0]) % 3 for value in vectors(count, 1, seed=31, scale=1.0)])
    inputs = torch.tensor(centers[labels] + np.array(vectors(count, 2, seed=32, scale=1.5)), dtype=torch.float32)
    train = Clients(inputs[:-test], torch.from_numpy(labels[:-test]), np.concatenate([[0], np.cumsum(sizes)]))
    return FederatedData("blobs", train, inputs[-test:], torch.from_numpy(labels[-test:]), 3)


def small_network() -> torch.nn.Module:
    """A network of 51 parameters with given weights."""
    network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    weights = iter(vectors(1, 51, seed=33, scale=0.5)[0])
    with torch.no_grad():
        for parameter in network.parameters():
            values = [next(weights) for _ in range(parameter.numel())]
            parameter.copy_(torch.tensor(values, dtype=torch.float32).reshape(parameter.shape))
    return network


def training_plan(scenario: Scenario) -> Plan:
    """The plan of a training run on the small network."""
    defaults = {"data": "blobs", "model": "own", "device": "cpu", "evaluate_every": 1}
    return Plan.from_dict({**defaults, **plan_table(scenario)})


METRICS = {
    "round": "round",
    "bits_up": "bits_up",
    "survivors": "survivors",
    "clients_loss_not_released": "client_loss",
    "loss": "loss",
    "accuracy": "accuracy",
    "discarded": "discarded",
    "secagg_bytes_up": "secure_sum_bytes_up",
}
"""Names of a round's metrics, old to new; those that are times are left out."""


def train_model(scenario: Scenario) -> Result:
    """The hash of a trained model, its values' sum of squares, and the metrics of each round."""
    plan, data = training_plan(scenario["plan"]), blobs(scenario["data"])
    with patch("rqm.simulation.client_updates.usable_cores", lambda: scenario["workers"]):
        trainer = RunState(plan, data, small_network())
        if scenario["path"] == "plain":
            trainer.updates.groups = None
        elif trainer.updates.groups is None:
            raise AssertionError("small clients were not trained together")
        rounds = [metrics_line(trainer.step()) for _ in range(plan.participation.rounds)]
    values = trainer.values.detach()
    return {
        "model": digest(values),
        "squared_norm": float((values.double() ** 2).sum()),
        "metrics": [{name: record[old] for old, name in METRICS.items() if old in record} for record in rounds],
    }


# -- ledgers and commands -------------------------------------------------------------------------


LEDGER_DATA = {"sizes": [6] * 12, "test_examples": 30}


@contextmanager
def training_folder(plan: Scenario) -> Iterator[Path]:
    """A folder with the ledger of a short training run."""
    with TemporaryDirectory(prefix="rqm-references-") as folder:
        path = Path(folder) / "run"
        for _ in simulate(training_plan(plan), small_network(), blobs(LEDGER_DATA), folder=path):
            pass
        yield path


def without_volatile(value: Any) -> Any:
    """The same without what differs from run to run."""
    if isinstance(value, dict):
        return {key: without_volatile(inner) for key, inner in value.items() if key not in VOLATILE_KEYS}
    return [without_volatile(inner) for inner in value] if isinstance(value, list) else value


def ledger_values(scenario: Scenario) -> Result:
    """The lines of a ledger, without nonces, hashes and signatures."""
    with training_folder(scenario["run"]) as folder:
        lines = (folder / "ledger.jsonl").read_text().splitlines()
    return {"lines": [without_volatile(json.loads(text)) for text in lines]}


def toml_value(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml_value(inner)}" for name, inner in value.items()) + " }"
    return json.dumps(value)


def command_values(scenario: Scenario) -> Result:
    """What a command prints with --json, about a plan, a shipped experiment or the ledger of a short run."""
    options = scenario.get("options", {})
    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", value)]
    if "run" in scenario:
        with training_folder(scenario["run"]) as folder:
            return printed_json(scenario["command"], folder, *flags)
    if "plan" in scenario:
        with TemporaryDirectory(prefix="rqm-references-") as folder:
            path = Path(folder) / "plan.toml"
            table = plan_table(scenario["plan"])
            path.write_text("".join(f"{name} = {toml_value(value)}\n" for name, value in table.items()))
            return printed_json(scenario["command"], path, *flags)
    subject = [scenario["experiment"]] if "experiment" in scenario else []
    return printed_json(scenario["command"], *subject, *flags)


def printed_json(*arguments: Any) -> Result:
    """The exit code of a command and the JSON that it printed."""
    done = run_command(*arguments, "--json")
    if not done.stdout:
        raise RuntimeError(f"{arguments}: {done.stderr}")
    return {"exit_code": done.returncode, "printed": without_volatile(json.loads(done.stdout))}


# -- calibrations ---------------------------------------------------------------------------------


def calibrate(scenario: Scenario) -> Result:
    """A mechanism of a kind, calibrated to ε."""
    names = {*PARTICIPATION, *THREAT_MODEL, "dim", "coordinates", "epsilon", "delta"} - {"sampling", "unit"}
    return mean_values(rqm.calibrate(scenario["kind"], **taken(scenario, names)).private_mean())


def find_mean(scenario: Scenario) -> Result:
    """The private mean that a search returns for ε."""
    noise = "correlated" if scenario.get("correlated") else "independent"
    names = {*PARTICIPATION, *THREAT_MODEL, *MEAN, "epsilon"} - {"sampling", "unit"}
    search = rqm.private_record_mean if scenario.get("unit") == "record" else rqm.private_mean
    return mean_values(search(**taken(scenario, names), noise=noise))


def calibrate_records(scenario: Scenario) -> Result:
    """The order in which silos take their records, and the private mean that a search returns for it."""
    names = ("epsilon", "sampling_rate", "rounds", "clients", "dim", "delta", "record_clip", "l2_clip")
    return mean_values(rqm.calibrate_records(**taken(scenario, names)).mean)


def mean_values(mean: PrivateMean) -> Result:
    """The result of a calibration: the ε that it reaches, its noise, its mechanism."""
    reached, separation = mean.guarantee(), mean.participation.min_separation
    values = {
        "epsilon": reached.epsilon,
        "accountant": reached.accountant,
        "noise_multiplier": reached.noise_multiplier,
        "noise_std_over_gaussian": reached.noise_std_over_gaussian,
        "correlated_noise_ratio": reached.correlated_noise_ratio,
        "bits_under_secagg": reached.bits_under_secagg,
        "min_separation": separation if separation > 1 else None,
        "mechanism": mean.mechanism.to_dict(),
    }
    return values if mean.noise is None else {**values, "noise": mean.noise.to_dict()}


# -- secure aggregation ---------------------------------------------------------------------------


@contextmanager
def deterministic_randomness(seed: int) -> Iterator[None]:
    """Replace the operating system's random bytes, and new keys, by a stream that follows from the seed."""
    drawn = 0

    def stream(size: int) -> bytes:
        nonlocal drawn
        blocks = -(-size // 32)
        data = b"".join(secret(seed, drawn + block) for block in range(blocks))[:size]
        drawn += blocks
        return data

    def new_key() -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(stream(32))

    system_random = os.urandom
    with (
        patch("os.urandom", stream),
        patch("uuid.uuid4", lambda: UUID(bytes=system_random(16))),  # the compiler names its cache files with these
        patch.object(random, "_urandom", stream),
        patch.object(X25519PrivateKey, "generate", new_key),
    ):
        yield


def message_hash(message: bytes) -> str:
    """The first half of the SHA-256 hash of a message."""
    return sha256(message).hexdigest()[:32]


def carry_out_round(
    clients: Mapping[int, Client], server: Server, values: Callable[[int], Any], dropouts: Mapping[int, Kind]
) -> tuple[list[str], Any]:
    """Carry out a round: the hashes of all messages in both directions, in their order; and the sum."""
    hashes: list[str] = []
    inbox: dict[int, bytes] = dict.fromkeys(clients, b"")
    for stage in STAGES:
        for client, data in inbox.items():
            if client in dropouts and stage >= dropouts[client]:
                continue
            message = clients[client].answer(stage, data, partial(values, client))
            hashes.append(f"{stage.name} {client} {message_hash(message)}")
            server.receive(message, client)
        if stage != Kind.REVEAL:
            inbox = server.advance()
            hashes += [f"{Kind(stage + 1).name} {client} {message_hash(data)}" for client, data in inbox.items()]
    return hashes, server.finish()


def protocol_transcript(scenario: Scenario) -> Result:
    """The messages of one round."""
    names = ("clients", "count", "levels", "degree", "threshold", "minimum", "bits", "modular")
    identities = [Identity(secret(77, client)) for client in range(scenario["clients"])]
    roster = Roster.of(identity.public for identity in identities) if scenario.get("signed") else None
    params = Params(
        **{name: scenario[name] for name in names if name in scenario},
        round=b"references",
        context=secret(1),
        roster=b"" if roster is None else roster.hash,
    )
    dropouts = {int(client): Kind[stage] for client, stage in scenario.get("dropouts", {}).items()}
    with deterministic_randomness(1):
        clients = {
            client: Client(params, client, None if roster is None else identities[client], roster)
            for client in range(params.clients)
        }
        server = Server(params, roster=roster)
        hashes, total = carry_out_round(
            clients, server, lambda client: (np.arange(params.count) * 5 + client) % params.levels, dropouts
        )
    return {"messages": hashes, "sum": total.tolist(), "survivors": list(server.survivors)}


def two_round_transcript(scenario: Scenario) -> Result:
    """The messages of a round with correlated noise, and of the one in which that noise is removed."""
    kind_size, modulus = scenario["clients"], 2 ** scenario["bits"]
    dropouts = {int(client): Kind[stage] for client, stage in scenario.get("dropouts", {}).items()}
    result: Result = {"messages": []}
    pending: Any = None
    states: list[Any] = []
    with deterministic_randomness(2):
        for index in range(2):
            params = _chained_params(scenario, index, pending)
            clients = {
                client: Client(
                    params,
                    client,
                    previous=states[client - kind_size] if client >= kind_size else None,
                    next_context=secret(2, index + 1),
                )
                for client in range(params.clients)
            }
            server = Server(params, previous=pending)

            def values(client: int, clients: Any = clients, states: Any = states) -> Any:
                if client >= kind_size:
                    return -_round_noise(scenario, states[client - kind_size].noise_secret) % modulus
                noise = _round_noise(scenario, clients[client].noise_secret)
                return (np.arange(scenario["count"]) + client + noise) % modulus

            hashes, total = carry_out_round(clients, server, values, dropouts if index else {})
            result["messages"] += hashes
            result[f"sum_{index}"] = total.tolist()
            result[f"recovered_secrets_{index}"] = {
                str(client): None if recovered is None else message_hash(recovered)
                for client, recovered in server.recovered_secrets().items()
            }
            pending = server.settlement()
            states = [clients[member].settlement for member in pending.members]
    return result


def _chained_params(scenario: Scenario, index: int, pending: Any) -> Params:
    """The parameters of a round that follows another, whose noise is removed in it."""
    second = 0 if pending is None else len(pending.members)
    clients = scenario["clients"] + second
    return Params(
        clients=clients,
        count=scenario["count"],
        levels=2 ** scenario["bits"],
        round=b"references %d" % index,
        degree=clients - 1,
        threshold=clients // 2 + 1,
        minimum=2,
        bits=scenario["bits"],
        modular=True,
        context=secret(2, index),
        settling_clients=second,
        previous_sum=b"" if pending is None else pending.name,
        min_per_kind=2,
        noise_threshold=scenario["holds"],
    )


def _round_noise(scenario: Scenario, noise_secret: bytes) -> Any:
    """A client's noise, from its secret."""
    words = np.frombuffer(sha256(noise_secret).digest()[: 2 * scenario["count"]], "<u2")
    return words.astype(np.int64) % 50
