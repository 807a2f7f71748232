"""Random training settings with explicit mechanism parameters, for the group "settings".

Every setting is a plain dictionary with the new public names (see `scenarios`). Parameters of the
mechanisms are drawn by rough scaling rules, so that most settings have an ε between 0.01 and 50.
"""

from collections.abc import Callable
from math import ceil, log, log2, sqrt
from random import Random
from typing import Any

Scenario = dict[str, Any]

SETTINGS_SEED = 20_260_729
MAX_REACH = 15_000.0
"""Largest distance of the outer levels from zero, in clips: encoders need some positions within the clip."""
MAX_BITS = 16
"""The most bits that an outcome of integer noise has."""
SERVER_NEIGHBORING = ("replace-one", "replace-one", "zero-out")


def significant(value: float, digits: int = 4) -> float:
    """Round to a number of significant digits, which keeps the data short."""
    return float(f"{value:.{digits}g}")


def log_uniform(random: Random, low: float, high: float) -> float:
    """Draw from a log-uniform distribution."""
    return low * (high / low) ** random.random()


def log_uniform_int(random: Random, low: int, high: int) -> int:
    """Draw a whole number from low to high, small ones more often."""
    return min(high, int(log_uniform(random, low, high + 1)))


def rough_mu(epsilon: float, delta: float) -> float:
    """Approximate the GDP parameter μ that gives (ε, δ)-DP."""
    tail = 2 * log(1 / delta)
    return sqrt(tail + 2 * epsilon) - sqrt(tail)


# -- who takes part, and the threat model ---------------------------------------------------------


def user_setting(random: Random, *, max_clients: int = 2000, max_dim: int = 2**20) -> Scenario:
    """A setting against the server, without a mechanism."""
    clients = log_uniform_int(random, 1, max_clients)
    rounds = log_uniform_int(random, 1, 2000)
    setting: Scenario = {"clients": clients, "rounds": rounds}
    if random.random() < 0.5:
        setting["population"] = clients * log_uniform_int(random, 1, 2000)
    if random.random() < 0.6:
        setting["max_participations"] = log_uniform_int(random, 1, rounds)
    if random.random() < 0.25:
        max_separation = setting["population"] // clients if "population" in setting else rounds
        setting["min_separation"] = log_uniform_int(random, 1, max(1, min(max_separation, rounds)))
        setting["sampling"] = "fixed-order"
    if random.random() < 0.25:
        setting["min_survivors"] = random.randint(ceil(0.6 * clients), clients)
    choice = random.random()
    if choice < 0.25:
        setting["honest_clients"] = random.randint(ceil(0.5 * clients), clients)
    elif choice < 0.4 and "population" in setting and "min_separation" not in setting:
        setting["honest_fraction"] = random.choice((0.5, 0.75, 0.9, 0.97, 1.0))
        setting["sampling"] = "uniform"
    neighboring = random.choice(SERVER_NEIGHBORING)
    if neighboring != "replace-one":
        setting["neighboring"] = neighboring
    if random.random() < 0.7:
        setting["delta"] = random.choice((1e-4, 1e-5, 1e-6, 1e-8))
    return add_vector(random, setting, max_dim)


def outsider_setting(random: Random, *, max_clients: int = 300, max_dim: int = 2**16) -> Scenario:
    """A setting against an outsider, from whom uniform sampling hides who takes part."""
    clients = log_uniform_int(random, 1, max_clients)
    setting: Scenario = {
        "clients": clients,
        "rounds": log_uniform_int(random, 1, 1000),
        "population": clients * log_uniform_int(random, 2, 500),
        "sampling": "uniform",
        "adversary": "outsider",
    }
    if random.random() < 0.35:
        setting["honest_fraction"] = random.choice((0.5, 0.8, 0.95, 1.0))
    if random.random() < 0.2:
        setting["min_survivors"] = random.randint(ceil(0.6 * clients), clients)
    if random.random() < 0.3:
        setting["neighboring"] = "zero-out"
    if random.random() < 0.7:
        setting["delta"] = random.choice((1e-4, 1e-5, 1e-6))
    return add_vector(random, setting, max_dim)


