"""A user's (ε, δ) for a whole run, and the parameters that reach a wanted one."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, sqrt
from typing import Any, Literal

from scipy.stats import hypergeom

from rqm._checks import real, whole
from rqm.channel import Channel
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.privacy.composition import (
    Observer,
    Rdp,
    checked_delta,
    gaussian_rdp,
    orders_for,
    poisson_gaussian_epsilon,
    run_rdp,
    smallest,
)
from rqm.privacy.losses import composed_epsilon
from rqm.privacy.vector import Neighbours, affine, budgeted, vector_rdp

Kind = Literal["gaussian", "rqm", "rounding", "pbm", "discrete-gaussian", "skellam", "binomial"]

FEW_RELEASES = 1000
"""Coordinates times participations up to which privacy loss distributions are composed, too."""
UNLUCKY = 0.1
"""The part of δ that pays for samples with fewer honest clients than the floor."""


@dataclass(frozen=True)
class Setting:
    """Who takes part, who watches, and what neighbours are.

    ``honest`` clients of a round follow the protocol and survive to its end: a number; or a fraction of the population,
    of which a sample then holds a random number; None for all. ``survivors`` are left at the end of a round at least
    (None: all); those who are lost may all have been honest. ``participations`` caps the rounds that a user takes part
    in (None: all of them).
    """

    clients: int
    population: int
    rounds: int
    delta: float
    observer: Observer = "server"
    participations: int | None = None
    neighbours: Neighbours = "replace"
    honest: int | float | None = None
    survivors: int | None = None

    def __post_init__(self) -> None:
        """Validate what does not depend on a mechanism."""
        whole("clients", self.clients, 1)
        whole("population", self.population, self.clients)
        whole("rounds", self.rounds, 1)
        checked_delta(self.delta)
        if self.participations is not None:
            whole("participations", self.participations, 1, self.rounds)
        if isinstance(self.honest, float):
            real("honest", self.honest, "a fraction above 0 and at most 1", 0, 1, closed="]")
        elif self.honest is not None:
            whole("honest", self.honest, 1, self.clients)
        if self.survivors is not None:
            whole("survivors", self.survivors, 1, self.clients)

    @property
    def releases(self) -> int:
        """Rounds that can tell something about one user to this observer."""
        return self.rounds if self.observer == "outsider" or self.participations is None else self.participations

    def floor(self) -> tuple[int, float]:
        """Honest survivors of a round at least, and the δ that is left after rounds with fewer are paid for.

        The user is one of them: alone, he still has his own noise.
        """
        sampled, delta = self._sampled()
        gone = 0 if self.survivors is None else self.clients - self.survivors
        return max(1, sampled - gone), delta

    def _sampled(self) -> tuple[int, float]:
        if self.honest is None:
            return self.clients, self.delta
        if not isinstance(self.honest, float):
            return self.honest, self.delta
        others = hypergeom(self.population - 1, int(self.honest * self.population) - 1, self.clients - 1)
        unlucky = UNLUCKY * self.delta / self.releases
        least = int(others.ppf(unlucky))
        while least > 0 and others.cdf(least - 1) > unlucky:
            least -= 1
        return 1 + least, (1 - UNLUCKY) * self.delta


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy of a user over a whole run, certified: it holds for all inputs of everyone.

    ``per_coordinate`` is D₂ of one coordinate in one round; ``noise_std_over_gaussian`` is the noise of the sum over
    that of a trusted server's Gaussian with the same ε, accounted in the same way. With a ``trusted_server`` it holds
    against whoever sees only what the server publishes.
    """

    epsilon: float
    delta: float
    neighbours: str
    observer: str
    participations: int
    honest: int
    rounds: int
    clients: int
    population: int
    dim: int
    order: float
    per_coordinate: float | None
    noise_multiplier: float
    noise_std_over_gaussian: float | None
    bits_per_coordinate: int
    bits_under_secagg: int | None
    trusted_server: bool = False
    certified: bool = True
    method: str = "RDP"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)


