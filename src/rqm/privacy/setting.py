"""Who takes part, who watches, and what neighbours are: everything about a guarantee but the mechanism."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil, inf, log
from typing import Any, Literal, NamedTuple, get_args

from rqm._util.checks import one_of, real, whole

Observer = Literal["server", "outsider"]
Neighbours = Literal["replace", "zero-out", "add-remove"]
Unit = Literal["user", "record"]

MANY_USERS = 10**8
"""Beyond so many, a sample's luck is bounded, not computed."""
UNLUCKY = 0.1
"""The part of δ that pays for samples with fewer honest clients than the floor."""
RARE = 1e-3
"""The part of δ that pays for samples that are left out where all others are counted as they come."""
ALIKE = 0.01
"""Numbers of honest clients that differ by less than this part are counted as the least of them."""


def default_delta(population: int | None) -> float:
    """δ where none is stated: 10⁻⁵, or one over the number of users if that is less.

    >>> default_delta(None), default_delta(3400), default_delta(10**6)
    (1e-05, 1e-05, 1e-06)
    """
    return min(1e-5, 1 / population) if population else 1e-5


class Floor(NamedTuple):
    """What can be counted on in every release.

    ``honest`` clients at least add their noise to a sum, the user among them. At most ``sampled`` of the ``users`` who
    are honest take part, drawn at random (for the outsider). ``delta`` is left when other samples are paid for.
    """

    honest: int
    sampled: int
    users: int
    delta: float


class Crowd(NamedTuple):
    """With a chance of ``weight`` a release holds ``honest`` clients at least, drawn from all who are at that ``rate``.

    The user is among them, if the rate is 1.
    """

    weight: float
    honest: int
    rate: float


