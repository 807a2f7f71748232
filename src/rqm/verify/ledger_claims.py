"""What the first line of a ledger claims of its releases: every value is checked, none is believed."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import ceil, exp, inf, log, nextafter, sqrt
from typing import Any, NamedTuple

import numpy as np

from .integer_pmfs import TABLE_TOTAL
from .verification_report import Report, Row, Unverifiable, shown

TABLES: dict[str, set[str]] = {
    "transforms": {"l2_clip", "rotate", "coordinates"},
    "client": {"work", "epochs", "batch", "rate", "steps", "convexity"},
    "server": {"optimizer", "rate", "momentum", "schedule"},
}
"""Tables of a plan, and the names in each."""
PLAN_NAMES = {
    "data",
    "model",
    "dropout",
    "dim",
    "mechanism",
    "noise",
    "examples",
    "client_dropout",
    "delta",
    "budget_epsilon",
}
PLAN_NAMES |= {"secagg", "seed", "device", "evaluate_every", "checkpoint_every", "records", "adapt", *TABLES}
PARTICIPATION_NAMES = {
    "clients",
    "rounds",
    "population",
    "sampling",
    "max_participations",
    "min_separation",
    "min_survivors",
}
PARTICIPATION_NAMES |= {"adversary", "neighboring", "unit", "honest_clients", "honest_fraction"}
"""Who takes part and what is assumed of the adversary: the same names in a mean and in a plan."""
VECTORS = {"gradient": 1, "local": 1, "fedcomgate": 1, "fedaq": 2}
"""How many vectors of the model's length a client sends, for each kind of work."""


class Allowed(NamedTuple):
    """The values that a name may have: in words, and whether a value is one of them."""

    text: str
    admits: Callable[[Any], bool]

    def or_none(self) -> "Allowed":
        """The same, and None."""
        return Allowed(f"{self.text}, or None", lambda value: value is None or self.admits(value))


def _whole(largest: float, smallest: float = 1) -> Allowed:
    text = f"a whole number from {smallest:.10g} to {largest:.10g}"
    return Allowed(text, lambda value: type(value) is int and smallest <= value <= largest)


def _real(largest: float, smallest: float = 1e-300) -> Allowed:
    text = f"a number from {smallest:.10g} to {largest:.10g}"
    return Allowed(text, lambda value: type(value) in (int, float) and smallest <= value <= largest)


def _one_of(*choices: Any) -> Allowed:
    return Allowed(f"one of {choices}", lambda value: type(value) is type(choices[0]) and value in choices)


LARGE = 2**62
MEAN = {
    "dim": _whole(2**40),
    "clients": _whole(2**31),
    "rounds": _whole(LARGE),
    "population": _whole(LARGE).or_none(),
    "max_participations": _whole(LARGE).or_none(),
    "min_separation": _whole(LARGE),
    "min_survivors": _whole(2**31).or_none(),
    "honest_clients": _whole(2**31).or_none(),
    "honest_fraction": _real(1.0).or_none(),
    "delta": _real(nextafter(1.0, 0)),
    "seed": _whole(inf, -inf),
    "l2_clip": _real(1e300).or_none(),
    "record_clip": _real(1e300).or_none(),
    "sampling_rate": _real(1.0).or_none(),
    "zero_distance": _real(2.0, 1.0),
    "sampling": _one_of("uniform", "fixed-order", "available"),
    "adversary": _one_of("server", "outsider"),
    "neighboring": _one_of("replace-one", "zero-out", "add-or-remove-one"),
    "unit": _one_of("user", "record"),
    "rotate": _one_of(True, False),
}
"""What this verifier computes with, of the names of a mean that it checks one by one."""
ADDITIVE = ("discrete-gaussian", "skellam", "binomial")
AFFINE = ("rounding", "rqm", "pbm", "vqsgd")
ROUNDING_PARAMETERS = {"clip": _real(1e280), "margin": _real(1e300, 0.0), "levels": _whole(2**16, 2)}
NOISE = {"clip": _real(1e280), "scale": _real(1e300), "steps": _whole(2**14), "bits": _whole(16)}
KEEP = Allowed("one probability, or one for each inner level", lambda value: type(value) in (float, list))
MECHANISM_PARAMETERS: dict[str, dict[str, Allowed]] = {
    "gaussian": {"noise_multiplier": _real(1e150), "local": _one_of(True, False)},
    "rounding": ROUNDING_PARAMETERS,
    "rqm": {
        **ROUNDING_PARAMETERS,
        "levels": _whole(1024, 2),
        "keep": KEEP,
    },
    "pbm": {"clip": _real(1e280), "theta": _real(nextafter(0.5, 0)), "levels": _whole(2**16, 2)},
    **dict.fromkeys(ADDITIVE, NOISE),
    "vqsgd": {"epsilon": _real(50.0), "local": _one_of(True, False)},
}
MIN_NOISE_STD, MAX_NOISE_STD = 0.5, 2.0**11
CORRELATED = {
    "transient_std": _real(MAX_NOISE_STD, MIN_NOISE_STD),
    "residual_std": _real(MAX_NOISE_STD, 0.0),
    "gain": _whole(1024),
}
"""Correlated noise outside of these has no table of integers."""

