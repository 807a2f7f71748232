"""``rqm audit``: try to break a claim by sampling."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.checks import nearest
from rqm.cli import names
from rqm.cli.options import DataOption, JsonOption, Reports, SetOption, or_counted_by, with_mechanism
from rqm.cli.waits import waiting
from rqm.cli.words import say, show_found
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.rappor import Rappor

if TYPE_CHECKING:
    from rqm.audit.privacy import PrivacyAudit

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Try to break a claim by sampling.")


def _made(path: Path | None) -> Path | None:
    """Make the folder before the work, not after it."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
    return path


OutOption = Annotated[Path | None, typer.Option(help="Folder for the JSON and the picture.", callback=_made)]
VariantOption = Annotated[
    list[str] | None, typer.Option(help="Only this variant of the experiment; may be given several times.")
]


class Backend(StrEnum):
    """What draws."""

    cpu = "cpu"
    torch = "torch"
    cuda = "cuda"


class Claim(StrEnum):
    """Whose claim."""

    certified = "certified"
    paper = "paper"


@app.command()
@with_mechanism
def sampler(
    mech: Mechanism,
    *,
    draws: Annotated[int, typer.Option(help="Draws at each input.")] = 2_000_000,
    backend: Annotated[
        Backend, typer.Option(help="The compiled encoder, plain operations of torch, or the GPU.")
    ] = Backend.cpu,
    as_json: JsonOption = False,
) -> None:
    """Does the encoder draw from the law that is accounted for? Exit code 1 if not.

    G-tests against the exact law at the ends of the clip, at levels, between and next to them; independence of
    neighbouring draws, of threads and of forked processes; floats that were crafted to slip through rounding. Example:

        rqm audit sampler --mechanism pbm --theta 0.25
    """
    from rqm.audit.sampler import audit_sampler

    with waiting("drawing", quiet=as_json, key=f"audit sampler {mech.kind} {draws} {backend}"):
        found = audit_sampler(mech.channel, draws=draws, backend=backend.value)
    _tell(
        found.to_dict(),
        as_json,
        found.passed,
        {
            True: f"passed: the worst of {found.tests} tests has p = {found.p_value:.3g} ({found.worst})",
            False: f"FAILED: p = {found.p_value:.3g}, {found.worst}",
        },
    )


def count(rappor: Rappor, *, reports: int | None, draws: int, confidence: float, as_json: bool) -> None:
    """Measure ε of RAPPOR's reports."""
    from rqm.audit.privacy import audit_reports

    _tell_measured(
        audit_reports(rappor, 1 if reports is None else reports, draws=draws, confidence=confidence), as_json
    )


