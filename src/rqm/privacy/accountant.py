"""The accountant says what events cost a user: every ε of a plan, a run or a ledger comes from here."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import exp, inf, isnan, log, sqrt
from typing import NamedTuple

from rqm._util.solve import zero
from rqm.mechanisms.gaussian import Gaussian
from rqm.privacy.composition import Rdp, orders_for, without_replacement
from rqm.privacy.event import Event
from rqm.privacy.gaussian import gaussian_epsilon, gaussian_mu
from rqm.privacy.losses import coordinates
from rqm.privacy.profiles import Profile, composed_epsilon, gaussian, mixed, sampled
from rqm.privacy.records import record_epsilon, sampled_noise
from rqm.privacy.setting import Crowd, Neighbours, Setting

FEW_RELEASES = 1000
"""Coordinates times participations up to which privacy loss distributions are composed, too."""
SMALL = 64
"""Users up to whom a coordinate of a random sample is accounted for exactly."""
LOW = 16
"""Coordinates up to which a law with kinks inside the clip is accounted for by d times the worst of them, too."""
HIGH = 15.0
"""An ε of more coordinates from which on Rényi divergences of low orders may say less than the Gaussian certificate."""
LOST = 1e-3
"""The part of δ that pays for outcomes far out in the tails, which the Gaussian certificate leaves out."""
RECORD_LOST = 0.02
"""The same for records: noise of few silos is not a Gaussian's so far out, and who looks there is told more."""
TIGHT = 1.01
"""A certified μ within this of what the variance implies is not compared with other bounds."""

LOOSE = 1.1
"""The same for noise that cancels, which is not near to being useless as soon as it is not tight."""

Charges = Mapping[int, int]
"""How often each round was charged."""


class Spent(NamedTuple):
    """ε, the bound that gave it (``gaussian``, ``pld`` or ``rdp``), and its order if that is a Rényi divergence's."""

    epsilon: float
    accountant: str
    order: float | None


def spent(event: Event, setting: Setting, charges: Charges | None = None, *, quick: bool = False) -> Spent:
    """ε of all that was charged, or of the whole run as planned: the best of all bounds that are known for it.

    ``charges`` says how often each round was released: more than once where it was interrupted and done again.
    ``quick`` looks at few inputs of the others: good enough to search with, but it certifies nothing.
    """
    event, setting = _told(event, setting.charged(charges))
    profile = profile_of(setting, charges)
    if not profile:
        return Spent(0.0, "gaussian", None)
    if setting.unit == "record" or event.record_clip is not None:
        return _of_record(event, setting, profile, quick)
    if event.cancel:
        return _cancelled(event, setting, profile, charges, quick)
    if event.dear and setting.observer == "server" and event.dim * releases_of(setting, profile) == 1:
        return Spent(_of_coordinate(event, setting, quick), "pld", None)
    found = [Spent(_by_gaussian(event, setting, profile, quick), "gaussian", None)]
    if found[0].epsilon == inf or not _tight(event, setting, profile, quick):
        found.append(Spent(_by_losses(event, setting, profile, quick), "pld", None))
        if event.dear and event.dim > LOW and found[0].epsilon < HIGH:
            return found[0]
        if found[1].epsilon == inf or not _exact(event, setting):
            found.append(_by_divergences(event, setting, profile, quick, min(one.epsilon for one in found)))
    return min(found, key=lambda one: one.epsilon)


def _told(event: Event, setting: Setting) -> tuple[Event, Setting]:
    """What can differ, and between whom: a vector of zeros that is sent as a whole is some vertex, as any other is.

    What is accounted for by itself is hidden by nobody else.
    """
    if event.mechanism.integers and event.mechanism.hides_alone and setting.floor().honest > 1:
        raise ValueError(f"honest = {setting.honest}: must be 1, since a client's message is accounted for by itself")
    if event.mechanism.whole is not None and setting.neighbours == "zero-out":
        setting = replace(setting, neighbours="replace")
    return event.told, setting


def _of_record(event: Event, setting: Setting, profile: Mapping[int, int], quick: bool) -> Spent:
    """By the Gaussian certificate of a record, sampled by privacy loss distributions; infinite if there is none."""
    if setting.unit != "record" or event.record_clip is None:
        raise ValueError(f"record_clip = {event.record_clip}: must be given for records, and only there")
    if event.cancel:
        return _in_order(event, setting, profile, quick)
    count, floor = releases_of(setting, profile), setting.floor()
    lost = lost_of(event, setting, profile)
    mu = event.mu(setting.neighbours, floor.honest, lost, quick=quick)
    taken, rate = _taken(setting, profile), setting.record_rate
    found = record_epsilon(mu, rate, taken, floor.delta - lost * count, quick=quick)
    return Spent(found, "gaussian" if rate in (None, 1) else "pld", None)


