"""The plan of a run: all that decides what is computed, frozen, readable from TOML and saved with the results."""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

from rqm._util.checks import known_keys, nearest, one_of, real, shown, whole
from rqm._util.files import DEEPEST, parse_table, read_json
from rqm._util.schedules import Schedule, rate_factor
from rqm.accounting.participation import Participation, ThreatModel
from rqm.correlated.factorization import Workload
from rqm.correlated.noise import CorrelatedNoise
from rqm.encoding.private_mean import PrivateMean
from rqm.mechanisms.base import Mechanism, mechanism_of
from rqm.mechanisms.registry import kinds, mechanism_from_dict
from rqm.mechanisms.rqm import RQM
from rqm.plan.records import Records, check_records
from rqm.plan.sizes import PARAMETERS, parameters

Work = Literal["gradient", "local", "fedcomgate", "fedaq"]
Optimizer = Literal["sgd", "momentum", "adam"]
SecAgg = Literal["ideal", "real"]

PLAN = "plan.json"
"""A plan's name in the folder of a run."""
FREE = (
    *("device", "evaluate_every", "checkpoint_every", "budget_epsilon", "delta", "dim"),
    *(f.name for f in fields(ThreatModel)),
)
"""What may differ where one plan goes on with another's run: it changes no model. The ledger compares promises."""


@final
@dataclass(frozen=True)
class ClientWork:
    """What a client sends: its full local gradient (the paper's Algorithm 1), or the change after local steps.

    The change is divided by ``rate``, so that both are of the size of a gradient. With ``steps`` (τ) a client takes so
    many, each on a ``batch`` of its examples in a new order; without, as many as ``epochs`` hold. ``fedcomgate`` and
    ``fedaq`` are local steps that are corrected, or accelerated for a strong ``convexity`` (μ).
    """

    work: Work = "gradient"
    epochs: int = 1
    batch: int = 20
    rate: float = 0.03
    steps: int | None = None
    convexity: float = 0.1

    def __post_init__(self) -> None:
        """Validate every value."""
        one_of("client.work", self.work, get_args(Work))
        if self.steps is not None:
            whole("client.steps", self.steps, 1)
        real("client.convexity", self.convexity, "a positive finite number", 0, float("inf"))
        whole("client.epochs", self.epochs, 1)
        whole("client.batch", self.batch, 1)
        real("client.rate", self.rate, "a positive finite number", 0, float("inf"))

    def to_dict(self) -> dict[str, Any]:
        """Return everything."""
        return asdict(self)


@final
@dataclass(frozen=True)
class Transforms:
    """What happens to a client's vector before it is encoded, apart from the mechanism's clip of every coordinate.

    ``l2_clip`` scales a vector down to that Euclidean norm at most; None leaves it. ``rotate`` flattens it by a
    random rotation that the server undoes. Of the rotated ones, only so many ``coordinates`` are sent, others in every
    round; None: all.
    """

    l2_clip: float | None = None
    rotate: bool = False
    coordinates: int | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        if self.l2_clip is not None:
            real("transforms.l2_clip", self.l2_clip, "a positive finite number", 0, float("inf"))
        if not isinstance(self.rotate, bool):
            raise TypeError(f"transforms.rotate = {shown(self.rotate)}: must be true or false")
        if self.coordinates is not None:
            whole("transforms.coordinates", self.coordinates, 1)

    def to_dict(self) -> dict[str, Any]:
        """Return everything."""
        return asdict(self)


@final
@dataclass(frozen=True)
class ServerStep:
    """How the server steps along the decoded mean."""

    optimizer: Optimizer = "momentum"
    rate: float = 1.0
    momentum: float = 0.9
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        """Validate every value."""
        one_of("server.optimizer", self.optimizer, get_args(Optimizer))
        one_of("server.schedule", self.schedule, get_args(Schedule))
        real("server.rate", self.rate, "a positive finite number", 0, float("inf"))
        real("server.momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")

    def rate_at(self, turn: int, rounds: int) -> float:
        """The learning rate of round ``turn`` (from 0) of ``rounds``: constant, or falling to zero."""
        return self.rate * rate_factor(self.schedule, turn, rounds)


