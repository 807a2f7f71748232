"""The plan of a run: all that decides what is computed, frozen, readable from TOML and saved with the results."""

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from math import cos, pi
from pathlib import Path
from typing import Any, Literal, Self, final, get_args

from rqm._checks import known_keys, padded, real, whole
from rqm.channel import Channel
from rqm.mechanisms import KINDS, mechanism_from_dict
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.noiseless import Noiseless
from rqm.mechanisms.rqm import RQM

Work = Literal["gradient", "local"]
Optimizer = Literal["sgd", "momentum", "adam"]
Schedule = Literal["constant", "linear", "cosine"]
SecAgg = Literal["ideal", "real"]


@final
@dataclass(frozen=True)
class ClientWork:
    """What a client sends: its full local gradient (the paper's Algorithm 1), or the change after local steps.

    The change is divided by ``rate``, so that both are of the size of a gradient.
    """

    work: Work = "gradient"
    epochs: int = 1
    batch: int = 20
    rate: float = 0.03

    def __post_init__(self) -> None:
        """Validate every value."""
        _one_of("client.work", self.work, Work)
        whole("client.epochs", self.epochs, 1)
        whole("client.batch", self.batch, 1)
        real("client.rate", self.rate, "a positive finite number", 0, float("inf"))


@final
@dataclass(frozen=True)
class Transforms:
    """What happens to a client's vector before it is encoded, apart from the mechanism's clip of every coordinate.

    ``l2_clip`` scales a vector down to that Euclidean norm at most; None leaves it. ``rotate`` flattens it by a
    random rotation that the server undoes.
    """

    l2_clip: float | None = None
    rotate: bool = False

    def __post_init__(self) -> None:
        """Validate every value."""
        if self.l2_clip is not None:
            real("transforms.l2_clip", self.l2_clip, "a positive finite number", 0, float("inf"))
        if not isinstance(self.rotate, bool):
            raise TypeError(f"transforms.rotate = {self.rotate!r}: must be true or false")

    def sent(self, dim: int) -> int:
        """Coordinates that a client sends for a model of ``dim`` parameters: padded if they are rotated."""
        return padded(dim) if self.rotate else dim


@final
@dataclass(frozen=True)
class Server:
    """How the server steps along the decoded mean."""

    optimizer: Optimizer = "momentum"
    rate: float = 1.0
    momentum: float = 0.9
    schedule: Schedule = "constant"

    def __post_init__(self) -> None:
        """Validate every value."""
        _one_of("server.optimizer", self.optimizer, Optimizer)
        _one_of("server.schedule", self.schedule, Schedule)
        real("server.rate", self.rate, "a positive finite number", 0, float("inf"))
        real("server.momentum", self.momentum, "at least 0 and below 1", 0, 1, closed="[")

    def rate_at(self, turn: int, rounds: int) -> float:
        """The learning rate of round ``turn`` (from 0) of ``rounds``: constant, or falling to zero."""
        share = turn / rounds
        factor = {"constant": 1.0, "linear": 1 - share, "cosine": (1 + cos(pi * share)) / 2}[self.schedule]
        return self.rate * factor