def add_vector(random: Random, setting: Scenario, max_dim: int) -> Scenario:
    """Add the dimension and the L2 clip."""
    setting["dim"] = log_uniform_int(random, 1, max_dim)
    setting["l2_clip"] = random.choice((0.3, 1.0, 1.0, 2.5))
    if random.random() < 0.1:
        setting["rotate"] = False
    return setting


def record_setting(random: Random, *, sampled: bool) -> Scenario:
    """A setting of silos, in which a record is protected."""
    clients = log_uniform_int(random, 1, 30)
    rounds = log_uniform_int(random, 1, 1000)
    record_clip = random.choice((0.3, 1.0, 1.0, 2.5))
    setting: Scenario = {
        "clients": clients,
        "rounds": rounds,
        "delta": random.choice((1e-5, 1e-6, 1e-8)),
        "dim": log_uniform_int(random, 1, 2**17),
        "unit": "record",
        "record_clip": record_clip,
        "l2_clip": significant(record_clip * log_uniform(random, 1.001, 500)),
        "neighboring": "add-or-remove-one",
    }
    if sampled:
        setting["sampling_rate"] = random.choice((0.003, 0.01, 0.04, 0.1, 0.3, 1.0))
    else:
        if random.random() < 0.4:
            setting["neighboring"] = "replace-one"
        if random.random() < 0.5:
            setting["min_separation"] = log_uniform_int(random, 1, rounds)
            setting["sampling"] = "fixed-order"
        elif random.random() < 0.5:
            setting["max_participations"] = log_uniform_int(random, 1, rounds)
    if random.random() < 0.4:
        setting["honest_clients"] = random.randint(ceil(0.5 * clients), clients)
    if random.random() < 0.2:
        setting["min_survivors"] = random.randint(ceil(0.6 * clients), clients)
    return setting


# -- how much noise a target needs ----------------------------------------------------------------


def honest_clients(setting: Scenario) -> int:
    """Approximate how many honest clients add noise to a sum."""
    clients = setting["clients"]
    honest = setting.get("honest_clients", int(clients * setting.get("honest_fraction", 1.0)))
    client_dropout = clients - setting.get("min_survivors", clients)
    return max(1, honest - client_dropout)


def participations(setting: Scenario) -> int:
    """The most rounds that include one user or record."""
    rounds = setting["rounds"]
    max_participations = setting.get("max_participations", rounds)
    return min(rounds, max_participations, ceil(rounds / setting.get("min_separation", 1)))


def needed_multiplier(random: Random, setting: Scenario) -> float:
    """Approximate the noise of the sum, over the L2 clip (or a record's), for a random target ε."""
    population = setting.get("population", 0)
    delta = setting.get("delta", min(1e-5, 1 / population) if population else 1e-5)
    mu = rough_mu(log_uniform(random, 0.15, 12), delta)
    distance = 1.0 if setting.get("neighboring", "replace-one") != "replace-one" else 2.0
    if setting.get("adversary") == "outsider":
        rate = setting["clients"] / population
        return max(1.5, 2 * rate * sqrt(setting["rounds"]) / mu)
    rate = setting.get("sampling_rate", 1.0)
    if rate < 1:
        return max(0.6, rate * sqrt(setting["rounds"]) / mu)
    return distance * sqrt(participations(setting)) / mu


def padded(setting: Scenario) -> int:
    """The number of coordinates after the rotation."""
    dim: int = setting["dim"]
    return 1 << (dim - 1).bit_length() if setting.get("rotate", True) else dim


def coordinate_clip(random: Random, setting: Scenario, coordinates: int | None = None) -> float:
    """A clip of single coordinates that suits a rotated vector."""
    count = padded(setting) if coordinates is None else coordinates
    spread = random.choice((1.5, 3.0, 4.0))
    return significant(setting["l2_clip"] * min(1.0, spread / sqrt(count)), 6)


