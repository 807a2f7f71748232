"""``rqm train``: carry out a plan of federated training; ``rqm experiments``: the plans that come with the package."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm.cli.options import DataOption, DeltaOption, SetOption

if TYPE_CHECKING:
    from rqm.plan.plan import Plan
    from rqm.training.trainer import Record


def experiments() -> None:
    """List the experiments that come with the package: names for `rqm train`, `rqm account` and `rqm audit`.

    Example:

        rqm experiments
    """
    from rqm.plan.experiments import about, names

    for name in names():
        typer.echo(f"{name:20}{about(name)}")


KeyOption = Annotated[
    Path | None, typer.Option(help="The server's key that signs the ledger; by default one of your own (RQM_STATE).")
]
WitnessOption = Annotated[
    str | None,
    typer.Option(help="A file elsewhere, or 'cmd: COMMAND', that is told every charge: notices a ledger put back."),
]


def command(
    experiment: Annotated[
        str | None, typer.Argument(help="A shipped experiment (rqm experiments), its first variant; or a TOML file.")
    ] = None,
    data: DataOption = None,
    settings: SetOption = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; must be new or empty.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder.")] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Run all variants of the experiment, each with its seeds.")
    ] = False,
    minutes: Annotated[
        float | None, typer.Option(help="With --sweep: stop after so long, all saved; the same command goes on.")
    ] = None,
    secagg: Annotated[
        str | None, typer.Option(help="ideal: the sum modulo 2^b; real: by the true protocol, all parties simulated.")
    ] = None,
    budget_epsilon: Annotated[
        float | None, typer.Option(help="Stop before a user's ε against the server would pass this.")
    ] = None,
    delta: DeltaOption = None,
    expect_head: Annotated[
        str | None, typer.Option(help="With --resume: the ledger must end with this hash, as noted elsewhere.")
    ] = None,
    key: KeyOption = None,
    witness: WitnessOption = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the resolved plan and stop.")] = False,
) -> None:
    """Train a model by distributed DP-SGD (Algorithm 1 of the paper), simulated on this machine.

    The simulation uses seeded randomness, which is **not private**.

    Examples:

        rqm train glyphs --out runs/first

        rqm train mnist-writers --data DIR --set mechanism.keep=0.5 --out runs/second

        rqm train --resume runs/first

        rqm train glyphs --sweep --out runs/compared
    """
    given = {"secagg": secagg, "delta": delta, "budget_epsilon": budget_epsilon}
    settings = [*(settings or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    if sweep:
        if experiment is None or out is None or resume is not None or witness is not None or key is not None:
            raise ValueError("sweep = True: must come with EXPERIMENT and --out, without --resume, --key and --witness")
        _sweep(experiment, settings, data, out, minutes)
        return
    plan = _plan(experiment, settings, resume)
    if print_config:
        typer.echo(json.dumps(plan.to_dict(), indent=1))
        return
    folder = resume or out
    if folder is None:
        raise ValueError("out = None: must be a new folder for the run")
    _run(plan, folder, data, resume=resume is not None, expect_head=expect_head, key=key, witness=witness)


def _run(plan: "Plan", folder: Path, data: Path | None, **how: Any) -> None:
    from rqm.data import load
    from rqm.training import run
    from rqm.training.trainer import validate

    clients = load(plan.data, data)
    validate(plan, clients)
    leak = _leak(plan)
    try:
        work = partial(run.carry_out, plan, clients, folder, **how)
        summary = _watched(plan, leak, work)
    except KeyboardInterrupt:
        typer.echo(f"rqm: stopped and saved; go on with: rqm train --resume {folder}", err=True)
        raise typer.Exit(130) from None
    _show(summary, leak, folder)
    _report(folder, data)


def _report(folder: Path, data: Path | None) -> None:
    """A page about what was done, where what it takes is installed."""
    from importlib.util import find_spec

    from rqm.cli.report import write

    if find_spec("matplotlib"):
        typer.echo(f"report: {write([folder], data=data)}")


def _leak(plan: "Plan") -> str:
    """What one coordinate of one round may leak, certified: all that can be said of a plan without an L2 budget."""
    if plan.transforms.l2_clip is not None and plan.mechanism.private:
        return ""
    from rich.console import Console

    from rqm.privacy.worst_case import QUICK_CLIENTS, renyi

    if not plan.mechanism.integers:
        return "not private"
    if plan.clients > QUICK_CLIENTS:
        return ""
    with Console(stderr=True).status("certifying what a coordinate leaks"):
        bound = renyi(plan.mechanism.channel, 2, plan.clients, law="sampled")
    return f"D₂ ≤ {bound.upper:.3g} a coordinate"


def _sweep(experiment: str, settings: list[str], data: Path | None, out: Path, minutes: float | None) -> None:
    from time import perf_counter

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from rqm.data import load
    from rqm.plan.experiments import find
    from rqm.plan.sweep import Sweep
    from rqm.report.curves import draw
    from rqm.training import sweep as sweeps

    began = perf_counter()
    plans = Sweep.from_toml(find(experiment), settings)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(experiment)

        def watch(name: str, plan: "Plan", record: "Record") -> None:
            bar.update(task, completed=record.round, total=plan.rounds, description=f"{name}, seed {plan.seed}")

        try:
            done = sweeps.carry_out(plans, lambda name: load(name, data), out, watch, minutes)
        except KeyboardInterrupt:
            done = False
    saved = sweeps.save_curves(plans, out)
    curves = json.loads(saved.read_text())
    if curves:
        _table(curves)
        typer.echo(str(draw(curves, saved.with_suffix(".png"))))
        _report(out, data)
        _tell(sweeps.save_summary(plans, out, perf_counter() - began))
    if not done:
        typer.echo("rqm: stopped before the end, all saved; the same command goes on", err=True)
        raise typer.Exit(3)


def _table(curves: dict[str, Any]) -> None:
    """The last accuracy and loss of every variant."""
    from rich.console import Console
    from rich.table import Table

    from rqm._util.stats import mean_and_interval

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "seeds", "accuracy", "loss"):
        table.add_column(title, justify="left" if not title else "right")
    for name, entry in curves.items():
        cells = []
        for key, form in (("accuracy", "{:.2%}"), ("loss", "{:.4f}")):
            mean, half = mean_and_interval([values[-1] for values in entry[key]])
            cells.append(form.format(mean) + (" ± " + form.format(half) if len(entry[key]) > 1 else ""))
        table.add_row(name, str(len(entry["loss"])), *cells)
    Console().print(table)


def _tell(summary: dict[str, Any] | None) -> None:
    """What a sweep promises, if it does."""
    if summary is None:
        return
    free = summary["accuracy_noise_free"]
    beside = "" if free is None else f", {free:.1%} without noise"
    typer.echo(
        f"accuracy {summary['accuracy']:.1%} at ε = {summary['epsilon']:.3g}{beside}; {summary['seconds']:.0f} s"
    )
    typer.echo(summary["sentence"])


def _plan(experiment: str | None, settings: list[str], resume: Path | None) -> "Plan":
    from dataclasses import replace

    from rqm.plan.experiments import find
    from rqm.plan.plan import FREE, Plan, assign
    from rqm.plan.sweep import Sweep

    if resume is not None:
        changes: dict[str, Any] = {}
        for setting in settings:
            assign(changes, setting)
        if experiment is not None or not changes.keys() <= set(FREE):
            raise ValueError(
                f"resume = {resume}: must be given alone, or with --set of {', '.join(FREE)}; the plan is saved there"
            )
        return replace(Plan.of_run(resume), **changes)
    if experiment is None:
        raise ValueError("EXPERIMENT = None: must be a name (rqm experiments) or a TOML file")
    variants = Sweep.from_toml(find(experiment), settings, first=True).variants
    return next(iter(variants.values()))


def _watched(plan: "Plan", leak: str, work: Any) -> dict[str, Any]:
    """Do the work under a progress bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("round"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=plan.rounds)
        seen = ""

        def watch(record: "Record") -> None:
            nonlocal seen
            if record.accuracy is not None:
                seen = f"loss {record.loss:.3f}, accuracy {record.accuracy:.1%}"
            sent = record.bits_up / 8e6
            spent = leak if record.epsilon is None else f"ε {record.epsilon:.4g}"
            facts = ", ".join(filter(None, (seen, f"{record.seconds:.2g} s", f"{sent:.3g} MB", spent)))
            bar.update(task, completed=record.round, description=facts)

        summary: dict[str, Any] = work(watch)
    return summary