def guarantee(mech: Channel | Gaussian, setting: Setting, *, dim: int, l2_clip: float) -> Guarantee:
    """What a run with this mechanism guarantees to every user; vectors of ``dim`` coordinates within ``l2_clip``."""
    honest, delta = setting.floor()
    if isinstance(mech, Gaussian):
        epsilon, best = _compose(setting, lambda o, n: gaussian_rdp(mech.noise_multiplier, o, n)).epsilon(delta)
        noise = mech.on_sum(setting.clients)
        return _report(
            mech, setting, epsilon, best, dim, 1 if mech.local else honest, noise, None, noise / mech.noise_multiplier
        )

    few = not budgeted(mech)
    epsilon, best = _compose(setting, _release(mech, honest, dim, l2_clip), few=few).epsilon(delta)
    method, releases = "RDP", dim * setting.releases
    if affine(mech) and setting.observer == "server" and releases <= FEW_RELEASES:
        composed = composed_epsilon(mech, honest=honest, releases=releases, delta=delta, law="sampled")
        epsilon, method = min((epsilon, "RDP"), (composed, "PLD"))  # the better of the two, by its name
    noise = sqrt(setting.clients * float(mech.variance(0.0))) / l2_clip
    # With the same orders as above the sums over outcomes are known already.
    orders = orders_for(setting.observer, few)[: 1 if few else None]
    one = _release(mech, honest, 1, mech.clip)(orders, setting.neighbours)
    coordinate = float(one.values[one.orders.index(2.0)])
    over = None
    if 0 < epsilon < 1e6:
        over = noise / gaussian_noise(replace(setting, honest=None, survivors=None, delta=delta), epsilon)
    return replace(_report(mech, setting, epsilon, best, dim, honest, noise, coordinate, over), method=method)


def one_release(mech: Channel | Gaussian, setting: Setting, *, dim: int, l2_clip: float) -> Rdp:
    """What one round leaks to the server about one of its clients."""
    orders = orders_for("server", few=isinstance(mech, Channel) and not budgeted(mech))
    if isinstance(mech, Gaussian):
        return gaussian_rdp(mech.noise_multiplier, orders, setting.neighbours)
    return _release(mech, setting.floor()[0], dim, l2_clip)(orders, setting.neighbours)


def _release(
    mech: Channel, honest: int, dim: int, l2_clip: float, *, quick: bool = False
) -> Callable[[Sequence[float], Neighbours], Rdp]:
    """One release of a vector, as deployed: by the law that is sampled."""

    def release(orders: Sequence[float], neighbours: Neighbours) -> Rdp:
        values = vector_rdp(
            mech, orders, honest=honest, dim=dim, l2_clip=l2_clip, neighbours=neighbours, law="sampled", quick=quick
        )
        return Rdp(tuple(map(float, orders)), values, neighbours)

    return release


def _compose(setting: Setting, release: Callable[[Sequence[float], Neighbours], Rdp], *, few: bool = False) -> Rdp:
    return run_rdp(
        release, clients=setting.clients, population=setting.population, rounds=setting.rounds,
        observer=setting.observer, participations=setting.releases, neighbours=setting.neighbours, few=few,
    )  # fmt: skip


def _report(
    mech: Channel | Gaussian, setting: Setting, epsilon: float, best: float, dim: int, honest: int, noise: float,
    coordinate: float | None, over: float | None,
) -> Guarantee:  # fmt: skip
    return Guarantee(
        epsilon=epsilon, delta=setting.delta, neighbours=setting.neighbours, observer=setting.observer,
        participations=setting.releases, honest=honest, rounds=setting.rounds, clients=setting.clients,
        population=setting.population, dim=dim, order=best, per_coordinate=coordinate, noise_multiplier=noise,
        noise_std_over_gaussian=over, bits_per_coordinate=mech.bits,
        bits_under_secagg=mech.sum_bits(setting.clients) if isinstance(mech, Channel) else None,
        trusted_server=isinstance(mech, Gaussian) and not mech.local,
    )  # fmt: skip


def gaussian_noise(setting: Setting, epsilon: float, tolerance: float = 1e-6) -> float:
    """The noise multiplier with which a trusted server reaches ε in this setting, accounted as everybody else."""

    def enough(z: float) -> bool:
        return _compose(setting, lambda o, n: gaussian_rdp(z, o, n)).epsilon(setting.delta)[0] <= epsilon

    return smallest(enough, 1.0, tolerance)


@dataclass(frozen=True)
class Calibration:
    """A mechanism that reaches the wanted ε. ``noise_multiplier`` is the noise on the sum over the L2 clip."""

    mechanism: Channel | Gaussian
    noise_multiplier: float
    epsilon: float
    guarantee: Guarantee | None