# -- mechanisms with about a given noise ----------------------------------------------------------


def one_bit(clip: float, std: float) -> Scenario:
    """The 1-bit mechanism with noise of about `std` for each client and coordinate."""
    margin = significant(min(MAX_REACH, max(0.05, std / clip - 1)))
    return {"mechanism": "rounding", "clip": clip, "margin": margin, "levels": 2}


def wide_rqm(random: Random, clip: float, std: float) -> Scenario:
    """RQM with all inner levels outside the clip, or as near to that as its noise allows."""
    levels = random.choice((4, 6, 8, 16))
    keep: Any = random.choice((0.23, 0.42, 0.65))
    reach = 0.8 * std / clip * keep * (levels - 1) / 2
    margin = significant(min(MAX_REACH, max(levels - 2 + 0.01, reach - 1)))
    if levels == 4 and random.random() < 0.5:
        keep = [0.4, 0.55]
    return {"mechanism": "rqm", "clip": clip, "margin": margin, "levels": levels, "keep": keep}


def pbm(random: Random, clip: float, std: float) -> Scenario:
    """The Poisson binomial mechanism."""
    levels = random.choice((2, 4, 16))
    theta = max(0.5 / MAX_REACH, min(0.45, clip / (2 * std * sqrt(levels - 1))))
    return {"mechanism": "pbm", "clip": clip, "theta": significant(theta), "levels": levels}


def binary_response(clip: float, std: float) -> Scenario:
    """Randomized response with two levels."""
    amount = max(1.05, std / clip)
    epsilon = significant(log((amount + 1) / (amount - 1)))
    return {"mechanism": "randomized-response", "clip": clip, "levels": 2, "epsilon": epsilon}


def table(random: Random, clip: float, std: float) -> Scenario:
    """A table with two rows, each with the mean of its end of the clip."""
    reach = max(1.2, 1.5 * std / clip)
    levels = random.choice((2, 3, 5))
    tilt = [2 * j / (levels - 1) - 1 for j in range(levels)]
    square = sum(value * value for value in tilt) / levels
    slope = 1 / (reach * square)
    if slope >= 1:
        reach, slope = 1.05 / square, 1 / 1.05
    high = [(1 + slope * value) / levels for value in tilt]
    return {"mechanism": "table", "clip": clip, "margin": reach - 1, "rows": [high[::-1], high]}


def additive(random: Random, kind: str, clip: float, std: float, clients: int, steps: tuple[int, ...]) -> Scenario:
    """Integer noise (discrete Gaussian, Skellam or binomial), with enough bits for the sum where that is possible."""
    scale = min(std / clip, 2 ** (MAX_BITS - 2) / 7)
    fitting = [count for count in steps if 7 * scale * count < 2**MAX_BITS - count]
    count = random.choice(fitting or [1])
    sum_range = clients * count / 2 + 12 * sqrt(clients) * scale * count / 2
    own_range = count + 14 * scale * count / 2
    bits = min(MAX_BITS, ceil(log2(max(sum_range, own_range) + 8)))
    return {"mechanism": kind, "clip": clip, "scale": significant(scale), "steps": count, "bits": bits}


INTEGER_NOISE = ("discrete-gaussian", "skellam", "binomial")
FEW_STEPS, MANY_STEPS = (1, 3, 7, 15, 31), (63, 255, 1023, 4095)


def integer_noise(random: Random, setting: Scenario, clip: float, std: float) -> Scenario:
    """Integer noise of a random kind, for users."""
    return additive(random, random.choice(INTEGER_NOISE), clip, std, setting["clients"], FEW_STEPS)


# -- families of settings -------------------------------------------------------------------------


def with_charges(random: Random, setting: Scenario) -> Scenario:
    """Charge some rounds twice or three times, and leave others out; as [first, last, times]."""
    rounds = setting["rounds"]
    if rounds < 2 or random.random() > 0.15:
        return setting
    first = random.randrange(rounds)
    last = random.randrange(first, rounds)
    charges = [[0, first - 1, 1]] if first else []
    charges.append([first, last, random.choice((2, 2, 3))])
    if last + 1 < rounds and random.random() < 0.7:
        charges.append([last + 1, rounds - 1, 1])
    return {**setting, "charges": charges}


