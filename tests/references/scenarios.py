"""The scenarios whose results are recorded, as plain dictionaries that only use the new public names.

Each scenario has an `id`, and names the `function` of `adapter` that computes its result. All scenarios
follow from fixed seeds and from Python's own generator, whose values are the same on all machines. The
names are those of the constructors and functions that the redesign plans:

| name | meaning |
|---|---|
| clients, rounds, population, sampling, max_participations, min_separation, min_survivors | participation |
| adversary, neighboring, unit, honest_clients, honest_fraction | threat model |
| dim, l2_clip, rotate, coordinates, seed | transform |
| mechanism | a table with the mechanism's name and its parameters |
| noise | correlated noise: transient_std, residual_std, gain; null: independent noise |
| record_clip, sampling_rate | silos that protect records |
| charges | how often rounds were charged: [[first round, last round, times], ...] |
| distribution | "paper": the mechanism's definition; "sampled": the integer table that is deployed |
| failure | probability of outcomes that a GDP parameter leaves out |
| sensitivity | how far one record moves a silo's vector |

Names that are missing have their default: None, "available" (sampling), "server", "replace-one", "user", True (rotate).
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from tests.references.random_settings import random_settings

Scenario = dict[str, Any]

ONE_BIT = {"mechanism": "rounding", "margin": 1.0, "levels": 2}
PAPER_RQM = {"mechanism": "rqm", "margin": 1.0, "levels": 16, "keep": 0.42}
WIDE_RQM = {"mechanism": "rqm", "margin": 14.5, "levels": 16, "keep": 0.42}
FOUR_LEVELS = {"mechanism": "rqm", "margin": 2.5, "levels": 4, "keep": [0.4, 0.55]}
PBM = {"mechanism": "pbm", "theta": 0.25, "levels": 16}
THREE_OUTCOMES = {"mechanism": "pbm", "theta": 0.1, "levels": 3}
PLAIN_ROUNDING = {"mechanism": "rounding", "margin": 0.0, "levels": 16}
WIDE_ROUNDING = {"mechanism": "rounding", "margin": 2.5, "levels": 4}
BINARY_RESPONSE = {"mechanism": "randomized-response", "levels": 2, "epsilon": 1.5}
RESPONSE = {"mechanism": "randomized-response", "levels": 8, "epsilon": 3.0}
BINARY_TABLE = {"mechanism": "table", "margin": 1.0, "rows": [[0.75, 0.25], [0.25, 0.75]]}
WIDE_TABLE = {"mechanism": "table", "margin": 1.0, "rows": [[0.6, 0.3, 0.1], [0.1, 0.3, 0.6]]}
THREE_ROWS = {"mechanism": "table", "margin": 1.0, "rows": [[0.7, 0.1, 0.2], [0.3, 0.4, 0.3], [0.2, 0.1, 0.7]]}
DISCRETE_GAUSSIAN = {"mechanism": "discrete-gaussian", "scale": 1.0, "steps": 15, "bits": 10}
SKELLAM = {"mechanism": "skellam", "scale": 1.0, "steps": 7, "bits": 9}
BINOMIAL = {"mechanism": "binomial", "scale": 1.5, "steps": 5, "bits": 9}
VQSGD = {"mechanism": "vqsgd", "epsilon": 4.0, "local": False}
LOCAL_VQSGD = {"mechanism": "vqsgd", "epsilon": 4.0, "local": True}
NOISELESS = {"mechanism": "noiseless"}
QSGD = {"mechanism": "qsgd", "levels": 4}
GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 0.8}
LOCAL_GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 0.8, "local": True}
BANDED = {
    "mechanism": "banded-gaussian",
    "noise_multiplier": 0.8,
    "bands": 3,
    "momentum": 0.9,
    "schedule": "linear",
}

CHANNELS = {
    "rqm": PAPER_RQM,
    "rqm-wide": WIDE_RQM,
    "rqm-list": FOUR_LEVELS,
    "pbm": PBM,
    "rounding": PLAIN_ROUNDING,
    "one-bit": ONE_BIT,
    "response": RESPONSE,
    "binary-response": BINARY_RESPONSE,
    "table": THREE_ROWS,
    "discrete-gaussian": DISCRETE_GAUSSIAN,
    "skellam": SKELLAM,
    "binomial": BINOMIAL,
}
"""Mechanisms that send an integer for each coordinate."""
VECTOR_MECHANISMS = {"vqsgd": VQSGD, "vqsgd-local": LOCAL_VQSGD}
FLOAT_MECHANISMS = {
    "noiseless": NOISELESS,
    "qsgd": QSGD,
    "gaussian": GAUSSIAN,
    "gaussian-local": LOCAL_GAUSSIAN,
    "banded": BANDED,
}
LIBRARIES = ("numpy", "torch")
DIMS = (5, 64, 1000)


def clipped_at(mechanism: Scenario, clip: float) -> Scenario:
    """The mechanism with this clip of single coordinates, if it has one."""
    without = mechanism["mechanism"] in ("vqsgd", "qsgd", "gaussian", "banded-gaussian")
    return dict(mechanism) if without else {**mechanism, "clip": clip}


def vectors(count: int, dim: int, seed: int, scale: float = 1.0) -> list[list[float]]:
    """Vectors with uniform entries in [-scale, scale]."""
    random = Random(seed)
    return [[scale * (2 * random.random() - 1) for _ in range(dim)] for _ in range(count)]


# -- encodings ------------------------------------------------------------------------------------


def encodings() -> list[Scenario]:
    """Messages, sums and decoded means, of single mechanisms and of private means."""
    all_encodings: list[Scenario] = []
    for library in LIBRARIES:
        for dim in DIMS:
            all_encodings += _mechanism_encodings(library, dim)
            all_encodings += _mean_encodings(library, dim)
            all_encodings += _correlated_encodings(library, dim)
            all_encodings += _record_encodings(library, dim)
    for dim in DIMS:
        all_encodings += _float_encodings(dim)
        all_encodings.append({"id": f"sketch-{dim}", "function": "sketch_vectors", "dim": dim, "count": dim // 2})
    parameters = {"bits": 32, "hashes": 2, "cohorts": 8, "f": 0.5, "p": 0.5, "q": 0.75}
    all_encodings.append({"id": "rappor", "function": "encode_reports", "users": 20, "parameters": parameters})
    return all_encodings


def _mechanism_encodings(library: str, dim: int) -> Iterator[Scenario]:
    """Single mechanisms, on inputs of which some lie beyond the clip."""
    encoders = {**CHANNELS, **VECTOR_MECHANISMS, "noiseless": NOISELESS, "qsgd": QSGD}
    for name, mechanism in encoders.items():
        yield {
            "id": f"{name}-{library}-{dim}",
            "function": "encode_values",
            "library": library,
            "clients": 6,
            "dim": dim,
            "mechanism": clipped_at(mechanism, 0.8),
        }


def _mean_encodings(library: str, dim: int) -> Iterator[Scenario]:
    """Private means of integers: rotated or not, clipped in L2 or not, with all or few coordinates."""
    clip = 3.0 / dim**0.5
    for name, mechanism in {**CHANNELS, **VECTOR_MECHANISMS}.items():
        scenario: Scenario = {
            "function": "encode_vectors",
            "library": library,
            "clients": 5,
            "rounds": 3,
            "dim": dim,
            "seed": 7,
            "mechanism": clipped_at(mechanism, clip),
        }
        if name == "vqsgd-local":
            scenario["honest_clients"] = 1
        whole_vector = name in VECTOR_MECHANISMS
        yield {**scenario, "id": f"mean-{name}-rotated-{library}-{dim}", "l2_clip": 1.0, "round_index": 2}
        yield {**scenario, "id": f"mean-{name}-plain-{library}-{dim}", "l2_clip": 1.0, "rotate": False}
        if not whole_vector:
            unclipped = {**scenario, "l2_clip": None, "rotate": dim == 64}
            yield {**unclipped, "id": f"mean-{name}-unclipped-{library}-{dim}"}
            subsampled = {**scenario, "l2_clip": 1.0, "coordinates": max(2, dim // 3), "round_index": 1}
            yield {**subsampled, "id": f"mean-{name}-few-{library}-{dim}"}


def _correlated_encodings(library: str, dim: int) -> Iterator[Scenario]:
    """One bit with transient noise, which a second message removes, wholly or in part."""
    scenario: Scenario = {
        "function": "encode_vectors",
        "library": library,
        "clients": 5,
        "rounds": 4,
        "sampling": "fixed-order",
        "min_separation": 2,
        "dim": dim,
        "l2_clip": 1.0,
        "seed": 7,
        "round_index": 1,
        "mechanism": {**ONE_BIT, "clip": 3.0 / dim**0.5},
    }
    for name, noise in {
        "transient": {"transient_std": 12.5, "residual_std": 0.0, "gain": 1},
        "residual": {"transient_std": 9.0, "residual_std": 1.5, "gain": 6},
    }.items():
        yield {**scenario, "id": f"{name}-rotated-{library}-{dim}", "noise": noise}
        yield {**scenario, "id": f"{name}-plain-{library}-{dim}", "noise": noise, "rotate": False}


def _record_encodings(library: str, dim: int) -> Iterator[Scenario]:
    """Silos with several records each."""
    scenario: Scenario = {
        "function": "encode_records",
        "library": library,
        "clients": 3,
        "records": [4, 1, 150],
        "rounds": 8,
        "delta": 1e-6,
        "dim": dim,
        "unit": "record",
        "neighboring": "add-or-remove-one",
        "record_clip": 0.5,
        "l2_clip": 6.0,
        "seed": 7,
        "round_index": 3,
    }
    clip = 18.0 / dim**0.5
    noise = {"transient_std": 20.0, "residual_std": 0.0, "gain": 1}
    kinds = {"discrete-gaussian": DISCRETE_GAUSSIAN, "skellam": SKELLAM, "binomial": BINOMIAL, "one-bit": ONE_BIT}
    for name, mechanism in {**kinds, "rqm-wide": WIDE_RQM, "pbm": PBM}.items():
        silos = {**scenario, "mechanism": {**mechanism, "clip": clip}}
        yield {**silos, "id": f"records-{name}-rotated-{library}-{dim}"}
        if name in ("discrete-gaussian", "one-bit"):
            yield {**silos, "id": f"records-{name}-plain-{library}-{dim}", "rotate": False}
    yield {
        **scenario,
        "id": f"records-correlated-{library}-{dim}",
        "sampling": "fixed-order",
        "min_separation": 4,
        "noise": noise,
        "mechanism": {**DISCRETE_GAUSSIAN, "clip": clip, "bits": 12},
    }


def _float_encodings(dim: int) -> Iterator[Scenario]:
    """Sums of floats over three rounds, to which a trusted server adds noise; with torch alone."""
    scenario: Scenario = {
        "function": "sum_floats",
        "library": "torch",
        "clients": 5,
        "rounds": 3,
        "dim": dim,
        "l2_clip": 1.0,
        "seed": 7,
    }
    for name, mechanism in FLOAT_MECHANISMS.items():
        floats = {**scenario, "mechanism": clipped_at(mechanism, 0.1)}
        if name == "gaussian-local":
            floats["honest_clients"] = 1
        if name == "banded":
            floats |= {"max_participations": 1, "sampling": "fixed-order"}
        yield {**floats, "id": f"floats-{name}-rotated-{dim}"}
        yield {**floats, "id": f"floats-{name}-plain-{dim}", "rotate": False}
        if name == "gaussian":
            yield {**floats, "id": f"floats-{name}-few-{dim}", "coordinates": max(2, dim // 3)}
            correlated = {**floats, "sampling": "fixed-order", "min_separation": 2}
            noise = {"transient_std": 2.0, "residual_std": 0.0, "gain": 1}
            yield {**correlated, "id": f"floats-transient-{dim}", "noise": noise}
            noise = {"transient_std": 2.0, "residual_std": 0.3, "gain": 6}
            yield {**correlated, "id": f"floats-residual-{dim}", "noise": noise}


# -- settings and experiments ---------------------------------------------------------------------


def settings() -> list[Scenario]:
    """Random settings, see `random_settings`."""
    return [{"function": "guarantee", **setting} for setting in random_settings()]


EXPERIMENTS = (
    "audit",
    "cancel",
    "cancel-3400",
    "demo",
    "emnist-theta15",
    "emnist-theta25",
    "emnist-theta35",
    "few-coordinates",
    "few-coordinates-3400",
    "glyphs",
    "local-steps",
    "local-steps-private",
    "membership",
    "membership-emnist",
    "mnist-linear",
    "mnist-user-level",
    "mnist-writers",
    "silos",
    "silos-emnist",
    "systems",
    "user-level",
    "user-level-outsider",
    "user-level-server",
    "which-mechanism",
)


INTERIOR_EXPERIMENTS = ("emnist-theta15", "emnist-theta25", "emnist-theta35", "glyphs", "mnist-writers")
"""Experiments of the paper's RQM with levels inside the clip, for 40 clients."""