def _in_order(event: Event, setting: Setting, profile: Mapping[int, int], quick: bool) -> Spent:
    """By the certificate of records in a fixed order and noise that cancels; or as if that noise were known.

    A silo that misses a round takes back nothing there, and begins anew: it is missing in two rounds' noise.
    """
    count, floor = releases_of(setting, profile), setting.floor()
    if event.mechanism.gaussian_multiplier is not None:
        mu = event.mu(setting.neighbours, floor.honest, 0.0) * sqrt(count)
        return Spent(gaussian_epsilon(mu, floor.delta), "gaussian", None)
    gone = 0 if setting.survivors is None else setting.clients - setting.survivors
    found = event.in_order(setting.neighbours, max(1, floor.honest - gone), count, floor.delta, quick=quick)
    stays = replace(event, cancel=None, separation=1)
    least = gaussian_epsilon(stays.least_mu(setting.neighbours, floor.honest) * sqrt(count), floor.delta)
    if found <= least:  # what stays alone cannot say less
        return Spent(found, "gaussian", None)
    return min(Spent(found, "gaussian", None), _of_record(stays, setting, profile, quick), key=lambda one: one.epsilon)


def _by_gaussian(event: Event, setting: Setting, profile: Mapping[int, int], quick: bool) -> float:
    """By the Gaussian certificate (``gaussian.py``); infinite if there is none."""
    lost, neighbours = lost_of(event, setting, profile), _neighbours(setting)

    def release(crowd: Crowd, times: int) -> Profile | None:
        mu = event.mu(neighbours, crowd.honest, lost, quick=quick)
        return sampled(gaussian(mu * sqrt(times)), crowd.rate) if mu < inf else None

    return _mixed(setting, profile, release, lost)


def _cancelled(
    event: Event, setting: Setting, profile: Mapping[int, int], charges: Charges | None, quick: bool
) -> Spent:
    """By the certificate of noise that cancels; where it is loose, as if all transient noise were known."""
    found = Spent(_by_paths(event, setting, profile, quick), "gaussian", None)
    if event.mechanism.gaussian_multiplier is not None:
        return found
    if found.epsilon < inf and _tight(event, setting, profile, quick):
        return found
    coins = spent(replace(event, cancel=None, separation=1), setting, charges, quick=quick)
    return min(found, coins, key=lambda one: one.epsilon)


def _by_paths(event: Event, setting: Setting, profile: Mapping[int, int], quick: bool) -> float:
    """By the certificate of noise that cancels (``cancel.py``), with the fewest honest clients of all rounds it takes.

    A round that is done again is another participation, in a chain begun anew: nobody may take his noise back twice.
    """
    count = releases_of(setting, profile)
    floor, lost = setting.floor(count * event.separation), lost_of(event, setting, profile)
    mu = event.mu(setting.neighbours, floor.honest, lost, quick=quick)
    return gaussian_epsilon(mu * sqrt(count), floor.delta - lost * count) if mu < inf else inf


def _by_losses(event: Event, setting: Setting, profile: Mapping[int, int], quick: bool) -> float:
    """By privacy loss distributions of single coordinates, where there are few; infinite if there are many.

    If who is honest is left to chance, the Gaussian certificate helps out where there are many of them.
    """
    mech, server = event.mechanism, setting.observer == "server"
    count = event.dim * (releases_of(setting, profile) if server else max(profile))
    if not mech.integers or count > FEW_RELEASES:
        return inf
    if mech.channel.additive is not None:
        if (
            event.dim > 2 * (event.l2_clip / mech.channel.clip) ** 2
        ):  # all coordinates at once are far beyond the budget
            return inf
    elif not mech.channel.affine:
        return inf
    channel, lost, neighbours = mech.channel, lost_of(event, setting, profile), _neighbours(setting)
    chance = isinstance(setting.honest, float)

    def release(crowd: Crowd, times: int) -> Profile | None:
        count, users = event.dim * times, round(crowd.honest / crowd.rate)
        alone = channel.trials * count == 1 and channel.affine
        if alone and crowd.rate < 1 and setting.survivors is None and users <= SMALL:
            return coordinates(channel, honest=crowd.honest, releases=1, users=users, law="sampled")
        mu = event.mu(neighbours, crowd.honest, lost, quick=quick) if chance else inf
        if mu <= TIGHT * event.least_mu(neighbours, crowd.honest):
            return sampled(gaussian(mu * sqrt(times)), crowd.rate)
        found = coordinates(channel, honest=crowd.honest, releases=count, law="sampled", quick=quick)
        return None if found is None else sampled(found, crowd.rate)

    return _mixed(setting, profile, release, lost if chance else 0.0)


