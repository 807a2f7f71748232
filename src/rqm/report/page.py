"""The report of a run, or of several runs compared: one self-contained HTML file."""

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

from rqm._util.pictures import unpacked
from rqm._util.stats import mean_and_interval
from rqm._util.words import many
from rqm.accounting.guarantee import USELESS_EPSILON
from rqm.data.class_names import class_names
from rqm.report.charts import learning_chart, pmf_chart, trade_off_chart
from rqm.report.html_document import html_document, html_table
from rqm.report.run_folder_reader import RunFolder, read_runs


def build_page(folders: Iterable[Path], data: Path | None = None) -> str:
    """Build the report of one run in full, or a comparison of several.

    Args:
        folders: Folders of runs or of sweeps.
        data: The folder of the data; default $RQM_DATA, else the user's cache.

    Returns:
        The HTML document.

    Raises:
        FileNotFoundError: If a folder has no run.
        ValueError: If a file is damaged.
    """
    groups = group_runs(read_runs(list(folders), data))
    learning, plans = _learning(groups), _plans(groups)
    runs = [run for group in groups.values() for run in group]
    if len(runs) > 1:
        # The seed with the largest ε stands for all.
        privacy = [_privacy(max(group, key=_epsilon), f"Privacy: {name}") for name, group in groups.items()]
        return html_document("Runs compared", "".join([_table_of_runs(groups), learning, *privacy, plans]))
    run = runs[0]
    sections = [_tiles(runs), _privacy(run, "Privacy"), learning, _messages(run), _time(run), _mechanism(run)]
    return html_document(f"Run {run.path.name}", "".join([*sections, _model(run), plans]))


def group_runs(runs: list[RunFolder]) -> dict[str, list[RunFolder]]:
    """Group runs that differ only in their seed, each group under a name of its own."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        plan_without_seed = json.dumps({**run.plan.to_dict(), "seed": 0}, sort_keys=True)
        groups.setdefault(plan_without_seed, []).append(run)
    named: dict[str, list[RunFolder]] = {}
    for group in groups.values():
        name, count = group[0].variant, 1
        while name in named:
            count += 1
            name = f"{group[0].variant} ({count})"
        named[name] = group
    return named


# -- sections -----------------------------------------------------------------------------------------


def _main_figures(runs: list[RunFolder]) -> dict[str, str]:
    """The main figures of runs that differ only in their seed."""
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    mean, half_width = mean_and_interval(accuracies) if accuracies else (np.nan, np.nan)
    epsilon = max(map(_epsilon, runs))
    rounds, planned = min(run.completed_rounds for run in runs), runs[0].plan.participation.rounds
    return {
        "accuracy on the test set": f"{mean:.2%}" + (f" ± {half_width:.2%}" if np.isfinite(half_width) else ""),
        "a user's ε, certified": "none" if epsilon == inf else f"{epsilon:.3g}",
        "bits per coordinate": str(runs[0].plan.mechanism.bits),
        "sent by all clients": _bytes(float(np.mean([run.total("bits_up") for run in runs])) / 8),
        "rounds": f"{rounds:,}" if all(run.summary for run in runs) else f"{rounds:,} of {planned:,}, unfinished",
        "in total": f"{np.mean([run.total('seconds') for run in runs]):.3g} s",
    }


def _epsilon(run: RunFolder) -> float:
    return inf if run.guarantee is None else float(run.guarantee["epsilon"])


def _tiles(runs: list[RunFolder]) -> str:
    tiles = [
        f'<div class="tile"><b>{value}</b><span>{name}</span></div>' for name, value in _main_figures(runs).items()
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _table_of_runs(groups: dict[str, list[RunFolder]]) -> str:
    rows = []
    for name, runs in groups.items():
        values = [escape(name), str(len(runs)), *_main_figures(runs).values()]
        rows.append(f"<tr><td>{'</td><td>'.join(values)}</td></tr>")
    heads = "</th><th>".join(["runs", *_main_figures(runs)])
    note = "Accuracy: mean and 95 % interval over seeds. The full guarantees are below."
    return f"""<section class="wide"><h2>Runs</h2><table><tr><td></td><th>{heads}</th></tr>{"".join(rows)}</table>