def experiments() -> list[Scenario]:
    """The variants of a shipped experiment, for the plan's own question and for an outsider.

    Variants with levels inside the clip are in `block_certificates`.
    """
    return [
        _experiment(name, adversary, interior_levels=False)
        for name in EXPERIMENTS
        for adversary in ("server", "outsider")
    ]


def _experiment(name: str, adversary: str, *, interior_levels: bool) -> Scenario:
    return {
        "id": f"{name}-{adversary}",
        "function": "experiment_guarantees",
        "experiment": name,
        "adversary": adversary,
        "interior_levels": interior_levels,
    }


# -- bounds ---------------------------------------------------------------------------------------

ORDERS = [1.25, 2.0, 3.0, 8.0, 64.0]
ALL_ORDERS = [1.0, *ORDERS, "inf"]
AFFINE = {
    "one-bit": {**ONE_BIT, "margin": 6.0},
    "rqm-wide": WIDE_RQM,
    "rqm-list": FOUR_LEVELS,
    "pbm": {**PBM, "theta": 0.05},
    "binary-response": BINARY_RESPONSE,
    "wide-table": WIDE_TABLE,
}
"""Mechanisms whose probabilities are affine in the input, or sums of such trials."""
INTEGER_NOISE = {"discrete-gaussian": DISCRETE_GAUSSIAN, "skellam": SKELLAM, "binomial": BINOMIAL}
INTERIOR = {
    "rqm": PAPER_RQM,
    "rqm-narrow": {**PAPER_RQM, "margin": 0.25, "keep": 0.37},
    "rqm-8": {**PAPER_RQM, "levels": 8, "margin": 0.66, "keep": 0.33},
    "response": {**RESPONSE, "levels": 4},
    "table": THREE_ROWS,
}
"""Mechanisms with levels inside the clip."""