def client_std(random: Random, setting: Scenario) -> float:
    """The noise of one client in one coordinate."""
    return needed_multiplier(random, setting) * setting["l2_clip"] / sqrt(honest_clients(setting))


def one_bit_setting(random: Random) -> Scenario:
    setting = user_setting(random)
    std = client_std(random, setting)
    return {**setting, "mechanism": one_bit(coordinate_clip(random, setting), std)}


def response_setting(random: Random) -> Scenario:
    setting = user_setting(random)
    std = client_std(random, setting)
    return {**setting, "mechanism": binary_response(coordinate_clip(random, setting), std)}


def rqm_setting(random: Random) -> Scenario:
    setting = user_setting(random, max_clients=500)
    std = client_std(random, setting)
    return {**setting, "mechanism": wide_rqm(random, coordinate_clip(random, setting), std)}


def pbm_setting(random: Random) -> Scenario:
    setting = user_setting(random, max_clients=300)
    std = client_std(random, setting)
    return {**setting, "mechanism": pbm(random, coordinate_clip(random, setting), std)}


def table_setting(random: Random) -> Scenario:
    setting = user_setting(random, max_clients=500)
    std = client_std(random, setting)
    return {**setting, "mechanism": table(random, coordinate_clip(random, setting), std)}


def additive_setting(random: Random) -> Scenario:
    setting = user_setting(random, max_clients=500)
    std, clip = client_std(random, setting), coordinate_clip(random, setting)
    return {**setting, "mechanism": integer_noise(random, setting, clip, std)}


def vqsgd_setting(random: Random) -> Scenario:
    local = random.random() < 0.4
    setting = user_setting(random, max_dim=2**12)
    setting["rounds"] = min(setting["rounds"], 30)
    for name in ("max_participations", "min_separation"):
        if name in setting:
            setting[name] = min(setting[name], setting["rounds"])
    epsilon = significant(log_uniform(random, 0.5, 3.0) / sqrt(participations(setting)) + (0 if local else 0.5))
    if local:
        setting.pop("honest_fraction", None)
        setting["honest_clients"] = 1
    return {**setting, "mechanism": {"mechanism": "vqsgd", "epsilon": epsilon, "local": local}}


def gaussian_setting(random: Random) -> Scenario:
    setting = user_setting(random)
    multiplier = significant(needed_multiplier(random, setting))
    return {**setting, "mechanism": {"mechanism": "gaussian", "noise_multiplier": multiplier}}


def local_gaussian_setting(random: Random) -> Scenario:
    setting = user_setting(random)
    multiplier = significant(needed_multiplier(random, setting))
    return {**setting, "mechanism": {"mechanism": "gaussian", "noise_multiplier": multiplier, "local": True}}


def banded_setting(random: Random) -> Scenario:
    setting = user_setting(random)
    setting["rounds"] = min(setting["rounds"], 300)
    for name in ("max_participations", "min_separation"):
        if name in setting:
            setting[name] = min(setting[name], setting["rounds"])
    once = setting.get("max_participations") == 1
    max_bands = setting["rounds"] if once else setting.get("min_separation", 1)
    mechanism = {
        "mechanism": "banded-gaussian",
        "noise_multiplier": significant(needed_multiplier(random, setting)),
        "bands": log_uniform_int(random, 1, min(max_bands, 40)),
        "momentum": random.choice((0.0, 0.9)),
        "schedule": random.choice(("constant", "linear")),
    }
    return {**setting, "mechanism": mechanism}


def outsider_one_bit_setting(random: Random) -> Scenario:
    setting = outsider_setting(random)
    return {**setting, "mechanism": one_bit(coordinate_clip(random, setting), client_std(random, setting))}


