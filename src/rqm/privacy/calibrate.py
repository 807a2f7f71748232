"""The parameters with which a mechanism reaches a wanted ε in a setting."""

from math import sqrt

from rqm._util.checks import real, whole
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.registry import model_mechanism
from rqm.privacy.accountant import gaussian_noise, planned_epsilon, spent
from rqm.privacy.composition import smallest
from rqm.privacy.event import Event
from rqm.privacy.setting import Setting, checked_epsilon

SPREAD = 4.0
"""c over C/√d: after a random rotation few coordinates are beyond four times their root mean square."""
DEFAULTS = (("rounding", 2), ("pbm", 16))
"""What is tried where nobody asks for a mechanism: one bit, and four."""


def coordinate_clip(l2_clip: float, dim: int, spread: float | None = None) -> float:
    """c, the clip of each of ``dim`` rotated coordinates of vectors within C: 4 C/√d, and never more than C."""
    spread = min(SPREAD, sqrt(dim)) if spread is None else spread
    return real("spread", spread, "a positive finite number", 0, float("inf")) * l2_clip / sqrt(dim)


def fitted(first: Mechanism, epsilon: float, setting: Setting, *, dim: int, l2_clip: float) -> Mechanism:
    """The mechanism ``first`` with the least noise that makes a run (ε, δ)-private for every user.

    ``dim`` counts the coordinates that are sent, and vectors are within ``l2_clip``.
    """
    epsilon, dim, least = checked_epsilon(epsilon), whole("dim", dim, 1), first.least_noise
    if least is None:
        raise ValueError(f"mechanism = {first.kind!r}: has no noise to adjust")
    if first.gaussian_multiplier is not None:
        return first.with_noise(gaussian_noise(setting, epsilon))

    def enough(amount: float, *, quick: bool) -> bool:
        event = Event(first.with_noise(amount), dim, l2_clip)
        return planned_epsilon(event, setting, quick=quick) <= epsilon

    start, growth = 0.1, 2.0
    if first.channel.additive is not None:  # whose noise is nearly the Gaussian's
        sigma = gaussian_noise(setting, epsilon) / sqrt(setting.floor().honest)
        start, growth = sigma * l2_clip / first.channel.clip, 1.05
    amount = least + smallest(lambda extra: enough(least + extra, quick=True), start, growth=growth)
    while not enough(amount, quick=False):  # the search looked at few inputs of the others
        amount *= 1 + 1e-4
    found = first.with_noise(amount)
    assert spent(Event(found, dim, l2_clip), setting).epsilon <= epsilon, "the search ends on the private side"
    return found


def best_fit(epsilon: float, setting: Setting, *, dim: int, l2_clip: float) -> Channel:
    """The mechanism to use where nobody asks for another: one bit, or where that is noticeably noisier, PBM at four.

    Both are affine trial by trial, so that they are certified under an L2 budget.
    """
    found: list[Channel] = []
    refused: ValueError | None = None
    clip = coordinate_clip(l2_clip, dim)
    for kind, levels in DEFAULTS:
        first = model_mechanism(kind, clip, {"levels": levels})
        try:
            mech = fitted(first, epsilon, setting, dim=dim, l2_clip=l2_clip).channel
        except ValueError as error:
            refused = refused or error
        else:
            if not found or mech.variance_max < 0.95 * found[0].variance_max:
                found.insert(0, mech)
    if refused is not None and not found:
        raise refused
    return found[0]
