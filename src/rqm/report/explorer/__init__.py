"""The explorer: one HTML page with the noise that (ε, δ) takes, and the pmf and privacy of single mechanisms.

The script of the page computes Gaussian noise. Pmfs and Rényi divergences are tables that are computed here.
"""

import json
from collections.abc import Callable
from functools import partial
from importlib import resources
from itertools import product
from math import ceil, floor, inf, log10
from typing import Any

import numpy as np

from rqm.certify.renyi import renyi
from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.pbm import PBM
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.stochastic_rounding import StochasticRounding
from rqm.report.html_document import html_document

PLOTTED_ORDERS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0, 64.0, inf)
PLOTTED_INPUTS = np.linspace(0, 1, 11)
"""In clips. The pmf of −x is that of x in reverse."""
SHOWN_MECHANISMS: tuple[tuple[str, Callable[..., DiscreteMechanism], dict[str, tuple[float, ...]]], ...] = (
    (
        "RQM, 16 levels",
        RQM,
        {
            "margin": (0.25, 0.429, 0.66, 1.0, 2.0, 2.33, 4.0),
            "keep": (0.1, 0.23, 0.33, 0.37, 0.42, 0.49, 0.57, 0.65, 0.9),
        },
    ),
    ("PBM, 16 levels", PBM, {"theta": (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45)}),
    (
        "stochastic rounding, 1 bit",
        partial(StochasticRounding, levels=2),
        {"margin": (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)},
    ),
)
"""Name, class and values of the parameters. Those of the paper are among them."""


def build_explorer() -> str:
    """Build the page.

    >>> build_explorer().startswith("<!doctype html>")
    True
    """
    tables = json.dumps(mechanism_tables(), allow_nan=False, separators=(",", ":"))
    body = f'{_resource("body.html")}<script type="application/json" id="tables">{tables}</script>'
    return html_document("What an ε costs", body, _resource("noise.js") + _resource("mechanism.js"))


def mechanism_tables() -> dict[str, Any]:
    """Tables of all mechanisms that the page shows.

    Returns:
        Rényi orders (∞ is null), and for each mechanism its name, the values of its parameters, and a table for each
        combination of them. The last parameter varies fastest.
    """
    mechanisms = []
    for name, make, parameters in SHOWN_MECHANISMS:
        settings = product(*parameters.values())
        tables = [mechanism_table(make(**dict(zip(parameters, values, strict=True)))) for values in settings]
        mechanisms.append({"name": name, "parameters": parameters, "tables": tables})
    return {"orders": [None if alpha == inf else alpha for alpha in PLOTTED_ORDERS], "mechanisms": mechanisms}


def mechanism_table(mechanism: DiscreteMechanism) -> dict[str, Any]:
    """What the page shows of one mechanism, to four digits.

    Args:
        mechanism: A mechanism with clip 1 whose pmf is symmetric.

    Returns:
        Bits, largest variance, decoded outputs, the pmf at every input, and the certified Rényi divergences of one
        message, rounded up.
    """
    return {
        "bits": mechanism.bits,
        "variance": _round(mechanism.variance_max),
        "outputs": [_round(value) for value in mechanism.grid.values],
        "pmfs": [[_round(probability) for probability in pmf] for pmf in mechanism.pmf(PLOTTED_INPUTS)],
        "renyi": [_round_up(bound.upper) for bound in renyi(mechanism, PLOTTED_ORDERS, 1)],
    }


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _round_up(value: float) -> float:
    unit = 10.0 ** (floor(log10(value)) - 3)
    return float(f"{ceil(value / unit * (1 - 1e-9)) * unit:.4g}")


def _resource(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
