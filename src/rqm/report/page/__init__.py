"""The report of a run, or of several compared: one HTML file that needs nothing else."""

import base64
import io
import json
from collections.abc import Iterable
from html import escape
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imsave

from rqm import __version__
from rqm._util.numeric import mean_and_interval
from rqm._util.text import many, text_to_picture
from rqm.accounting.guarantee import USELESS_EPSILON
from rqm.data.class_names import class_names
from rqm.plan.plan import Plan
from rqm.report.page import charts
from rqm.report.page.facts import Run, find

STYLE = Path(__file__).with_name("style.css")
_SCRIPT = """
const root = document.documentElement, button = document.querySelector('header button');
const paint = dark => { root.dataset.theme = dark ? 'dark' : 'light'; button.textContent = dark ? 'Light' : 'Dark'; };
paint(matchMedia('(prefers-color-scheme: dark)').matches);
button.onclick = () => paint(root.dataset.theme !== 'dark');
"""


def build(folders: Iterable[Path], data: Path | None = None) -> str:
    """The report of all runs in some folders: of one run in full, of several as a comparison."""
    runs = find(list(folders), data)
    if len(runs) == 1:
        return _document(f"Run {runs[0].folder.name}", _single(runs[0]))
    return _document("Runs compared", _several(runs))