@dataclass(frozen=True)
class Setting:
    """Who takes part, who watches, and what neighbours are.

    ``honest`` clients of a round follow the protocol and survive to its end: a number; or a fraction of the
    ``population``, of which a round's random sample then holds a random number; None for all. ``survivors`` are left at
    the end of a round at least (None: all); those who are lost may all have been honest. ``participations`` caps the
    rounds that a user takes part in (None: all of them), and ``separation`` is the least number of rounds from one to
    the next (None: 1): users then take part in a fixed order, which hides nobody. ``delta`` None is the default's.

    For the outsider sampling hides who took part; but not if some may be lost: whoever can foresee who that will be
    learns of the sample from how many are left.

    The ``unit`` is what is protected: a user, who is a client, or a record, of which a client (a silo) holds many. Then
    neighbours add or remove a record, or replace it; ``participations`` and ``separation`` are a record's; and with
    a ``record_rate`` every round's records are drawn by the silo's own coins, of that chance each, which nobody else
    sees (None: all are in every round, or in a fixed order). Whoever sees less than the server is told less.

    Colluders know when they took part. So for the outsider the honest clients of a round are a sample of the honest
    users, and of the number of honest clients alone nothing follows: there ``honest`` must be a fraction.
    """

    clients: int
    rounds: int
    delta: float | None = None
    population: int | None = None
    observer: Observer = "server"
    participations: int | None = None
    neighbours: Neighbours = "replace"
    honest: int | float | None = None
    survivors: int | None = None
    unit: Unit = "user"
    separation: int | None = None
    record_rate: float | None = None

    def __post_init__(self) -> None:
        """Validate what does not depend on a mechanism."""

        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        put("clients", whole("clients", self.clients, 1))
        put("rounds", whole("rounds", self.rounds, 1))
        if self.population is not None:
            put("population", whole("population", self.population, 1))
            if self.population < self.clients:
                raise ValueError(f"population = {self.population}: must be at least {self.clients}, a round's clients")
        if self.unit == "record" and self.delta is None:
            raise ValueError("delta = None: must be given for records: well below one over the number of all of them")
        put("delta", checked_delta(default_delta(self.population) if self.delta is None else self.delta))
        for name, kinds in (("observer", Observer), ("neighbours", Neighbours), ("unit", Unit)):
            one_of(name, getattr(self, name), get_args(kinds))
        if self.participations is not None:
            put("participations", whole("participations", self.participations, 1))
        if self.separation is not None:
            put("separation", whole("separation", self.separation, 1))
            self._validate_order()
        if self.survivors is not None:
            put("survivors", whole("survivors", self.survivors, 1, self.clients))
        self._validate_honest()
        self._validate_unit()
        if self.observer == "outsider":
            self._validate_outsider()

    def _validate_honest(self) -> None:
        if isinstance(self.honest, float):
            real("honest", self.honest, "a fraction above 0 and at most 1", 0, 1, closed="]")
            if self.population is None:
                raise ValueError(
                    f"honest = {self.honest}: a fraction of the users says how many a round's sample holds only if the "
                    "population that it is drawn from is given; give population, or honest as a number of clients"
                )
        elif self.honest is not None:
            object.__setattr__(self, "honest", whole("honest", self.honest, 1, self.clients))

    def _validate_unit(self) -> None:
        if self.unit == "user":
            if self.neighbours == "add-remove" or self.record_rate is not None:
                what = "neighbours = 'add-remove'" if self.record_rate is None else f"record_rate = {self.record_rate}"
                raise ValueError(f"{what}: must come with unit = 'record'; a user's vector is replaced, or zeroed out")
            return
        if self.neighbours == "zero-out":
            raise ValueError("neighbours = 'zero-out': must be add-remove or replace where the unit is a record")
        if self.observer != "server" or isinstance(self.honest, float):
            what = f"observer = {self.observer}" if self.observer != "server" else f"honest = {self.honest}"
            raise ValueError(f"{what}: must be the server, and a number of honest silos, where the unit is a record")
        if self.record_rate is None:
            return
        rate = real("record_rate", self.record_rate, "above 0 and at most 1", 0, 1, closed="]")
        object.__setattr__(self, "record_rate", rate)
        if self.neighbours != "add-remove":
            raise ValueError(
                "neighbours = 'replace': must be add-remove with a record_rate, whose bound holds for that"
            )
        if self.participations is not None or self.separation is not None:
            raise ValueError("record_rate: must come without participations and separation: each round draws anew")

    def _validate_order(self) -> None:
        users = (self.population or 0) // self.clients
        if self.population is not None and self.separation is not None and self.separation > users:
            raise ValueError(
                f"separation = {self.separation}: must be at most {users}, since {self.clients} clients a round of "
                f"{self.population} users come back after so many rounds"
            )
        if self.observer == "outsider" or isinstance(self.honest, float):
            what = "observer = outsider" if self.observer == "outsider" else f"honest = {self.honest}"
            raise ValueError(f"{what}: must come without separation: in a fixed order no round is a random sample")

    def _validate_outsider(self) -> None:
        if self.participations is not None and self.participations < self.rounds:
            raise ValueError(
                f"observer = outsider: must come without a cap ({self.participations} participations): who has used up "
                "his turns is not sampled any more, and the bound for sampling does not hold"
            )
        if self.population is None:
            raise ValueError("population = None: must be the number of users that a round's clients are sampled from")
        if isinstance(self.honest, int) and self.honest < self.clients:
            raise ValueError(
                f"honest = {self.honest}: must be a fraction of the population (such as "
                f"{self.honest / self.clients:.2g}) for the outsider: colluders know when they took part, so how well "
                "sampling hides an honest user depends on how many users are honest"
            )

    @property
    def releases(self) -> int:
        """Rounds that can tell something about one user to this observer."""
        return self.rounds if self.cap is None else min(self.rounds, self.cap)

    @property
    def cap(self) -> int | None:
        """The most rounds that a user takes part in: as stated, or as the separation allows; None: all of them."""
        if self.separation is None:
            return self.participations
        return min(self.participations or self.rounds, ceil(self.rounds / self.separation))

    def charged(self, charges: Mapping[int, int] | None) -> "Setting":
        """The same for the rounds from the first to the last that was charged: how often a user can have come back."""
        turns = [turn for turn, times in (charges or {}).items() if times]
        if self.separation is None or not turns:
            return self
        return replace(self, rounds=max(turns) - min(turns) + 1)

    @property
    def apart(self) -> int:
        """Rounds from one participation of a user to the next, or to the end, at least."""
        return self.rounds if self.cap == 1 else self.separation or 1

    def floor(self, releases: int | None = None) -> Floor:
        """What can be counted on in each of so many releases (by default, all that are planned)."""
        assert self.delta is not None
        gone = 0 if self.survivors is None else self.clients - self.survivors
        users = self.population or self.clients
        if isinstance(self.honest, float):
            few, many, users, delta = self._sampled(self.honest, releases or self.releases)
        else:
            few = many = self.clients if self.honest is None else self.honest
            delta = self.delta
        if gone:
            users = many  # who is lost may be known beforehand, and then sampling hides nobody
        return Floor(max(1, few - gone), many, users, delta)

    def crowds(self, releases: int | None = None) -> tuple[list[Crowd], float]:
        """All that a release can hold, with their chances, and the δ that is left when what is left out is paid for.

        The adversary is told which it was; nobody's input changes it. So their profiles are mixed (``profiles.py``).
        """
        floor = self.floor(releases)
        server = self.observer == "server"
        if not isinstance(self.honest, float) or (self.population or 0) > MANY_USERS:
            return [Crowd(1.0, floor.honest, 1.0 if server else floor.sampled / floor.users)], floor.delta
        assert self.delta is not None
        rare = RARE * self.delta / (releases or self.releases)
        gone = 0 if self.survivors is None else self.clients - self.survivors
        found = [
            Crowd(weight, max(1, few - gone), 1.0 if server or gone else many / floor.users)
            for weight, few, many in _alike(*self._chances(), rare)
        ]
        return found, (1 - RARE) * self.delta

    def _chances(self) -> tuple[range, list[float]]:
        """How many honest clients a release can hold, and the chance of each; before the server the user is there."""
        from scipy.stats import hypergeom  # noqa: PLC0415 (a second, which nobody else waits)

        assert self.population is not None
        assert isinstance(self.honest, float)
        users, own = max(1, int(self.honest * self.population)), self.observer == "server"
        sample = hypergeom(self.population - own, users - own, self.clients - own)
        counts = range(max(own, 1), min(self.clients, users) + 1)  # a sum without honest clients tells nothing of them
        return counts, [float(p) * (1 + 1e-6) for p in sample.pmf([count - own for count in counts])]

    def _sampled(self, honest: float, releases: int) -> tuple[int, int, int, float]:
        """The fewest and the most honest clients of a round, the honest users, and the δ that is left."""
        from scipy.stats import hypergeom  # noqa: PLC0415 (a second, which nobody else waits)

        assert self.population is not None
        assert self.delta is not None
        users = max(1, int(honest * self.population))
        unlucky = UNLUCKY * self.delta / releases
        if self.clients == 1 and self.observer == "server":
            few = many = 1
        elif self.population > MANY_USERS:
            own = self.observer == "server"  # which knows that the user is among the clients
            share = (users - own) / (self.population - own)
            few, many = _sure(self.clients - own, share, unlucky / 2)
            few, many = max(1, few + own), many + own
        elif self.observer == "server":  # which knows that the user is among the clients
            others = hypergeom(self.population - 1, users - 1, self.clients - 1)
            few = 1 + int(others.ppf(unlucky))
            while few > 1 and others.cdf(few - 2) > unlucky:
                few -= 1
            many = min(self.clients, users)
        else:
            sample = hypergeom(self.population, users, self.clients)
            few, many = int(sample.ppf(unlucky / 2)), int(sample.isf(unlucky / 2))
            while few > 0 and sample.cdf(few - 1) > unlucky / 2:
                few -= 1
            while many < min(self.clients, users) and sample.sf(many) > unlucky / 2:
                many += 1
            few = max(1, few)  # a sum without honest clients tells nothing of them
        return few, max(few, many), users, (1 - UNLUCKY) * self.delta