def outsider_additive_setting(random: Random) -> Scenario:
    setting = outsider_setting(random)
    std, clip = client_std(random, setting), coordinate_clip(random, setting)
    return {**setting, "mechanism": integer_noise(random, setting, clip, std)}


def outsider_other_setting(random: Random) -> Scenario:
    setting = outsider_setting(random, max_clients=100)
    std, clip = client_std(random, setting), coordinate_clip(random, setting)
    if random.random() < 0.5:
        return {**setting, "mechanism": wide_rqm(random, clip, std)}
    return {**setting, "mechanism": pbm(random, clip, std)}


def outsider_gaussian_setting(random: Random) -> Scenario:
    setting = outsider_setting(random)
    multiplier = significant(needed_multiplier(random, setting))
    return {**setting, "mechanism": {"mechanism": "gaussian", "noise_multiplier": multiplier}}


def small_sample_setting(random: Random) -> Scenario:
    """One coordinate of one round before an outsider, among few users: accounted for exactly."""
    clients = random.randint(1, 12)
    setting: Scenario = {
        "clients": clients,
        "rounds": 1,
        "population": clients + random.randint(1, 30),
        "sampling": "uniform",
        "adversary": "outsider",
        "dim": 1,
        "l2_clip": 1.0,
        "delta": random.choice((1e-3, 1e-5)),
    }
    margin = significant(log_uniform(random, 0.2, 8))
    return {**setting, "mechanism": {"mechanism": "rounding", "clip": 1.0, "margin": margin, "levels": 2}}


def few_coordinates_setting(random: Random) -> Scenario:
    """Only some of the rotated coordinates are sent."""
    setting = user_setting(random, max_clients=500)
    setting.pop("rotate", None)
    setting["dim"] = log_uniform_int(random, 100, 2**20)
    setting["coordinates"] = log_uniform_int(random, 8, padded(setting) - 1)
    std, clip = client_std(random, setting), coordinate_clip(random, setting, setting["coordinates"])
    choice = random.random()
    if choice < 0.45:
        mechanism = one_bit(clip, std)
    elif choice < 0.9:
        mechanism = integer_noise(random, setting, clip, std)
    else:
        mechanism = {"mechanism": "gaussian", "noise_multiplier": significant(needed_multiplier(random, setting))}
    return {**setting, "mechanism": mechanism}


def low_dimensional_setting(random: Random) -> Scenario:
    """Few coordinates and releases, where privacy loss distributions give the best ε."""
    setting = user_setting(random, max_clients=60, max_dim=8)
    setting["rounds"] = random.randint(1, 8)
    for name in ("max_participations", "min_separation"):
        if name in setting:
            setting[name] = min(setting[name], setting["rounds"])
    std, clip = client_std(random, setting), coordinate_clip(random, setting)
    choice = random.random()
    if choice < 0.3:
        mechanism = one_bit(clip, std)
    elif choice < 0.5:
        mechanism = pbm(random, clip, std)
    elif choice < 0.65:
        mechanism = binary_response(clip, std)
    elif choice < 0.75:
        mechanism = table(random, clip, std)
    else:
        mechanism = integer_noise(random, setting, clip, std)
    return {**setting, "mechanism": mechanism}


def interior_setting(random: Random) -> Scenario:
    """RQM with levels inside the clip, in one coordinate of one round, for one to three honest clients."""
    clients = random.randint(1, 3)
    mechanism = {
        "mechanism": "rqm",
        "clip": 1.0,
        "margin": random.choice((0.25, 0.66, 1.0, 2.33)),
        "levels": random.choice((6, 8, 16)),
        "keep": random.choice((0.23, 0.33, 0.42)),
    }
    return {
        "clients": clients,
        "rounds": 1,
        "dim": 1,
        "l2_clip": 1.0,
        "delta": random.choice((1e-3, 1e-5)),
        "mechanism": mechanism,
    }