RARE = 1e-3
"""The fraction of δ that pays for samples with fewer honest clients than any cohort."""


@dataclass(frozen=True, kw_only=True)
class Claims:
    """What one release is, and who takes part: the values of a ledger's mean, under their names there."""

    dim: int
    mechanism: Row
    l2_clip: float | None
    rotate: bool
    noise: Row | None
    coordinates: int | None
    record_clip: float | None
    sampling_rate: float | None
    zero_distance: float
    delta: float
    seed: int
    clients: int
    rounds: int
    population: int | None
    sampling: str
    max_participations: int | None
    min_separation: int
    min_survivors: int | None
    adversary: str
    neighboring: str
    unit: str
    honest_clients: int | None
    honest_fraction: float | None

    @property
    def kind(self) -> str:
        """The name of the mechanism."""
        return str(self.mechanism["mechanism"])

    # -- vectors ------------------------------------------------------------------------------

    @property
    def padded(self) -> int:
        """Coordinates of a vector: a power of two if it is rotated."""
        return 1 << (self.dim - 1).bit_length() if self.rotate else self.dim

    @property
    def sent(self) -> int:
        """Coordinates that a client sends."""
        return self.padded if self.coordinates is None else self.coordinates

    @property
    def second_clip(self) -> float:
        """The L2 bound of a message over the L2 clip: larger than 1 if only some coordinates are sent."""
        return 1 if self.coordinates is None else 1 + 3 / sqrt(2 * self.coordinates)

    @property
    def attained(self) -> float:
        """The part of that bound that a vector within the L2 clip reaches, if only sent coordinates are not zero."""
        return min(1.0, sqrt(self.padded / self.sent) / self.second_clip)

    @property
    def squared_length(self) -> float:
        """The squared L2 bound of a message, in units of the clip of a coordinate."""
        if self.l2_clip is None:
            return float(self.sent)
        return min(float(self.sent), (self.l2_clip * self.second_clip / float(self.mechanism["clip"])) ** 2)

    @property
    def is_zero_out(self) -> bool:
        """Whether a vector is compared with a vector of zeros: with vqSGD that is a vertex as any other."""
        return self.neighboring == "zero-out" and self.zero_distance == 1 and self.kind != "vqsgd"

    @property
    def squared_distance(self) -> float:
        """The squared L2 distance of two neighbors, in units of the clip of a coordinate."""
        return self.squared_length * (1 if self.is_zero_out else 4)

    @property
    def distance(self) -> float:
        """The largest L2 distance of two neighbors over the L2 bound of a message.

        With a choice of coordinates, a zero update that is no vector of zeros may be as far away as any vector.
        """
        is_near = self.neighboring == "zero-out" and (self.zero_distance == 1 or self.coordinates is None)
        return self.zero_distance if is_near else 2.0

    @property
    def distance_anywhere(self) -> float:
        """The L2 distance of two vectors that may lie anywhere, in units of the clip of a coordinate.

        That of records; and of users whose zero update is no vector of zeros. Infinite for others.
        """
        if self.record_clip is not None:
            return self.record_clip * (2 if self.neighboring == "replace-one" else 1) / float(self.mechanism["clip"])
        is_known = self.distance < 2 and self.zero_distance > 1 and self.l2_clip is not None
        return self.distance * sqrt(self.squared_length) if is_known else inf

    # -- participation ------------------------------------------------------------------------

    def limit(self, charges: Counter[int]) -> int:
        """The most rounds, of those that were charged, that one user or record took part in."""
        if self.min_separation > 1 and charges and max(charges) - min(charges) >= len(charges):
            raise Unverifiable(
                f"min_separation = {self.min_separation}: rounds are missing, so users may have returned too early"
            )
        return min(self.max_participations or LARGE, ceil(len(charges) / self.min_separation))

    @property
    def window(self) -> int:
        """The least number of rounds from a participation to the next, or to the end of the run, as planned."""
        limit = min(self.max_participations or self.rounds, ceil(self.rounds / self.min_separation))
        return self.rounds if limit == 1 else self.min_separation

    # -- honest clients -----------------------------------------------------------------------

    @property
    def dropouts(self) -> int:
        """The most clients that may drop out of a round."""
        return 0 if self.min_survivors is None else self.clients - self.min_survivors

    @property
    def hides_alone(self) -> bool:
        """Whether each message is private without others."""
        return bool(self.mechanism.get("local", False))

    def cohorts(self, releases: int) -> tuple[list[tuple[float, int]], float]:
        """Return probabilities of the numbers of honest clients in a release. The adversary may know the number.

        The user is honest and takes part. See docs/verify.md#who-is-counted.

        Args:
            releases: The number of releases.

        Returns:
            Probabilities and numbers in increasing order, where numbers within 2 % count as the smallest; and
            the δ that is left.
        """
        if self.honest_fraction is None:
            return [(1.0, max(1, (self.honest_clients or self.clients) - self.dropouts))], self.delta
        population = self.population
        if self.sampling != "uniform" or population is None or population > 10**8 or self.clients > 10**6:
            raise Unverifiable(
                f"honest_fraction = {self.honest_fraction}: needs clients who are sampled uniformly from a population"
            )
        from scipy.stats import hypergeom  # noqa: PLC0415 (takes half a second)

        honest_others = max(1, int(self.honest_fraction * population)) - 1
        drawn = self.clients - 1
        counts = np.arange(max(0, drawn - (population - 1 - honest_others)), min(drawn, honest_others) + 1)
        probabilities = hypergeom.pmf(counts, population - 1, honest_others, drawn) * (1 + 1e-4)
        first = int(np.searchsorted(np.cumsum(probabilities), RARE * self.delta / releases, side="right"))
        first = min(first, len(counts) - 1)
        honest = np.maximum(1, 1 + counts[first:] - self.dropouts)
        _, starts = np.unique(np.log(honest) // log(1.02), return_index=True)
        weights = np.add.reduceat(probabilities[first:], starts)
        return list(zip(weights.tolist(), honest[starts].tolist(), strict=True)), (1 - RARE) * self.delta


# -- reading --------------------------------------------------------------------------------------


def read_mean(description: Row) -> Row:
    """What a ledger says of a release, not checked yet."""
    if "seeded" in description:
        raise Unverifiable("the messages were encoded with seeded randomness, which anyone can repeat: not private")
    mean = description.get("mean")
    if not isinstance(mean, dict):
        raise Unverifiable("the ledger does not say what a release is (mean)")
    return mean


def read_claims(description: Row) -> Claims:
    """The claims of a ledger.

    Args:
        description: That of its first line.

    Returns:
        The claims, each value checked.

    Raises:
        Unverifiable: If there is anything in it that this verifier does not know.
    """
    mean = read_mean(description)
    if set(description) - {"users"} != {"mean", "plan"}:
        raise Unverifiable(
            f"the ledger describes {shown(sorted(description))}: expected mean and plan, and maybe users"
        )
    names = {"private_mean", *(field.name for field in fields(Claims))}
    if set(mean) != names or mean["private_mean"] != 2 or isinstance(mean["private_mean"], bool):
        unexpected = sorted(set(mean) ^ names)
        raise Unverifiable(f"mean: does not describe a release as this verifier knows it {shown(unexpected)}")
    _check_each(mean, MEAN)
    mechanism = mean["mechanism"]
    kind = mechanism.get("mechanism") if isinstance(mechanism, dict) else None
    if not isinstance(kind, str) or kind not in MECHANISM_PARAMETERS:
        raise Unverifiable(f"mechanism = {shown(kind)}: this verifier has no bound for it")
    if set(mechanism) - {"mechanism"} != set(MECHANISM_PARAMETERS[kind]):
        raise Unverifiable(f"mechanism: has the parameters {shown(sorted(mechanism))}, which are not those of {kind}")
    _check_each(mechanism, MECHANISM_PARAMETERS[kind])
    noise = mean["noise"]
    if noise is not None:
        if not isinstance(noise, dict) or set(noise) != set(CORRELATED):
            raise Unverifiable(f"noise = {shown(noise)}: must be a table of {sorted(CORRELATED)}")
        _check_each(noise, CORRELATED)
    claims = Claims(**{name: value for name, value in mean.items() if name != "private_mean"})
    if claims.coordinates is not None:
        _check_each(mean, {"coordinates": _whole(claims.padded - 1)})
    users = description.get("users")
    if "users" in description:
        _check_each(description, {"users": _whole(LARGE)})
    values = {**mechanism, **(noise or {}), **mean, "users": users}
    for conditions in (_who_conditions(claims, users), _mechanism_conditions(claims), _unit_conditions(claims)):
        for is_met, name, allowed in conditions:
            if not is_met:
                raise Unverifiable(f"{name} = {shown(values[name])}: must be {allowed}")
    return _as_vertices(claims) if claims.kind == "vqsgd" else claims


def _check_each(values: Row, allowed: dict[str, Allowed]) -> None:
    """Check each value separately."""
    for name, rule in allowed.items():
        if not rule.admits(values[name]):
            raise Unverifiable(f"{name} = {shown(values[name])}: must be {rule.text}")


Condition = tuple[bool, str, str]
"""Whether several values are consistent, the name of one of them, and its allowed values."""


def _who_conditions(claims: Claims, users: int | None) -> Iterator[Condition]:
    """Of the participation: no more honest clients than clients, and no user has to return too early."""
    clients = claims.clients
    population = claims.population
    for name in ("min_survivors", "honest_clients"):
        yield (getattr(claims, name) or 1) <= clients, name, f"at most {clients}, the clients of a round"
    yield None in (claims.honest_clients, claims.honest_fraction), "honest_fraction", "without a number"
    yield (population or clients) >= clients, "population", f"at least {clients}"
    yield (
        ((users or clients) >= clients and None in (users, population)) or users == population,
        "users",
        "the population",
    )
    if users is None:
        users = population
    if users is not None and claims.unit == "user":
        rounds = users // clients
        yield claims.min_separation <= rounds, "min_separation", f"at most {rounds} for {users} users"


def _mechanism_conditions(claims: Claims) -> Iterator[Condition]:
    """Of the mechanism and of correlated noise: the ranges that encoders have."""
    mechanism = claims.mechanism
    has_l2_clip = claims.l2_clip is not None
    is_user = claims.unit == "user"
    if claims.kind == "gaussian":
        yield has_l2_clip, "l2_clip", "given with Gaussian noise"
    if claims.kind == "vqsgd":
        is_plain = has_l2_clip and claims.noise is None and claims.coordinates is None
        yield is_plain, "mechanism", "vqsgd only with an L2 clip, all coordinates and independent noise"
        if mechanism["local"]:
            yield mechanism["epsilon"] <= 25.0, "epsilon", "at most 25.0"
            yield claims.honest_clients == 1, "honest_clients", "1: messages are alone"
    if claims.kind == "rqm":
        keep = mechanism["keep"]
        keeps = keep if isinstance(keep, list) and len(keep) == mechanism["levels"] - 2 else [keep]
        is_valid = all(type(probability) is float and 0 < probability < 1 for probability in keeps)
        yield is_valid, "keep", KEEP.text
    if claims.kind in ADDITIVE:
        steps = mechanism["steps"]
        yield steps % 2 == 1 and steps < 2 ** mechanism["bits"], "steps", f"odd, and fit {mechanism['bits']} bits"
        yield steps <= 1023 or not is_user, "steps", "at most 1023 for users"
    if claims.noise is not None:
        residual_std = claims.noise["residual_std"]
        if residual_std == 0:
            yield claims.noise["gain"] == 1, "gain", "1 without residual noise"
        else:
            yield residual_std >= MIN_NOISE_STD, "residual_std", f"0, or at least {MIN_NOISE_STD}"
            yield claims.noise["gain"] > 1 and is_user, "gain", "at least 2, for users"
    if claims.noise is not None and is_user:
        is_binary = claims.kind == "rounding" and mechanism["levels"] == 2
        yield is_binary, "noise", "independent, but for rounding to two levels"
        yield claims.honest_fraction is None, "honest_fraction", "a number of clients with correlated noise"
        yield claims.zero_distance == 1, "zero_distance", "1 with correlated noise"
    if claims.coordinates is not None:
        is_plain = claims.rotate and has_l2_clip and claims.noise is None
        yield is_plain, "coordinates", "given only with an L2 clip, rotation and independent noise"


def _unit_conditions(claims: Claims) -> Iterator[Condition]:
    """Of records of silos and of users: their neighboring relations and mechanisms."""
    is_record = claims.unit == "record"
    relations = ("add-or-remove-one", "replace-one") if is_record else ("zero-out", "replace-one")
    yield claims.neighboring in relations, "neighboring", f"one of {relations} for a {claims.unit}"
    yield is_record == (claims.record_clip is not None), "record_clip", "given for records, and only there"
    if not is_record:
        yield claims.sampling_rate is None, "sampling_rate", "given for records only"
        return
    yield claims.zero_distance == 1, "zero_distance", "1 for records"
    yield claims.kind in ADDITIVE, "mechanism", "additive noise for records"
    yield claims.l2_clip is not None and claims.coordinates is None, "l2_clip", "given, for all coordinates"
    yield claims.adversary == "server" and claims.honest_fraction is None, "adversary", "the server"
    is_ordered = claims.min_separation > 1 and claims.sampling_rate is None
    is_known = claims.noise is None or is_ordered
    yield is_known, "noise", "correlated only for records in a fixed order, with a min_separation"
    if claims.sampling_rate is not None and claims.sampling_rate < 1:
        is_free = claims.min_separation == 1 and claims.max_participations is None
        is_known = is_free and claims.neighboring == "add-or-remove-one"
        yield is_known, "sampling_rate", "for records that are added or removed, in any round"


def _as_vertices(claims: Claims) -> Claims:
    """vqSGD as two of 2d flipped bits, or one index of 2d: what a vector can change, whatever it is.

    Vertices are drawn, but divergences are convex: two certain vertices are the worst.
    """
    mechanism = claims.mechanism
    slots = 2 * claims.padded
    outcomes, epsilon = (slots, mechanism["epsilon"]) if mechanism["local"] else (2, mechanism["epsilon"] / 2)
    false = ceil(TABLE_TOTAL / (exp(epsilon) + outcomes - 1))
    true = TABLE_TOTAL - (outcomes - 1) * false
    if not true > false > 0:
        raise Unverifiable(f"epsilon = {epsilon:g}: is no pmf of {outcomes} outcomes in integers")
    low = np.array([true, TABLE_TOTAL - true - false, false]) / TABLE_TOTAL  # one vertex, any third, the other
    low = low[low > 0]
    pair = {"mechanism": "vqsgd", "pmfs": (low, low[::-1]), "local": mechanism["local"]}
    dim = 1 if mechanism["local"] else 2
    return replace(claims, mechanism=pair, dim=dim, rotate=False, l2_clip=None)


# -- comparisons ----------------------------------------------------------------------------------


def sent_values(plan: Any, parameters: Any) -> Any:
    """Values that a client sends for a model.

    Args:
        plan: The plan of the run, or None.
        parameters: The number of the model's parameters.

    Returns:
        The number of values: FedAQ sends two vectors, a clip that adapts one value more.

    Raises:
        Unverifiable: If the plan has another kind of work.
    """
    if not isinstance(plan, dict) or type(parameters) is not int:
        return parameters
    client = plan.get("client")
    work = client.get("work") if isinstance(client, dict) else None
    if work not in VECTORS:
        raise Unverifiable(f"client.work = {shown(work)}: this verifier does not know what such clients send")
    return VECTORS[work] * parameters + (plan.get("adapt") is not None)


def compare_with_auditor(description: Row, expected: Row, report: Report) -> None:
    """Compare a ledger with what its auditor knows, and with the plan that it holds.

    Args:
        description: That of its first line.
        expected: Values of dim, delta, honest_clients, honest_fraction and rounds, or None.
        report: What is wrong is added to it.
    """
    if expected["rounds"] is not None and report.charges < expected["rounds"]:
        report.wrong.append(f"{report.charges} releases were charged: {expected['rounds']} are known of")
    mean = read_mean(description)
    stated = {**mean}
    if mean.get("honest_clients") is None and mean.get("honest_fraction") is None:  # then all are honest
        stated["honest_clients"] = mean.get("clients")
    expected = {**expected, "dim": sent_values(description.get("plan"), expected["dim"])}
    for name in ("dim", "delta", "honest_clients", "honest_fraction"):
        if expected[name] is not None and stated.get(name) != expected[name]:
            report.wrong.append(f"{name} = {shown(stated.get(name))}: expected {expected[name]}")
    if description.get("plan") is not None:
        compare_with_plan(mean, description["plan"], "the ledger's plan", report)


def _is_plan(plan: Row) -> bool:
    """Whether all names are those of a plan, and of its tables."""
    if set(plan) != PLAN_NAMES | PARTICIPATION_NAMES:
        return False
    for name, names in TABLES.items():
        if not isinstance(plan[name], dict) or set(plan[name]) != names:
            return False
    records = plan["records"]
    adapt = plan["adapt"]
    if records is not None and not (isinstance(records, dict) and {"clip", "batch"} <= set(records)):
        return False
    return adapt is None or (isinstance(adapt, dict) and type(adapt.get("share")) is float)


def compare_with_plan(mean: Row, plan: Any, where: str, report: Report) -> None:
    """Compare what is charged for with a plan.

    Args:
        mean: What a ledger says of a release.
        plan: The plan.
        where: What it is called in messages.
        report: What is wrong is added to it.

    Raises:
        Unverifiable: If the plan holds anything that this verifier does not know.
    """
    if not isinstance(plan, dict):
        report.wrong.append(f"{where} is no plan: {shown(plan)}")
        return
    if not _is_plan(plan):
        raise Unverifiable(f"{where} does not say what a plan says as this verifier knows it")
    records = plan["records"]
    adapt = plan["adapt"]
    planned = {name: plan[name] for name in PARTICIPATION_NAMES | {"mechanism", "noise", "delta"}} | plan["transforms"]
    planned["dim"] = sent_values(plan, plan["dim"])
    planned["record_clip"] = None if records is None else records["clip"]
    planned["sampling_rate"] = None if records is None else records.get("sampling_rate")
    planned["zero_distance"] = 1.0 if adapt is None else sqrt(1 + 3 * adapt["share"] ** 2)
    if type(mean.get("dim")) is int and planned["coordinates"] == 1 << (mean["dim"] - 1).bit_length():
        planned["coordinates"] = None  # all are sent
    if planned["min_survivors"] is None and plan["client_dropout"]:
        planned["min_survivors"] = 1  # a round may then end with any number of clients
    if planned["delta"] is None:
        population = planned["population"]
        _check_each(planned, {"population": MEAN["population"]})
        planned["delta"] = min(1e-5, 1 / population) if population else 1e-5
    if planned["dim"] is None:
        del planned["dim"]
    for name, value in sorted(planned.items()):
        if not _is_same(value, mean.get(name)):
            report.wrong.append(f"{name} = {shown(mean.get(name))} is charged for: {where} says {shown(value)}")


def _is_same(first: Any, second: Any) -> bool:
    """Whether two values are equal: true is not 1, and of reals the last bits may differ."""
    if isinstance(first, float) and isinstance(second, float) and first > 0 and second < inf:
        return abs(first - second) <= 1e-15 * first
    return bool(first == second) and isinstance(first, bool) == isinstance(second, bool)
