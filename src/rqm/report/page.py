"""The report of a run, or of several runs compared: one self-contained HTML file."""

import base64
import io
import json
from collections import Counter
from collections.abc import Iterable
from html import escape
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imsave

from rqm._util.numeric import mean_and_interval
from rqm._util.text import many, text_to_picture
from rqm.accounting.guarantee import USELESS_EPSILON
from rqm.data.class_names import class_names
from rqm.report.charts import learning_chart, pmf_chart, trade_off_chart
from rqm.report.html_document import html_document, html_section, html_table
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
    runs = [run for group in groups.values() for run in group]
    if len(runs) > 1:
        sections = [_table_of_runs(groups), _learning(groups)]
        for name, group in groups.items():
            largest = max(group, key=_epsilon)  # stands for all seeds
            sections.append(_privacy(largest, f"Privacy: {name}"))
        return html_document("Runs compared", "".join([*sections, _plans(groups)]))
    (run,) = runs
    sections = [_tiles(runs), _privacy(run, "Privacy"), _learning(groups), _messages(run), _time(run)]
    sections += [_mechanism(run), _model(run), _plans(groups)]
    return html_document(f"Run {run.path.name}", "".join(sections))


def group_runs(runs: list[RunFolder]) -> dict[str, list[RunFolder]]:
    """Group runs that differ only in their seed, each group under a name of its own."""
    groups: dict[str, list[RunFolder]] = {}
    for run in runs:
        plan_without_seed = {**run.plan.to_dict(), "seed": 0}
        groups.setdefault(json.dumps(plan_without_seed, sort_keys=True), []).append(run)
    named: dict[str, list[RunFolder]] = {}
    for group in groups.values():
        variant = group[0].variant
        name, count = variant, 1
        while name in named:
            count += 1
            name = f"{variant} ({count})"
        named[name] = group
    return named


# -- sections -----------------------------------------------------------------------------------------


def _main_figures(runs: list[RunFolder]) -> dict[str, str]:
    """The main figures of runs that differ only in their seed."""
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    accuracy = "–"
    if accuracies:
        mean, half_width = mean_and_interval(accuracies)
        accuracy = f"{mean:.2%}" if np.isnan(half_width) else f"{mean:.2%} ± {half_width:.2%}"
    epsilon = max(map(_epsilon, runs))
    plan = runs[0].plan
    rounds = str(min(len(run.metrics) for run in runs))
    if not all(run.summary for run in runs):
        rounds += f" of {plan.participation.rounds}, unfinished"
    sent = np.mean([run.total("bits_up") for run in runs]) / 8
    seconds = np.mean([run.total("seconds") for run in runs])
    return {
        "accuracy on the test set": accuracy,
        "a user's ε, certified": "none" if epsilon == inf else f"{epsilon:.3g}",
        "bits per coordinate": str(plan.mechanism.bits),
        "sent by all clients": _bytes(float(sent)),
        "rounds": rounds,
        "in total": f"{seconds:.3g} s",
    }


def _epsilon(run: RunFolder) -> float:
    return inf if run.guarantee is None else float(run.guarantee["epsilon"])


def _tiles(runs: list[RunFolder]) -> str:
    tiles = ""
    for name, value in _main_figures(runs).items():
        tiles += f'<div class="tile"><b>{value}</b><span>{name}</span></div>'
    return f'<div class="tiles">{tiles}</div>'


def _table_of_runs(groups: dict[str, list[RunFolder]]) -> str:
    rows = ""
    for name, runs in groups.items():
        figures = _main_figures(runs)
        cells = "</td><td>".join([escape(name), str(len(runs)), *figures.values()])
        rows += f"<tr><td>{cells}</td></tr>"
    heads = "</th><th>".join(["runs", *figures])
    note = "<p><small>Accuracy: mean and 95 % interval over seeds. The full guarantees are below.</small></p>"
    table = f"<table><tr><td></td><th>{heads}</th></tr>{rows}</table>"
    return html_section("Runs", table, note, css_class="wide")


def _learning(groups: dict[str, list[RunFolder]]) -> str:
    panels = ""
    for key in ("accuracy", "loss"):
        chart = learning_chart(groups, key)
        if chart is not None:
            panels += f"<div><h3>{key} on the test set</h3>{chart}</div>"
    note = "<p><small>Bands: 95 % interval of the mean over seeds.</small></p>"
    return html_section("Learning", f'<div class="two">{panels}</div>{note}') if panels else ""


def _privacy(run: RunFolder, title: str) -> str:
    """The guarantee with all of its assumptions, its trade-off curve, and the ledger."""
    privacy, coordinate = run.findings["privacy"], run.findings["coordinate"]
    content = _guarantee(run.guarantee) if run.guarantee else f'<p class="warn">{escape(privacy["why"])}</p>'
    rows = []
    if coordinate is not None:
        attained, certified = coordinate["attained"][0], coordinate["certified"][0]
        rows.append(("one coordinate, one round", f"D₂ attained {attained:.4g}, certified ≤ {certified:.4g}"))
    if "charged" in privacy:
        charged = privacy["charged"]
        rows.append(("ledger", f"{charged['charges']} charges, ends with <code>{charged['head_hash']}</code>"))
    rows.append(("randomness", "seeded, because this is a simulation: <b>not private</b>, the seed repeats it"))
    css_class = "privacy" if _epsilon(run) <= USELESS_EPSILON else "privacy none"
    return html_section(title, content, html_table(rows), css_class=css_class)


