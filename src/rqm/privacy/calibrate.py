"""The parameters with which a mechanism reaches a wanted ε in a setting."""

from collections.abc import Callable
from math import sqrt
from typing import Literal, get_args

from rqm._checks import real, whole
from rqm.channel import Channel
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.gaussian import Gaussian
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.privacy.composition import smallest
from rqm.privacy.guarantee import gaussian_noise, planned_epsilon, release_of, spent
from rqm.privacy.setting import Setting, checked_epsilon

Kind = Literal["gaussian", "rqm", "rounding", "pbm", "discrete-gaussian", "skellam", "binomial"]

SPREAD = 4.0
"""c over C/√d: after a random rotation few coordinates are beyond four times their root mean square."""


def coordinate_clip(l2_clip: float, dim: int, spread: float | None = None) -> float:
    """c, the clip of each of ``dim`` rotated coordinates of vectors within C: 4 C/√d, and never more than C."""
    spread = min(SPREAD, sqrt(dim)) if spread is None else spread
    return real("spread", spread, "a positive finite number", 0, float("inf")) * l2_clip / sqrt(dim)


def fitted(
    kind: Kind,
    epsilon: float,
    setting: Setting,
    *,
    dim: int,
    l2_clip: float,
    spread: float | None = None,
    levels: int = 16,
    keep: float = 0.42,
    steps: int = 15,
    bits: int = 16,
) -> Channel | Gaussian:
    """The mechanism of this kind, with the least noise that makes a run (ε, δ)-private for every user.

    ``dim`` counts the coordinates that are sent. See ``rqm.calibrate`` for the options.
    """
    epsilon, dim = checked_epsilon(epsilon), whole("dim", dim, 1)
    if kind == "gaussian":
        return Gaussian(gaussian_noise(setting, epsilon))
    if kind not in get_args(Kind):
        raise ValueError(f"mechanism = {kind!r}: must be one of {', '.join(get_args(Kind))}")
    clip = coordinate_clip(l2_clip, dim, spread)
    makers: dict[str, tuple[Callable[[float], Channel], float]] = {
        one.kind: (lambda scale, one=one: one(clip=clip, scale=scale, steps=steps, bits=bits), 0.0)  # type: ignore[misc]
        for one in (DiscreteGaussian, Skellam, Binomial)
    }
    # The larger its argument, the more noise; what it must be at least, for no level to lie inside the clip.
    if kind == "pbm":
        makers["pbm"] = (lambda inverse: PBM(clip=clip, theta=0.5 / inverse, levels=levels), 1.0)
    elif kind in ("rqm", "rounding"):
        makers["rqm"] = (lambda reach: RQM(clip=clip, margin=reach - 1, levels=levels, keep=keep), _widest(levels))
        makers["rounding"] = (lambda reach: Rounding(clip=clip, margin=reach - 1, levels=levels), _widest(levels))
    make, least = makers[kind]

    def enough(amount: float, *, quick: bool) -> bool:
        return planned_epsilon(release_of(make(amount), dim, l2_clip, quick=quick), setting) <= epsilon

    # Additive noise is nearly the Gaussian's.
    honest = setting.floor().honest
    first, growth = (0.1, 2.0) if least else (gaussian_noise(setting, epsilon) * l2_clip / clip / sqrt(honest), 1.05)
    amount = least + smallest(lambda extra: enough(least + extra, quick=True), first, growth=growth)
    while not enough(amount, quick=False):  # the search looked at few inputs of the others
        amount *= 1 + 1e-4
    found = make(amount)
    reached = spent(found, setting, dim=dim, l2_clip=l2_clip).epsilon
    assert reached <= epsilon, "the search ends on the private side"
    return found


def best_fit(epsilon: float, setting: Setting, *, dim: int, l2_clip: float) -> Channel:
    """The mechanism to use where nobody asks for another: one bit, or where that is noticeably noisier, PBM at four.

    Both are affine trial by trial, so that they are certified under an L2 budget.
    """
    found: list[Channel] = []
    refused: ValueError | None = None
    for kind, levels in (("rounding", 2), ("pbm", 16)):
        try:
            mech = fitted(kind, epsilon, setting, dim=dim, l2_clip=l2_clip, levels=levels)  # type: ignore[arg-type]
        except ValueError as error:
            refused = refused or error
        else:
            assert isinstance(mech, Channel)
            if not found or mech.variance_max < 0.95 * found[0].variance_max:
                found.insert(0, mech)
    if refused is not None and not found:
        raise refused
    return found[0]


def _widest(levels: int) -> float:
    """X / c from which on no level of an even number lies strictly inside the clip; odd numbers have one at 0."""
    if levels % 2:
        raise ValueError(f"levels = {levels}: must be even here, or a level lies at zero, inside the clip")
    return float(max(levels - 1, 1)) * (1 + 1e-6)
