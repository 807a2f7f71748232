"""The explorer: one self-contained page that shows what a mechanism does and what it leaks, as its parameters move.

The page computes laws, variances and the privacy of few clients by itself (``law.js``). What takes longer is looked up
in ``grid.json``, which ``python -m rqm.report.explorer grid`` computes with ``rqm.renyi``.
"""

import json
from collections.abc import Callable, Iterator
from importlib import resources
from math import inf, isinf
from typing import Any

from rqm import PBM, RQM, Bound, Rounding, renyi
from rqm.channel import Channel
from rqm.mechanisms.response import RandomizedResponse

ORDERS = (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, inf)
CLIENTS = (2, 5, 10, 20, 40, 100)
RQMS = ((1.0, 0.42), (2.0, 0.57), (0.66, 0.33), (1.0, 0.3), (1.0, 0.55), (2.0, 0.42), (0.66, 0.42))  # (Δ, q)
THETAS = (0.1, 0.15, 0.25, 0.35)
MARGINS = (1.0, 4.0, 20.0)  # of the 1-bit mechanism
EPSILONS = (2.0, 4.0)  # of randomized response
RESPONSE_CLIENTS = (2, 5, 10)  # its certificates take long with more

Progress = Callable[[str], None]


def build() -> str:
    """Return the page as one string of HTML: style, scripts and precomputed values inside.

    >>> build().startswith("<!doctype html>")
    True
    """
    page = _part("page.html")
    for slot, name in (("style", "style.css"), ("law", "law.js"), ("page", "page.js"), ("grid", "grid.json")):
        page = page.replace(f"/*{{{slot}}}*/", _part(name).strip())
    return page


def compute_grid(progress: Progress = lambda line: None) -> dict[str, Any]:
    """Compute what ``grid.json`` holds: attained and certified divergences, with the inputs that attain them."""
    settings = []
    for mech, counts in _settings():
        bounds = {}
        for clients in counts:
            progress(f"{mech} {clients} clients")
            bounds[str(clients)] = [_entry(bound) for bound in renyi(mech, ORDERS, clients)]
        settings.append({**_parameters(mech), "bounds": bounds})
    orders = ["inf" if isinf(alpha) else alpha for alpha in ORDERS]
    return {"orders": orders, "settings": settings}


def format_grid(grid: dict[str, Any]) -> str:
    """Write a grid as JSON, one setting and number of clients a line, so that a change shows where it is."""
    text = json.dumps(grid, allow_nan=False, separators=(",", ":"))
    for mark in ('{"mechanism"', '"bounds"', '"settings"'):
        text = text.replace(mark, "\n" + mark)
    for clients in CLIENTS:
        text = text.replace(f'"{clients}":[[', f'\n"{clients}":[[')
    return text + "\n"


def _part(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")


def _settings() -> Iterator[tuple[Channel, tuple[int, ...]]]:
    for margin, keep in RQMS:
        yield RQM(margin=margin, levels=16, keep=keep), CLIENTS
    for theta in THETAS:
        yield PBM(theta=theta, levels=16), CLIENTS
    for margin in MARGINS:
        yield Rounding(margin=margin, levels=2), CLIENTS
    for epsilon in EPSILONS:
        yield RandomizedResponse(levels=16, epsilon=epsilon), RESPONSE_CLIENTS


def _parameters(mech: Channel) -> dict[str, Any]:
    """The mechanism as the page names it: inputs are in units of the clip there."""
    return {name: value for name, value in mech.to_dict().items() if name != "clip"}


def _entry(bound: Bound) -> list[Any]:
    """[attained, certified, x, x′, [[input, other clients there], …]]."""
    others = [[round(x, 12), n] for x, n in bound.other_inputs.items()]
    return [bound.lower, bound.upper, round(bound.x, 12), round(bound.x_prime, 12), others]
