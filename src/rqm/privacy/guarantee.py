"""A user's (ε, δ) for a whole run: of a mechanism in a setting, as planned or as charged."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, reduce
from math import sqrt
from typing import Any, NamedTuple

from rqm.channel import Channel
from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.composition import Rdp, gaussian_rdp, orders_for, smallest, without_replacement
from rqm.privacy.ledger import participations
from rqm.privacy.losses import composed_epsilon
from rqm.privacy.setting import Neighbours, Setting
from rqm.privacy.vector import affine, budgeted, vector_rdp

FEW_RELEASES = 1000
"""Coordinates times participations up to which privacy loss distributions are composed, too."""
HOPELESS = 100
"""An ε beyond this protects nobody."""

Charges = Mapping[int, int]
"""How often each round was charged."""
Release = Callable[[Sequence[float], Neighbours, int], Rdp]
"""What one release leaks at some orders, for some neighbours, among so many honest clients."""


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy of a user over a whole run, certified: it holds for all inputs of everyone.

    ``accountant`` names the bound that gave ε: Rényi divergences (``rdp``, at ``order``) or privacy loss distributions
    (``pld``). ``dim`` counts the coordinates that are sent, ``per_coordinate`` is D₂ of one of them in one round;
    ``noise_std_over_gaussian`` is the noise of the sum over that of a trusted server's Gaussian with the same ε,
    accounted in the same way. With a ``trusted_server`` it holds against whoever sees only what the server publishes.
    """

    epsilon: float
    delta: float
    neighbours: str
    unit: str
    observer: str
    participations: int
    honest: int
    rounds: int
    clients: int
    population: int | None
    dim: int
    accountant: str
    order: float
    per_coordinate: float | None
    noise_multiplier: float
    noise_std_over_gaussian: float | None
    bits_per_coordinate: int
    bits_under_secagg: int | None
    wire_bits_per_parameter: float | None = None
    iterate_noise_over_independent: float = 1.0
    honest_fraction: float | None = None
    trusted_server: bool = False
    certified: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)

    @property
    def whom(self) -> str:
        """Against whom it holds, in words."""
        if self.trusted_server:
            return "whoever sees the noised sums but not the server's memory"
        return {"server": "the server", "outsider": "an outsider who sees all models, but not who took part"}[
            self.observer
        ]

    @property
    def changed(self) -> str:
        """What may differ between neighbours, in words."""
        return {"replace": "replaced by another", "zero-out": "replaced by zero"}[self.neighbours]

    def __str__(self) -> str:
        """The guarantee in words, with its conditions."""
        lines = [
            f"({self.epsilon:.4g}, {self.delta:.3g})-DP for every {self.unit} against {self.whom}, certified;",
            f"  a {self.unit}'s vectors {self.changed} in up to {self.participations:,} of {self.rounds:,} rounds,",
            f"  {self.honest:,} of {self.clients:,} clients of a round honest, {self.dim:,} coordinates "
            f"({'α = ' + format(self.order, 'g') if self.accountant == 'rdp' else self.accountant.upper()}).",
        ]
        if self.honest_fraction is not None:
            lines.append(
                f"  It assumes that a round's clients are drawn at random from {self.population:,} users, of whom "
                f"{self.honest_fraction:.4g} are honest."
            )
        if self.per_coordinate is not None:
            lines.append(f"  D₂ of one coordinate in one round: {self.per_coordinate:.4g}.")
        if self.noise_std_over_gaussian is not None:
            lines.append(
                f"  The noise is {self.noise_std_over_gaussian:.4f} times a trusted server's Gaussian at the same ε."
            )
        if self.epsilon > HOPELESS:
            lines.append(
                "  An ε of this size protects nobody: clip in L2, rotate, and widen the margin (rqm.calibrate)."
            )
        under = "" if self.bits_under_secagg is None else f", {self.bits_under_secagg} under secure aggregation"
        lines.append(f"  {self.bits_per_coordinate} bits a coordinate{under}.")
        return "\n".join(lines)


class Spent(NamedTuple):
    """ε, the bound that gave it, and its order if that is a Rényi divergence's."""

    epsilon: float
    accountant: str
    order: float


def spent(
    mech: Channel | Gaussian, setting: Setting, *, dim: int, l2_clip: float, charges: Charges | None = None
) -> Spent:
    """ε of all that was charged, or of the whole run as planned: every ε that is stated anywhere comes from here.

    ``charges`` says how often each round was released: more than once where it was interrupted and done again.
    """
    counted = Counter(charges) if charges is not None else Counter(range(setting.rounds))
    if not counted:
        return Spent(0.0, "rdp", float("inf"))
    few = isinstance(mech, Channel) and not budgeted(mech)
    total, count = _compose(setting, release_of(mech, dim, l2_clip), counted, few=few)
    floor = setting.floor(count)
    epsilon, order = total.epsilon(floor.delta)
    releases = dim * count
    if isinstance(mech, Channel) and affine(mech) and setting.observer == "server" and releases <= FEW_RELEASES:
        composed = composed_epsilon(mech, honest=floor.honest, releases=releases, delta=floor.delta, law="sampled")
        if composed < epsilon:
            return Spent(composed, "pld", order)
    return Spent(epsilon, "rdp", order)