<p><small>{note}</small></p></section>"""


def _learning(groups: dict[str, list[RunFolder]]) -> str:
    charts = {key: learning_chart(groups, key) for key in ("accuracy", "loss")}
    panels = [f"<div><h3>{key} on the test set</h3>{chart}</div>" for key, chart in charts.items() if chart]
    seeds = max(len(runs) for runs in groups.values())
    note = f"<p><small>Mean and 95 % interval over {seeds} seeds.</small></p>" if seeds > 1 else ""
    return f'<section><h2>Learning</h2><div class="two">{"".join(panels)}</div>{note}</section>' if panels else ""


def _privacy(run: RunFolder, title: str) -> str:
    """The guarantee with all of its assumptions, its trade-off curve, and the ledger."""
    privacy, guarantee, coordinate = run.findings["privacy"], run.guarantee, run.findings["coordinate"]
    content, rows, is_useful = "", list[tuple[str, str]](), False
    if guarantee is None:
        content += f'<p class="warn">{escape(privacy["why"])}</p>'
    else:
        is_useful = guarantee["epsilon"] <= USELESS_EPSILON
        assumptions = "".join(f"<li>{escape(assumption['text'])}</li>" for assumption in guarantee["assumptions"])
        content += f"<p>Deployed with secure randomness: <b>{escape(guarantee['headline'])}</b>.</p>"
        content += "" if is_useful else '<p class="warn">An ε of this size protects nobody.</p>'
        content += f"<p>It assumes that:</p><ul>{assumptions}</ul>"
        content += f"<h3>Attacks that infer whether a user took part</h3>{trade_off_chart(guarantee['trade_off'])}"
        ratio = guarantee["noise_std_over_gaussian"]
        if ratio is not None:
            rows.append(("noise", f"{ratio:.4f} × a trusted server's Gaussian at this ε"))
    if coordinate is not None:
        attained, certified = coordinate["attained"][0], coordinate["certified"][0]
        rows.append(("one coordinate, one round", f"D₂ attained {attained:.4g}, certified ≤ {certified:.4g}"))
    if "charged" in privacy:
        charges, head = privacy["charged"]["charges"], privacy["charged"]["head_hash"]
        rows.append(("ledger", f"{charges} charges, ends with <code>{head}</code>"))
    rows.append(("randomness", "seeded, because this is a simulation: <b>not private</b>, the seed repeats it"))
    css_class = "privacy" if is_useful else "privacy none"
    return f'<section class="{css_class}"><h2>{escape(title)}</h2>{content}{html_table(rows)}</section>'


def _messages(run: RunFolder) -> str:
    """Bits and bytes that the clients sent."""
    sent, plan = run.total("bits_up") / 8, run.plan
    rows = [("bits per coordinate", str(plan.mechanism.bits))]
    if plan.mechanism.has_integer_messages:
        clients = many(plan.participation.clients, "client")
        rows.append(("bits per coordinate under secure aggregation", f"{plan.any_mean.wire_bits} ({clients})"))
    rows.append(("all clients, all rounds", _bytes(sent)))
    if run.total("survivors"):
        rows.append(("one client, one round", _bytes(sent / run.total("survivors"))))
    if run.summary and sent:
        float_bytes = run.summary["float32_bits_up"] / 8
        rows.append(("as float32", f"{_bytes(float_bytes)}, {float_bytes / sent:.3g} times as much"))
    if run.total("secagg_bytes_up"):
        rows.append(("with the protocol's keys and shares", _bytes(run.total("secagg_bytes_up"))))
    if run.total("discarded"):
        rows.append(("discarded rounds", f"{run.total('discarded'):.0f}, with too few clients"))
    return f"<section><h2>Bits and bytes</h2>{html_table(rows)}</section>"


def _time(run: RunFolder) -> str:
    """Seconds for each part of the rounds."""
    seconds: dict[str, float] = {}
    for line in run.metrics:
        for name, value in (line.get("parts") or {}).items():
            seconds[name] = seconds.get(name, 0.0) + value
    total = run.total("seconds")
    rows = [(name, f"{value:.3g} s, {value / total:.0%}") for name, value in seconds.items()]
    note = "On a GPU these are the times to launch the work."
    return f"<section><h2>Time</h2>{html_table(rows)}<p><small>{note}</small></p></section>" if rows else ""


def _mechanism(run: RunFolder) -> str:
    """The mechanism's pmf at a few inputs, and its parameters."""
    pmf = run.findings["law"]
    if pmf is None:
        return ""
    parameters = run.plan.mechanism.to_dict().items()
    rows = [(name, escape(str(value))) for name, value in parameters if not isinstance(value, (list, tuple))]
    rows.append(("largest variance", f"{pmf['variance_max']:.4g} clip² per client and coordinate"))
    chart = pmf_chart(pmf["outcomes"], pmf["laws"])
    return f'<section><h2>The mechanism</h2><div class="two"><div>{chart}</div>{html_table(rows)}</div></section>'


