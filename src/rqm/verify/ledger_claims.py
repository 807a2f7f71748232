"""What the first line of a ledger claims of its releases: every value is checked, none is believed."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from math import ceil, exp, inf, log, nextafter, sqrt
from typing import Any, NamedTuple

import numpy as np

from .integer_pmfs import TABLE_TOTAL
from .verification_report import Report, Row, Unverifiable, shown

# -- the values that a name may have --------------------------------------------------------------


class Allowed(NamedTuple):
    """The values that a name may have: in words, and whether a value is one of them."""

    text: str
    admits: Callable[[Any], bool]

    def or_none(self) -> "Allowed":
        """The same, and None."""
        return Allowed(f"{self.text}, or None", lambda value: value is None or self.admits(value))


Table = dict[str, Allowed]
"""The names of a table, and the values of each."""


def _number(types: set[type], kind: str, smallest: float, largest: float) -> Allowed:
    text = f"a {kind} from {smallest:.10g} to {largest:.10g}"
    return Allowed(text, lambda value: type(value) in types and smallest <= value <= largest)


def _whole(largest: float = 2**62, smallest: float = 1) -> Allowed:
    return _number({int}, "whole number", smallest, largest)


def _real(largest: float, smallest: float = 1e-300) -> Allowed:
    return _number({int, float}, "number", smallest, largest)


def _one_of(*choices: Any) -> Allowed:
    return Allowed(f"one of {choices}", lambda value: type(value) is type(choices[0]) and value in choices)


def _any() -> Allowed:
    return Allowed("anything", lambda value: True)


def _table(*names: str) -> Allowed:
    return Allowed(f"a table of {names}", lambda value: isinstance(value, dict) and set(value) == set(names))


MEAN: Table = {
    "private_mean": _one_of(2),
    "dim": _whole(2**40),
    "mechanism": _any(),
    "l2_clip": _real(1e300).or_none(),
    "rotate": _one_of(True, False),
    "noise": _any(),
    "coordinates": _whole(2**40).or_none(),
    "record_clip": _real(1e300).or_none(),
    "sampling_rate": _real(1.0).or_none(),
    "zero_distance": _real(2.0, 1.0),
    "delta": _real(nextafter(1.0, 0)),
    "seed": _whole(inf, -inf),
    "clients": _whole(2**31),
    "rounds": _whole(),
    "population": _whole().or_none(),
    "sampling": _one_of("uniform", "fixed-order", "available"),
    "max_participations": _whole().or_none(),
    "min_separation": _whole(),
    "min_survivors": _whole(2**31).or_none(),
    "adversary": _one_of("server", "outsider"),
    "neighboring": _one_of("replace-one", "zero-out", "add-or-remove-one"),
    "unit": _one_of("user", "record"),
    "honest_clients": _whole(2**31).or_none(),
    "honest_fraction": _real(1.0).or_none(),
}
"""What a ledger says of a release."""

MECHANISMS: dict[str, Table] = {
    "gaussian": {"noise_multiplier": _real(1e150), "local": _one_of(True, False)},
    "rounding": {"clip": _real(1e280), "margin": _real(1e300, 0.0), "levels": _whole(2**16, 2)},
    "rqm": {"clip": _real(1e280), "margin": _real(1e300, 0.0), "levels": _whole(1024, 2), "keep": _any()},
    "pbm": {"clip": _real(1e280), "theta": _real(nextafter(0.5, 0)), "levels": _whole(2**16, 2)},
    **{
        kind: {"clip": _real(1e280), "scale": _real(1e300), "steps": _whole(2**14), "bits": _whole(16)}
        for kind in ("discrete-gaussian", "skellam", "binomial")
    },
    "vqsgd": {"epsilon": _real(50.0), "local": _one_of(True, False)},
}
"""The parameters of each mechanism."""

PLAN_FIELDS: Table = {
    **dict.fromkeys(
        ("data", "model", "dropout", "dim", "mechanism", "noise", "examples", "client_dropout", "delta"), _any()
    ),
    **dict.fromkeys(("budget_epsilon", "secagg", "seed", "device", "evaluate_every", "checkpoint_every"), _any()),
    **dict.fromkeys(("clients", "rounds", "population", "sampling", "max_participations", "min_separation"), _any()),
    **dict.fromkeys(("min_survivors", "adversary", "neighboring", "unit", "honest_clients"), _any()),
    "honest_fraction": _any(),
    "transforms": _table("l2_clip", "rotate", "coordinates"),
    "client": _table("work", "epochs", "batch", "rate", "steps", "convexity"),
    "server": _table("optimizer", "rate", "momentum", "schedule"),
    "records": Allowed(
        "a table with clip and batch, or None",
        lambda value: value is None or (isinstance(value, dict) and {"clip", "batch"} <= set(value)),
    ),
    "adapt": Allowed(
        "a table with a share, or None",
        lambda value: value is None or (isinstance(value, dict) and type(value.get("share")) is float),
    ),
}
"""What a plan says."""


def _check_table(where: str, table: Any, allowed: Table) -> None:
    """Check that a table has these names, and each of them an allowed value."""
    names = set(table) if isinstance(table, dict) else set()
    if names != set(allowed):
        raise Unverifiable(
            f"{where}: does not say what this verifier knows, the names differ by {shown(sorted(names ^ set(allowed)))}"
        )
    for name, rule in allowed.items():
        if not rule.admits(table[name]):
            raise Unverifiable(f"{name} = {shown(table[name])}: must be {rule.text}")


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

    @property
    def is_additive(self) -> bool:
        """Whether integer noise is added to rounded inputs."""
        return "steps" in self.mechanism

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
        return min(self.max_participations or len(charges), ceil(len(charges) / self.min_separation))

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

        left_out = 1e-3 * self.delta  # pays for samples with fewer honest clients than any cohort
        honest_others = max(1, int(self.honest_fraction * population)) - 1
        sample = hypergeom(population - 1, honest_others, self.clients - 1)
        smallest, largest = sample.support()
        counts = np.arange(smallest, largest + 1)
        probabilities = sample.pmf(counts) * (1 + 1e-4)
        first = int(np.searchsorted(np.cumsum(probabilities), left_out / releases, side="right"))
        first = min(first, len(counts) - 1)
        honest = np.maximum(1, 1 + counts[first:] - self.dropouts)
        _, starts = np.unique(np.log(honest) // log(1.02), return_index=True)
        weights = np.add.reduceat(probabilities[first:], starts)
        return list(zip(weights.tolist(), honest[starts].tolist(), strict=True)), self.delta - left_out


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
    users = {"users": _whole()} if "users" in description else {}
    _check_table("the ledger", description, {"mean": _any(), "plan": _any(), **users})
    _check_table("mean", mean, MEAN)
    mechanism = mean["mechanism"]
    kind = mechanism.get("mechanism") if isinstance(mechanism, dict) else None
    if not isinstance(kind, str) or kind not in MECHANISMS:
        raise Unverifiable(f"mechanism = {shown(kind)}: this verifier has no bound for it")
    _check_table("mechanism", mechanism, {"mechanism": _any(), **MECHANISMS[kind]})
    noise = mean["noise"]
    if noise is not None:  # others have no table of integers
        allowed = {"transient_std": _real(2.0**11, 0.5), "residual_std": _real(2.0**11, 0.0), "gain": _whole(1024)}
        _check_table("noise", noise, allowed)
    claims = Claims(**{name: value for name, value in mean.items() if name != "private_mean"})
    values = {**mechanism, **(noise or {}), **mean, "users": description.get("users")}
    for conditions in (_participation_conditions(claims, values["users"]), _release_conditions(claims)):
        for is_met, name, allowed_values in conditions:
            if not is_met:
                raise Unverifiable(f"{name} = {shown(values[name])}: must be {allowed_values}")
    return _as_vertices(claims) if claims.kind == "vqsgd" else claims


Condition = tuple[bool, str, str]
"""Whether several values are consistent, the name of one of them, and its allowed values."""


def _participation_conditions(claims: Claims, users: int | None) -> Iterator[Condition]:
    """No more honest clients than clients, and no user has to return too early."""
    clients = claims.clients
    population = claims.population
    for name in ("min_survivors", "honest_clients"):
        yield (getattr(claims, name) or 1) <= clients, name, f"at most {clients}, the clients of a round"
    yield None in (claims.honest_clients, claims.honest_fraction), "honest_fraction", "without a number"
    yield (population or clients) >= clients, "population", f"at least {clients}"
    yield users is None or (users >= clients and population in (None, users)), "users", "the population"
    members = users or population
    if members is not None and claims.unit == "user":
        rounds = members // clients
        yield claims.min_separation <= rounds, "min_separation", f"at most {rounds} for {members} users"


def _release_conditions(claims: Claims) -> Iterator[Condition]:
    """The ranges that encoders have, and the units and neighboring relations that have a bound."""
    mechanism = claims.mechanism
    kind = claims.kind
    noise = claims.noise
    is_user = claims.unit == "user"
    has_l2_clip = claims.l2_clip is not None
    is_plain = has_l2_clip and noise is None
    yield (claims.coordinates or 0) < claims.padded, "coordinates", f"less than {claims.padded}"
    yield (
        claims.coordinates is None or (claims.rotate and is_plain),
        ("coordinates"),
        "given only with an L2 clip, rotation and independent noise",
    )
    if kind == "gaussian":
        yield has_l2_clip, "l2_clip", "given with Gaussian noise"
    if kind == "vqsgd":
        is_known = is_plain and claims.coordinates is None
        yield is_known, "mechanism", "vqsgd only with an L2 clip, all coordinates and independent noise"
        yield mechanism["epsilon"] <= 25.0 or not mechanism["local"], "epsilon", "at most 25.0"
        yield claims.honest_clients == 1 or not mechanism["local"], "honest_clients", "1: messages are alone"
    if kind == "rqm":
        keep = mechanism["keep"]
        keeps = keep if isinstance(keep, list) and len(keep) == mechanism["levels"] - 2 else [keep]
        is_valid = all(type(probability) is float and 0 < probability < 1 for probability in keeps)
        yield is_valid, "keep", "one probability, or one for each inner level"
    if claims.is_additive:
        steps = mechanism["steps"]
        yield steps % 2 == 1 and steps < 2 ** mechanism["bits"], "steps", f"odd, and fit {mechanism['bits']} bits"
        yield steps <= 1023 or not is_user, "steps", "at most 1023 for users"
    if noise is not None:
        residual_std = noise["residual_std"]
        yield residual_std == 0 or residual_std >= 0.5, "residual_std", "0, or at least 0.5"
        yield residual_std > 0 or noise["gain"] == 1, "gain", "1 without residual noise"
        yield residual_std == 0 or (noise["gain"] > 1 and is_user), "gain", "at least 2, for users"
    if noise is not None and is_user:
        is_binary = kind == "rounding" and mechanism["levels"] == 2
        yield is_binary, "noise", "independent, but for rounding to two levels"
        yield claims.honest_fraction is None, "honest_fraction", "a number of clients with correlated noise"
        yield claims.zero_distance == 1, "zero_distance", "1 with correlated noise"
    relations = ("zero-out" if is_user else "add-or-remove-one", "replace-one")
    yield claims.neighboring in relations, "neighboring", f"one of {relations} for a {claims.unit}"
    yield is_user == (claims.record_clip is None), "record_clip", "given for records, and only there"
    if is_user:
        yield claims.sampling_rate is None, "sampling_rate", "given for records only"
        return
    yield claims.zero_distance == 1, "zero_distance", "1 for records"
    yield claims.is_additive, "mechanism", "additive noise for records"
    yield has_l2_clip and claims.coordinates is None, "l2_clip", "given, for all coordinates"
    yield claims.adversary == "server" and claims.honest_fraction is None, "adversary", "the server"
    is_ordered = claims.min_separation > 1 and claims.sampling_rate is None
    yield noise is None or is_ordered, "noise", "correlated only for records in a fixed order, with a min_separation"
    if (claims.sampling_rate or 1) < 1:
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
    if work not in ("gradient", "local", "fedcomgate", "fedaq"):
        raise Unverifiable(f"client.work = {shown(work)}: this verifier does not know what such clients send")
    return (2 if work == "fedaq" else 1) * parameters + (plan.get("adapt") is not None)


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
    _check_table(where, plan, PLAN_FIELDS)
    records = plan["records"] or {}
    adapt = plan["adapt"] or {"share": 0.0}
    names = {field.name for field in fields(Claims)} & set(plan) - {"seed"}
    planned = {name: plan[name] for name in names} | plan["transforms"]
    planned["dim"] = sent_values(plan, plan["dim"])
    planned["record_clip"] = records.get("clip")
    planned["sampling_rate"] = records.get("sampling_rate")
    planned["zero_distance"] = sqrt(1 + 3 * adapt["share"] ** 2)
    if type(mean.get("dim")) is int and planned["coordinates"] == 1 << (mean["dim"] - 1).bit_length():
        planned["coordinates"] = None  # all are sent
    if planned["min_survivors"] is None and plan["client_dropout"]:
        planned["min_survivors"] = 1  # a round may then end with any number of clients
    if planned["delta"] is None:
        population = planned["population"]
        _check_table(where, {"population": population}, {"population": MEAN["population"]})
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