def guarantee(
    mech: Channel | Gaussian,
    setting: Setting,
    *,
    dim: int,
    l2_clip: float,
    charges: Charges | None = None,
    parameters: int | None = None,
) -> Guarantee:
    """What a run with this mechanism guarantees to every user; vectors of ``dim`` coordinates within ``l2_clip``.

    As planned, or of the ``charges`` alone. ``parameters`` are those of the model: without rotation as many as ``dim``.
    """
    epsilon, accountant, order = spent(mech, setting, dim=dim, l2_clip=l2_clip, charges=charges)
    rounds = setting.rounds if charges is None else sum(charges.values())
    count = setting.releases if charges is None else _releases(setting, charges)
    floor = setting.floor(count or None)
    noise, over, coordinate, under = 0.0, None, None, None
    if isinstance(mech, Gaussian):
        noise = mech.on_sum(setting.clients)
        over = noise / mech.noise_multiplier
    else:
        noise = sqrt(setting.clients * float(mech.variance(0.0))) / l2_clip
        under = mech.sum_bits(setting.clients)
        # With the same orders as above the sums over outcomes are known already.
        few = not budgeted(mech)
        orders = orders_for(setting.observer, few)[: 1 if few else None]
        one = release_of(mech, 1, mech.clip)(orders, setting.neighbours, floor.honest)
        coordinate = float(one.values[one.orders.index(2.0)])
        if 0 < epsilon < 1e6:
            alone = replace(setting, honest=None, survivors=None, delta=floor.delta)
            over = noise / gaussian_noise(alone, epsilon, charges)
    return Guarantee(
        epsilon=epsilon, delta=setting.delta or 0.0, neighbours=setting.neighbours, unit=setting.unit,
        observer=setting.observer, participations=count, honest=1 if _alone(mech) else floor.honest, rounds=rounds,
        clients=setting.clients, population=setting.population, dim=dim, accountant=accountant, order=order,
        per_coordinate=coordinate, noise_multiplier=noise, noise_std_over_gaussian=over,
        bits_per_coordinate=mech.bits, bits_under_secagg=under,
        wire_bits_per_parameter=None if under is None else under * dim / (parameters or dim),
        honest_fraction=setting.honest if isinstance(setting.honest, float) else None,
        trusted_server=isinstance(mech, Gaussian) and not mech.local,
    )  # fmt: skip


def _alone(mech: Channel | Gaussian) -> bool:
    """Whether a client's own noise is all that is counted on."""
    return isinstance(mech, Gaussian) and mech.local


def release_of(mech: Channel | Gaussian, dim: int, l2_clip: float, *, quick: bool = False) -> Release:
    """One release of a vector, as deployed: by the law that is sampled.

    ``quick`` looks at few inputs of the others: good enough to search with, but it certifies nothing.
    """

    def release(orders: Sequence[float], neighbours: Neighbours, honest: int) -> Rdp:
        if isinstance(mech, Gaussian):
            return gaussian_rdp(mech.noise_multiplier, orders, neighbours)
        return _one(mech, tuple(map(float, orders)), honest, dim, l2_clip, neighbours, quick)

    return release


@lru_cache(maxsize=256)
def _one(
    mech: Channel, orders: tuple[float, ...], honest: int, dim: int, l2_clip: float, neighbours: Neighbours, quick: bool
) -> Rdp:
    values = vector_rdp(
        mech, orders, honest=honest, dim=dim, l2_clip=l2_clip, neighbours=neighbours, law="sampled", quick=quick
    )
    return Rdp(orders, values, neighbours)


def _releases(setting: Setting, charges: Charges) -> int:
    """The most of these releases that can tell something about one user."""
    return participations(Counter(charges), setting.participations)


def _compose(setting: Setting, release: Release, charges: Charges, *, few: bool = False) -> tuple[Rdp, int]:
    """All releases that count for one user, and how many they are; at ``few`` orders where each is dear.

    Against the server the user was in those rounds that were charged most often. The outsider is told by every round,
    and one that was done again had the same clients: its releases are composed before sampling hides who they were.
    """
    count = _releases(setting, charges)
    floor = setting.floor(count)
    orders = orders_for(setting.observer, few)
    if setting.observer == "server":
        return release(orders, setting.neighbours, floor.honest).times(count), count
    one = release(orders, "replace", floor.honest)
    parts = [
        without_replacement(one.times(times), floor.sampled, floor.users).times(rounds)
        for times, rounds in Counter(charges.values()).items()
    ]
    return reduce(Rdp.plus, parts), count


def planned_epsilon(release: Release, setting: Setting, *, few: bool = False) -> float:
    """ε of a whole run as planned, by Rényi divergences alone: what a search looks at."""
    total, count = _compose(setting, release, Counter(range(setting.rounds)), few=few)
    return total.epsilon(setting.floor(count).delta)[0]


def gaussian_noise(
    setting: Setting, epsilon: float, charges: Charges | None = None, tolerance: float = 1e-6
) -> float:  # fmt: skip
    """The noise multiplier with which a trusted server reaches ε in this setting, accounted as everybody else."""
    counted = Counter(charges) if charges is not None else Counter(range(setting.rounds))

    def enough(z: float) -> bool:
        total, count = _compose(setting, lambda o, n, _: gaussian_rdp(z, o, n), counted)
        return total.epsilon(setting.floor(count).delta)[0] <= epsilon

    return smallest(enough, 1.0, tolerance)
