"""The plan of a run: everything that decides what is computed, read from TOML and saved with the results."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import lru_cache, partial
from math import sqrt
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from rqm._util.checks import (
    ClosedFraction,
    Count,
    Fraction,
    FractionOrZero,
    Positive,
    check_fields,
    known_keys,
    nearest,
    shown,
    whole,
)
from rqm._util.files import MAX_TABLE_DEPTH, parse_table, read_json, read_toml
from rqm.accounting.participation import Participation, ThreatModel
from rqm.config.model_sizes import PARAMETERS, parameters
from rqm.config.protected_unit import Records, Users
from rqm.core.base import BaseMean
from rqm.correlated.factorization import Workload
from rqm.correlated.scheme import NoiseScheme
from rqm.mechanisms.base import Mechanism, Schedule, mechanism_of, rate_factor
from rqm.mechanisms.rqm import RQM
from rqm.registry import kinds, mechanism_from_dict

Work = Literal["gradient", "local", "fedcomgate", "fedaq"]
Optimizer = Literal["sgd", "momentum", "adam"]
SecAgg = Literal["ideal", "real"]

PLAN = "plan.json"
"""The file of the plan in the folder of a run."""
IRRELEVANT_TO_MODEL = (
    *("device", "evaluate_every", "checkpoint_every", "budget_epsilon", "delta", "dim"),
    *(entry.name for entry in fields(ThreatModel)),
)
"""What may differ where one plan continues the run of another. The ledger compares what is guaranteed."""


@final
@dataclass(frozen=True)
class ClientWork:
    """What a client sends.

    Attributes:
        work: "gradient" (the full local gradient, the paper's Algorithm 1) or the change of the model after local
            steps, divided by `rate`: "local" (FedAvg), "fedcomgate" (corrected steps) or "fedaq" (accelerated steps).
        epochs: Passes over the client's examples.
        batch: Examples of a local step.
        rate: Learning rate of local steps.
        steps: Number of local steps (τ); None: all that `epochs` hold.
        convexity: Strong convexity (μ) that FedAQ assumes.
    """

    work: Work = "gradient"
    epochs: Count = 1
    batch: Count = 20
    rate: Positive = 0.03
    steps: Count | None = None
    convexity: Positive = 0.1

    def __post_init__(self) -> None:
        """Validate every value."""
        check_fields(self, "client.")


@final
@dataclass(frozen=True)
class Transforms:
    """What happens to a client's vector before it is encoded.

    Attributes:
        l2_clip: The L2 clip of the vector; None: only coordinates are clipped, by the mechanism.
        rotate: Whether the vector is rotated at random, which the server undoes.
        coordinates: How many of the rotated coordinates are sent, a new choice in every round; None: all.
    """

    l2_clip: Positive | None = None
    rotate: bool = False
    coordinates: Count | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        check_fields(self, "transforms.")


@final
@dataclass(frozen=True)
class ServerStep:
    """How the server steps along the decoded mean.

    Attributes:
        optimizer: "sgd", "momentum" or "adam".
        rate: Learning rate.
        momentum: Momentum; for Adam β₁.
        schedule: "constant", or a schedule that falls to zero.
    """

    optimizer: Optimizer = "momentum"
    rate: Positive = 1.0
    momentum: FractionOrZero = 0.9
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        """Validate every value."""
        check_fields(self, "server.")

    def rate_at(self, round_index: int, rounds: int) -> float:
        """The learning rate of a round.

        Args:
            round_index: The round, from 0.
            rounds: Number of rounds.

        Returns:
            The rate.
        """
        return self.rate * rate_factor(self.schedule, round_index, rounds)


@final
@dataclass(frozen=True)
class Adapt:
    """Adaptive clipping: the clip follows a quantile of the clients' norms, by one bit of each (Andrew et al. 2021).

    Attributes:
        quantile: The fraction of clients whose vectors are not clipped.
        rate: Learning rate of the clip's logarithm.
        start: The clip of the first round.
        share: s: the bit takes this part of the L2 clip, and the vector √(1 − s²). Both are sent as one vector.
    """

    quantile: ClosedFraction = 0.5
    rate: Positive = 0.2
    start: Positive = 0.1
    share: Fraction = 0.1

    def __post_init__(self) -> None:
        """Validate every value."""
        check_fields(self, "adapt.")


PLAN_TABLES: dict[str, type[Transforms | ClientWork | ServerStep | Records | Adapt]] = {
    "transforms": Transforms,
    "client": ClientWork,
    "server": ServerStep,
    "records": Records,
    "adapt": Adapt,
}
"""The tables inside a plan, apart from the mechanism's."""


@final
@dataclass(frozen=True)
class Plan:
    """Distributed DP-SGD: sample clients, encode what they send, sum securely, decode, step.

    In a file the values of `participation` and `threat_model` stand at the top level.

    Attributes:
        data: The name of the data set.
        model: The name of the model.
        dropout: Dropout of the paper's CNN; 1 gives the original's .25 and .5.
        dim: Parameters of the model; None: those of the model that comes with the package.
        mechanism: How a coordinate is encoded.
        noise: Correlated noise, in steps; None: noise is independent.
        participation: Who takes part and when.
        threat_model: What is assumed about the adversary.
        examples: Examples of each user where users are resampled from the data to an assumed population.
        client_dropout: The probability that a client drops out of a round, whatever its data.
        delta: δ; None: 10⁻⁵, or one over the population if that is less.
        budget_epsilon: The run stops before ε would exceed this; None: no limit.
        secagg: "ideal" (a plain sum modulo a power of two) or "real" (the protocol, all parties in this process).
        seed: Seed of the simulation.
        device: "auto", "cpu" or "cuda".
        evaluate_every: Rounds from one evaluation to the next.
        checkpoint_every: Rounds from one checkpoint to the next.
        transforms: What happens to a vector before it is encoded.
        client: What a client sends.
        server: How the server steps.
        records: Where clients are silos and a record is protected; None: a user, who is a client.
        adapt: Adaptive clipping; None: the L2 clip is fixed.

    >>> plan = Plan.from_dict({"rounds": 10, "mechanism": {"mechanism": "pbm", "theta": 0.25}})
    >>> plan.mechanism, plan.participation.rounds
    (PBM(clip=1.0, theta=0.25, levels=16), 10)
    """

    data: str = "glyphs"
    model: str = "small-cnn"
    dropout: ClosedFraction = 0.0
    dim: Count | None = None
    mechanism: Mechanism = field(default_factory=RQM)
    noise: NoiseScheme | None = None
    participation: Participation = field(default_factory=lambda: Participation(40, 100, sampling="uniform"))
    threat_model: ThreatModel = field(default_factory=ThreatModel)
    examples: Count = 10
    client_dropout: FractionOrZero = 0.0
    delta: Fraction | None = None
    budget_epsilon: Positive | None = None
    secagg: SecAgg = "ideal"
    seed: Annotated[int, partial(whole, low=0)] = 0
    device: str = "auto"
    evaluate_every: Count = 10
    checkpoint_every: Count = 10
    transforms: Transforms = field(default_factory=Transforms)
    client: ClientWork = field(default_factory=ClientWork)
    server: ServerStep = field(default_factory=ServerStep)
    records: Records | None = None
    adapt: Adapt | None = None

    def __post_init__(self) -> None:
        """Validate every value, and whether they go together."""
        mechanism_of(self.mechanism)
        if self.noise is not None:
            object.__setattr__(self, "noise", NoiseScheme.of(self.noise))
        check_fields(self)
        if self.dim is not None:
            self.check_size(self.dim)
        if self.secagg == "real" and not self.mechanism.has_integer_messages:
            raise ValueError("secagg = 'real': must come with a mechanism that sends integers")
        if self.secagg == "real" and self.participation.clients < 2:
            raise ValueError(f"clients = {self.participation.clients}: must be at least 2 with secagg = 'real'")
        self._check_method()
        if self.noise is not None and self.client_dropout and self.participation.min_survivors is None:
            raise ValueError("min_survivors = None: must be given where clients may be lost and noise is correlated")
        try:
            # Everything about privacy is validated there.
            mean = self.private_mean(self.size or self.transforms.coordinates or 1)
        except ValueError as error:
            message = re.sub("^(record_clip|sampling_rate)", r"records.\1", str(error)).replace(".record_clip", ".clip")
            raise ValueError(re.sub("^(l2_clip|coordinates) ", r"transforms.\1 ", message)) from None
        if self.budget_epsilon is not None and not mean.is_private:
            raise ValueError("budget_epsilon: must come with a mechanism that adds noise")
        check_sampler(self.participation, self.threat_model)
        self.protected.check(self)

    def _check_method(self) -> None:
        """Refuse optimizers that FedAQ does not cover, and adaptive clipping where the clip must be fixed."""
        if self.client.work == "fedaq" and self.server.optimizer != "sgd":
            raise ValueError(f"server.optimizer = {self.server.optimizer!r}: must be 'sgd' with client.work = 'fedaq'")
        if self.adapt is None:
            return
        if self.transforms.l2_clip is None or (self.mechanism.has_integer_messages and not self.transforms.rotate):
            raise ValueError("adapt: must come with transforms.l2_clip, and with transforms.rotate for integers")
        if self.noise is not None or self.mechanism.correlation is not None:
            raise ValueError("adapt: must come without correlated noise, which is canceled in rounds of another clip")

    @property
    def protected(self) -> Records | Users:
        """The unit of privacy."""
        return self.records or Users()

    @property
    def size(self) -> int | None:
        """The number of the model's parameters; None if it is not known."""
        return self.dim or parameters(self.model, self.data)

    def width(self, dim: int) -> int:
        """The number of values that a client sends for a model of `dim` parameters."""
        return dim * (2 if self.client.work == "fedaq" else 1) + (self.adapt is not None)

    def check_size(self, dim: int) -> None:
        """Refuse a number of parameters that differs from that of a model of the package."""
        size = parameters(self.model, self.data)
        if size is not None and dim != size:
            raise ValueError(
                f"dim = {dim}: the model {self.model} has {size} parameters on {self.data}; for a model of your own "
                "give it another name (model = ...)"
            )

    def private_mean(self, dim: int | None = None) -> BaseMean:
        """What clients send and the server decodes in a run of this plan, and what that guarantees.

        Args:
            dim: Parameters of the model, where the plan does not know them.

        Returns:
            The private mean.

        Raises:
            ValueError: If the number of parameters is not known.
        """
        size = dim or self.size
        if size is None:
            unknown = f"data = {self.data}" if self.model in PARAMETERS else f"model = {self.model}"
            raise ValueError(f"{unknown}: its size is not known here; give dim, the number of the model's parameters")
        participation = self.participation
        if self.client_dropout and participation.min_survivors is None:
            participation = replace(participation, min_survivors=1)
        share = 0.0 if self.adapt is None else self.adapt.share
        return _cached_mean(
            self.protected.mean_class,
            dim=self.width(size),
            mechanism=self.mechanism,
            participation=participation,
            threat_model=self.threat_model,
            l2_clip=self.transforms.l2_clip,
            rotate=self.transforms.rotate,
            noise=self.noise,
            coordinates=self.transforms.coordinates,
            # A zero update still sends its count bit, which lies twice the bit's share away from the other value.
            zero_distance=sqrt(1 + 3 * share**2),
            delta=self.delta,
            seed=self.seed,
            **self.protected.mean_arguments,
        )

    @property
    def any_mean(self) -> BaseMean:
        """The same for a model of some size: everything that does not depend on the number of parameters."""
        return self.private_mean(self.transforms.coordinates or 1)

    @property
    def workload(self) -> Workload:
        """How the server sums noise into its model, which matters for correlated noise."""
        momentum = self.server.momentum if self.server.optimizer == "momentum" else 0.0
        return Workload(self.participation.rounds, momentum, self.server.schedule)

    def can_continue(self, earlier: "Plan") -> bool:
        """Whether this plan can continue a run of another plan."""
        values = self.to_dict()
        earlier_values = earlier.to_dict()
        return all(values[key] == earlier_values[key] for key in values if key not in IRRELEVANT_TO_MODEL)

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, ready for TOML or JSON."""
        values: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name in ("participation", "threat_model"):
                values |= asdict(value)
            elif hasattr(value, "to_dict"):
                values[entry.name] = value.to_dict()
            else:
                values[entry.name] = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the plan that `to_dict` described.

        Args:
            values: The values; those that are missing have their defaults.

        Returns:
            The plan.

        Raises:
            ValueError: If a value is unknown or not allowed. TypeError: If it has the wrong type.
        """
        if not isinstance(values, Mapping):
            raise TypeError(f"plan = {shown(values)}: must be a table of names and values")
        values = dict(values)
        known_keys(values, plan_keys(), inner=_inner_keys())
        if "mechanism" in values:
            values["mechanism"] = mechanism_from_dict(_table(values, "mechanism"))
        for name, table in PLAN_TABLES.items():
            if name in values and (values[name] is not None or name not in ("records", "adapt")):
                required = [entry.name for entry in fields(table) if entry.default is MISSING]
                known_keys(_table(values, name), [entry.name for entry in fields(table)], f"{name}.", needed=required)
                values[name] = table(**values[name])
        if values.get("noise") is not None:
            values["noise"] = NoiseScheme.of(values["noise"])
        participation: dict[str, Any] = {"clients": 40, "rounds": 100} | _popped(values, Participation)
        protected = values.get("records") or Users()
        is_ordered = participation.get("min_separation", 1) != 1 or values.get("noise") is not None
        participation.setdefault("sampling", "fixed-order" if is_ordered else protected.sampling)
        threat_model = protected.threat_model | _popped(values, ThreatModel)
        return cls(
            **values,
            participation=Participation(**participation),
            threat_model=ThreatModel(**threat_model),
        )

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """The plan of the run in a folder.

        Raises:
            ValueError: If there is no run, or its plan cannot be read.
        """
        path = folder / PLAN
        try:
            values = read_json(path, "a plan")
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"resume = {folder}: holds no run ({PLAN} is missing)") from None
        try:
            plan = cls.from_dict(values)
            known_keys(values, plan_keys(), needed=plan_keys())  # a saved plan says everything
            return plan
        except (ValueError, TypeError) as error:
            is_old = "sampling" not in values
            remedy = "; the run may be of an older version: use the rqm that wrote it" if is_old else ""
            raise ValueError(f"{path}: {error}{remedy}") from None

    @classmethod
    def from_toml(cls, path: Path | str, settings: Iterable[str] = ()) -> Self:
        """Read a plan from a TOML file.

        Args:
            path: The file.
            settings: Keys that are set to other values, such as "server.rate=0.5".

        Returns:
            The plan.
        """
        return cls.from_dict(read_plan_file(path, settings))


