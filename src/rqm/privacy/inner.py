"""RQM with levels inside the clip: the margin and the keep with which it reaches a wanted ε in a setting."""

from collections.abc import Sequence
from contextlib import suppress
from math import inf, sqrt

from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.privacy.accountant import spent
from rqm.privacy.calibrate import HARDLY, NEAR_ENOUGH, best_fitted, trusted_noise
from rqm.privacy.event import Event
from rqm.privacy.setting import Setting

TURNS = 8
"""How often levels inside the clip are tried."""


def with_levels_inside(
    firsts: Sequence[Mechanism], epsilon: float, setting: Setting, *, dim: int, l2_clip: float, free: bool
) -> Mechanism:
    """The best fitted of some mechanisms; or, if that is ``free``, one with levels inside the clip that is less noisy.

    Those are asked where a wide margin is too noisy, or not possible.
    """
    refused: ValueError | None = None
    best: Mechanism | None = None
    try:
        best = best_fitted(firsts, epsilon, setting, dim=dim, l2_clip=l2_clip)
    except ValueError as error:
        refused = error
    first = firsts[0]
    if free and first.integers and first.channel.inner(1.0, 0.25):
        needed = (trusted_noise(setting, epsilon) * l2_clip) ** 2 / setting.floor().honest
        if best is None or float(best.channel.variance(0.0)) > HARDLY**2 * needed:
            with suppress(ValueError):
                other = inside(first, epsilon, setting, dim=dim, l2_clip=l2_clip)
                if best is None or float(other.variance_max) < float(best.channel.variance_max):
                    return other
    if best is None:
        assert refused is not None
        raise refused
    return best


def inside(first: Mechanism, epsilon: float, setting: Setting, *, dim: int, l2_clip: float) -> Channel:
    """A mechanism like ``first``, with levels inside the clip, that reaches ε with little noise: margin and keep.

    It has, wherever others stand, some more noise than a Gaussian that reaches ε: as little as is certified.

    >>> from rqm.mechanisms.registry import model_mechanism
    >>> from rqm.privacy.calibrate import coordinate_clip
    >>> setting = Setting(clients=1000, rounds=1, delta=1e-5)
    >>> clip = coordinate_clip(1.0, 1024)
    >>> found = inside(model_mechanism("rqm", clip, {"levels": 8}), 3.0, setting, dim=1024, l2_clip=1.0)
    >>> len(found.knots) > 2, spent(Event(found, 1024, 1.0), setting).epsilon <= 3.0
    (True, True)
    """
    channel, honest = first.channel, setting.floor().honest
    typical = min(1.0, l2_clip / channel.clip / sqrt(dim))
    least = (trusted_noise(setting, epsilon) * l2_clip / channel.clip) ** 2 / honest
    more, best = 1.15, None
    for _ in range(TURNS):
        found = channel.inner(more * least, typical)
        if not found:
            break
        reached = spent(Event(found[0], dim, l2_clip), setting).epsilon
        if reached <= epsilon:
            best = found[0]
            if reached >= NEAR_ENOUGH * epsilon:
                break
        more *= (reached / epsilon * 1.003) ** 1.6 if reached < inf else 2.0  # ε falls about as noise rises
    if best is None:
        raise ValueError(f"epsilon = {epsilon:g}: {first.kind} with levels inside the clip does not reach it here")
    return best
