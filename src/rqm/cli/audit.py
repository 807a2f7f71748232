"""`rqm audit`: try to disprove a claim by sampling."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rqm._util.checks import one_of
from rqm.cli import completion
from rqm.cli.command import Command
from rqm.cli.formatting import Result
from rqm.cli.options import SetOption, with_mechanism
from rqm.cli.progress import progress
from rqm.mechanisms.base import Mechanism
from rqm.related.rappor import Rappor

if TYPE_CHECKING:
    from rqm.config.plan import Plan
    from rqm.data.federated_data import FederatedData

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", help="Try to disprove a claim by sampling."
)


def _save(file: Path | None, facts: dict[str, Any]) -> list[str]:
    """Save a result as JSON, with its picture if it has one; the note about it."""
    if file is None:
        return []
    from rqm._util.files import write_json

    write_json(file, facts)
    if file.stem in ("inversion", "membership"):
        from rqm.report.plots import draw_attack

        draw_attack(file)
    return [f"written to {file.parent}"]


def _prepare(out: Path | None, name: str) -> Path | None:
    """Create the folder of a result, before the work; the file to save it to."""
    if out is None:
        return None
    out.mkdir(parents=True, exist_ok=True)
    return out / f"{name}.json"


def _cells(audit: dict[str, Any]) -> tuple[str, str, str]:
    """The claimed and the measured ε of an audit, which may be "inf", and the verdict."""
    verdict = "CONTRADICTED" if audit["contradicted"] else "holds"
    return f"{float(audit['claimed']):.3g}", f"{float(audit['measured']):.3g}", verdict


def _interval(scores: dict[str, Any], key: str, spec: str) -> str:
    """A score with its confidence interval."""
    return f"{scores[key]:{spec}} ({scores[f'{key}_low']:{spec}} to {scores[f'{key}_high']:{spec}})"


@app.command(cls=Command)
@with_mechanism()
def sampler(
    mech: Mechanism,
    *,
    draws: int = 2_000_000,
    backend: Literal["cpu", "torch", "cuda"] = "cpu",
) -> Result:
    """Test whether the encoder draws from the distribution that is accounted for. Exit code 1 if not.

    G-tests against the exact pmf at the ends of the clip, at levels, between and next to them; tests of independence
    between neighboring draws, threads and forked processes; floats crafted to exploit rounding. Example:

        rqm audit sampler --mechanism pbm --theta 0.25

    Args:
        draws: Draws at each input.
        backend: The compiled encoder, plain torch operations, or the GPU.
    """
    from rqm.audit.sampler import audit_sampler

    with progress("drawing"):
        audit = audit_sampler(mech.discrete, draws=draws, backend=backend)
    verdict = "passed" if audit.passed else "FAILED"
    sentence = f"{verdict}: the worst of {audit.tests} tests has p = {audit.p_value:.3g} ({audit.worst})"
    return Result(audit.to_dict(), sentence, exit_code=int(not audit.passed))


@app.command(cls=Command)
@with_mechanism("reports", "draws", "confidence")
def privacy(
    mech: Mechanism | Rappor,
    *,
    clients: int = 1,
    draws: int = 4_000_000,
    confidence: float = 0.999,
    claim: Literal["certified", "paper"] = "certified",
    experiment: str | None = None,
    variant: list[str] | None = None,
    settings: SetOption = None,
    data: Path | None = None,
    canaries: int = 1000,
    delta: float | None = None,
    reports: int = 1,
    out: Path | None = None,
) -> Result:
    """Measure a lower bound on ε and compare it with the claim. Exit code 1 if it exceeds the claim.

    For one coordinate, sent alone or in a sum: the pair of inputs, the inputs of the other clients and a set of outputs
    are searched for by sampling. For a whole run (--experiment): canaries are planted among the users, and the server
    guesses the sign of each (one run is enough: Steinke et al. 2023).

    Examples:

        rqm audit privacy --margin 1.0 --keep 0.23

        rqm audit privacy --margin 1.0 --keep 0.23 --claim paper --draws 20000000

        rqm audit privacy --mechanism rappor --reports 2

        rqm audit privacy --experiment audit --variant "1 bit, ε=8"

    Args:
        clients: n, the clients in the sum; 1: what one client sends.
        draws: Draws for each input, to choose the test and again to measure.
        confidence: Confidence of the measured lower bound.
        claim: This library's bound, or the paper's, which considers only ±clip.
        experiment: Audit whole runs of this experiment with planted canaries instead.
        variant: Only this variant of the experiment; may be given several times.
        data: The folder of the data; default $RQM_DATA, else the user's cache.
        canaries: The number of users who are canaries, for --experiment.
        delta: δ of the claim: 0 for a coordinate, 1/population or 1e-5 for an experiment.
        reports: Reports of one value, for --mechanism rappor.
        out: Folder for the JSON file and the picture.
    """
    if experiment is not None:
        from rqm.audit import suite

        plans, users = suite.load_variants(experiment, settings or [], variant or [], data)
        return _audit_runs(plans, users, out, delta=delta, canaries=canaries, confidence=confidence)
    from rqm.audit.privacy import audit_privacy, audit_reports

    with progress("drawing"):
        if isinstance(mech, Rappor):
            audit = audit_reports(mech, reports, draws=draws, confidence=confidence)
        else:
            audit = audit_privacy(mech, clients, draws=draws, confidence=confidence, claim=claim, delta=delta or 0.0)
    sentence = (
        f"{'CONTRADICTED' if audit.contradicted else 'not contradicted'}: claimed ε ≤ {audit.claimed:.6g} "
        f"({audit.claim}), measured ε ≥ {audit.measured:.6g} with confidence {audit.confidence:g}, "
        f"at x = {audit.x:.4g} and {audit.x_prime:.4g}"
    )
    return Result(audit.to_dict(), sentence, exit_code=int(audit.contradicted))


def _audit_runs(plans: dict[str, "Plan"], data: "FederatedData", out: Path | None, **options: Any) -> Result:
    """Audit whole runs with planted canaries."""
    from rqm.audit import suite

    file = _prepare(out, "canaries")
    with progress("training", len(plans)) as bar:
        audits = suite.plant_canaries(plans, data, watch=bar.begin, **options)
    rows = []
    for name, audit in audits.items():
        rows.append((name, *_cells(audit), f"{audit['correct']} of {audit['guesses']} right"))
    contradicted = [name for name, audit in audits.items() if audit["contradicted"]]
    sentence = (
        f"CONTRADICTED: {', '.join(contradicted)}." if contradicted else "The server's guesses contradict no claim."
    )
    facts = next(iter(audits.values())) if len(audits) == 1 else {"variants": audits}
    heads = ("variant", "claimed ε", "measured ε ≥", "", "guesses")
    return Result(facts, sentence, rows, heads, _save(file, facts), exit_code=int(bool(contradicted)))


@app.command(cls=Command)
def inversion(
    dataset: str = "glyphs",
    data: Path | None = None,
    pictures: int = 2,
    seeds: int = 1,
    clients: int = 8,
    iterations: int = 100,
    device: str = "cpu",
    out: Path | None = None,
) -> Result:
    """Reconstruct pictures from gradients, from rounded gradients, from RQM's levels and from secure sums.

    Deep leakage from gradients (Zhu et al. 2019), under conditions that favor the attacker. Similarity is SSIM.
    "Identified" is the fraction of pictures whose reconstruction is closest to the true one among a hundred pictures
    of its class. Example:

        rqm audit inversion --pictures 2 --out out/inversion

    Args:
        dataset: The data set of the test pictures: glyphs (built in), emnist-byclass-test, …
        data: The folder of the data; default $RQM_DATA, else the user's cache.
        pictures: Pictures to attack.
        seeds: Models, each with its own weights.
        clients: n of the secure sum.
        iterations: Steps of L-BFGS.
        device: cpu or cuda.
        out: Folder for the JSON file and the picture.
    """
    from rqm.audit import suite
    from rqm.audit.inversion import OBSERVATIONS
    from rqm.data import load

    file = _prepare(out, "inversion")
    with progress("inverting", pictures * seeds * len(OBSERVATIONS)) as bar:
        result = suite.invert_gradients(
            load(dataset, data),
            pictures=pictures,
            seeds=seeds,
            clients=clients,
            iterations=iterations,
            device=device,
            watch=bar.end,
        )
    rows = []
    for kind, scores in result["kinds"].items():
        error = f" ± {scores['half_width']:.3f}" if scores["half_width"] else ""
        rows.append((kind, f"{scores['similarity']:.3f}{error}", _interval(scores, "identified", ".0%")))
    plain, *_, masked = (f"{scores['identified']:.0%}" for scores in result["kinds"].values())
    sentence = (
        f"Of the pictures {plain} are identified from a plain gradient, {masked} from a secure sum of RQM's levels."
    )
    heads = ("what the attacker sees", "similarity", "identified")
    return Result(result, sentence, rows, heads, _save(file, result))


@app.command(cls=Command)
def membership(
    experiment: Annotated[str, typer.Argument(autocompletion=completion.experiments)] = "membership",
    variant: list[str] | None = None,
    settings: SetOption = None,
    data: Path | None = None,
    models: int = 8,
    users: int = 120,
    rate: float = 0.01,
    out: Path | None = None,
) -> Result:
    """Infer from the trained model who took part: the likelihood-ratio attack, for each user.

    An attack without any information has equal true and false positive rates. Example:

        rqm audit membership --models 4 --users 60 --set rounds=10

    Args:
        experiment: The experiment whose variants are compared.
        variant: Only this variant of the experiment; may be given several times.
        data: The folder of the data; default $RQM_DATA, else the user's cache.
        models: Models, each trained on a random half of the users.
        users: Users, unless the plan declares a population.
        rate: The false positive rate that is allowed.
        out: Folder for the JSON file and the picture.
    """
    from rqm.audit import suite

    file = _prepare(out, "membership")
    plans, clients = suite.load_variants(experiment, settings or [], variant or [], data)
    with progress("training models", models * len(plans)) as bar:
        audits = suite.infer_membership(plans, clients, models=models, users=users, rate=rate, watch=bar.end)
    rows = []
    for name, audit in audits.items():
        members = _interval(audit, "found", ".1%")
        area = _interval(audit, "area", ".3f")
        rows.append((name, members, area, f"{audit['accuracy']:.1%}"))
    name, worst = max(audits.items(), key=lambda item: item[1]["found"])
    sentence = (
        f"At a false positive rate of {rate:.3g} the attack finds up to {worst['found']:.1%} of the members ({name}); "
        f"without information it finds {rate:.1%}."
    )
    heads = ("variant", "members found", "area under the curve", "accuracy")
    return Result(audits, sentence, rows, heads, _save(file, audits))


def mutant_names() -> list[str]:
    """The names of deliberately broken mechanisms and protocols."""
    from rqm.audit.mutants import MUTANTS

    return [mutant.name for mutant in MUTANTS]


@app.command(cls=Command)
def mutants(
    name: Annotated[list[str] | None, typer.Option(autocompletion=completion.mutants)] = None,
    out: Path | None = None,
) -> Result:
    """Break mechanisms and protocols deliberately, and test that every bug is caught. Exit code 1 if one is not.

    Example:

        rqm audit mutants --name "reused masks" --name "biased table"

    Args:
        name: Only this mutant; may be given several times.
        out: Folder for the JSON file and the picture.
    """
    from rqm.audit.mutants import audit_mutants

    file = _prepare(out, "mutants")
    names = mutant_names()
    for mutant in name or []:
        one_of("name", mutant, names)
    verdicts = []
    rows = []
    survived = []
    with progress("mutants", len(name or names)) as bar:
        for verdict in audit_mutants(name):
            bar.end(verdict.name)
            verdicts.append(verdict.to_dict())
            survived += [] if verdict.caught else [verdict.name]
            outcome = "caught" if verdict.caught else "SURVIVED"
            rows.append((verdict.name, verdict.mistake, outcome, verdict.audit, verdict.evidence))
    sentence = f"SURVIVED: {', '.join(survived)}." if survived else f"All {len(verdicts)} mutants are caught."
    facts = {"mutants": verdicts, "survived": survived}
    heads = ("mutant", "mistake", "", "by", "evidence")
    return Result(facts, sentence, rows, heads, _save(file, facts), exit_code=int(bool(survived)))


@app.command(cls=Command)
def sketch(draws: int = 20_000) -> Result:
    """Test three claims about sketches: a published one without noise, a clip before the sketch, and a clip after it.

    Each is tested on the worst pair of vectors. Only the third, that of this library, should hold. Exit code 1 if the
    outcome is different. Example:

        rqm audit sketch

    Args:
        draws: Sums that are drawn for each of two vectors, twice.
    """
    from rqm.audit.sketch_claim import audit_sketch

    with progress("sketching"):
        audits = audit_sketch(draws=draws)
    passed = [audit.contradicted for audit in audits] == [True, True, False]
    sentence = "A clip before the sketch does not protect, one after it does." if passed else "NOT what the proofs say."
    facts = {"sketches": [audit.to_dict() for audit in audits]}
    rows = [(audit.name, *_cells(audit.to_dict())) for audit in audits]
    return Result(facts, sentence, rows, ("sketch", "claimed ε", "measured ε ≥", ""), exit_code=int(not passed))


@app.command("all", cls=Command)
def everything(out: Path = Path("out/audit")) -> Result:
    """Run all audits, small: a few minutes on two cores. Exit code 1 if a claim is contradicted or a mutant survives.

    Example:

        rqm audit all --out out/audit

    Args:
        out: Folder for tables and pictures.
    """
    from rqm.audit.suite import audit_everything, markdown
    from rqm.report.plots import draw_attack

    out.mkdir(parents=True, exist_ok=True)
    with progress("auditing") as bar:
        results = audit_everything(out, bar.begin)
        for name in ("inversion", "membership"):
            draw_attack(out / f"{name}.json")
    text = markdown(results)
    (out / "audit.md").write_text(text, encoding="utf-8")
    sentence = "All claims hold" if results["good"] else "SOMETHING IS WRONG"
    lines = [f"{sentence}; written to {out}.", "", text]
    return Result(results, lines=lines, exit_code=int(not results["good"]))
