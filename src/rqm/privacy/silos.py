"""Noise that hides a record of a silo at a wanted ε: for every round alone, or in a fixed order, taken back in part."""

from dataclasses import replace
from math import ceil, inf, log2, sqrt

from rqm.kernels.recipe import TABLE_BITS
from rqm.mechanisms.additive import MOST_STEPS
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.registry import model_mechanism
from rqm.mechanisms.transient import WIDEST
from rqm.privacy.accountant import gaussian_noise, spent
from rqm.privacy.calibrate import AIM, FINER, NEAR, coordinate_clip, fitted
from rqm.privacy.event import Event
from rqm.privacy.factorization import Workload
from rqm.privacy.holding import gaussian_paths
from rqm.privacy.iterates import gain
from rqm.privacy.setting import Setting, checked_epsilon

BETWEEN, FARTHER = 2.0, 5.0
"""By how much the certificate of noise that is so many steps wide exceeds a Gaussian's, times the steps, about; and
where it is taken back, and tails are cut farther out."""
HARDLY_MORE = 0.01
"""A bit less is worth that much more noise."""
OWN_STEPS = 6.0
"""Steps of noise of a silo that counts on nobody else: of finer ones the table's own rounding shows, far out."""
MOST_BITS = 16
"""Bits of a sum, at most."""
TRIES = 30
"""A search ends after so many; three to six are usual."""


def best_of_records(
    epsilon: float, setting: Setting, *, dim: int, l2_clip: float, record_clip: float
) -> tuple[Channel, None]:
    """Integer noise that hides a record of any silo: in steps so fine that rounding adds hardly any noise of its own.

    Few silos do not hide each other, and the public bound on a silo's sum is many times a record's clip: coins between
    two levels that far apart would be far too coarse.
    """
    clip = coordinate_clip(l2_clip, dim)
    noise = _alone(setting, epsilon) * record_clip / clip
    own = noise / sqrt(setting.floor().honest)
    grids = sorted({min(round(1.1**power) | 1, MOST_STEPS) for power in range(102)})
    if setting.floor().honest == 1:
        grids = [min(int(2 * OWN_STEPS / own) | 1, MOST_STEPS)]
    sizes = [(steps, _bits(setting.clients, steps, own)) for steps in grids]
    each = [(_excess(steps, bits, own, noise), steps, bits) for steps, bits in sizes if bits <= MOST_BITS]
    if not each:
        raise ValueError(f"epsilon = {epsilon:g}: takes sums of more than {MOST_BITS} bits: must be larger")
    enough = min(each)[0] + HARDLY_MORE  # the shortest messages that are about as good as any
    _, steps, bits = next(one for one in each if one[0] <= enough)
    first = model_mechanism(FINER, clip, {"steps": steps, "bits": bits, "scale": own})
    return fitted(first, epsilon, setting, dim=dim, l2_clip=l2_clip, record_clip=record_clip).channel, None


def best_in_order(
    epsilon: float,
    setting: Setting,
    *,
    dim: int,
    l2_clip: float,
    record_clip: float,
    workload: Workload | None = None,
) -> tuple[Channel, float]:
    """Integer noise that stays, and noise in steps that is taken back, with the least noise in a server's iterates.

    For records in a fixed order. ``workload`` tells how the server steps; by default with momentum .9 and a rate that
    falls to zero.
    """
    ratio = gain(workload or Workload(setting.rounds)).best_ratio(setting.apart)
    clip = coordinate_clip(l2_clip, dim)
    alone = _alone(setting, epsilon) * record_clip / clip
    own = alone * sqrt(gaussian_paths(setting.apart, ratio**2, 1.0) / setting.floor().honest)
    steps, bits = _grid(setting.clients, alone, own, ratio)
    first = model_mechanism(FINER, clip, {"steps": steps, "bits": bits, "scale": own})

    def reached(times: float, quick: bool) -> float:
        event = Event(first.with_noise(own * times), dim, l2_clip, held(times), setting.apart, record_clip)
        return spent(event, setting, quick=quick).epsilon

    def held(times: float) -> float:
        return ratio * own * times * steps / 2

    times, quick = 1 + FARTHER / (alone * steps / 2), True
    for _ in range(TRIES):
        now = reached(times, quick)
        if NEAR * epsilon <= now <= epsilon:
            if not quick:
                return first.with_noise(own * times).channel, held(times)
            quick = False  # once more, as it will be reported
        else:
            times *= min(now / (AIM * epsilon), 2.0) if now < inf else 1.5
    raise ValueError(f"epsilon = {epsilon:g}: {FINER} with noise that cancels does not reach it here")


def _grid(clients: int, alone: float, own: float, ratio: float) -> tuple[int, int]:
    """Steps from −c to c, and bits: the shortest messages that are about as good as any; deviations in clips.

    ``alone`` is the noise of a sum that would hide as much if nothing were taken back, ``own`` what stays of a silo's.
    """
    each = []
    for bits in range(5, MOST_BITS + 1):  # as many steps as there is room for
        room = clients + 6.6 * own * sqrt(clients * (1 + 2 * ratio**2))
        steps = min(int((2**bits - 1) / room), MOST_STEPS, int(1.8 * WIDEST / (ratio * own)))
        steps -= 1 - steps % 2
        if steps > 0 and ratio * own * steps / 2 > 1:
            added = 0.25 + 2.0 ** (3 * bits - TABLE_BITS) / 12
            each.append((sqrt(1 + added / (own * steps / 2) ** 2) * (1 + FARTHER / (alone * steps / 2)), steps, bits))
    if not each:
        raise ValueError(f"sums of more than {MOST_BITS} bits are needed: must be a larger ε, or a smaller l2_clip")
    _, steps, bits = next(one for one in each if one[0] <= min(each)[0] + HARDLY_MORE)
    return steps, bits


def _alone(setting: Setting, epsilon: float) -> float:
    """A trusted server's noise multiplier."""
    return gaussian_noise(replace(setting, honest=None, survivors=None), checked_epsilon(epsilon))


def _excess(steps: int, bits: int, own: float, noise: float) -> float:
    """By how much noise in so many steps will exceed a Gaussian, about; deviations of a silo and of the sum, in clips.

    Rounding adds a quarter of a step squared; outcomes of one unit of the table, few and far out, add theirs; and
    between two steps the law of the sum is a mixture, which far out in its tails tells more than a Gaussian.
    """
    added = 0.25 + 2.0 ** (3 * bits - TABLE_BITS) / 12
    return sqrt(1 + added / (own * steps / 2) ** 2) * (1 + BETWEEN / (noise * steps / 2)) - 1


def _bits(clients: int, steps: int, own: float) -> int:
    """Bits that hold any sum of so many silos, six deviations of their noise besides, a tenth to spare."""
    return max(5, ceil(log2(steps * (clients + 6.6 * own * sqrt(clients)) + 1)))