def _of_coordinate(event: Event, setting: Setting, quick: bool) -> float:
    """By hockey-stick divergences of the one coordinate of one release, of a law with kinks inside the clip."""
    from rqm.privacy.inner import coordinate_epsilon  # noqa: PLC0415 (takes the compiler)

    floor = setting.floor(1)
    return coordinate_epsilon(event.mechanism.channel, floor.delta, floor.honest, "sampled", quick=quick)


def _mixed(
    setting: Setting,
    profile: Mapping[int, int],
    release: Callable[[Crowd, int], Profile | None],
    lost: float,
) -> float:
    """ε of a run whose releases have these profiles, by who is honest in each, but for outcomes of so much probability.

    Against the server a user was in those rounds that were charged most often; the outsider is told by every round. One
    that was done again had the same clients: its releases are composed before it is left to chance who they were.
    """
    count = releases_of(setting, profile)
    crowds, delta = setting.crowds(count)
    groups = _taken(setting, profile) if setting.observer == "server" else dict(profile)
    delta -= lost * sum(times * rounds for times, rounds in groups.items())
    if setting.observer == "server" and len(crowds) == 1:
        groups = {count: 1}
    parts = []
    for times, rounds in groups.items():
        each = [(crowd, release(crowd, times)) for crowd in crowds]
        known = [(crowd.weight, one) for crowd, one in each if one is not None]
        if len(known) < len(each):
            return inf
        parts.append((mixed(known) if len(known) > 1 else known[0][1], rounds))
    found = composed_epsilon(parts, delta)
    return inf if isnan(found) else found


def _by_divergences(
    event: Event, setting: Setting, profile: Mapping[int, int], quick: bool, known: float = inf
) -> Spent:
    """By Rényi divergences, with the fewest honest clients that a release may hold.

    Where each order is dear, one is left out if what is attained at it makes more of ε than another certifies, or than
    is ``known``; infinite if all are.
    """
    count = releases_of(setting, profile)
    floor, orders = setting.floor(count), orders_for(setting.observer, event.dear)
    if setting.observer != "server" or not event.dear:
        epsilon, best_order = composed(event, setting, profile, orders, quick=quick).epsilon(floor.delta)
        return Spent(epsilon, "rdp", best_order)
    least = Rdp(orders, count * event.attained(orders, floor.honest), setting.neighbours).epsilons(floor.delta)
    best = Spent(inf, "rdp", orders[0])
    for at_least, order in sorted(zip(least, orders, strict=True)):
        if at_least < min(best.epsilon, known):
            total = composed(event, setting, profile, (order,), quick=quick)
            best = min(best, Spent(total.epsilon(floor.delta)[0], "rdp", order), key=lambda one: one.epsilon)
    return best


def _tight(event: Event, setting: Setting, profile: Mapping[int, int], quick: bool) -> bool:
    """Whether the certificate is so near to a Gaussian of the same variance that no other can be much better."""
    honest, lost = (
        min(crowd.honest for crowd in setting.crowds(releases_of(setting, profile))[0]),
        lost_of(event, setting, profile),
    )
    found = event.mu(_neighbours(setting), honest, lost, quick=quick)
    return found <= (LOOSE if event.cancel else TIGHT) * event.least_mu(_neighbours(setting), honest)


def _exact(event: Event, setting: Setting) -> bool:
    """Whether loss distributions, where they are composed, are of a pair that is attained: nothing can be better.

    They are of inputs at both ends of the clip: a vector of zero, or one whose L2 norm is less, is at neither. Where a
    coordinate is a sum of trials, they are of others whose trials may differ: hardly more.
    """
    channel, ends = event.mechanism.channel, setting.observer == "server" and setting.neighbours == "replace"
    return ends and event.dim == 1 and event.l2_clip >= channel.clip


