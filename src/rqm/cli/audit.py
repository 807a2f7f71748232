"""``rqm audit``: try to break a claim by sampling."""

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from rqm.cli.privacy import (
    BitsOption,
    EpsilonOption,
    FileOption,
    JsonOption,
    KeepOption,
    LevelsOption,
    MarginOption,
    Mechanism,
    MechanismOption,
    ScaleOption,
    StepsOption,
    ThetaOption,
    build,
)

app = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown", help="Try to break a claim by sampling.")


class Claim(StrEnum):
    """Whose claim."""

    certified = "certified"
    paper = "paper"


@app.command()
def sampler(
    mechanism: MechanismOption = Mechanism.rqm,
    margin: MarginOption = None,
    keep: KeepOption = None,
    theta: ThetaOption = None,
    levels: LevelsOption = None,
    epsilon: EpsilonOption = None,
    scale: ScaleOption = None,
    steps: StepsOption = None,
    bits: BitsOption = None,
    file: FileOption = None,
    draws: Annotated[int, typer.Option(help="Draws at each input.")] = 2_000_000,
    as_json: JsonOption = False,
) -> None:
    """Does the encoder draw from the law that is accounted for? Exit code 1 if not.

    G-tests against the exact law at the ends of the clip, at levels, between and next to them, and of the independence
    of neighbouring draws. Example:

        rqm audit sampler --mechanism pbm --theta 0.25
    """
    from rqm.audit.sampler import audit_sampler

    mech = build(
        mechanism.value, margin=margin, keep=keep, theta=theta, levels=levels, epsilon=epsilon, scale=scale,
        steps=steps, bits=bits, file=file,
    )  # fmt: skip
    found = audit_sampler(mech, draws=draws)
    _tell(found.to_dict(), as_json, found.passed, {
        True: f"passed: the worst of {found.tests} tests has p = {found.p_value:.3g} ({found.worst})",
        False: f"FAILED: p = {found.p_value:.3g}, {found.worst}",
    })  # fmt: skip


@app.command()
def privacy(
    mechanism: MechanismOption = Mechanism.rqm,
    margin: MarginOption = None,
    keep: KeepOption = None,
    theta: ThetaOption = None,
    levels: LevelsOption = None,
    epsilon: EpsilonOption = None,
    scale: ScaleOption = None,
    steps: StepsOption = None,
    bits: BitsOption = None,
    file: FileOption = None,
    clients: Annotated[int, typer.Option(help="n, the clients in the sum; 1: what one client sends.")] = 1,
    draws: Annotated[int, typer.Option(help="Draws for each input, to choose by and again to measure.")] = 4_000_000,
    confidence: Annotated[float, typer.Option(help="Of the measured lower bound.")] = 0.999,
    claim: Annotated[
        Claim, typer.Option(help="This library's bound, or the paper's, which looks at ±clip only.")
    ] = Claim.certified,
    as_json: JsonOption = False,
) -> None:
    """Measure the ε of one coordinate, from below, and compare it with what is claimed. Exit code 1 if it is more.

    Examples:

        rqm audit privacy --margin 1.0 --keep 0.23

        rqm audit privacy --margin 1.0 --keep 0.23 --claim paper --draws 20000000
    """
    from rqm.audit.privacy import audit_privacy

    mech = build(
        mechanism.value, margin=margin, keep=keep, theta=theta, levels=levels, epsilon=epsilon, scale=scale,
        steps=steps, bits=bits, file=file,
    )  # fmt: skip
    found = audit_privacy(mech, clients, draws=draws, confidence=confidence, claim=claim.value)
    said = (
        f"claimed ε ≤ {found.claimed:.6g} ({found.claim}), measured ε ≥ {found.measured:.6g} with confidence "
        f"{found.confidence:g}, at x = {found.x:.4g} and {found.x_prime:.4g}"
    )
    _tell(found.to_dict(), as_json, not found.contradicted, {
        True: f"not contradicted: {said}", False: f"CONTRADICTED: {said}"
    })  # fmt: skip


def _tell(facts: dict[str, Any], as_json: bool, good: bool, words: dict[bool, str]) -> None:
    typer.echo(json.dumps(facts) if as_json else words[good])
    if not good:
        raise typer.Exit(1)