@final
@dataclass(frozen=True)
class Adapt:
    """A clip that follows a quantile of the clients' norms, by one bit of each (Andrew et al. 2021).

    The bit takes the ``share`` (s) of the L2 budget and the vector √(1 − s²): both are sent, and accounted for, as one.
    """

    quantile: float = 0.5
    rate: float = 0.2
    start: float = 0.1
    share: float = 0.1

    def __post_init__(self) -> None:
        """Validate every value."""
        real("adapt.quantile", self.quantile, "from 0 to 1", 0, 1, closed="[]")
        real("adapt.share", self.share, "between 0 and 1", 0, 1)
        for name in ("rate", "start"):
            real(f"adapt.{name}", getattr(self, name), "a positive finite number", 0, float("inf"))


PARTS: dict[str, type[Transforms | ClientWork | ServerStep]] = {
    "transforms": Transforms,
    "client": ClientWork,
    "server": ServerStep,
}
OTHERS: dict[str, type[Records | Adapt]] = {"records": Records, "adapt": Adapt}
"""The tables inside a plan, but for the mechanism's; and those that may be missing."""


@final
@dataclass(frozen=True)
class Plan:
    """Distributed DP-SGD: sample clients, encode what they send, sum securely, decode, step.

    In a file the values of `participation` and `threat_model` stand at the top level.

    >>> plan = Plan.from_dict({"rounds": 10, "mechanism": {"mechanism": "pbm", "theta": 0.25}})
    >>> plan.mechanism, plan.participation.rounds
    (PBM(clip=1.0, theta=0.25, levels=16), 10)
    """

    data: str = "glyphs"
    model: str = "small-cnn"
    dropout: float = 0.0  # of the paper's CNN: 1 gives the original's .25 and .5
    dim: int | None = None  # the model's parameters; None: those of the model that comes with the package
    mechanism: Mechanism = field(default_factory=RQM)
    noise: CorrelatedNoise | None = None  # in steps; None: independent
    participation: Participation = field(default_factory=lambda: Participation(40, 100, sampling="uniform"))
    threat_model: ThreatModel = field(default_factory=ThreatModel)
    examples: int = 10  # of each of the users who are re-drawn from the data if a population is declared
    lost: float = 0.0  # the probability that a client is lost during a round, whatever its data
    delta: float | None = None  # δ; None: 10⁻⁵, or one over the population if that is less
    budget_epsilon: float | None = None  # the run stops before ε would pass this
    secagg: SecAgg = "ideal"  # sum modulo 2**b; or "real": by the true protocol, all parties in this process
    seed: int = 0
    device: str = "auto"
    evaluate_every: int = 10
    checkpoint_every: int = 10
    transforms: Transforms = field(default_factory=Transforms)
    client: ClientWork = field(default_factory=ClientWork)
    server: ServerStep = field(default_factory=ServerStep)
    records: Records | None = None  # clients are silos, and a record is protected; None: a user, who is a client
    adapt: Adapt | None = None  # the clip follows a quantile of the norms; None: it is the L2 clip

    def __post_init__(self) -> None:
        """Validate every value, and whether they go together."""
        self._check_types()
        if self.noise is not None:
            object.__setattr__(self, "noise", CorrelatedNoise.of(self.noise))
        for name in ("evaluate_every", "checkpoint_every", "examples"):
            whole(name, getattr(self, name), 1)
        whole("seed", self.seed, 0)
        real("lost", self.lost, "at least 0 and below 1", 0, 1, closed="[")
        real("dropout", self.dropout, "from 0 to 1", 0, 1, closed="[]")
        if self.dim is not None:
            self.check_size(whole("dim", self.dim, 1))
        if self.delta is not None:
            real("delta", self.delta, "above 0 and below 1", 0, 1)
        if self.budget_epsilon is not None:
            real("budget_epsilon", self.budget_epsilon, "a positive finite number", 0, inf)
        check_records(self)
        one_of("secagg", self.secagg, get_args(SecAgg))
        if self.secagg == "real" and not self.mechanism.integers:
            raise ValueError("secagg = 'real': must come with a mechanism that sends integers")
        if self.secagg == "real" and self.participation.clients < 2:
            raise ValueError(f"clients = {self.participation.clients}: must be at least 2 with secagg = 'real'")
        self._check_method()
        if self.noise is not None and self.lost and self.participation.min_survivors is None:
            raise ValueError("min_survivors = None: must be given where clients may be lost and noise is correlated")
        try:
            mean = self.any_mean  # everything about privacy is validated there
            if self.transforms.coordinates is not None and (known := self.dim or parameters(self.model, self.data)):
                mean = self.private_mean(known)
        except ValueError as error:
            said = re.sub("^(record_clip|sampling_rate)", r"records.\1", str(error)).replace(".record_clip", ".clip")
            raise ValueError(re.sub("^(l2_clip|coordinates) ", r"transforms.\1 ", said)) from None
        if self.budget_epsilon is not None and not mean.is_private:
            raise ValueError("budget_epsilon: must come with a mechanism that adds noise")
        self._check_order()

    def _check_order(self) -> None:
        """Refuse random samples of users who are to be kept apart."""
        who = self.participation
        check_sampler(who, self.threat_model)
        if self.records is None and who.sampling == "uniform" and (self.noise is not None or who.min_separation > 1):
            raise ValueError(
                "sampling = 'uniform': must be 'fixed-order' with min_separation and with correlated noise, for which "
                "users take turns"
            )

    def _check_types(self) -> None:
        """Refuse parts that are of another kind."""
        mechanism_of(self.mechanism)
        kinds_of: dict[str, type] = {**PARTS, "participation": Participation, "threat_model": ThreatModel}
        for name, kind in kinds_of.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} = {shown(getattr(self, name))}: must be {kind.__name__}")
        if not isinstance(self.adapt, Adapt | None):
            raise TypeError(f"adapt = {shown(self.adapt)}: must be {Adapt.__name__}")
        for name in ("data", "model", "device"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} = {shown(getattr(self, name))}: must be a string")

    def _check_method(self) -> None:
        """Refuse two sequences of which one steps otherwise, and a clip that moves where it must stay as it is."""
        if self.client.work == "fedaq" and self.server.optimizer != "sgd":
            raise ValueError(f"server.optimizer = {self.server.optimizer!r}: must be 'sgd' with client.work = 'fedaq'")
        if self.adapt is None:
            return
        if self.transforms.l2_clip is None or (self.mechanism.integers and not self.transforms.rotate):
            raise ValueError("adapt: must come with transforms.l2_clip, and with transforms.rotate for integers")
        if self.noise is not None or self.mechanism.correlation is not None:
            raise ValueError("adapt: must come without correlated noise, which is canceled in rounds of another clip")

    def width(self, dim: int) -> int:
        """Values that a client of a model of so many parameters sends."""
        return dim * (2 if self.client.work == "fedaq" else 1) + (self.adapt is not None)

    def check_size(self, dim: int) -> None:
        """Refuse a number of parameters that a model of the package does not have."""
        known = parameters(self.model, self.data)
        if known is not None and dim != known:
            raise ValueError(
                f"dim = {dim}: the model {self.model} has {known} parameters on {self.data}; for a model of your own "
                "give it another name (model = ...)"
            )

    def private_mean(self, dim: int | None = None) -> PrivateMean:
        """What clients send and the server decodes in a run of this plan, and what that promises against the server.

        ``dim`` is the number of the model's parameters where the plan does not know it.
        """
        known = self.dim or parameters(self.model, self.data)
        if dim is None and known is None:
            what = f"data = {self.data}" if self.model in PARAMETERS else f"model = {self.model}"
            raise ValueError(f"{what}: its size is not known here; give dim, the number of the model's parameters")
        who = self.participation
        if self.lost and who.min_survivors is None:
            who = replace(who, min_survivors=1)
        share = 0.0 if self.adapt is None else self.adapt.share
        return PrivateMean(
            dim=self.width(dim or known or 1),
            mechanism=self.mechanism,
            participation=who,
            threat_model=self.threat_model,
            l2_clip=self.transforms.l2_clip,
            rotate=self.transforms.rotate,
            noise=self.noise,
            coordinates=self.transforms.coordinates,  # type: ignore[arg-type]  # None: all
            record_clip=None if self.records is None else self.records.clip,
            sampling_rate=None if self.records is None else self.records.sampling_rate,
            # A zero update still sends its count bit, which lies twice the bit's share away from the other value.
            zero_distance=sqrt(1 + 3 * share**2),
            delta=self.delta,
            seed=self.seed,
        )

    @property
    def any_mean(self) -> PrivateMean:
        """The same for a model of some size: who takes part and watches, and how a coordinate is sent."""
        return self.private_mean(self.transforms.coordinates or 1)

    @property
    def workload(self) -> Workload:
        """How the server steps, as far as it matters for noise that is taken back."""
        momentum = self.server.momentum if self.server.optimizer == "momentum" else 0.0
        return Workload(self.participation.rounds, momentum, self.server.schedule)

    def goes_on(self, other: "Plan") -> bool:
        """Whether a run of the other plan can be continued by this one."""
        mine, theirs = ({k: v for k, v in one.to_dict().items() if k not in FREE} for one in (self, other))
        return mine == theirs

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, ready for TOML or JSON."""
        values = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("participation", "threat_model")
        }
        plain = {
            name: value.to_dict()
            if hasattr(value, "to_dict")
            else asdict(value)
            if is_dataclass(value) and not isinstance(value, type)
            else value
            for name, value in values.items()
        }
        return {**plain, **asdict(self.participation), **asdict(self.threat_model)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the plan that ``to_dict`` described; what is not named has its default."""
        if not isinstance(values, Mapping):
            raise TypeError(f"plan = {shown(values)}: must be a table of names and values")
        values = dict(values)
        known_keys(values, plan_keys(), inner=_inner())
        if "mechanism" in values:
            values["mechanism"] = mechanism_from_dict(_table(values, "mechanism"))
        for name, kind in {**PARTS, **OTHERS}.items():
            if name in values and (name in PARTS or values[name] is not None):
                needed = [f.name for f in fields(kind) if f.default is MISSING]
                known_keys(_table(values, name), [f.name for f in fields(kind)], f"{name}.", needed=needed)
                values[name] = kind(**values[name])
        if values.get("noise") is not None:
            values["noise"] = CorrelatedNoise.of(values["noise"])
        is_record = values.get("records") is not None
        who = {"clients": 40, "rounds": 100} | _taken(values, Participation)
        is_ordered = who.get("min_separation", 1) != 1 or values.get("noise") is not None
        who.setdefault("sampling", "fixed-order" if is_ordered else "available" if is_record else "uniform")
        threat = {"unit": "record", "neighboring": "add-or-remove-one"} if is_record else {}
        threat_model = ThreatModel(**threat | _taken(values, ThreatModel))
        return cls(**values, participation=Participation(**who), threat_model=threat_model)

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """The plan of the run in a folder."""
        path = folder / PLAN
        try:
            values = read_json(path, "a plan")
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(f"resume = {folder}: holds no run ({PLAN} is missing)") from None
        try:
            return cls.from_dict(values)
        except (ValueError, TypeError) as error:
            is_old = isinstance(values, dict) and "sampling" not in values
            remedy = "; the run may be of an older version: use the rqm that wrote it" if is_old else ""
            raise ValueError(f"{path}: {error}{remedy}") from None

    @classmethod
    def from_toml(cls, path: Path | str, settings: Iterable[str] = ()) -> Self:
        """Read a plan from a TOML file, with some keys set otherwise (``"server.rate=0.5"``)."""
        return cls.from_dict(read_toml(path, settings))