def _model(run: RunFolder) -> str:
    """The confusion matrix of the test set, and test pictures with the model's predictions."""
    evaluation = run.findings["model"]
    if "why" in evaluation:
        return f"<section><h2>The model</h2><p>Not shown: {escape(evaluation['why'])}.</p></section>"
    confusion = np.array(evaluation["confusion"])
    names, totals = class_names(run.plan.data, len(confusion)), confusion.sum(axis=1)
    mistakes = confusion - np.diag(np.diag(confusion))
    rows = []
    for label, prediction in zip(*np.unravel_index(np.argsort(-mistakes, axis=None)[:8], mistakes.shape), strict=True):
        count = mistakes[label, prediction]
        if count:
            rows.append((f"{names[label]} taken for {names[prediction]}", f"{count} of {totals[label]}"))
    fractions = confusion / np.maximum(1, totals[:, None])
    matrix = _png(np.kron(fractions**0.5, np.ones((6, 6))), "magma")
    classes = escape(f"{' '.join(names[:3])} … {names[-1]}")
    return f"""<section><h2>The model</h2>
<div class="two"><div><h3>Confusion matrix: rows are labels, columns are predictions</h3>
<img class="matrix" alt="confusion matrix" src="{matrix}">
<p><small>Brightness is the square root of the fraction of a row; classes in the order {classes}.</small></p></div>
<div><h3>Most frequent mistakes</h3>{html_table(rows)}</div></div>
<h3>Random test pictures</h3>{_samples(evaluation["some"], names)}
<h3>Mistakes with the highest confidence</h3>{_samples(evaluation["mistaken"], names)}</section>"""


def _samples(samples: list[dict[str, Any]], names: list[str]) -> str:
    figures = []
    for sample in samples:
        label, is_right = escape(names[sample["label"]]), sample["said"] == sample["label"]
        caption = f"<b>{escape(names[sample['said']])}</b> {sample['sure']:.0%}" + (
            "" if is_right else f"<br>is {label}"
        )
        picture = _png(unpacked(sample["picture"]) / 255, "gray")
        figures.append(
            f'<figure class="{"right" if is_right else "wrong"}"><img alt="{label}" src="{picture}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )
    return f'<div class="samples">{"".join(figures)}</div>' if figures else "<p>None.</p>"


def _plans(groups: dict[str, list[RunFolder]]) -> str:
    plans = [
        f"<details><summary>{escape(name)}</summary><pre>{escape(to_toml(runs[0].plan.to_dict()))}</pre></details>"
        for name, runs in groups.items()
    ]
    return f"""<section><h2>Repeat it</h2><p>Save the plan as <code>plan.toml</code>, then:</p>
<pre>rqm train plan.toml --out runs/again</pre>{"".join(plans)}</section>"""


def to_toml(values: dict[str, Any]) -> str:
    """A plan as TOML: plain values first, then a table for each group. Values that are None are left out.

    >>> print(to_toml({"rounds": 3, "seed": None, "server": {"rate": 0.5, "schedule": "linear"}}))
    rounds = 3
    <BLANKLINE>
    [server]
    rate = 0.5
    schedule = "linear"
    """
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None and key not in tables]
    return "\n".join(lines + [f"\n[{key}]\n{to_toml(table)}" for key, table in tables.items()])


# -- formatting ---------------------------------------------------------------------------------------


def _png(values: Any, colormap: str) -> str:
    """A picture of values in [0, 1] as a data URL."""
    file = io.BytesIO()
    imsave(file, values, cmap=colormap, vmin=0, vmax=1, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