def bounds() -> list[Scenario]:
    """Divergences and GDP parameters of single releases, and what composes them."""
    all_bounds = [
        *_renyi_bounds(),
        *_vector_rdp_bounds(),
        *_vector_gdp_bounds(),
        *_correlated_bounds(),
        *_record_bounds(),
        *_compositions(),
    ]
    return [{"id": f"{scenario['function']}-{number}", **scenario} for number, scenario in enumerate(all_bounds)]


def _renyi_bounds() -> Iterator[Scenario]:
    for clients in (1, 2, 5, 12, 40):
        for name, mechanism in {**AFFINE, **INTEGER_NOISE, "exposed": PLAIN_ROUNDING, "four": WIDE_ROUNDING}.items():
            sampled = clients in (2, 12) or name in INTEGER_NOISE
            yield {
                "function": "renyi_bounds",
                "mechanism": clipped_at(mechanism, 1.0),
                "clients": clients,
                "orders": ORDERS if name in INTEGER_NOISE and clients > 12 else ALL_ORDERS,
                "distribution": "sampled" if sampled else "paper",
            }
    for clients in (1, 2, 3, 5):
        for number, mechanism in enumerate(INTERIOR.values()):
            yield {
                "function": "renyi_bounds",
                "mechanism": clipped_at(mechanism, 1.5),
                "clients": clients,
                "orders": ALL_ORDERS if clients < 3 else [2.0, 8.0],
                "distribution": "sampled" if (clients + number) % 2 else "paper",
            }
    for others in ("balanced", "random", [0.5, -0.25, 1.0]):
        yield {
            "function": "renyi_bounds",
            "mechanism": clipped_at(PAPER_RQM, 1.0),
            "clients": 4,
            "orders": ALL_ORDERS,
            "distribution": "paper",
            "others": others,
        }


def block_certificates() -> list[Scenario]:
    """RQM with levels inside the clip, for more than seven clients: certified by blocks, to within some per cent."""
    kinds = [(1.0, 0.42), (0.66, 0.33), (0.25, 0.37), (1.0, 0.65)]
    points = [(margin, keep, clients, [2.0]) for margin, keep in kinds for clients in (8, 12, 20, 40)]
    points += [(1.0, 0.42, 10, [1.5, 8.0]), (0.25, 0.37, 10, [1.5, 8.0])]
    certificates = [
        {
            "id": f"block-{number}",
            "function": "renyi_bounds",
            "mechanism": {"mechanism": "rqm", "clip": 1.0, "margin": margin, "levels": 16, "keep": keep},
            "clients": clients,
            "orders": orders,
            "distribution": "paper",
        }
        for number, (margin, keep, clients, orders) in enumerate(points)
    ]
    return certificates + [_experiment(name, "server", interior_levels=True) for name in INTERIOR_EXPERIMENTS]


