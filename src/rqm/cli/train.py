"""``rqm train``: carry out a plan of federated training; ``rqm experiments``: the plans that come with the package."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.words import many
from rqm.cli import names
from rqm.cli.options import DataOption, DeltaOption, JsonOption, SetOption
from rqm.cli.words import listing, say

if TYPE_CHECKING:
    from rqm.plan.plan import Plan
    from rqm.training.trainer import Record


def experiments(as_json: JsonOption = False) -> None:
    """List the experiments that come with the package: names for `rqm train`, `rqm account` and `rqm audit`.

    Example:

        rqm experiments
    """
    from rqm.plan.experiments import about, names

    found = {name: about(name) for name in names()}
    if as_json:
        typer.echo(json.dumps({"experiments": found}))
        return
    say("Plans that come along: rqm account NAME says what each promises, rqm train NAME --out DIR carries it out.")
    listing(found)


KeyOption = Annotated[
    Path | None, typer.Option(help="The server's key that signs the ledger; by default one of your own (RQM_STATE).")
]
WitnessOption = Annotated[
    str | None,
    typer.Option(help="A file elsewhere, or 'cmd: COMMAND', that is told every charge: notices a ledger put back."),
]


def command(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A shipped experiment (rqm experiments), its first variant; or a TOML file.",
            autocompletion=names.experiments,
        ),
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
    as_json: JsonOption = False,
) -> None:
    """Train a model by distributed DP-SGD (Algorithm 1 of the paper), simulated on this machine.

    The simulation uses seeded randomness, which is **not private**. Several GPUs or machines share it, bit for bit:
    torchrun --nproc-per-node 2 -m rqm train glyphs --out runs/shared

    Examples:

        rqm train glyphs --out runs/first

        rqm train --resume runs/first --set evaluate_every=5

        rqm train glyphs --sweep --out runs/compared
    """
    given = {"secagg": secagg, "delta": delta, "budget_epsilon": budget_epsilon}
    settings = [*(settings or []), *(f"{name}={value}" for name, value in given.items() if value is not None)]
    if sweep:
        if experiment is None or out is None or resume is not None or witness is not None or key is not None:
            raise ValueError("--sweep: must come with EXPERIMENT and --out, without --resume, --key and --witness")
        _sweep(experiment, settings, data, out, minutes, as_json)
        return
    _together(out=out, resume=resume, minutes=minutes, expect_head=expect_head)
    plan = _plan(experiment, settings, resume)
    if print_config:
        typer.echo(json.dumps(plan.to_dict(), indent=1))
        return
    vouched = {"expect_head": expect_head, "key": key, "witness": witness}
    _run(plan, resume or out, data, as_json, resume=resume is not None, **vouched)


def _together(out: Path | None, resume: Path | None, minutes: float | None, expect_head: str | None) -> None:
    """Refuse options that a single run would not look at."""
    if minutes is not None:
        raise ValueError(f"minutes = {minutes}: must come with --sweep; a run is stopped by Ctrl-C, and saved")
    if resume is None and expect_head is not None:
        raise ValueError(f"expect_head = {expect_head}: must come with --resume; a new run has no ledger yet")
    if resume is not None and out is not None:
        raise ValueError(f"out = {out}: must not be given with --resume, which goes on in its own folder")


def _run(plan: "Plan", folder: Path | None, data: Path | None, as_json: bool, **how: Any) -> None:
    if folder is None:
        raise ValueError("out = None: must be a new folder for the run")
    from rqm.data import load
    from rqm.training import run
    from rqm.training.engine import joined
    from rqm.training.trainer import validate

    clients = load(plan.data, data)
    validate(plan, clients)
    with joined(lambda name: load(name, data)) as make:
        if make is None:  # another process leads
            return
        leak = _leak(plan, as_json)
        try:
            work = partial(run.carry_out, plan, clients, folder, make=make, **how)
            summary = _watched(plan, leak, work, as_json)
        except KeyboardInterrupt:
            typer.echo(f"rqm: stopped and saved; go on with: rqm train --resume {folder}", err=True)
            raise typer.Exit(130) from None
    report = _report(folder, data, as_json)
    if as_json:
        typer.echo(json.dumps({**summary, "folder": str(folder), "report": report}))
        return
    _show(summary, leak, folder)
    if report:
        typer.echo(f"report: {report}")


def _report(folder: Path, data: Path | None, quiet: bool) -> str | None:
    """A page about what was done, where what it takes is installed; its path."""
    from importlib.util import find_spec

    from rqm.cli.report import write

    return str(write([folder], data=data, quiet=quiet)) if find_spec("matplotlib") else None


def _leak(plan: "Plan", quiet: bool) -> str:
    """What one coordinate of one round may leak, certified: all that can be said of a plan without an L2 budget."""
    if plan.transforms.l2_clip is not None and plan.mechanism.private:
        return ""
    from rqm.certify.renyi import renyi
    from rqm.cli.waits import waiting
    from rqm.encoding.private_mean import QUICK_CLIENTS

    if not plan.mechanism.integers:
        return "not private"
    if plan.participation.clients > QUICK_CLIENTS:
        return ""
    with waiting(
        "certifying what a coordinate leaks", quiet=quiet, key=f"leak {plan.mechanism} {plan.participation.clients}"
    ):
        bound = renyi(plan.mechanism.channel, 2, plan.participation.clients, distribution="sampled")
    return f"D₂ ≤ {bound.upper:.3g} a coordinate"


def _sweep(
    experiment: str, settings: list[str], data: Path | None, out: Path, minutes: float | None, as_json: bool
) -> None:
    from time import perf_counter

    from rqm.cli.waits import waiting
    from rqm.data import load
    from rqm.plan.experiments import find
    from rqm.plan.sweep import Sweep
    from rqm.report.curves import draw
    from rqm.training import sweep as sweeps
    from rqm.training.engine import joined

    began = perf_counter()
    plans = Sweep.from_toml(find(experiment), settings)
    runs, total = plans.runs(out), sum(plan.participation.rounds for _, plan, _ in plans.runs(out))
    before = {
        (name, plan.seed): sum(one.participation.rounds for _, one, _ in runs[:k])
        for k, (name, plan, _) in enumerate(runs)
    }
    with joined(lambda name: load(name, data)) as make, waiting(experiment, total, quiet=as_json) as wait:
        if make is None:  # another process leads
            return

        def watch(name: str, plan: "Plan", record: "Record") -> None:
            over = before[name, plan.seed] + record.round
            wait.at(over, what=f"{name}, seed {plan.seed}", facts=_facts(record, plan.participation.rounds))

        try:
            done = sweeps.carry_out(plans, lambda name: load(name, data), out, watch, minutes, make=make)
        except KeyboardInterrupt:
            done = False
    saved = sweeps.save_curves(plans, out)
    curves = json.loads(saved.read_text())
    if curves:
        picture, report = str(draw(curves, saved.with_suffix(".png"))), _report(out, data, as_json)
        summary = sweeps.save_summary(plans, out, perf_counter() - began)
        if as_json:
            typer.echo(json.dumps({"summary": summary, "curves": curves, "picture": picture, "report": report}))
        else:
            _tell(summary)
            _table(curves)
            typer.echo(picture)
            typer.echo(f"report: {report}")
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
    say(f"accuracy {summary['accuracy']:.1%} at ε = {summary['epsilon']:.3g}{beside}; {summary['seconds']:.0f} s")
    say(summary["sentence"])


def _plan(experiment: str | None, settings: list[str], resume: Path | None) -> "Plan":
    from dataclasses import replace

    from rqm.plan.experiments import find
    from rqm.plan.plan import IRRELEVANT_TO_MODEL as FREE
    from rqm.plan.plan import Plan, assign
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


def _facts(record: "Record", rounds: int = 0) -> tuple[str, ...]:
    """What a round says, what matters most first; of several runs also which round it is."""
    turn = f"round {record.round} of {rounds}" if rounds else ""
    seen = "" if record.accuracy is None else f"accuracy {record.accuracy:.1%}"
    loss = "" if record.loss is None else f"loss {record.loss:.3f}"
    spent = "" if record.epsilon is None else f"ε {record.epsilon:.4g}"
    sent = f"{record.bits_up / 8e6:.3g} MB a round"
    return tuple(filter(None, (turn, seen, spent, loss, sent)))


def _watched(plan: "Plan", leak: str, work: Any, quiet: bool) -> dict[str, Any]:
    """Do the work under a bar."""
    from rqm.cli.waits import waiting

    with waiting("round", plan.participation.rounds, quiet=quiet) as wait:

        def watch(record: "Record") -> None:
            seen = record.accuracy is not None or not wait.facts  # what was seen stays until it is seen again
            wait.at(record.round, facts=(*_facts(record), leak) if seen else wait.facts)

        summary: dict[str, Any] = work(watch)
    return summary


def _show(summary: dict[str, Any], leak: str, folder: Path) -> None:
    say(f"accuracy {summary['accuracy']:.2%}, loss {summary['loss']:.4f} on the test set")
    if summary["bits_up"]:
        ratio = summary["float32_bits_up"] / summary["bits_up"]
        say(f"sent {summary['bits_up'] / 8e9:.3g} GB, {ratio:.3g} times less than float32")
    if "epsilon" in summary:
        spent = "the budget is spent: " if summary["budget_spent"] else ""
        unit = "record" if "records" in summary["plan"] else "user"
        say(
            f"privacy: {spent}({summary['epsilon']:.4g}, {summary['delta']:.3g})-DP for every {unit} against "
            f"the server, certified, after {many(summary['rounds'], 'round')} (rqm account {folder}). "
            "This simulation's randomness is seeded: not private"
        )
    elif leak == "not private":
        say("privacy: none, the gradients are summed without noise")
    elif leak:
        say(
            f"privacy: {leak} and round, certified for one client replaced by another among "
            f"{summary['plan']['clients']} honest ones; over {summary['parameters']:,} coordinates that protects nobody"
        )
    if "ledger_head" in summary:
        say(f"ledger: ends with {summary['ledger_head']}")
    say(f"{folder}/: plan.json, metrics.jsonl, summary.json, checkpoint.safetensors")
