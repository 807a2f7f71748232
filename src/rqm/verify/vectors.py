"""What a client's vector is: wider than the model in some plans, and one vertex of many where it is sent as a whole."""

from math import ceil, exp
from typing import Any

import numpy as np

from .chain import Row, shown
from .laws import UNITS, Unsure
from .promise import Promise

VECTORS = {"gradient": 1, "local": 1, "fedcomgate": 1, "fedaq": 2}
"""How many vectors of the model's length a client sends, by what it does."""
MOST = {True: 25.0, False: 50.0}
"""ε of a message of vqSGD, at most: of one index, or of bits."""


def width(plan: Any, parameters: Any) -> Any:
    """Values that a client sends for a model of so many parameters; a clip that adapts takes one more."""
    if not isinstance(plan, dict) or type(parameters) is not int:
        return parameters
    client = plan.get("client")
    work = client.get("work") if isinstance(client, dict) else None
    if work not in VECTORS:
        raise Unsure(f"client.work = {shown(work)}: this verifier does not know what such clients send")
    return VECTORS[work] * parameters + (plan.get("adapt") is not None)


def as_vertices(promise: Promise) -> Promise:
    """The same as what a vector can change, whatever it is: two of 2d flipped bits, or one index of 2d.

    Vertices are drawn, but divergences are convex: two certain ones are the worst, and zeros are some of them, too.
    """
    mech, slots = promise.mechanism, 2 * promise.coordinates
    if promise.l2_clip is None or promise.cancel is not None or promise.few is not None:
        raise Unsure("mechanism = vqsgd: must come with an L2 clip, all coordinates, and noise that stays")
    if mech["local"] and promise.honest != 1:
        raise Unsure(f"honest = {shown(promise.honest)}: must be 1 where every message is private by itself")
    whole, epsilon = (slots, mech["epsilon"]) if mech["local"] else (2, mech["epsilon"] / 2)
    other = ceil(UNITS / (exp(epsilon) + whole - 1))
    true = UNITS - (whole - 1) * other
    if not true > other > 0:
        raise Unsure(f"epsilon = {epsilon:g}: is no law of {whole} outcomes in integers")
    low = np.array([true, UNITS - true - other, other]) / UNITS  # the one, any third, the other
    low = low[low > 0]
    made: Row = {"mechanism": "vqsgd", "laws": (low, low[::-1])}
    return promise._replace(mechanism=made, dim=1 if mech["local"] else 2, rotate=False, l2_clip=None, zero_out=False)