def _vector_rdp_bounds() -> Iterator[Scenario]:
    sizes = [(1, 1, 1.0), (1, 30, 6.0), (8, 100, 2.0), (60, 2**20, 300.0)]
    for number, (honest, dim, ratio) in enumerate(sizes):
        for name, mechanism in {**AFFINE, **INTEGER_NOISE}.items():
            yield {
                "function": "vector_rdp",
                "mechanism": clipped_at(mechanism, 0.5),
                "honest_clients": honest,
                "dim": dim,
                "l2_clip": 0.5 * ratio,
                "orders": ORDERS,
                "neighboring": "replace-one" if (number + len(name)) % 2 else "zero-out",
                "distribution": "sampled" if number % 2 or name in INTEGER_NOISE else "paper",
            }
    for honest, dim, ratio in ((1, 10, 2.0), (2, 10, 1.0), (2, 1, 1.0)):
        yield {
            "function": "vector_rdp",
            "mechanism": clipped_at(PAPER_RQM, 0.5),
            "honest_clients": honest,
            "dim": dim,
            "l2_clip": 0.5 * ratio,
            "orders": [1.5, 2.0, 8.0],
            "neighboring": "replace-one",
            "distribution": "paper",
        }


def _vector_gdp_bounds() -> Iterator[Scenario]:
    sizes = [(1, 4, 1.5), (5, 64, 2.0), (40, 1000, 8.0), (300, 2**20, 250.0)]
    for number, (honest, dim, ratio) in enumerate(sizes):
        for name, mechanism in {**AFFINE, **INTEGER_NOISE}.items():
            scenario: Scenario = {
                "function": "vector_gdp",
                "mechanism": clipped_at(mechanism, 0.5),
                "honest_clients": honest,
                "dim": dim,
                "l2_clip": 0.5 * ratio,
                "failure": (1e-9, 1e-12)[number % 2],
                "distribution": "sampled" if number % 2 or name in INTEGER_NOISE else "paper",
            }
            yield {**scenario, "neighboring": "replace-one"}
            yield {**scenario, "neighboring": "zero-out"}
            if number in (1, 2):
                yield {**scenario, "neighboring": "replace-one", "sensitivity": 0.3}
                yield {**scenario, "neighboring": "replace-one", "sensitivity": 2.0}
    for honest in (1, 2, 3):
        for mechanism in (PAPER_RQM, {**RESPONSE, "levels": 4}):
            yield {
                "function": "vector_gdp",
                "mechanism": clipped_at(mechanism, 1.0),
                "honest_clients": honest,
                "dim": 4,
                "l2_clip": 1.0,
                "failure": 1e-7,
                "neighboring": "replace-one",
                "distribution": "sampled",
            }
    for trials, chances in ((4, [0.1, 0.9]), (15, [0.25, 0.75]), (15, [0.01, 0.99]), (3, [0.4, 0.6])):
        for clients in (1, 5, 60):
            for neighboring in ("replace-one", "zero-out"):
                yield {
                    "function": "pooled_trials_gdp",
                    "chances": chances,
                    "trials": trials,
                    "clients": clients,
                    "neighboring": neighboring,
                    "failure": 1e-10,
                }


def _correlated_bounds() -> Iterator[Scenario]:
    transient = [
        {"transient_std": 26.0, "residual_std": 0.0, "gain": 1},
        {"transient_std": 6.0, "residual_std": 0.0, "gain": 1},
        {"transient_std": 20.0, "residual_std": 1.5, "gain": 20},
        {"transient_std": 8.0, "residual_std": 2.0, "gain": 4},
    ]
    sizes = [(20, 2, 100), (100, 8, 2**20), (250, 30, 2**14), (6, 5, 10)]
    for number, (honest, separation, dim) in enumerate(sizes):
        for noise in transient:
            for neighboring in ("replace-one", "zero-out"):
                yield {
                    "function": "correlated_gdp",
                    "mechanism": {**ONE_BIT, "clip": 4.0 / dim**0.5, "margin": (3.0, 33.0, 12.0, 1.0)[number]},
                    "noise": noise,
                    "honest_clients": honest,
                    "min_separation": separation,
                    "dim": dim,
                    "l2_clip": 1.0,
                    "failure": 1e-9,
                    "neighboring": neighboring,
                }


def _record_bounds() -> Iterator[Scenario]:
    sizes = [(4, 8, 64, 2, 0.04), (2, 2, 1000, 10, 0.2), (10, 25, 2**17, 4, 0.04), (1, 4, 64, 3, 0.3)]
    for honest, separation, dim, count, scale in sizes:
        for transient_std, sensitivity in ((60.0, 0.2), (20.0, 0.05)):
            for name in ("discrete-gaussian", "skellam"):
                yield {
                    "function": "fixed_order_epsilon",
                    "mechanism": {"mechanism": name, "clip": 1.0, "scale": scale, "steps": 255, "bits": 12},
                    "noise": {"transient_std": transient_std, "residual_std": 0.0, "gain": 1},
                    "honest_clients": honest,
                    "min_separation": separation,
                    "dim": dim,
                    "sensitivity": sensitivity,
                    "participations": count,
                    "delta": 1e-6,
                }
    for mu in (0.3, 1.0, 3.0):
        for rate in (None, 0.01, 0.2):
            for releases in ([[1, 100]], [[1, 20], [2, 3]]):
                yield {
                    "function": "record_epsilon",
                    "mu": mu,
                    "sampling_rate": rate,
                    "releases": releases,
                    "delta": 1e-6,
                }


