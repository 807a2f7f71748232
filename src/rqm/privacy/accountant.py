"""The accountant says what events cost a user: every ε of a plan, a run or a ledger comes from here."""

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.composition import Rdp, orders_for, smallest, without_replacement
from rqm.privacy.event import Event
from rqm.privacy.losses import composed_epsilon
from rqm.privacy.setting import Setting

FEW_RELEASES = 1000
"""Coordinates times participations up to which privacy loss distributions are composed, too."""

Charges = Mapping[int, int]
"""How often each round was charged."""


class Spent(NamedTuple):
    """ε, the bound that gave it, and its order if that is a Rényi divergence's."""

    epsilon: float
    accountant: str
    order: float


def spent(event: Event, setting: Setting, charges: Charges | None = None) -> Spent:
    """ε of all that was charged, or of the whole run as planned.

    ``charges`` says how often each round was released: more than once where it was interrupted and done again.
    """
    profile = profile_of(setting, charges)
    if not profile:
        return Spent(0.0, "rdp", float("inf"))
    total = composed(event, setting, profile, few=event.dear)
    count = releases_of(setting, profile)
    floor = setting.floor(count)
    epsilon, order = total.epsilon(floor.delta)
    releases = event.dim * count
    mech = event.mechanism
    if mech.integers and mech.channel.affine and setting.observer == "server" and releases <= FEW_RELEASES:
        pld = composed_epsilon(mech.channel, honest=floor.honest, releases=releases, delta=floor.delta, law="sampled")
        if pld < epsilon:
            return Spent(pld, "pld", order)
    return Spent(epsilon, "rdp", order)


def profile_of(setting: Setting, charges: Charges | None) -> Counter[int]:
    """How many rounds were charged once, twice, …; None: every round once, as planned."""
    return Counter({1: setting.rounds}) if charges is None else Counter(times for times in charges.values() if times)


def releases_of(setting: Setting, profile: Mapping[int, int]) -> int:
    """The most of these releases that can tell something about one user, who is in those charged most often."""
    left, total = setting.participations, 0
    for times in sorted(profile, reverse=True):
        rounds = profile[times] if left is None else min(left, profile[times])
        total += times * rounds
        left = None if left is None else left - rounds
    return total


def composed(
    event: Event, setting: Setting, profile: Mapping[int, int], *, few: bool = False, quick: bool = False
) -> Rdp:
    """All releases that count for one user, of rounds that were charged so often; at ``few`` orders where each is dear.

    Against the server the user was in those rounds that were charged most often. The outsider is told by every round,
    and one that was done again had the same clients: its releases are composed before sampling hides who they were.
    """
    count = releases_of(setting, profile)
    floor = setting.floor(count)
    orders = orders_for(setting.observer, few)
    if setting.observer == "server":
        return event.rdp(orders, setting.neighbours, floor.honest, quick=quick).times(count)
    one = event.rdp(orders, "replace", floor.honest, quick=quick)
    parts = [
        without_replacement(one.times(times), floor.sampled, floor.users).times(rounds)
        for times, rounds in profile.items()
    ]
    return reduce(Rdp.plus, parts)


def planned_epsilon(
    event: Event, setting: Setting, charges: Charges | None = None, *, few: bool = False, quick: bool = False
) -> float:
    """ε of a whole run by Rényi divergences alone: what a search looks at."""
    profile = profile_of(setting, charges)
    total = composed(event, setting, profile, few=few, quick=quick)
    return total.epsilon(setting.floor(releases_of(setting, profile)).delta)[0]


def gaussian_noise(setting: Setting, epsilon: float, charges: Charges | None = None, tolerance: float = 1e-6) -> float:
    """The noise multiplier with which a trusted server reaches ε in this setting, accounted as everybody else."""

    def enough(z: float) -> bool:
        return planned_epsilon(Event(Gaussian(z), 1, 1.0), setting, charges) <= epsilon

    return smallest(enough, 1.0, tolerance)