def lost_of(event: Event, setting: Setting, profile: Mapping[int, int]) -> float:
    """The probability that the Gaussian certificate leaves out of every release that can tell of one user."""
    assert setting.delta is not None
    if event.mechanism.gaussian_multiplier is not None:
        return 0.0
    part = LOST if event.record_clip is None else RECORD_LOST
    return part * setting.delta / releases_of(setting, profile)


def _neighbours(setting: Setting) -> Neighbours:
    """A sample with the user is compared with one that holds somebody else instead."""
    return setting.neighbours if setting.observer == "server" else "replace"


def profile_of(setting: Setting, charges: Charges | None) -> Counter[int]:
    """How many rounds were charged once, twice, …; None: every round once, as planned."""
    return Counter({1: setting.rounds}) if charges is None else Counter(times for times in charges.values() if times)


def releases_of(setting: Setting, profile: Mapping[int, int]) -> int:
    """The most of these releases that can tell something about one user, who is in those charged most often."""
    return sum(times * rounds for times, rounds in _taken(setting, profile).items())


def _taken(setting: Setting, profile: Mapping[int, int]) -> dict[int, int]:
    """How many rounds charged once, twice, … a user took part in at the worst: in those charged most often."""
    left, taken = setting.cap, dict[int, int]()
    for times in sorted(profile, reverse=True):
        rounds = profile[times] if left is None else min(left, profile[times])
        if rounds:
            taken[times] = rounds
        left = None if left is None else left - rounds
    return taken


def composed(
    event: Event, setting: Setting, profile: Mapping[int, int], orders: Sequence[float], *, quick: bool = False
) -> Rdp:
    """All releases that count for one user, of rounds charged so often."""
    count = releases_of(setting, profile)
    floor = setting.floor(count)
    if setting.observer == "server":
        return event.rdp(orders, setting.neighbours, floor.honest, quick=quick).times(count)
    one = event.rdp(orders, "replace", floor.honest, quick=quick)
    parts = [
        without_replacement(one.times(times), floor.sampled, floor.users).times(rounds)
        for times, rounds in profile.items()
    ]
    return reduce(Rdp.plus, parts)


def together(parts: Sequence[tuple[Event, Setting]], delta: float) -> Spent:
    """ε of several kinds of releases, seen by the same observer; each setting's rounds are all of its kind."""
    parts = [_told(event, setting) for event, setting in parts]
    if len(parts) == 1:
        return spent(parts[0][0], replace(parts[0][1], delta=delta))
    count = sum(setting.rounds for _, setting in parts)
    gaussians = []
    for event, setting in parts:
        crowd = setting.crowds()[0][0]
        mu = event.mu(_neighbours(setting), crowd.honest, LOST * delta / count)
        if mu < inf:
            gaussians.append((sampled(gaussian(mu), crowd.rate), setting.rounds))
    each = [composed(event, setting, {1: setting.rounds}, orders_for(setting.observer)) for event, setting in parts]
    total = reduce(Rdp.plus, each)
    epsilon, order = total.epsilon(delta)
    found = [Spent(epsilon, "rdp", order)]
    if len(gaussians) == len(parts):
        found.append(Spent(composed_epsilon(gaussians, (1 - LOST) * delta), "gaussian", None))
    return min(found, key=lambda one: one.epsilon)


def gaussian_noise(setting: Setting, epsilon: float, charges: Charges | None = None) -> float:
    """The noise multiplier with which a trusted server's Gaussian reaches ε in this setting, by its exact account."""
    setting, profile = setting.charged(charges), profile_of(setting, charges)
    far = 2.0 if _neighbours(setting) == "replace" else 1.0
    assert setting.delta is not None
    alone = far * sqrt(releases_of(setting, profile)) / gaussian_mu(epsilon, setting.delta) * (1 + 1e-9)
    if setting.record_rate not in (None, 1):
        return sampled_noise(epsilon, setting.record_rate or 1, profile, setting.delta, alone)
    if setting.observer == "server":
        return alone

    def missed(logarithm: float) -> float:
        found = _by_gaussian(Event(Gaussian(exp(logarithm)), 1, 1.0), setting, profile, quick=False)
        return log(max(found, 1e-9) / epsilon)

    low = log(alone)
    while missed(low) <= 0:  # sampling hides something
        low -= 1
    found = zero(missed, low, low + 1, xtol=1e-7)
    while missed(found) > 0:
        found += 1e-7
    return exp(found)