def _compositions() -> Iterator[Scenario]:
    for clients, population in ((10, 100), (100, 3400), (1000, 10**6)):
        for multiplier in (0.7, 2.0, 20.0):
            yield {
                "function": "sampled_rdp",
                "noise_multiplier": multiplier,
                "clients": clients,
                "population": population,
                "orders": [2, 3, 8, 32, 64],
            }
    for name, mechanism in {**AFFINE, **INTEGER_NOISE}.items():
        for honest, releases in ((1, 1), (3, 4), (20, 40)):
            yield {
                "function": "coordinate_profile",
                "mechanism": clipped_at(mechanism, 1.0),
                "honest_clients": honest,
                "releases": releases,
                "epsilons": [0.0, 0.5, 1.0, 2.0, 4.0, 8.0],
                "distribution": "sampled" if honest > 1 or name in INTEGER_NOISE else "paper",
            }
    for honest, population in ((1, 4), (3, 9), (6, 30)):
        yield {
            "function": "coordinate_profile",
            "mechanism": clipped_at(ONE_BIT, 1.0),
            "honest_clients": honest,
            "population": population,
            "releases": 1,
            "epsilons": [0.0, 0.25, 0.5, 1.0, 2.0],
            "distribution": "sampled",
        }
    for mu in (0.01, 0.5, 1.0, 4.0, 30.0):
        yield {"function": "gaussian_epsilons", "mu": mu, "deltas": [1e-3, 1e-5, 1e-8, 1e-12]}
        yield {"function": "gaussian_mus", "epsilon": mu, "deltas": [1e-3, 1e-5, 1e-8, 1e-12]}
    one_bit = {"clients": 100, "dim": 1000, "l2_clip": 1.0, "mechanism": {**ONE_BIT, "clip": 0.1, "margin": 9.0}}
    gaussian = {"clients": 100, "dim": 1000, "l2_clip": 1.0, "mechanism": {**GAUSSIAN, "noise_multiplier": 6.0}}
    rqm = {"clients": 100, "dim": 1000, "l2_clip": 1.0, "mechanism": {**WIDE_RQM, "clip": 0.1, "margin": 40.0}}
    for releases in ([one_bit, gaussian], [one_bit, rqm], [gaussian, rqm, one_bit]):
        server = [{**release, "rounds": 4 + number} for number, release in enumerate(releases)]
        yield {"function": "composed_epsilon", "releases": server, "delta": 1e-6}
        outsider = [{**r, "population": 5000, "adversary": "outsider", "sampling": "uniform"} for r in server]
        yield {"function": "composed_epsilon", "releases": outsider, "delta": 1e-6}


# -- training runs --------------------------------------------------------------------------------

BLOBS = {"sizes": [3, 7, 12, 4, 19, 8, 5, 11, 6, 15, 9, 4], "test_examples": 60}
EQUAL_SIZES = {"sizes": [6] * 12, "test_examples": 60}
USERS = {
    "clients": 5,
    "rounds": 3,
    "delta": 1e-4,
    "evaluate_every": 1,
    "seed": 3,
    "l2_clip": 1.0,
    "rotate": True,
    "mechanism": {**ONE_BIT, "clip": 0.5},
    "server": {"optimizer": "momentum", "rate": 0.5, "momentum": 0.9, "schedule": "linear"},
}
SILOS = {
    **USERS,
    "clients": 3,
    "delta": 1e-6,
    "l2_clip": 16.0,
    "mechanism": {"mechanism": "discrete-gaussian", "clip": 4.0, "scale": 0.15, "steps": 1023, "bits": 14},
    "unit": "record",
    "record_clip": 1.0,
    "batch": 40,
    "silos": 3,
    "neighboring": "add-or-remove-one",
}
CORRELATED = {**USERS, "clients": 4, "sampling": "fixed-order", "min_separation": 3, "max_participations": 1}
TRANSIENT = {"transient_std": 12.0, "residual_std": 0.0, "gain": 1}
RESIDUAL = {"transient_std": 9.0, "residual_std": 2.0, "gain": 5}
LOCAL = {"work": "local", "rate": 0.05, "steps": 3, "batch": 4}
UNCLIPPED = {**USERS, "l2_clip": None, "rotate": False}