def _document(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; img-src data:\">"
        f"<title>{escape(title)} · rqm</title><style>{STYLE.read_text('utf-8')}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><button type="button">Dark</button></header>{body}'
        f"<p><small>Written by rqm {__version__}. This file loads nothing and sends nothing.</small></p>"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


# -- one run ------------------------------------------------------------------------------------------


def _single(one: Run) -> str:
    unfinished = (
        f'<p class="warn">Unfinished: {one.done:,} of {many(one.plan.participation.rounds, "round")}.</p>'
        if one.summary is None
        else ""
    )
    parts = [unfinished, _tiles(one), _privacy(one), _curves({one.group: [one]}), _sent(one), _time(one), _law(one)]
    return "".join([*parts, _model(one.found["model"], one.plan), _plan(one.plan)])


def _tiles(one: Run) -> str:
    guarantee = one.guarantee
    accuracy = "–" if one.accuracy is None else f"{one.accuracy:.1%}"
    epsilon = "none"
    if guarantee is not None:
        epsilon = f"{guarantee['epsilon']:.3g}" if guarantee["epsilon"] < 1e4 else f"{guarantee['epsilon']:.0e}"
    said = "a user's ε, certified" if guarantee else "a user's ε"
    tiles = [
        (accuracy, "accuracy on the test set"),
        (epsilon, said),
        (str(one.plan.mechanism.bits), "bits a coordinate"),
        (_size(one.total("bits_up") / 8), "sent by all clients"),
        (f"{one.done:,}", "rounds"),
        (f"{one.total('seconds'):.3g} s", "in all"),
    ]
    return (
        '<div class="tiles">'
        + "".join(f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>' for value, name in tiles)
        + "</div>"
    )


def _privacy(one: Run) -> str:
    """The guarantee with all of its assumptions, the trade-off curve, and what the ledger charged."""
    guarantee, about, coordinate = one.guarantee, one.found["privacy"], one.found["coordinate"]
    charged, rows, chart = about.get("charged"), list[tuple[str, str]](), ""
    verdict = f'<p class="warn">{escape(about["why"])}</p>' if guarantee is None else ""
    if guarantee is not None:
        verdict = f"<p>Deployed with secure randomness: <b>{escape(guarantee['headline'])}</b>.</p>"
        if not _is_useful(guarantee):
            verdict += '<p class="warn">An ε of this size protects nobody.</p>'
        verdict += f"<p>It assumes that:</p><ul>{''.join(_assumption(each) for each in guarantee['assumptions'])}</ul>"
        releases = f"at most {guarantee['max_participations']:,} of {many(guarantee['rounds'], 'round')}"
        rows.append((f"releases that concern one {guarantee['unit']}", releases))
        if guarantee["per_coordinate"] is not None and coordinate is None:
            rows.append(("one coordinate, one round", f"D₂ ≤ {guarantee['per_coordinate']:.4g}, certified"))
        over = guarantee["noise_std_over_gaussian"]
        if over is not None:
            rows.append(("noise", f"{over:.4f} × a trusted server's Gaussian at this ε"))
        chart = _trade_off(guarantee["trade_off"])
    if coordinate is not None:
        attained, certified = coordinate["attained"][0], coordinate["certified"][0]
        rows.append(("one coordinate, one round", f"D₂ attained {attained:.4g}, certified ≤ {certified:.4g}"))
    if charged:
        rows.append(("ledger", f"{charged['charges']} charges, ends with <code>{charged['head_hash']}</code>"))
    rows.append(("randomness", "this simulation's is seeded: <b>not private</b>, anyone with the seed can repeat it"))
    kind = "" if guarantee is not None and _is_useful(guarantee) else " none"
    return f'<section class="privacy{kind}"><h2>Privacy</h2>{verdict}{_table(rows)}{chart}</section>'


def _is_useful(guarantee: dict[str, Any]) -> bool:
    return bool(guarantee["epsilon"] <= USELESS_EPSILON)


def _assumption(assumption: dict[str, Any]) -> str:
    return f"<li>{escape(assumption['text'])}</li>"


def _trade_off(curve: list[list[float]]) -> str:
    """The most that any membership attack can reach."""
    false, true = (np.array(values) for values in curve)
    most = charts.Line("the most that any attack reaches", false, true)
    guess = charts.Line("guessing", false, false, 1)
    chart = charts.lines([most, guess], "false positive rate", "true positive rate")
    return f"<h3>Attacks that tell whether a user took part</h3>{chart}"


def _curves(groups: dict[str, list[Run]]) -> str:
    charts_ = []
    for key in ("accuracy", "loss"):
        lines = []
        for number, (name, runs) in enumerate(groups.items()):
            found = [one.evaluated(key) for one in runs]
            least = min((len(x) for x, _ in found), default=0)
            if least > 1:
                mean, half = mean_and_interval([y[:least] for _, y in found])
                band = half if np.isfinite(half).all() else None
                lines.append(charts.Line(name, found[0][0][:least], mean, number, band))
        if lines:
            charts_.append(f"<div><h3>{key} on the test set</h3>{charts.lines(lines, 'round', key)}</div>")
    seeds = max(len(runs) for runs in groups.values())
    note = f"<p><small>Mean and 95 % interval over {seeds} seeds.</small></p>" if seeds > 1 else ""
    return f'<section><h2>Learning</h2><div class="two">{"".join(charts_)}</div>{note}</section>' if charts_ else ""


def _sent(one: Run) -> str:
    bits, plan = one.total("bits_up"), one.plan
    mech = plan.mechanism
    rows = [("bits a coordinate", str(mech.bits))]
    if mech.has_integer_messages:
        rows.append(
            (
                "bits a coordinate of the secure sum",
                f"{plan.any_mean.wire_bits} ({many(plan.participation.clients, 'client')})",
            )
        )
    if plan.transforms.coordinates is not None:
        rows.append(("coordinates, a public choice for each round", f"{plan.transforms.coordinates:,}"))
    rows.append(("all clients, all rounds", _size(bits / 8)))
    if one.lines:
        rows.append(
            ("a client and round", _size(bits / 8 / max(1, sum(line.get("survivors", 0) for line in one.lines))))
        )
    if one.summary and bits:
        less = one.summary["float32_bits_up"] / bits
        rows.append(("as float32", f"{_size(one.summary['float32_bits_up'] / 8)}, {less:.3g} times as much"))
    if one.total("secagg_bytes_up"):
        rows.append(("with the protocol's keys and shares", _size(one.total("secagg_bytes_up"))))
    discarded = int(one.total("discarded"))
    if discarded:
        rows.append(("discarded rounds", f"{discarded}: too few clients were left"))
    return f"<section><h2>Bits and bytes</h2>{_table(rows)}</section>"


def _time(one: Run) -> str:
    parts: dict[str, float] = {}
    for line in one.lines:
        for name, value in (line.get("parts") or {}).items():
            parts[name] = parts.get(name, 0.0) + value
    total = one.total("seconds")
    rest = total - sum(parts.values())
    if not parts or not one.lines:
        return ""
    parts["other"] = max(0.0, rest)
    note = f"<p><small>Median round {np.median([line['seconds'] for line in one.lines]):.3g} s. On a GPU the parts are "
    return f"<section><h2>Time</h2>{charts.split(parts, 's')}{note}the time to launch them.</small></p></section>"


def _law(one: Run) -> str:
    """The mechanism's law at a few inputs."""
    law = one.found["law"]
    if law is None:
        return ""
    laws = {name: np.array(values) for name, values in law["laws"].items()}
    chart = charts.bars(laws, np.array(law["outcomes"]), "decoded value, in clips", "probability")
    about = one.plan.mechanism.to_dict()
    rows = [(key, f"{value}") for key, value in about.items() if not isinstance(value, (list, tuple))]
    rows.append(("largest variance", f"{law['variance_max']:.4g} c² a client and coordinate"))
    return f'<section><h2>The mechanism</h2><div class="two"><div>{chart}</div>{_table(rows)}</div></section>'


def _model(found: dict[str, Any], plan: Plan) -> str:
    if "why" in found:
        return f"<section><h2>The model</h2><p>Not shown: {escape(found['why'])}.</p></section>"
    confusion = np.array(found["confusion"])
    names = class_names(plan.data, len(confusion))
    rows = confusion.sum(axis=1, keepdims=True)
    share = confusion / np.maximum(1, rows)
    picture = _png(np.kron(share**0.5, np.ones((6, 6))), "magma")
    wrong = confusion - np.diag(np.diag(confusion))
    worst = np.argsort(-wrong, axis=None)[:8]
    pairs = [
        (f"{names[a]} taken for {names[b]}", f"{wrong[a, b]} of {int(rows[a, 0])}")
        for a, b in zip(*np.unravel_index(worst, wrong.shape), strict=True)
        if wrong[a, b]
    ]
    return (
        '<section><h2>The model</h2><div class="two"><div><h3>Confusion: rows are true, columns are said</h3>'
        f'<img class="matrix" alt="confusion matrix" src="{picture}">'
        "<p><small>Brightness is the square root of the share of a row; classes in the order "
        f"{escape(' '.join(names[:3]))} … {escape(names[-1])}.</small></p></div>"
        f"<div><h3>Most often confused</h3>{_table(pairs)}</div></div>"
        f"<h3>Some test pictures</h3>{_samples(found['some'], names)}"
        f"<h3>Wrong, and most sure of it</h3>{_samples(found['mistaken'], names)}</section>"
    )


def _samples(given: list[dict[str, Any]], names: list[str]) -> str:
    figures = []
    for one in given:
        said, true, right = names[one["said"]], names[one["label"]], one["said"] == one["label"]
        caption = f"<b>{escape(said)}</b> {one['sure']:.0%}" + ("" if right else f"<br>is {escape(true)}")
        source = _png(text_to_picture(one["picture"]) / 255, "gray")
        figures.append(
            f'<figure class="{"right" if right else "wrong"}"><img alt="{escape(true)}" src="{source}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return f'<div class="samples">{"".join(figures)}</div>' if figures else "<p>None.</p>"


def _plan(plan: Plan) -> str:
    text = to_toml(plan.to_dict())
    return (
        "<section><h2>Repeat it</h2><p>Save the plan as <code>plan.toml</code>, then:</p>"
        f"<pre>rqm train plan.toml --out runs/again</pre><h3>plan.toml</h3><pre>{escape(text)}</pre></section>"
    )


def to_toml(values: dict[str, Any]) -> str:
    """A plan as TOML: plain values first, then a table for each group; what is None is left out.

    >>> print(to_toml({"rounds": 3, "seed": None, "server": {"rate": 0.5, "schedule": "linear"}}))
    rounds = 3
    <BLANKLINE>
    [server]
    rate = 0.5
    schedule = "linear"
    """
    plain = [f"{key} = {json.dumps(value)}" for key, value in values.items() if _is_plain(value)]
    tables = [f"\n[{key}]\n{to_toml(value)}" for key, value in values.items() if isinstance(value, dict)]
    return "\n".join([*plain, *tables])


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, dict)


# -- several runs -------------------------------------------------------------------------------------


def grouped(runs: list[Run]) -> dict[str, list[Run]]:
    """Runs that differ in their seed only, by a name that no other group has."""
    alike: dict[str, list[Run]] = {}
    for one in runs:
        alike.setdefault(one.same, []).append(one)
    out: dict[str, list[Run]] = {}
    for group in alike.values():
        name, count = group[0].group, 1
        while name in out:
            count += 1
            name = f"{group[0].group} ({count})"
        out[name] = group
    return out


def _spent(one: Run) -> float:
    return inf if one.guarantee is None else float(one.guarantee["epsilon"])


def _several(runs: list[Run]) -> str:
    groups = grouped(runs)
    rows, statements = [], []
    for name, group in groups.items():
        # Of several seeds the one that has spent most speaks for all.
        one = max(group, key=_spent)
        guarantee = one.guarantee
        values = [each.accuracy for each in group if each.accuracy is not None]
        mean, half = mean_and_interval(values) if values else (np.nan, np.nan)
        rows.append(
            [
                name,
                f"{len(group)}",
                f"{mean:.2%}" + (f" ± {half:.2%}" if np.isfinite(half) else ""),
                "none" if guarantee is None else f"{guarantee['epsilon']:.4g}",
                f"{one.plan.mechanism.bits}",
                _size(float(np.mean([each.total("bits_up") / 8 for each in group]))),
                f"{np.mean([each.total('seconds') for each in group]):.3g} s",
                ""
                if all(each.summary for each in group)
                else f"{many(min(each.done for each in group), 'round')} so far",
            ]
        )
        statements.append(_privacy(one).replace("<h2>Privacy", f"<h2>Privacy: {escape(name)}"))
    heads = ["", "runs", "accuracy", "a user's ε", "bits", "sent", "time", ""]
    cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><tr>{''.join(f'<th>{escape(head)}</th>' for head in heads)}</tr>{cells}</table>"
    plans = "".join(
        f"<details><summary>{escape(name)}</summary><pre>{escape(to_toml(group[0].plan.to_dict()))}</pre></details>"
        for name, group in groups.items()
    )
    note = "Accuracy: mean and 95 % interval over seeds. The full guarantees are below."
    return (
        f'<section class="wide"><h2>Runs</h2>{table}<p><small>{note}</small></p></section>'
        f"{_curves(groups)}{''.join(statements)}<section><h2>Plans</h2>{plans}</section>"
    )


# -- pieces -------------------------------------------------------------------------------------------


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values; values may hold markup of this module's own."""
    return "<table>" + "".join(f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in rows) + "</table>"


def _png(values: Any, colours: str) -> str:
    """A picture of values in [0, 1] as a data address."""
    out = io.BytesIO()
    imsave(out, values, cmap=colours, vmin=0, vmax=1, format="png")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