def correlated_one_bit_setting(random: Random) -> Scenario:
    """Users who add transient noise to one bit and remove it one round later."""
    clients = log_uniform_int(random, 2, 400)
    rounds = log_uniform_int(random, 2, 300)
    setting: Scenario = {
        "clients": clients,
        "rounds": rounds,
        "sampling": "fixed-order",
        "min_separation": log_uniform_int(random, 2, min(rounds, 40)),
        "delta": random.choice((1e-4, 1e-5, 1e-6)),
        "dim": log_uniform_int(random, 1, 2**18),
        "l2_clip": random.choice((0.3, 1.0)),
    }
    if random.random() < 0.5:
        setting["population"] = clients * log_uniform_int(random, setting["min_separation"], 500)
    if random.random() < 0.4:
        setting["max_participations"] = random.randint(1, 3)
    if random.random() < 0.3:
        setting["honest_clients"] = random.randint(ceil(0.5 * clients), clients)
    if random.random() < 0.3:
        setting["min_survivors"] = random.randint(ceil(0.7 * clients), clients)
    if random.random() < 0.3:
        setting["neighboring"] = "zero-out"
    std = client_std(random, setting) / random.choice((2, 4, 8))
    noise: Scenario = {"transient_std": significant(log_uniform(random, 1.0, 40.0), 3), "residual_std": 0.0, "gain": 1}
    if random.random() < 0.4 and honest_clients(setting) >= 8:
        residual, gain = random.choice((0.6, 1.0, 2.0)), random.randint(2, 50)
        transient = significant(max(1.0, residual * gain * log_uniform(random, 0.4, 2.5)), 3)
        noise = {"transient_std": transient, "residual_std": residual, "gain": gain}
    return {**setting, "noise": noise, "mechanism": one_bit(coordinate_clip(random, setting), std)}


def correlated_gaussian_setting(random: Random) -> Scenario:
    """A trusted server that takes transient noise back."""
    setting = user_setting(random, max_clients=500)
    setting.pop("honest_fraction", None)
    setting["sampling"] = "fixed-order"
    multiplier = needed_multiplier(random, setting) / random.choice((1, 2, 4))
    transient = significant(multiplier * log_uniform(random, 1, 20))
    noise: Scenario = {"transient_std": transient, "residual_std": 0.0, "gain": 1}
    if random.random() < 0.4:
        residual = significant(multiplier * log_uniform(random, 0.5, 2))
        noise = {"transient_std": transient, "residual_std": residual, "gain": random.randint(2, 50)}
    mechanism = {"mechanism": "gaussian", "noise_multiplier": significant(multiplier)}
    return {**setting, "noise": noise, "mechanism": mechanism}


def record_mechanism(random: Random, setting: Scenario, kinds: tuple[str, ...]) -> Scenario:
    """A mechanism whose noise is in units of a record's clip."""
    multiplier = needed_multiplier(random, setting)
    kind = random.choice(kinds)
    if kind == "gaussian":
        return {"mechanism": kind, "noise_multiplier": significant(multiplier)}
    std = multiplier * setting["record_clip"] / sqrt(honest_clients(setting))
    clip = coordinate_clip(random, setting)
    if kind == "one-bit":
        return one_bit(clip, std)
    if kind == "pbm":
        return pbm(random, clip, std)
    return additive(random, kind, clip, std, setting["clients"], MANY_STEPS)


def record_additive_setting(random: Random) -> Scenario:
    setting = record_setting(random, sampled=False)
    return {**setting, "mechanism": record_mechanism(random, setting, INTEGER_NOISE)}


def record_affine_setting(random: Random) -> Scenario:
    setting = record_setting(random, sampled=random.random() < 0.4)
    setting["l2_clip"] = significant(setting["record_clip"] * log_uniform(random, 1.001, 20))
    return {**setting, "mechanism": record_mechanism(random, setting, ("one-bit", "one-bit", "pbm"))}


def record_gaussian_setting(random: Random) -> Scenario:
    setting = record_setting(random, sampled=random.random() < 0.5)
    return {**setting, "mechanism": record_mechanism(random, setting, ("gaussian",))}


def record_sampled_setting(random: Random) -> Scenario:
    setting = record_setting(random, sampled=True)
    return {**setting, "mechanism": record_mechanism(random, setting, INTEGER_NOISE)}