RUNS: dict[str, tuple[Scenario, Scenario]] = {
    "noiseless": ({**UNCLIPPED, "mechanism": {"mechanism": "noiseless", "clip": 10.0}}, {"path": "plain"}),
    "one-bit": (USERS, {"path": "plain"}),
    "rqm": ({**UNCLIPPED, "mechanism": {**PAPER_RQM, "clip": 0.3}}, {"path": "plain"}),
    "pbm": ({**USERS, "mechanism": {**PBM, "clip": 0.5}}, {"path": "plain"}),
    "skellam": ({**USERS, "mechanism": {**SKELLAM, "clip": 0.5}}, {"path": "plain"}),
    "vqsgd": ({**USERS, "mechanism": VQSGD}, {"path": "plain"}),
    "gaussian": ({**USERS, "mechanism": GAUSSIAN}, {"path": "plain"}),
    "banded": (
        {**USERS, "clients": 4, "sampling": "fixed-order", "max_participations": 1, "mechanism": BANDED},
        {"path": "plain"},
    ),
    "few-coordinates": ({**USERS, "coordinates": 20}, {"path": "plain"}),
    "adam": (
        {**USERS, "server": {"optimizer": "adam", "rate": 0.1, "momentum": 0.9, "schedule": "constant"}},
        {"path": "plain"},
    ),
    "population": (
        {**USERS, "population": 300, "examples": 4, "max_participations": 1, "clients": 10},
        {"path": "plain"},
    ),
    "batched": (USERS, {"path": "batched"}),
    "batched-workers": (USERS, {"path": "batched", "workers": 2}),
    "workers": (USERS, {"path": "plain", "workers": 2}),
    "float-workers": ({**USERS, "mechanism": GAUSSIAN}, {"path": "plain", "workers": 2}),
    "dropouts": ({**USERS, "dropout_rate": 0.2, "min_survivors": 3}, {"path": "plain"}),
    "discarded-round": ({**USERS, "rounds": 4, "dropout_rate": 0.2, "min_survivors": 5}, {"path": "plain"}),
    "real-secure-sum": ({**USERS, "secure_sum": "real"}, {"path": "plain"}),
    "real-secure-sum-dropouts": (
        {**USERS, "clients": 8, "secure_sum": "real", "dropout_rate": 0.2, "min_survivors": 5},
        {"path": "plain"},
    ),
    "transient": ({**CORRELATED, "noise": TRANSIENT}, {"path": "plain"}),
    "residual": ({**CORRELATED, "noise": RESIDUAL}, {"path": "plain"}),
    "transient-dropouts": (
        {**CORRELATED, "noise": TRANSIENT, "dropout_rate": 0.15, "min_survivors": 2},
        {"path": "plain"},
    ),
    "residual-dropouts": (
        {**CORRELATED, "noise": RESIDUAL, "dropout_rate": 0.15, "min_survivors": 2},
        {"path": "plain"},
    ),
    "real-transient": ({**CORRELATED, "noise": TRANSIENT, "secure_sum": "real"}, {"path": "plain"}),
    "real-residual-dropouts": (
        {
            **{**CORRELATED, "clients": 6, "min_separation": 2, "max_participations": 2},
            "noise": RESIDUAL,
            "secure_sum": "real",
            "dropout_rate": 0.1,
            "min_survivors": 4,
        },
        {"path": "plain"},
    ),
    "trusted-transient": (
        {**CORRELATED, "noise": {**TRANSIENT, "transient_std": 2.0}, "mechanism": GAUSSIAN},
        {"path": "plain"},
    ),
    "silos-sampled": ({**SILOS, "sampling_rate": 0.5}, {"path": "plain"}),
    "silos-all-records": ({**SILOS, "neighboring": "replace-one"}, {"path": "plain"}),
    "silos-fixed-order": ({**SILOS, "sampling": "fixed-order", "min_separation": 2}, {"path": "plain"}),
    "silos-fixed-order-replace": (
        {**SILOS, "sampling": "fixed-order", "min_separation": 2, "neighboring": "replace-one"},
        {"path": "plain"},
    ),
    "silos-transient": (
        {**SILOS, "sampling": "fixed-order", "min_separation": 2, "noise": {**TRANSIENT, "transient_std": 40.0}},
        {"path": "plain"},
    ),
    "silos-transient-dropouts": (
        {
            **SILOS,
            "sampling": "fixed-order",
            "min_separation": 2,
            "noise": {**TRANSIENT, "transient_std": 40.0},
            "dropout_rate": 0.3,
            "min_survivors": 1,
        },
        {"path": "plain"},
    ),
    "silos-real-secure-sum": ({**SILOS, "sampling_rate": 0.5, "secure_sum": "real"}, {"path": "plain"}),
    "silos-gaussian": ({**SILOS, "sampling_rate": 0.5, "mechanism": GAUSSIAN}, {"path": "plain"}),
    "local": ({**USERS, "client": LOCAL}, {"path": "plain"}),
    "local-epochs": ({**USERS, "client": {**LOCAL, "steps": None, "epochs": 2}}, {"path": "plain"}),
    "local-batched": ({**USERS, "client": LOCAL}, {"path": "batched", "data": EQUAL_SIZES}),
    "fedcomgate": ({**USERS, "client": {**LOCAL, "work": "fedcomgate"}}, {"path": "plain"}),
    "fedcomgate-batched": (
        {**USERS, "client": {**LOCAL, "work": "fedcomgate"}},
        {"path": "batched", "data": EQUAL_SIZES},
    ),
    "fedaq": (
        {
            **USERS,
            "client": {**LOCAL, "work": "fedaq", "convexity": 0.5},
            "server": {"optimizer": "sgd", "rate": 0.05, "momentum": 0.9, "schedule": "constant"},
        },
        {"path": "plain"},
    ),
    "adaptive-clip": (
        {**USERS, "adaptive_clip": {"quantile": 0.5, "rate": 0.2, "start": 0.1, "share": 0.1}},
        {"path": "plain"},
    ),
    "adaptive-clip-gaussian": (
        {**USERS, "mechanism": GAUSSIAN, "adaptive_clip": {"quantile": 0.7, "rate": 0.3, "start": 0.5, "share": 0.2}},
        {"path": "plain"},
    ),
}
"""Training runs: their plan, and how they are carried out ("batched": small clients together)."""


def models() -> list[Scenario]:
    """Short training runs on two-dimensional data in three classes."""
    runs = []
    for name, (plan, how) in RUNS.items():
        execution = {"workers": 1, "data": BLOBS, **how}
        runs.append({"id": name, "function": "train_model", "plan": plan, **execution})
    return runs


# -- ledgers and commands -------------------------------------------------------------------------

