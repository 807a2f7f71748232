"""``python -m tools.tables`` writes the tables of some pages of docs/ (``PAGES``), from results/*.json.

Between a mark ``<!-- table: NAME -->`` and the next ``<!-- end -->`` stands what this makes of them; a test compares.
"""

import json
import re
from collections.abc import Callable
from math import inf, isfinite
from pathlib import Path
from typing import Any

from rqm._util.numeric import mean_and_interval
from rqm.registry import mechanism_from_dict
from tools import claims, related
from tools.methods import TARGETS, plans, reached

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("which-mechanism.md", "methods.md", "reproduction.md")]
ALONE = (0.5, 1.0, 2.0, 3.0, 4.0, 5.4699, 7.0, 9.0)
OUTSIDER = {  # of results/which-mechanism.json and results/user-level-outsider.json, in the order of the table
    "PBM": "PBM, 4 bits",
    "**1 bit**": "1 bit, ε=10",
    "RQM": "RQM, 4 bits, ε=10",
    "discrete Gaussian (Kairouz, Liu and Steinke 2021)": "discrete Gaussian, 16 bits",
    "Skellam (Agarwal, Kairouz and Liu 2021)": "Skellam, 16 bits",
    "binomial (Agarwal et al. 2018)": "binomial, 16 bits",
    "local Gaussian": "local Gaussian",
    "trusted server's Gaussian (McMahan et al. 2018)": "trusted server, ε=10",
}


