"""`rqm train`: carry out a plan of federated training. `rqm experiments`: the plans that come with the package."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.text import many
from rqm.cli import completion
from rqm.cli.formatting import Result
from rqm.cli.options import SetOption
from rqm.cli.progress import progress

if TYPE_CHECKING:
    from rqm.config.plan import Plan
    from rqm.simulation.loop import Outcome


def experiments() -> Result:
    """List the experiments that come with the package: names for `rqm train`, `rqm account` and `rqm audit`.

    Example:

        rqm experiments
    """
    from rqm.config.experiments import names, summary

    subjects = {name: summary(name) for name in names()}
    sentence = "Shipped plans: rqm account NAME prints what each guarantees, rqm train NAME --out DIR carries it out."
    return Result({"experiments": subjects}, sentence, list(subjects.items()))


def command(
    experiment: Annotated[str | None, typer.Argument(autocompletion=completion.experiments)] = None,
    data: Path | None = None,
    settings: SetOption = None,
    out: Path | None = None,
    resume: Path | None = None,
    sweep: bool = False,
    minutes: float | None = None,
    secagg: str | None = None,
    budget_epsilon: float | None = None,
    delta: float | None = None,
    expect_head: str | None = None,
    key: Path | None = None,
    witness: str | None = None,
    print_config: bool = False,
) -> Result | None:
    """Train a model by distributed DP-SGD (Algorithm 1 of the paper), simulated on this machine.

    The simulation uses seeded randomness, which is **not private**. Several GPUs or machines can share the work, with
    the same result bit for bit: torchrun --nproc-per-node 2 -m rqm train glyphs --out runs/shared

    Examples:

        rqm train glyphs --out runs/first

        rqm train --resume runs/first --set evaluate_every=5

        rqm train glyphs --sweep --out runs/compared

    Args:
        experiment: A shipped experiment (rqm experiments), its first variant; or a TOML file.
        data: The folder of the data; default $RQM_DATA, else the user's cache.
        out: Folder of the run; must be new or empty.
        resume: Continue the run in this folder.
        sweep: Run all variants of the experiment, each with its seeds.
        minutes: With --sweep: stop and save after this time; the same command continues.
        secagg: ideal: the sum modulo 2^b; real: the protocol, with all parties simulated.
        budget_epsilon: Stop before a user's ε against the server exceeds this.
        delta: δ; default that of the plan, else 1e-5 or 1/population.
        expect_head: With --resume: the ledger must end with this hash, noted elsewhere.
        key: The server's key that signs the ledger; default a key of your own (RQM_STATE).
        witness: A file elsewhere, or 'cmd: COMMAND', that records every charge: detects a restored ledger.
        print_config: Print the resolved plan and stop.
    """
    options = {"secagg": secagg, "delta": delta, "budget_epsilon": budget_epsilon}
    settings = [*(settings or []), *(f"{name}={value}" for name, value in options.items() if value is not None)]
    if sweep:
        if experiment is None or out is None or resume is not None or witness is not None or key is not None:
            raise ValueError("--sweep: must come with EXPERIMENT and --out, without --resume, --key and --witness")
        return _sweep(experiment, settings, data, out, minutes)
    if minutes is not None:
        raise ValueError(f"minutes = {minutes}: must come with --sweep; a run is stopped by Ctrl-C, and saved")
    if resume is None and expect_head is not None:
        raise ValueError(f"expect_head = {expect_head}: must come with --resume; a new run has no ledger yet")
    if resume is not None and out is not None:
        raise ValueError(f"out = {out}: must not be given with --resume, which continues in its own folder")
    plan = _read_plan(experiment, settings, resume)
    if print_config:
        return Result(plan.to_dict(), lines=[json.dumps(plan.to_dict(), indent=1)])
    folder = resume or out
    if folder is None:
        raise ValueError("out = None: must be a new folder for the run")
    is_resumed = resume is not None
    return _run(plan, folder, data, resume=is_resumed, expect_head=expect_head, key=key, witness=witness)


def _read_plan(experiment: str | None, settings: list[str], resume: Path | None) -> "Plan":
    """The plan of a shipped experiment, of a TOML file, or of the run to continue."""
    from rqm.config.experiments import find
    from rqm.config.plan import IRRELEVANT_TO_MODEL, Plan, assign
    from rqm.config.sweep import Sweep

    if resume is None:
        if experiment is None:
            raise ValueError("EXPERIMENT = None: must be a name (rqm experiments) or a TOML file")
        return next(iter(Sweep.from_toml(find(experiment), settings, first=True).variants.values()))
    changes: dict[str, Any] = {}
    for setting in settings:
        assign(changes, setting)
    if experiment is not None or not changes.keys() <= set(IRRELEVANT_TO_MODEL):
        raise ValueError(
            f"resume = {resume}: must be given alone, or with --set of {', '.join(IRRELEVANT_TO_MODEL)}; the plan is "
            "saved there"
        )
    return replace(Plan.of_run(resume), **changes)


def _run(plan: "Plan", folder: Path, data: Path | None, **options: Any) -> Result | None:
    """Carry out one run and write its report."""
    from rqm.data import load
    from rqm.simulation import run_folder
    from rqm.simulation.distributed import processes
    from rqm.simulation.loop import check_data

    clients = load(plan.data, data)
    check_data(plan, clients)
    facts: dict[str, str] = {}
    with processes(partial(load, folder=data)) as make:
        if make is None:  # another process of torchrun leads and prints the result
            return None
        try:
            with progress("training", plan.participation.rounds) as bar:

                def watch(outcome: "Outcome") -> None:
                    facts.update(_facts(outcome, plan))
                    bar.update(None, outcome.round, facts=facts.values())

                summary = run_folder.carry_out(plan, clients, folder, watch, make=make, **options)
        except KeyboardInterrupt:
            raise typer.Abort(f"stopped and saved; continue with: rqm train --resume {folder}") from None
    report = _write_report(folder, data)
    lines = [f"{folder}/: plan.json, metrics.jsonl, summary.json, checkpoint.safetensors"]
    lines += [f"report: {report}"] if report else []
    return Result({**summary, "folder": str(folder), "report": report}, notes=_notes(summary, folder), lines=lines)


def _facts(outcome: "Outcome", plan: "Plan") -> dict[str, str]:
    """What the progress bar shows about a round. Values that this round did not evaluate are left out."""
    texts = {"accuracy": "accuracy {:.1%}", "epsilon": "ε {:.4g}", "loss": "loss {:.3f}"}
    facts = {"round": f"round {outcome.round} of {plan.participation.rounds}"}
    for name, text in texts.items():
        value = getattr(outcome, name)
        if value is not None:
            facts[name] = text.format(value)
    return facts | {"bits": f"{outcome.bits_up / 8e6:.3g} MB per round"}


def _notes(summary: dict[str, Any], folder: Path) -> list[str]:
    """The result of a run."""
    notes = [f"accuracy {summary['accuracy']:.2%}, loss {summary['loss']:.4f} on the test set"]
    if summary["bits_up"]:
        ratio = summary["float32_bits_up"] / summary["bits_up"]
        notes.append(f"sent {summary['bits_up'] / 8e9:.3g} GB, {ratio:.3g} times less than float32")
    if "epsilon" in summary:
        budget = "the budget is spent: " if summary["budget_spent"] else ""
        unit = summary["plan"]["unit"]
        notes.append(
            f"privacy: {budget}({summary['epsilon']:.4g}, {summary['delta']:.3g})-DP for every {unit} against "
            f"the server, certified, after {many(summary['rounds'], 'round')} (rqm account {folder}). "
            "This simulation's randomness is seeded: not private"
        )
    elif "ledger_head" in summary:
        notes.append(
            "privacy: without an L2 clip only single coordinates are protected (rqm privacy); "
            f"over {summary['parameters']:,} coordinates, which gives no protection"
        )
    else:
        notes.append("privacy: none, the gradients are summed without noise")
    if "ledger_head" in summary:
        notes.append(f"ledger: ends with {summary['ledger_head']}")
    return notes


def _write_report(folder: Path, data: Path | None) -> str | None:
    """Write a report of a run or a sweep if matplotlib is installed; its path."""
    from importlib.util import find_spec

    from rqm.cli.report import write

    return str(write([folder], data=data)) if find_spec("matplotlib") else None


def _sweep(experiment: str, settings: list[str], data: Path | None, out: Path, minutes: float | None) -> Result | None:
    """Carry out all runs of a sweep, then write their curves, summary and report."""
    from time import perf_counter

    from rqm.config.experiments import find
    from rqm.config.sweep import Sweep
    from rqm.data import load
    from rqm.report.plots import plot_curves, save
    from rqm.simulation import sweeps
    from rqm.simulation.distributed import processes

    start = perf_counter()
    plans = Sweep.from_toml(find(experiment), settings)
    first_rounds: dict[tuple[str, int], int] = {}  # by variant and seed: rounds of the runs before it
    total = 0
    for name, plan, _ in plans.runs(out):
        first_rounds[name, plan.seed] = total
        total += plan.participation.rounds
    load_data = partial(load, folder=data)
    with processes(load_data) as make:
        if make is None:  # another process of torchrun leads and prints the result
            return None
        with progress(experiment, total) as bar:

            def watch(name: str, plan: "Plan", outcome: "Outcome") -> None:
                completed = first_rounds[name, plan.seed] + outcome.round
                bar.update(f"{name}, seed {plan.seed}", completed, facts=_facts(outcome, plan).values())

            try:
                is_done = sweeps.carry_out_sweep(plans, load_data, out, watch, minutes, make=make)
            except KeyboardInterrupt:
                is_done = False
    if not is_done:
        typer.echo("rqm: stopped before the end, all saved; the same command continues", err=True)
    saved = sweeps.save_curves(plans, out)
    curves = json.loads(saved.read_text())
    if not curves:
        raise typer.Exit(3)
    picture = str(save(plot_curves(curves), saved.with_suffix(".png")))
    report = _write_report(out, data)
    facts = {
        "summary": sweeps.save_summary(plans, out, perf_counter() - start),
        "curves": curves,
        "picture": picture,
        "report": report,
    }
    return replace(_sweep_result(facts), lines=[picture, f"report: {report}"], exit_code=0 if is_done else 3)


def _sweep_result(facts: dict[str, Any]) -> Result:
    """The guarantee of a sweep, if it has one, and the last accuracy and loss of every variant."""
    from rqm._util.numeric import mean_and_interval

    rows = []
    for name, curve in facts["curves"].items():
        row = [name, str(len(curve["loss"]))]
        for key, spec in (("accuracy", ".2%"), ("loss", ".4f")):
            last = [values[-1] for values in curve[key]]
            mean, half_width = mean_and_interval(last)
            row.append(f"{mean:{spec}} ± {half_width:{spec}}" if len(last) > 1 else f"{mean:{spec}}")
        rows.append(row)
    heads = ("", "seeds", "accuracy", "loss")
    summary = facts["summary"]
    if summary is None:
        return Result(facts, "", rows, heads)
    sentence = f"accuracy {summary['accuracy']:.1%} at ε = {summary['epsilon']:.3g}; {summary['seconds']:.0f} s"
    return Result(facts, sentence, rows, heads, [summary["sentence"]])