PLAN: Scenario = {
    "data": "glyphs",
    "model": "linear",
    "clients": 20,
    "rounds": 4,
    "delta": 1e-5,
    "l2_clip": 0.5,
    "rotate": True,
    "mechanism": {**ONE_BIT, "clip": 0.0078125, "margin": 150.0},
}
RECORD_PLAN: Scenario = {
    **PLAN,
    "clients": 4,
    "rounds": 120,
    "l2_clip": 300.0,
    "delta": 1e-6,
    "mechanism": {"mechanism": "discrete-gaussian", "clip": 6.6291260736, "scale": 0.044422, "steps": 3629, "bits": 15},
    "unit": "record",
    "record_clip": 1.0,
    "batch": 1200,
    "silos": 4,
    "sampling_rate": 0.02,
    "neighboring": "add-or-remove-one",
}
CORRELATED_PLAN: Scenario = {
    **PLAN,
    "population": 1000,
    "rounds": 50,
    "sampling": "fixed-order",
    "min_separation": 50,
    "max_participations": 1,
    "noise": {"transient_std": 9.0, "residual_std": 0.0, "gain": 1},
    "mechanism": {**ONE_BIT, "clip": 0.0078125, "margin": 70.0},
}
LEDGER_RUNS = {
    "one-bit": USERS,
    "rqm": {**UNCLIPPED, "mechanism": {**PAPER_RQM, "clip": 0.3}},
    "dropouts": {**USERS, "dropout_rate": 0.2, "min_survivors": 3, "honest_clients": 4},
    "transient": {**CORRELATED, "noise": TRANSIENT},
    "residual": {**CORRELATED, "noise": RESIDUAL},
    "few-coordinates": {**USERS, "coordinates": 20},
    "silos-sampled": {**SILOS, "sampling_rate": 0.5},
    "silos-transient": {
        **SILOS,
        "sampling": "fixed-order",
        "min_separation": 2,
        "noise": {**TRANSIENT, "transient_std": 40.0},
    },
    "adaptive-clip": {**USERS, "adaptive_clip": {"quantile": 0.5, "rate": 0.2, "start": 0.1, "share": 0.1}},
}
COMMANDS: dict[str, Scenario] = {
    "privacy": {"command": "privacy"},
    "privacy-3": {"command": "privacy", "options": {"clients": 3, "alpha": 2, "distribution": "sampled"}},
    "privacy-inf": {"command": "privacy", "options": {"alpha": "inf"}},
    "privacy-1": {"command": "privacy", "options": {"alpha": 1, "levels": 8, "keep": 0.5, "margin": 2}},
    "privacy-pbm": {"command": "privacy", "options": {"mechanism": "pbm", "theta": 0.25, "clients": 40}},
    "privacy-one-bit": {
        "command": "privacy",
        "options": {"mechanism": "rounding", "levels": 2, "margin": 20, "clients": 100},
    },
    "privacy-discrete-gaussian": {
        "command": "privacy",
        "options": {"mechanism": "discrete-gaussian", "scale": 2, "clients": 40, "alpha": 8},
    },
    "privacy-response": {"command": "privacy", "options": {"mechanism": "randomized-response", "alpha": "inf"}},
    "privacy-vqsgd": {"command": "privacy", "options": {"mechanism": "vqsgd", "clients": 10}},
    "privacy-balanced": {"command": "privacy", "options": {"others": "balanced", "clients": 4}},
    "privacy-rappor": {"command": "privacy", "options": {"mechanism": "rappor", "hashes": 2, "reports": 10}},
    "account-audit": {"command": "account", "experiment": "audit"},
    "account-server": {"command": "account", "plan": PLAN},
    "account-zero-out": {"command": "account", "plan": PLAN, "options": {"neighboring": "zero-out", "delta": 1e-6}},
    "account-honest": {"command": "account", "plan": PLAN, "options": {"honest_clients": 16}},
    "account-fraction": {
        "command": "account",
        "plan": PLAN,
        "options": {"honest_fraction": 0.8, "population": 3400},
    },
    "account-outsider": {
        "command": "account",
        "plan": PLAN,
        "options": {"adversary": "outsider", "population": 3400},
    },
    "account-records": {"command": "account", "plan": RECORD_PLAN},
    "account-correlated": {"command": "account", "plan": CORRELATED_PLAN},
    "account-ledger": {"command": "account", "run": LEDGER_RUNS["dropouts"]},
    "account-ledger-correlated": {"command": "account", "run": LEDGER_RUNS["transient"]},
    "account-ledger-records": {"command": "account", "run": LEDGER_RUNS["silos-sampled"]},
    "verify": {"command": "verify", "run": LEDGER_RUNS["one-bit"], "options": {"dim": 51, "rounds": 3}},
    "verify-dropouts": {"command": "verify", "run": LEDGER_RUNS["dropouts"]},
    "verify-correlated": {"command": "verify", "run": LEDGER_RUNS["residual"]},
    "verify-records": {"command": "verify", "run": LEDGER_RUNS["silos-transient"]},
    "verify-other-delta": {"command": "verify", "run": LEDGER_RUNS["one-bit"], "options": {"delta": 1e-9}},
}


def ledgers() -> list[Scenario]:
    """The ledgers of short runs, and what commands print of plans and ledgers as JSON."""
    runs = [{"id": f"ledger-{name}", "function": "ledger_values", "run": run} for name, run in LEDGER_RUNS.items()]
    commands = [
        {"id": f"command-{name}", "function": "command_values", **command} for name, command in COMMANDS.items()
    ]
    return [*runs, *commands]


# -- calibrations ---------------------------------------------------------------------------------


def calibrations() -> list[Scenario]:
    """Results of searches for an ε: `calibrate`, `private_mean`, `calibrate_records` and `advise`."""
    searches = [*_calibrated_kinds(), *_searched_means(), *_searched_records(), *_advice()]
    return [{"id": f"{scenario['function']}-{number}", **scenario} for number, scenario in enumerate(searches)]