def results(name: str) -> Any:
    """What a run has left."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def grid(heads: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def percent(values: list[float], digits: int = 1) -> str:
    """Mean and interval of some shares."""
    mean, half = mean_and_interval([100 * value for value in values])
    return f"{mean:.{digits}f} ± {half:.{digits}f} %"


def alone() -> str:
    """One client, one coordinate of 4 bits, pure differential privacy: the largest variance."""
    rows = []
    for name, points in results("mechanisms-alone").items():
        errors = [min((error for spent, error in points if spent <= epsilon), default=inf) for epsilon in ALONE]
        rows.append([name, *(f"{error:.3g}" for error in errors)])
    return grid(["", *(f"ε = {epsilon:g}" for epsilon in ALONE)], rows)


def forty() -> str:
    """Forty clients, order 2, 4 bits."""
    rows = [
        [one["name"], *(f"{one[key]:.4f}" for key in ("attained", "certified", "variance_max"))]
        for one in results("mechanisms-forty")
    ]
    return grid(["", "D₂ attained", "certified", "largest variance, c²"], rows)


def model() -> str:
    """A whole model before an outsider: the noise that reaches ε."""
    found = results("mechanisms-model")["candidates"]
    trusted = next(one for one in found if one["trusted_server"])
    rows = [
        [
            one["name"],
            f"{(one['mse'] / trusted['mse']) ** 0.5:.4f}",
            str(one["bits_per_coordinate"]),
            "" if one["bits_under_secagg"] is None else str(one["bits_under_secagg"]),
        ]
        for one in found
    ]
    return grid(["", "noise over a trusted server's", "bits", "under secure aggregation"], rows)


def outsider() -> str:
    """The same federation, trained: accuracy of five seeds."""
    curves = {**results("user-level-outsider"), **results("which-mechanism")}
    ends = {name: [row[-1] for row in curves[key]["accuracy"]] for name, key in OUTSIDER.items()}
    trusted, rows = list(ends.values())[-1], []
    for name, values in ends.items():
        mech = mechanism_from_dict(curves[OUTSIDER[name]]["plan"]["mechanism"])
        gap, half = mean_and_interval([100 * (a - b) for a, b in zip(values, trusted, strict=True)])
        same = "" if values is trusted else f"{gap:+.1f} ± {half:.1f} points".replace("-", "−")
        rows.append([name, str(mech.bits), percent(values), same])
    return grid(["", "bits", "accuracy", "minus the trusted server's, same seed"], rows)


def systems() -> str:
    """Every system at one ε, in one federation."""
    found, rows = results("systems"), []
    first = [hits for _, hits in found["one bit"]["ends"]]
    for name, one in found.items():
        hits = [hit for _, hit in one["ends"]]
        gap, half = mean_and_interval([100 * (a - b) for a, b in zip(hits, first, strict=True)])
        noise = "" if one["noise"] is None else f"{one['noise']:.4g}"
        if one["iterates"] not in (None, 1):
            noise = f"{one['iterates']:.2f} in the models"
        rows.append(
            [
                name,
                "none" if one["epsilon"] is None else f"{one['epsilon']:.4f}",
                noise,
                f"{one['bits']:.3g}",
                f"{one['rate']:g}",
                percent(hits),
                "" if name == "one bit" else f"{gap:+.1f} ± {half:.1f}".replace("-", "−"),
            ]
        )
    heads = [
        "",
        "ε",
        "noise over a trusted server's",
        "bits a parameter",
        "rate",
        "accuracy",
        "minus one bit's, same seed",
    ]
    return grid(heads, rows)


def free() -> str:
    """Rounds, and bits of a client, until the test loss is as low as some targets."""
    found, rows = results("methods-free"), []
    for name, plan in plans("free").items():
        losses, bits = found[name]["losses"], plan.mechanism.bits * plan.private_mean().dim / 1e6
        cells = []
        for target in TARGETS:
            first, wide = mean_and_interval([reached(one, target) for one in losses])
            cells.append(f"{first:.1f} ± {wide:.1f} ({first * bits:.2f})" if isfinite(first) else "never in all")
        last, spread = mean_and_interval([one[-1] for one in losses])
        rows.append([name, f"{bits:.3f}", f"{plan.client.rate:g}", *cells, f"{last:.4f} ± {spread:.4f}"])
    heads = [f"rounds to a loss of {target:g} (megabits a client)" for target in TARGETS]
    return grid(["steps", "megabits a round", "rate", *heads, "loss after 40 rounds"], rows)


def private() -> str:
    """With one bit a coordinate, at one ε: accuracy."""
    found, rows = results("methods-private"), []
    for name, one in found.items():
        (loss, wide), hits = mean_and_interval([end[0] for end in one["ends"]]), [end[1] for end in one["ends"]]
        told = [f"{one['epsilon']:.3f}", f"{one['noise']:.3f}", f"{one['bits']:.3g}", f"{one['rate']:g}"]
        rows.append([name, *told, percent(hits), f"{loss:.3f} ± {wide:.3f}"])
    heads = ["a user's ε", "noise of the sum, in L2 clips", "bits a parameter", "rate", "accuracy", "loss"]
    return grid(["steps", *heads], rows)


def winners() -> str:
    """Who has the least noise at the same certified ε, over numbers of clients and coordinates."""
    cells = {(one["epsilon"], one["clients"], one["dim"]): one for one in results("map")["cells"]}
    rows, dims = [], sorted({dim for _, _, dim in cells})
    for epsilon, clients in sorted({(epsilon, clients) for epsilon, clients, _ in cells}):
        told = []
        for dim in dims:
            one = cells.get((epsilon, clients, dim))
            if one is None:
                told.append("not computed")
                continue
            name = f"**{one['winner']}, levels inside**" if one["inside"] else one["winner"]
            told.append(f"{name} {one['noise'][one['winner']]:.3f}")
        rows.append([f"{epsilon:g}", f"{clients:,}", *told])
    return grid(["ε", "clients", *(f"d = {dim:,}" for dim in dims)], rows)


def checks() -> str:
    """What was attained, measured and simulated of the winners, over what is stated: from the least to the largest."""
    rows = []
    cells = results("map")["cells"]
    for name in dict.fromkeys(one["winner"] for one in cells):
        some = [one for one in cells if one["winner"] == name and one.get("measured") is not None]
        told = [f"{name}", f"{len(some)} of {sum(one['winner'] == name for one in cells)}"]
        parts = [[one[key] / one["stated"] for one in some] for key in ("attained", "measured")]
        parts.append([one["predicted_over_simulated"] for one in some])
        told += [f"{min(part):.3f} to {max(part):.3f}" if part else "not computed" for part in parts]
        rows.append(told)
    heads = ["winner", "places checked", "attained", "measured", "predicted over simulated"]
    return grid(heads, rows)


def leaks(clients: int, rival: str) -> str:
    """RQM's Rényi divergences over PBM's, order by order."""
    found = results("claims")
    return grid(["Δ, q", "θ", *(f"α = {order:g}" for order in found["orders"])], claims.ratios(found, clients, rival))


TABLES: dict[str, Callable[[], str]] = {
    "winners": winners,
    "checks": checks,
    "claims": lambda: grid(["RQM leaks", "less", "more", "open"], claims.counts(results("claims"))),
    "claims_alone": lambda: leaks(1, "published"),
    "claims_forty": lambda: leaks(40, "published"),
    "claims_equal": lambda: leaks(40, "equal"),
    "theorem": lambda: grid(
        ["Δ, q", "Theorem 5.2", "exact D_∞", "at c and −c", "attained at"], claims.theorems(results("claims"))
    ),
    "alone": alone,
    "forty": forty,
    "model": model,
    "outsider": outsider,
    "systems": systems,
    "related": related.table,
    "free": free,
    "private": private,
}


def written(text: str) -> str:
    """A page with its tables as they should be."""

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}\n\n{TABLES[match[2]]()}\n\n<!-- end -->"

    return re.sub(r"(<!-- table: (\w+) -->).*?<!-- end -->", made, text, flags=re.DOTALL)


if __name__ == "__main__":
    for _page in PAGES:
        _page.write_text(written(_page.read_text()))
        print(_page)