def _taken(values: dict[str, Any], kind: type) -> dict[str, Any]:
    """Take the values of a part of the plan that stands at the top level."""
    return {f.name: values.pop(f.name) for f in fields(kind) if f.name in values}


def plan_keys() -> list[str]:
    """The names at the top level of a plan."""
    own = [f.name for f in fields(Plan) if f.name not in ("participation", "threat_model")]
    return [*own, *(f.name for kind in (Participation, ThreatModel) for f in fields(kind))]


def read_toml(path: Path | str, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a TOML file, with some keys set otherwise."""
    try:
        values = parse_table(Path(path).read_bytes().decode(), tomllib.loads)
    except ValueError as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None
    if not values:
        raise ValueError(f"{path}: says nothing: must be a plan, such as rounds = 100")
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
    """Set one key of nested tables from ``key.key=value``; the value is read as TOML, or else as a string."""
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
    if len(outer) > DEEPEST:
        raise ValueError(f"set = {shown(setting)}: names {len(outer)} tables in each other: must be at most {DEEPEST}")
    before = values.get("mechanism")
    if path.strip() == "mechanism.mechanism" and isinstance(before, dict) and before.get("mechanism") != value:
        values["mechanism"] = {}  # another one has other parameters
    for name in outer:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ValueError(f"set = {setting}: {name} is not a table")
    values[last] = value


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values[name]
    if not isinstance(table, dict):
        inner = [one for one in _inner() if one.startswith(f"{name}.")]
        known = f" ({', '.join(inner[:3])}, …){nearest(name, {'clients', 'records'} - {name})}" if inner else ""
        raise TypeError(f"{name} = {shown(table)}: must be a table{known}")
    return table


def _inner() -> list[str]:
    """The names in the tables of a plan, each with its table's."""
    found = [f"{table}.{f.name}" for table, kind in {**PARTS, **OTHERS}.items() for f in fields(kind)]
    return found + [f"mechanism.{name}" for made in kinds().values() for name in made.options()]