def _calibrated_kinds() -> Iterator[Scenario]:
    large: Scenario = {"clients": 1000, "population": 10**6, "rounds": 250, "dim": 2**20, "delta": 1e-6}
    middle: Scenario = {"clients": 100, "population": 3400, "rounds": 1500, "dim": 2**16, "max_participations": 45}
    small: Scenario = {"clients": 10, "rounds": 5, "dim": 30, "delta": 1e-5, "max_participations": 5}
    outsider: Scenario = {"clients": 100, "population": 3400, "rounds": 200, "dim": 2**14, "adversary": "outsider"}
    kinds = ("rounding", "rqm", "pbm", "discrete-gaussian", "skellam", "binomial", "gaussian", "vqsgd")
    for setting, epsilons in ((large, (1.0, 8.0)), (middle, (10.0,)), (small, (4.0,)), (outsider, (3.0,))):
        for kind in kinds:
            slow = kind in ("binomial", "skellam", "vqsgd") and setting is not small
            for epsilon in epsilons[:1] if slow else epsilons:
                if not (slow and setting in (middle, outsider)):
                    yield {"function": "calibrate", "kind": kind, "epsilon": epsilon, **setting}
    one_bit: Scenario = {"function": "calibrate", "kind": "rounding", "epsilon": 3.0, **large}
    yield {**one_bit, "honest_fraction": 0.9}
    yield {**one_bit, "coordinates": 4096}
    yield {**one_bit, "min_survivors": 800}
    yield {**one_bit, "neighboring": "zero-out"}


def _searched_means() -> Iterator[Scenario]:
    settings: Sequence[Scenario] = (
        {"clients": 1000, "dim": 50, "delta": 1e-6},
        {"clients": 1000, "dim": 10**5, "delta": 1e-6, "rounds": 100, "max_participations": 1},
        {"clients": 100, "dim": 7850, "rounds": 60, "population": 10**4, "max_participations": 2},
        {"clients": 20, "dim": 10, "rounds": 3},
        {"clients": 300, "dim": 2**16, "rounds": 40, "honest_clients": 200},
        {"clients": 300, "dim": 2**16, "rounds": 40, "min_survivors": 250, "max_participations": 4},
        {"clients": 200, "dim": 10**4, "rounds": 10, "coordinates": 512, "max_participations": 1},
        {"clients": 50, "dim": 10**4, "rounds": 200, "population": 5000, "adversary": "outsider"},
    )
    for setting in settings:
        for epsilon in (1.0, 6.0):
            yield {"function": "find_mean", "epsilon": epsilon, "l2_clip": 1.0, **setting}
    correlated: Sequence[Scenario] = (
        {"clients": 1000, "dim": 60_000, "rounds": 30, "population": 10**5, "max_participations": 1, "delta": 1e-6},
        {"clients": 100, "dim": 10**5, "rounds": 100, "population": 3400, "min_separation": 34},
    )
    for setting in correlated:
        yield {
            "function": "find_mean",
            "epsilon": 3.0,
            "l2_clip": 1.0,
            "sampling": "fixed-order",
            "correlated": True,
            **setting,
        }


def _searched_records() -> Iterator[Scenario]:
    silos: Scenario = {
        "clients": 4,
        "dim": 5000,
        "delta": 1e-6,
        "unit": "record",
        "neighboring": "add-or-remove-one",
        "record_clip": 1.0,
        "l2_clip": 50.0,
    }
    for options in (
        {"rounds": 120, "sampling_rate": 0.02},
        {"rounds": 40},
        {"rounds": 40, "min_separation": 10, "sampling": "fixed-order"},
        {"rounds": 40, "min_separation": 10, "sampling": "fixed-order", "correlated": True},
        {"rounds": 40, "clients": 1},
    ):
        yield {"function": "find_mean", "epsilon": 6.0, **silos, **options}
    order = {name: value for name, value in silos.items() if name not in ("unit", "neighboring")}
    for rate, rounds in ((0.1, 40), (0.02, 200), (0.5, 10)):
        yield {"function": "calibrate_records", "epsilon": 8.0, "sampling_rate": rate, "rounds": rounds, **order}


def _advice() -> Iterator[Scenario]:
    for options in (
        {"clients": 1, "epsilon": 4, "levels": 4},
        {"clients": 1, "epsilon": 5.4699, "levels": 16},
        {"clients": 1000, "population": 1000000, "dim": 1048576, "epsilon": 10},
        {"clients": 100, "dim": 1000, "noise": 2, "delta": 1e-5},
        {"clients": 40, "dim": 100, "epsilon": 3, "rounds": 5, "max_participations": 5},
    ):
        yield {"function": "command_values", "command": "advise", "options": options}


# -- secure aggregation ---------------------------------------------------------------------------


def transcripts() -> list[Scenario]:
    """Rounds of the secure aggregation protocol, message by message."""
    complete: Scenario = {"clients": 6, "count": 7, "levels": 16, "threshold": 3}
    sparse: Scenario = {"clients": 16, "count": 5, "levels": 16, "degree": 9, "threshold": 5, "minimum": 12}
    modular: Scenario = {"clients": 4, "count": 9, "levels": 4096, "bits": 12, "modular": True, "threshold": 3}
    return [
        {"id": "complete", "function": "protocol_transcript", **complete},
        {"id": "modular", "function": "protocol_transcript", **modular},
        {"id": "dropouts", "function": "protocol_transcript", **complete, "dropouts": {"1": "MASKED", "4": "REVEAL"}},
        {"id": "early-dropouts", "function": "protocol_transcript", **complete, "dropouts": {"0": "KEYS", "2": "ACKS"}},
        {"id": "sparse", "function": "protocol_transcript", **sparse},
        {
            "id": "sparse-dropouts",
            "function": "protocol_transcript",
            **sparse,
            "dropouts": {"3": "SHARES", "6": "MASKED", "12": "REVEAL"},
        },
        {"id": "roster", "function": "protocol_transcript", **complete, "signed": True},
        {"id": "two-rounds", "function": "two_round_transcript", "clients": 4, "count": 3, "bits": 12, "holds": 3},
        {
            "id": "two-rounds-dropouts",
            "function": "two_round_transcript",
            "clients": 5,
            "count": 3,
            "bits": 12,
            "holds": 3,
            "dropouts": {"6": "MASKED", "9": "KEYS"},
        },
    ]