def calibrate(
    mechanism: Kind = "rqm",
    *,
    epsilon: float,
    delta: float,
    clients: int,
    population: int,
    rounds: int,
    dim: int,
    levels: int = 16,
    honest: int | float | None = None,
    neighbours: Neighbours | Literal["add-remove"] = "replace",
    observer: Observer = "server",
    participations: int | None = 1,
    l2_clip: float = 1.0,
    spread: float = 4.0,
    keep: float = 0.42,
    steps: int = 15,
    bits: int = 16,
) -> Calibration:
    """Find the margin (or θ, or the noise) with which a run is (ε, δ)-private for every user.

    Coordinates are clipped at c = ``spread`` · C / √d, C being ``l2_clip``: after a random rotation few are beyond.
    ``mechanism="rounding"`` is plain rounding between ``levels`` levels that all lie outside the clip but two: with two
    levels the 1-bit mechanism. The additive mechanisms have ``steps`` between -c and c and outcomes of ``bits`` bits,
    which must hold the sum. ``neighbours="add-remove"`` is for a trusted server's Gaussian with Poisson sampling.

    >>> found = calibrate("gaussian", epsilon=10, delta=1 / 3400, clients=100, population=3400, rounds=1500, dim=1,
    ...                   neighbours="add-remove", observer="outsider")
    >>> round(found.noise_multiplier, 3)
    0.848
    """
    epsilon = real("epsilon", epsilon, "a positive finite number", 0, inf)
    dim = whole("dim", dim, 1)
    l2_clip = real("l2_clip", l2_clip, "a positive finite number", 0, inf)
    if neighbours == "add-remove":
        if mechanism != "gaussian" or observer != "outsider":
            raise ValueError(
                "neighbours = 'add-remove': must come with the mechanism gaussian and the observer outsider"
            )
        setting = Setting(clients, population, rounds, delta)

        def poisson(z: float) -> float:
            return poisson_gaussian_epsilon(z, setting.clients / setting.population, rounds, delta)

        z = smallest(lambda z: poisson(z) <= epsilon, 1.0)
        return Calibration(Gaussian(z), z, poisson(z), None)
    setting = Setting(clients, population, rounds, delta, observer, participations, neighbours, honest)
    if mechanism == "gaussian":
        z = gaussian_noise(setting, epsilon)
        found = guarantee(Gaussian(z), setting, dim=dim, l2_clip=l2_clip)
        return Calibration(Gaussian(z), z, found.epsilon, found)
    clip = real("spread", spread, "a positive finite number", 0, inf) * l2_clip / sqrt(dim)
    makers: dict[str, tuple[Callable[[float], Channel], float]] = {
        kind.kind: (lambda scale, kind=kind: kind(clip=clip, scale=scale, steps=steps, bits=bits), 0.0)  # type: ignore[misc]
        for kind in (DiscreteGaussian, Skellam, Binomial)
    }
    makers |= {
        # The larger its argument, the more noise; what it must be at least, for no level to lie inside the clip.
        "rqm": (lambda reach: RQM(clip=clip, margin=reach - 1, levels=levels, keep=keep), _widest(levels)),
        "rounding": (lambda reach: Rounding(clip=clip, margin=reach - 1, levels=levels), _widest(levels)),
        "pbm": (lambda inverse: PBM(clip=clip, theta=0.5 / inverse, levels=levels), 1.0),
    }
    if mechanism not in makers:
        raise ValueError(f"mechanism = {mechanism!r}: must be one of gaussian, {', '.join(makers)}")
    make, least = makers[mechanism]
    honest_floor, left = setting.floor()

    def spent(amount: float, *, quick: bool) -> float:
        release = _release(make(amount), honest_floor, dim, l2_clip, quick=quick)
        return _compose(setting, release).epsilon(left)[0]

    # Additive noise is nearly the Gaussian's.
    first, growth = (
        (0.1, 2.0) if least else (gaussian_noise(setting, epsilon) * l2_clip / clip / sqrt(honest_floor), 1.05)
    )
    amount = least + smallest(lambda extra: spent(least + extra, quick=True) <= epsilon, first, growth=growth)
    while spent(amount, quick=False) > epsilon:  # the search looked at few inputs of the others
        amount *= 1 + 1e-4
    found = guarantee(make(amount), setting, dim=dim, l2_clip=l2_clip)
    assert found.epsilon <= epsilon, "the search ends on the private side"
    return Calibration(make(amount), found.noise_multiplier, found.epsilon, found)


def _widest(levels: int) -> float:
    """X / c from which on no level of an even number lies strictly inside the clip; odd numbers have one at 0."""
    if levels % 2:
        raise ValueError(f"levels = {levels}: must be even here, or a level lies at zero, inside the clip")
    return float(max(levels - 1, 1)) * (1 + 1e-6)