@lru_cache(maxsize=8)
def _cached_mean(mean_class: type[BaseMean], **values: Any) -> BaseMean:
    """A private mean, the same object for the same values: its certified parts are computed once."""
    return mean_class(**values)


def _popped(values: dict[str, Any], table: type) -> dict[str, Any]:
    """The values of a table whose keys stand at the top level, removed from the others."""
    return {entry.name: values.pop(entry.name) for entry in fields(table) if entry.name in values}


def plan_keys() -> list[str]:
    """The keys at the top level of a plan."""
    names = [entry.name for entry in fields(Plan) if entry.name not in ("participation", "threat_model")]
    return [*names, *(entry.name for table in (Participation, ThreatModel) for entry in fields(table))]


def read_plan_file(path: Path | str, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a plan's TOML file.

    Args:
        path: The file.
        settings: Keys that are set to other values, such as "server.rate=0.5".

    Returns:
        The tables.
    """
    values = read_toml(path, "a plan, such as rounds = 100")
    for setting in settings:
        assign(values, setting)
    return values


def check_sampler(participation: Participation, threat_model: ThreatModel) -> None:
    """Refuse an honest fraction where the simulator's samples depend on earlier rounds.

    Args:
        participation: Who takes part.
        threat_model: What is assumed about the adversary.

    Raises:
        ValueError: If users who have used up their participations are not sampled any more.
    """
    limit = participation.limit
    if threat_model.honest_fraction is not None and 1 < limit < participation.rounds:
        raise ValueError(
            f"max_participations = {limit}: must be 1 or not given with honest_fraction: users who have used up their "
            "rounds are not sampled any more, so later rounds are no uniform samples (or give honest_clients)"
        )


def assign(values: dict[str, Any], setting: str) -> None:
    """Set one key of nested tables.

    Args:
        values: The tables, which are changed.
        setting: `key.key=value`; the value is read as TOML, or else as a string.

    Raises:
        ValueError: If the setting has another form, or a key is not a table.
    """
    path, sign, text = setting.partition("=")
    if not sign or not path.strip():
        raise ValueError(f"set = {setting}: must be key=value")
    try:
        value = parse_table(f"value = {text}", tomllib.loads)["value"]
    except tomllib.TOMLDecodeError:
        value = text
    except ValueError as error:
        raise ValueError(f"set = {shown(setting)}: {error}") from None
    *outer, last = path.strip().split(".")
    if len(outer) > MAX_TABLE_DEPTH:
        raise ValueError(f"set = {shown(setting)}: names {len(outer)} nested tables: must be at most {MAX_TABLE_DEPTH}")
    mechanism = values.get("mechanism")
    if path.strip() == "mechanism.mechanism" and isinstance(mechanism, dict) and mechanism.get("mechanism") != value:
        values["mechanism"] = {}  # other mechanisms have other parameters
    for name in outer:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ValueError(f"set = {setting}: {name} is not a table")
    values[last] = value


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of the plan; an error names some of its keys."""
    table = values[name]
    if not isinstance(table, dict):
        keys = [key for key in _inner_keys() if key.startswith(f"{name}.")]
        hint = f" ({', '.join(keys[:3])}, …){nearest(name, {'clients', 'records'} - {name})}" if keys else ""
        raise TypeError(f"{name} = {shown(table)}: must be a table{hint}")
    return table


def _inner_keys() -> list[str]:
    """The keys in the tables of a plan, each with the name of its table."""
    keys = [f"{name}.{entry.name}" for name, table in PLAN_TABLES.items() for entry in fields(table)]
    return keys + [f"mechanism.{name}" for mechanism in kinds().values() for name in mechanism.options()]