def _alike(counts: range, chances: list[float], rare: float) -> Iterator[tuple[float, int, int]]:
    """Numbers that hardly differ taken together: their chance, the least and the largest; without those that are rare.

    Only few honest clients are left out: many of them do no harm.
    """
    below = 0.0
    group: tuple[float, int, int] | None = None
    for count, chance in zip(counts, chances, strict=True):
        below += chance
        if below <= rare:
            continue
        if group is not None and count <= group[1] * (1 + ALIKE):
            group = group[0] + chance, group[1], count
        else:
            if group is not None:
                yield group
            group = chance, count, count
    if group is not None:
        yield group


def _sure(clients: int, share: float, unlucky: float) -> tuple[int, int]:
    """The fewest and the most of a sample that belong to a share of the users, but with that chance.

    By Chernoff's bound, which holds for draws without replacement, too (Hoeffding 1963).
    """

    def rare(count: int) -> bool:
        """Whether so many, or farther from what is expected, are less likely than that."""
        part = count / clients
        excess = part * log(part / share) if part else 0.0
        excess += (1 - part) * log((1 - part) / (1 - share)) if part < 1 else 0.0
        return clients * excess > -log(unlucky)

    if share in (0, 1):
        return int(share) * clients, int(share) * clients
    expected = share * clients
    few = next((k for k in range(int(expected), -1, -1) if rare(k)), -1) + 1
    many = next((k for k in range(ceil(expected), clients + 1) if rare(k)), clients + 1) - 1
    return few, many


def checked_delta(delta: float) -> float:
    """Return δ, or raise."""
    return real("delta", delta, "above 0 and below 1", 0, 1)


def checked_epsilon(epsilon: float, name: str = "epsilon") -> float:
    """Return ε, or raise."""
    return real(name, epsilon, "a positive finite number", 0, inf)