@final
@dataclass(frozen=True)
class Plan:
    """Distributed DP-SGD: sample clients, encode what they send, sum securely, decode, step.

    >>> plan = Plan.from_dict({"rounds": 10, "mechanism": {"mechanism": "pbm", "theta": 0.25}})
    >>> plan.mechanism, plan.rounds
    (PBM(clip=1.0, theta=0.25, levels=16), 10)
    """

    data: str = "glyphs"
    model: str = "small-cnn"
    dropout: float = 0.0  # of the paper's CNN: 1 gives the original's .25 and .5
    mechanism: Channel | Noiseless | Gaussian = field(default_factory=RQM)
    clients: int = 40  # n, sampled without replacement each round
    population: int | None = None  # N: if declared, so many users are re-drawn from the data, …
    examples: int = 10  # … with so many of their examples each
    participations: int | None = None  # the most rounds that one user takes part in
    lost: float = 0.0  # the probability that a client is lost during a round, whatever its data
    survivors: int | None = None  # a round that ends with fewer is discarded, and charged; None: with any
    secagg: SecAgg = "ideal"  # sum modulo 2**b; or "real": by the true protocol, all parties in this process
    rounds: int = 100  # T
    seed: int = 0
    device: str = "auto"
    evaluate_every: int = 10
    checkpoint_every: int = 10
    transforms: Transforms = field(default_factory=Transforms)
    client: ClientWork = field(default_factory=ClientWork)
    server: Server = field(default_factory=Server)

    def __post_init__(self) -> None:
        """Validate every value."""
        for name in ("clients", "rounds", "evaluate_every", "checkpoint_every"):
            whole(name, getattr(self, name), 1)
        whole("seed", self.seed, 0)
        whole("examples", self.examples, 1)
        if self.population is not None:
            whole("population", self.population, self.clients)
        if self.participations is not None:
            whole("participations", self.participations, 1)
        real("lost", self.lost, "at least 0 and below 1", 0, 1, closed="[")
        if self.survivors is not None:
            whole("survivors", self.survivors, 1, self.clients)
        _one_of("secagg", self.secagg, SecAgg)
        if self.secagg == "real" and not isinstance(self.mechanism, Channel):
            raise ValueError("secagg = 'real': must come with a mechanism that sends integers")
        if self.secagg == "real" and self.clients < 2:
            raise ValueError(f"clients = {self.clients}: must be at least 2 with secagg = 'real'")
        real("dropout", self.dropout, "from 0 to 1", 0, 1, closed="[]")
        for name in ("data", "model", "device"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} = {getattr(self, name)!r}: must be a string")
        if isinstance(self.mechanism, Gaussian) and self.transforms.l2_clip is None:
            raise ValueError(
                "transforms.l2_clip = None: must be given for the mechanism gaussian, whose noise it scales"
            )
        if not isinstance(self.mechanism, (Channel, Noiseless, Gaussian)):
            raise TypeError(f"mechanism = {self.mechanism!r}: must be one of {', '.join(sorted(KINDS))}")

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, ready for TOML or JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {
            name: value.to_dict()
            if name == "mechanism"
            else asdict(value)
            if is_dataclass(value) and not isinstance(value, type)
            else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build the plan that ``to_dict`` described; what is not named has its default."""
        values = dict(values)
        known_keys(values, [f.name for f in fields(cls)])
        if "mechanism" in values:
            values["mechanism"] = mechanism_from_dict(_table(values, "mechanism"))
        for name, kind in (("transforms", Transforms), ("client", ClientWork), ("server", Server)):
            if name in values:
                known_keys(_table(values, name), [f.name for f in fields(kind)], f"{name}.")
                values[name] = kind(**values[name])
        return cls(**values)

    @classmethod
    def from_toml(cls, path: Path, settings: Iterable[str] = ()) -> Self:
        """Read a plan from a TOML file, with some keys set otherwise (``"server.rate=0.5"``)."""
        return cls.from_dict(read_toml(path, settings))


def read_toml(path: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The tables of a TOML file, with some keys set otherwise."""
    try:
        values = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not a TOML file ({error})") from None
    for setting in settings:
        assign(values, setting)
    return values


def assign(values: dict[str, Any], setting: str) -> None:
    """Set one key of nested tables from ``key.key=value``; the value is read as TOML, or else as a string."""
    path, sign, text = setting.partition("=")
    if not sign or not path.strip():
        raise ValueError(f"set = {setting}: must be key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *outer, last = path.strip().split(".")
    for name in outer:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ValueError(f"set = {setting}: {name} is not a table")
    values[last] = value


def _table(values: dict[str, Any], name: str) -> dict[str, Any]:
    table = values[name]
    if not isinstance(table, dict):
        raise TypeError(f"{name} = {table!r}: must be a table")
    return table


def _one_of(name: str, value: Any, kinds: Any) -> None:
    if value not in get_args(kinds):
        raise ValueError(f"{name} = {value!r}: must be one of {', '.join(get_args(kinds))}")