def _show(summary: dict[str, Any], leak: str, folder: Path) -> None:
    typer.echo(f"accuracy {summary['accuracy']:.2%}, loss {summary['loss']:.4f} on the test set")
    if summary["bits_up"]:
        ratio = summary["float32_bits_up"] / summary["bits_up"]
        typer.echo(f"sent {summary['bits_up'] / 8e9:.3g} GB, {ratio:.3g} times less than float32")
    if "epsilon" in summary:
        spent = "the budget is spent: " if summary["budget_spent"] else ""
        unit = "record" if "records" in summary["plan"] else "user"
        typer.echo(
            f"privacy: {spent}({summary['epsilon']:.4g}, {summary['delta']:.3g})-DP for every {unit} against "
            f"the server, certified, after {summary['rounds']} rounds (rqm account {folder}). "
            "This simulation's randomness is seeded: not private"
        )
    elif leak == "not private":
        typer.echo("privacy: none, the gradients are summed without noise")
    elif leak:
        typer.echo(
            f"privacy: {leak} and round, certified for one client replaced by another among "
            f"{summary['plan']['clients']} honest ones; over {summary['parameters']:,} coordinates that protects nobody"
        )
    if "ledger_head" in summary:
        typer.echo(f"ledger: ends with {summary['ledger_head']}")
    typer.echo(f"{folder}/: plan.json, metrics.jsonl, summary.json, checkpoint.safetensors")