def record_correlated_setting(random: Random) -> Scenario:
    """Silos in a fixed order that add transient noise and take it back in their next message."""
    setting = record_setting(random, sampled=False)
    rounds = max(4, setting["rounds"])
    setting.pop("max_participations", None)
    setting |= {"rounds": rounds, "sampling": "fixed-order"}
    setting["min_separation"] = log_uniform_int(random, 2, min(rounds, 40))
    setting["clients"] = max(2, setting["clients"])
    for name in ("honest_clients", "min_survivors"):
        if name in setting:
            setting[name] = max(2, setting[name])
    trusted = random.random() < 0.25
    mechanism = record_mechanism(random, setting, ("gaussian",) if trusted else ("discrete-gaussian", "skellam"))
    factor = random.choice((1, 2, 3))
    if trusted:
        mechanism["noise_multiplier"] = significant(mechanism["noise_multiplier"] / factor)
        transient = significant(mechanism["noise_multiplier"] * log_uniform(random, 1, 8))
    else:
        mechanism["scale"] = significant(mechanism["scale"] / factor)
        std_in_steps = mechanism["scale"] * mechanism["steps"] / 2
        transient = significant(min(1000.0, max(0.5, std_in_steps * log_uniform(random, 1, 8))))
    noise = {"transient_std": transient, "residual_std": 0.0, "gain": 1}
    return {**setting, "noise": noise, "mechanism": mechanism}


FAMILIES: dict[str, tuple[int, Callable[[Random], Scenario]]] = {
    "one-bit": (230, one_bit_setting),
    "randomized-response": (60, response_setting),
    "rqm": (110, rqm_setting),
    "pbm": (110, pbm_setting),
    "table": (70, table_setting),
    "integer-noise": (230, additive_setting),
    "vqsgd": (100, vqsgd_setting),
    "gaussian": (60, gaussian_setting),
    "local-gaussian": (40, local_gaussian_setting),
    "banded": (60, banded_setting),
    "outsider-one-bit": (70, outsider_one_bit_setting),
    "outsider-integer-noise": (60, outsider_additive_setting),
    "outsider-rqm-pbm": (40, outsider_other_setting),
    "outsider-gaussian": (60, outsider_gaussian_setting),
    "small-sample": (20, small_sample_setting),
    "few-coordinates": (100, few_coordinates_setting),
    "low-dimensional": (140, low_dimensional_setting),
    "interior-levels": (20, interior_setting),
    "correlated-one-bit": (120, correlated_one_bit_setting),
    "correlated-gaussian": (60, correlated_gaussian_setting),
    "record-integer-noise": (70, record_additive_setting),
    "record-affine": (50, record_affine_setting),
    "record-gaussian": (40, record_gaussian_setting),
    "record-sampled": (40, record_sampled_setting),
    "record-correlated": (40, record_correlated_setting),
}
"""Families of settings: how many of each, and what draws one."""


# -- settings that are refused --------------------------------------------------------------------


ONE_BIT = {"mechanism": "rounding", "clip": 0.1, "margin": 9.0, "levels": 2}
DISCRETE_GAUSSIAN = {"mechanism": "discrete-gaussian", "clip": 0.1, "scale": 2.0, "steps": 15, "bits": 12}
TRANSIENT = {"transient_std": 10.0, "residual_std": 0.0, "gain": 1}