def _guarantee(guarantee: dict[str, Any]) -> str:
    content = f"<p>Deployed with secure randomness: <b>{escape(guarantee['headline'])}</b>.</p>"
    if guarantee["epsilon"] > USELESS_EPSILON:
        content += '<p class="warn">An ε of this size gives no protection.</p>'
    content += "<p>It assumes that:</p><ul>"
    for assumption in guarantee["assumptions"]:
        content += f"<li>{escape(assumption['text'])}</li>"
    content += "</ul>"
    ratio = guarantee["noise_std_over_gaussian"]
    if ratio is not None:
        content += f"<p>Its noise is {ratio:.4f} × that of a trusted server's Gaussian at this ε.</p>"
    chart = trade_off_chart(guarantee["trade_off"])
    return f"{content}<h3>Attacks that infer whether a user took part</h3>{chart}"


def _messages(run: RunFolder) -> str:
    """Bits and bytes that the clients sent."""
    sent, plan = run.total("bits_up") / 8, run.plan
    rows = [("bits per coordinate", str(plan.mechanism.bits))]
    if plan.mechanism.has_integer_messages:
        clients = many(plan.participation.clients, "client")
        rows.append(("bits per coordinate under secure aggregation", f"{plan.any_mean.wire_bits} ({clients})"))
    rows.append(("all clients, all rounds", _bytes(sent)))
    messages = run.total("survivors")
    if messages:
        rows.append(("one client, one round", _bytes(sent / messages)))
    if run.summary and sent:
        as_floats = run.summary["float32_bits_up"] / 8
        rows.append(("as float32", f"{_bytes(as_floats)}, {as_floats / sent:.3g} times as much"))
    with_protocol = run.total("secagg_bytes_up")
    if with_protocol:
        rows.append(("with the protocol's keys and shares", _bytes(with_protocol)))
    discarded = run.total("discarded")
    if discarded:
        rows.append(("discarded rounds", f"{discarded:.0f}, with too few clients"))
    return html_section("Bits and bytes", html_table(rows))


def _time(run: RunFolder) -> str:
    """Seconds for each part of the rounds."""
    seconds: Counter[str] = Counter()
    for line in run.metrics:
        seconds.update(line.get("parts") or {})
    total = run.total("seconds")
    rows = [(name, f"{value:.3g} s, {value / total:.0%}") for name, value in seconds.items()]
    note = "<p><small>On a GPU these are the times to launch the work.</small></p>"
    return html_section("Time", html_table(rows), note) if rows else ""


def _mechanism(run: RunFolder) -> str:
    """The mechanism's pmf at a few inputs, and its parameters."""
    pmf = run.findings["law"]
    if pmf is None:
        return ""
    rows = []
    for name, value in run.plan.mechanism.to_dict().items():
        if not isinstance(value, (list, tuple)):
            rows.append((name, escape(str(value))))
    rows.append(("largest variance", f"{pmf['variance_max']:.4g} clip² per client and coordinate"))
    chart = pmf_chart(pmf["outcomes"], pmf["laws"])
    return html_section("The mechanism", f'<div class="two"><div>{chart}</div>{html_table(rows)}</div>')


def _model(run: RunFolder) -> str:
    """The confusion matrix of the test set, and test pictures with the model's predictions."""
    evaluation = run.findings["model"]
    if "why" in evaluation:
        return html_section("The model", f"<p>Not shown: {escape(evaluation['why'])}.</p>")
    confusion = np.array(evaluation["confusion"])
    names, totals = class_names(run.plan.data, len(confusion)), confusion.sum(axis=1)
    mistakes = confusion - np.diag(np.diag(confusion))
    rows = []
    for position in np.argsort(-mistakes, axis=None)[:8]:
        label, prediction = divmod(int(position), len(confusion))
        if mistakes[label, prediction]:
            count = f"{mistakes[label, prediction]} of {totals[label]}"
            rows.append((f"{names[label]} taken for {names[prediction]}", count))
    fractions = confusion / np.maximum(1, totals[:, None])
    matrix = _png(np.kron(fractions**0.5, np.ones((6, 6))), "magma")
    classes = escape(" ".join(names))
    content = f"""<div class="two"><div><h3>Confusion matrix: rows are labels, columns are predictions</h3>
<img class="matrix" alt="confusion matrix" src="{matrix}">
<p><small>Brightness is the square root of the fraction of a row. Classes in order: {classes}.</small></p>
</div><div><h3>Most frequent mistakes</h3>{html_table(rows)}</div></div>
<h3>Random test pictures</h3>{_samples(evaluation["some"], names)}
<h3>Mistakes with the highest confidence</h3>{_samples(evaluation["mistaken"], names)}"""
    return html_section("The model", content)


def _samples(samples: list[dict[str, Any]], names: list[str]) -> str:
    figures = ""
    for sample in samples:
        label, prediction = escape(names[sample["label"]]), escape(names[sample["said"]])
        css_class, caption = "right", f"<b>{prediction}</b> {sample['sure']:.0%}"
        if label != prediction:
            css_class, caption = "wrong", f"{caption}<br>is {label}"
        picture = _png(text_to_picture(sample["picture"]) / 255, "gray")
        image = f'<img alt="{label}" src="{picture}">'
        figures += f'<figure class="{css_class}">{image}<figcaption>{caption}</figcaption></figure>'
    return f'<div class="samples">{figures}</div>' if figures else "<p>None.</p>"


def _plans(groups: dict[str, list[RunFolder]]) -> str:
    content = "<p>Save the plan as <code>plan.toml</code>, then:</p><pre>rqm train plan.toml --out runs/again</pre>"
    for name, runs in groups.items():
        plan = to_toml(runs[0].plan.to_dict())
        content += f"<details><summary>{escape(name)}</summary><pre>{escape(plan)}</pre></details>"
    return html_section("Repeat it", content)


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