@app.command()
@or_counted_by(count)
def privacy(
    mech: Mechanism,
    *,
    clients: Annotated[int, typer.Option(help="n, the clients in the sum; 1: what one client sends.")] = 1,
    draws: Annotated[int, typer.Option(help="Draws for each input, to choose by and again to measure.")] = 4_000_000,
    confidence: Annotated[float, typer.Option(help="Of the measured lower bound.")] = 0.999,
    claim: Annotated[
        Claim, typer.Option(help="This library's bound, or the paper's, which looks at ±clip only.")
    ] = Claim.certified,
    experiment: Annotated[
        str | None, typer.Option(help="Audit whole runs of this experiment by planted canaries instead.")
    ] = None,
    variant: VariantOption = None,
    settings: SetOption = None,
    data: DataOption = None,
    canaries: Annotated[int, typer.Option(help="Of an experiment's run: users who are canaries.")] = 1000,
    delta: Annotated[
        float | None, typer.Option(help="δ of the claim: 0 for a coordinate, 1/population or 1e-5 for an experiment.")
    ] = None,
    reports: Reports = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure ε from below and compare it with what is claimed. Exit code 1 if it is more.

    Of one coordinate, sent alone or in a sum: pairs of inputs, what the others hold and a set of outcomes are searched
    for by sampling. Of a whole run (--experiment): canaries are planted among the users, and the server guesses which
    way each leans (one run is enough: Steinke et al. 2023).

    Examples:

        rqm audit privacy --margin 1.0 --keep 0.23

        rqm audit privacy --margin 1.0 --keep 0.23 --claim paper --draws 20000000

        rqm audit privacy --mechanism rappor --reports 2

        rqm audit privacy --experiment audit --variant "1 bit, ε=8"
    """
    if experiment is not None:
        _training(experiment, variant, settings, data, canaries, delta, confidence, out, as_json)
        return
    from rqm.audit.privacy import audit_privacy

    with waiting("drawing", quiet=as_json, key=f"audit privacy {mech.kind} {clients} {draws}"):
        found = audit_privacy(mech, clients, draws=draws, confidence=confidence, claim=claim.value, delta=delta or 0.0)
    _tell_measured(found, as_json)


def _tell_measured(found: "PrivacyAudit", as_json: bool) -> None:
    said = (
        f"claimed ε ≤ {found.claimed:.6g} ({found.claim}), measured ε ≥ {found.measured:.6g} with confidence "
        f"{found.confidence:g}, at x = {found.x:.4g} and {found.x_prime:.4g}"
    )
    _tell(
        found.to_dict(),
        as_json,
        not found.contradicted,
        {True: f"not contradicted: {said}", False: f"CONTRADICTED: {said}"},
    )


def _tell(facts: dict[str, Any], as_json: bool, good: bool, words: dict[bool, str]) -> None:
    say(json.dumps(facts) if as_json else words[good], whole=as_json)
    if not good:
        raise typer.Exit(1)


def _training(
    experiment: str,
    variant: list[str] | None,
    settings: list[str] | None,
    data: Path | None,
    canaries: int,
    delta: float | None,
    confidence: float,
    out: Path | None,
    as_json: bool,
) -> None:
    from rqm.audit import suite

    plans, loaded = suite.load_variants(experiment, settings or [], variant or [], data)
    with waiting("training", len(plans), quiet=as_json, key=f"canaries {experiment} {sorted(plans)}") as wait:
        found = suite.plant_canaries(
            plans, loaded, delta=delta, canaries=canaries, confidence=confidence, watch=wait.begin
        )
    rows = [
        (
            name,
            _number(one["claimed"]),
            _number(one["measured"]),
            f"{one['correct']} of {one['guesses']} right",
            "CONTRADICTED" if one["contradicted"] else "holds",
        )
        for name, one in found.items()
    ]
    facts = next(iter(found.values())) if len(found) == 1 else {"variants": found}
    wrong = [name for name, one in found.items() if one["contradicted"]]
    said = f"CONTRADICTED: {', '.join(wrong)}" if wrong else "No claim is contradicted by what the server guessed"
    show_found(facts, as_json, ("variant", "claimed ε", "measured ε ≥", "guesses", ""), rows, out, "canaries", said)
    if wrong:
        raise typer.Exit(1)


def _number(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"


@app.command()
def inversion(
    dataset: Annotated[
        str, typer.Option(help="Whose test pictures: glyphs (built in), emnist-byclass-test, …")
    ] = "glyphs",
    data: DataOption = None,
    pictures: Annotated[int, typer.Option(help="Pictures to attack.")] = 2,
    seeds: Annotated[int, typer.Option(help="Models, each with its own weights.")] = 1,
    clients: Annotated[int, typer.Option(help="n of the secure sum.")] = 8,
    iterations: Annotated[int, typer.Option(help="Steps of L-BFGS.")] = 100,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rebuild pictures from gradients, from rounded ones, from RQM's levels and from secure sums.

    Deep leakage from gradients (Zhu et al. 2019), in the attacker's favour throughout. Similarity is SSIM; identified
    is the share whose true picture is the closest among a hundred of its class. Example:

        rqm audit inversion --pictures 2 --out out/inversion
    """
    from rqm.audit import suite
    from rqm.audit.inversion import KINDS
    from rqm.data import load

    steps = pictures * seeds * len(KINDS)
    with waiting("inverting", steps, quiet=as_json, key=f"inversion {dataset}") as wait:
        found = suite.invert_gradients(
            load(dataset, data),
            pictures=pictures,
            seeds=seeds,
            clients=clients,
            iterations=iterations,
            device=device,
            watch=wait.end,
        )
    rows = [
        (
            kind,
            f"{one['similarity']:.3f}" + (f" ± {one['half_width']:.3f}" if one["half_width"] else ""),
            f"{one['identified']:.0%} ({one['identified_low']:.0%} to {one['identified_high']:.0%})",
        )
        for kind, one in found["kinds"].items()
    ]
    worst, best = (f"{one['identified']:.0%}" for one in list(found["kinds"].values())[:: len(KINDS) - 1])
    said = f"From a plain gradient {worst} of the pictures are identified, from a secure sum of RQM's levels {best}"
    show_found(found, as_json, ("what the attacker sees", "similarity", "identified"), rows, out, "inversion", said)


@app.command()
def membership(
    experiment: Annotated[
        str, typer.Argument(help="An experiment whose variants are compared.", autocompletion=names.experiments)
    ] = "membership",
    variant: VariantOption = None,
    settings: SetOption = None,
    data: DataOption = None,
    models: Annotated[int, typer.Option(help="Models, each trained on a random half of the users.")] = 8,
    users: Annotated[int, typer.Option(help="Users, unless the plan declares a population.")] = 120,
    rate: Annotated[float, typer.Option(help="False positives that are allowed.")] = 0.01,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell from the trained model who took part: the likelihood-ratio attack, user by user.

    An attack that knows nothing finds as many members as it accuses others wrongly. Example:

        rqm audit membership --models 4 --users 60 --set rounds=10
    """
    from rqm.audit import suite

    plans, loaded = suite.load_variants(experiment, settings or [], variant or [], data)
    steps = models * len(plans)
    with waiting("training models", steps, quiet=as_json, key=f"membership {experiment}") as wait:
        found = suite.infer_membership(plans, loaded, models=models, users=users, rate=rate, watch=wait.end)
    rows = [
        (
            name,
            f"{100 * one['found']:.1f} % ({100 * one['found_low']:.1f} to {100 * one['found_high']:.1f})",
            f"{one['area']:.3f} ({one['area_low']:.3f} to {one['area_high']:.3f})",
            f"{100 * one['accuracy']:.1f} %",
        )
        for name, one in found.items()
    ]
    heads = ("variant", f"members found at {100 * rate:g} % false", "area under the curve", "accuracy")
    name, most = max(found.items(), key=lambda item: item[1]["found"])
    said = (
        f"With {rate:.3g} false accusations the attack finds up to {most['found']:.1%} of the members ({name}); "
        f"who knows nothing finds {rate:.1%}"
    )
    show_found(found, as_json, heads, rows, out, "membership", said)


@app.command()
def mutants(
    name: Annotated[
        list[str] | None,
        typer.Option(help="Only this mutant; may be given several times.", autocompletion=names.mutants),
    ] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Break mechanisms and protocols on purpose: is every mistake caught? Exit code 1 if one is not.

    Example:

        rqm audit mutants --name "reused masks" --name "biased table"
    """
    from rqm.audit.mutants import MUTANTS, audit_mutants

    known = [mutant.name for mutant in MUTANTS]
    for one in name or []:
        if one not in known:
            raise ValueError(f"name = {one}: must be among {', '.join(known)}{nearest(one, known)}")
    with waiting("breaking things", len(name or known), quiet=as_json, key=f"mutants {name}") as wait:
        found = []
        for verdict in audit_mutants(name):
            found.append(verdict)
            wait.end(verdict.name)
    survived = [one.name for one in found if not one.caught]
    facts = {"mutants": [one.to_dict() for one in found], "survived": survived}
    rows = [(one.name, one.mistake, "caught" if one.caught else "SURVIVED", one.audit, one.evidence) for one in found]
    said = f"SURVIVED: {', '.join(survived)}" if survived else f"All {len(found)} mistakes are caught"
    show_found(facts, as_json, ("mutant", "mistake", "", "by", "evidence"), rows, out, "mutants", said)
    if survived:
        raise typer.Exit(1)


@app.command()
def sketch(
    draws: Annotated[int, typer.Option(help="Sums that are looked at for each of two vectors, twice.")] = 20_000,
    as_json: JsonOption = False,
) -> None:
    """Are sketches private for free? A published claim, noise with a clip before the sketch, and ours, with one after.

    Each is put before the worst pair of vectors. Exit code 1 if ours is contradicted, or the others are not. Example:

        rqm audit sketch
    """
    from rqm.audit.sketch_claim import audit_sketch

    with waiting("sketching", quiet=as_json, key=f"sketch {draws}"):
        found = audit_sketch(draws=draws)
    rows = [
        (one.name, _number(one.claimed), _number(one.measured), "CONTRADICTED" if one.contradicted else "holds")
        for one in found
    ]
    facts = {"sketches": [one.to_dict() for one in found]}
    expected = [one.contradicted for one in found] == [True, True, False]
    said = "A clip before the sketch does not protect, one after it does" if expected else "NOT what the proofs say"
    show_found(facts, as_json, ("sketch", "claimed ε", "measured ε ≥", ""), rows, None, "sketch", said)
    if not expected:
        raise typer.Exit(1)


@app.command("all")
def everything(
    out: Annotated[Path, typer.Option(help="Folder for tables and pictures.")] = Path("out/audit"),
    as_json: JsonOption = False,
) -> None:
    """Run all audits, small: a few minutes on two cores. Exit code 1 if a claim is contradicted or a mutant survives.

    Example:

        rqm audit all --out out/audit
    """
    from rqm.audit.suite import audit_everything, markdown
    from rqm.report.attacks import draw

    out.mkdir(parents=True, exist_ok=True)
    with waiting("auditing", quiet=as_json, key="audit all") as wait:
        found = audit_everything(out, wait.begin)
        for name in ("inversion", "membership"):
            draw(out / f"{name}.json")
    text = markdown(found)
    (out / "audit.md").write_text(text, encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(found))
    else:
        typer.echo(f"{'All claims hold' if found['good'] else 'SOMETHING IS WRONG'}; written to {out}.\n")
        typer.echo(text)
    if not found["good"]:
        raise typer.Exit(1)