def invalid_settings() -> list[Scenario]:
    """Settings that contradict themselves, or that no bound is known for."""
    mechanism, integer_noise, noise = ONE_BIT, DISCRETE_GAUSSIAN, TRANSIENT
    user: Scenario = {"clients": 20, "rounds": 10, "dim": 100, "l2_clip": 1.0, "mechanism": mechanism}
    outsider: Scenario = {**user, "population": 400, "sampling": "uniform", "adversary": "outsider"}
    record: Scenario = {
        "clients": 4,
        "rounds": 10,
        "dim": 100,
        "delta": 1e-6,
        "unit": "record",
        "record_clip": 1.0,
        "l2_clip": 8.0,
        "neighboring": "add-or-remove-one",
        "mechanism": integer_noise,
    }
    correlated: Scenario = {**user, "sampling": "fixed-order", "min_separation": 3, "noise": noise}
    return [
        {**user, "honest_clients": 21},
        {**user, "honest_clients": 0},
        {**user, "honest_fraction": 0.5},
        {**user, "population": 19},
        {**user, "min_survivors": 21},
        {**user, "population": 40, "min_separation": 3, "sampling": "fixed-order"},
        {**user, "delta": 0.0},
        {**user, "delta": 1.0},
        {**user, "rounds": 0},
        {**user, "neighboring": "add-or-remove-one"},
        {**user, "adversary": "outsider"},
        {**user, "l2_clip": -1.0},
        {**user, "coordinates": 200},
        {**user, "coordinates": 16, "rotate": False},
        {**user, "sampling_rate": 0.1},
        {**user, "mechanism": {**mechanism, "margin": -0.5}},
        {**user, "mechanism": {"mechanism": "noiseless", "clip": 1.0}},
        {**user, "mechanism": {"mechanism": "qsgd", "levels": 4}},
        {**user, "mechanism": {"mechanism": "vqsgd", "epsilon": 1.0, "local": True}},
        {**user, "mechanism": {"mechanism": "banded-gaussian", "noise_multiplier": 5.0, "bands": 4}},
        {**user, "l2_clip": None, "mechanism": {"mechanism": "gaussian", "noise_multiplier": 1.0}},
        {**outsider, "honest_clients": 10},
        {**outsider, "max_participations": 2},
        {**outsider, "min_separation": 2},
        {**outsider, "noise": noise},
        {**correlated, "mechanism": integer_noise},
        {**correlated, "population": 400, "honest_fraction": 0.9},
        {**correlated, "coordinates": 16},
        {**correlated, "noise": {**noise, "transient_std": 0.1}},
        {**record, "delta": None},
        {**record, "record_clip": None},
        {**record, "neighboring": "zero-out"},
        {**record, "adversary": "outsider", "population": 100},
        {**record, "sampling_rate": 0.1, "neighboring": "replace-one"},
        {**record, "sampling_rate": 0.1, "min_separation": 2, "sampling": "fixed-order"},
        {**record, "l2_clip": 0.5},
        {**record, "l2_clip": 1e6},
        {**record, "sampling_rate": 0.1, "noise": noise},
        {**record, "mechanism": {"mechanism": "vqsgd", "epsilon": 1.0, "local": False}},
        {**record, "mechanism": {"mechanism": "rqm", "clip": 1.0, "margin": 1.0, "levels": 16, "keep": 0.42}},
    ]


# -- all of them ----------------------------------------------------------------------------------


def is_expensive(setting: Scenario) -> bool:
    """Whether ε takes more than a few seconds: a bound for each likely number of honest clients, or wide noise."""
    mechanism, clients = setting["mechanism"], setting["clients"]
    std_in_steps = mechanism.get("scale", 0.0) * mechanism.get("steps", 0) / 2
    if std_in_steps > (500 if clients > 100 else 1500):
        return True
    if setting.get("honest_fraction", 1.0) == 1:
        return False
    if setting["dim"] <= 128 and clients > 25:
        return True
    return clients > (40 if std_in_steps else 120)


def random_settings() -> list[Scenario]:
    """All settings, in the order of their families; expensive ones are drawn anew."""
    settings = []
    for family, (count, draw) in FAMILIES.items():
        random = Random(f"{SETTINGS_SEED} {family}")
        drawn: list[Scenario] = []
        while len(drawn) < count:
            setting = with_charges(random, draw(random))
            if not is_expensive(setting):
                drawn.append({"id": f"{family}-{len(drawn)}", **setting})
        settings += drawn
    invalid = [{"id": f"invalid-{number}", **setting} for number, setting in enumerate(invalid_settings())]
    return settings + invalid
