"""``rqm verify``: whether a ledger is what was written, and what it says was spent, by an independent reader."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rqm._util.checks import real, whole
from rqm._util.words import many
from rqm.cli.options import HonestClientsOption, HonestFractionOption, JsonOption
from rqm.cli.words import say

if TYPE_CHECKING:
    from rqm.verify import Report

CODES = {"verified": 0, "wrong": 1, "cannot verify": 3}


def command(
    ledger: Annotated[Path, typer.Argument(help="A ledger (ledger.jsonl), or the folder of a run.")],
    key: Annotated[
        str | None, typer.Option(help="The server's public key, in hexadecimal or in a file, from elsewhere.")
    ] = None,
    witness: Annotated[
        Path | None, typer.Option(help="The file of a witness, who was told every head: shows a rollback.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="A head that was written down: must be in the ledger.")] = None,
    dim: Annotated[int | None, typer.Option(help="The model's parameters, if you know them.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ that was promised.")] = None,
    honest_clients: HonestClientsOption = None,
    honest_fraction: HonestFractionOption = None,
    rounds: Annotated[int | None, typer.Option(help="Releases that you know of: as many must be charged.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a ledger: hash chain, signatures, witness, its claims, and ε by an independent bound.

    It shares no code with the ledger's writer or with the accountant. Give it what you know from elsewhere (the key,
    the witness, the size of the model), which shows whether the whole file was replaced. It exits with 0 if all is
    well, 1 if something is wrong, and 3 if something cannot be verified.

    Examples:

        rqm verify runs/first

        rqm verify ledger.jsonl --key server.pub --witness heads.jsonl --dim 102334 --rounds 100 --json
    """
    from rqm.verify import verify

    _possible(dim, delta, rounds, head, honest_clients, honest_fraction)
    report = verify(
        ledger,
        key=key,
        witness=witness,
        head=head,
        dim=dim,
        delta=delta,
        honest_clients=honest_clients,
        honest_fraction=honest_fraction,
        rounds=rounds,
    )
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        say(_text(report))
    raise typer.Exit(CODES[report.status])


def _possible(
    dim: int | None,
    delta: float | None,
    rounds: int | None,
    head: str | None,
    honest_clients: int | None,
    honest_fraction: float | None,
) -> None:
    """Refuse what no ledger could say: that is a slip of whoever asks, and no reason to distrust the ledger."""
    if dim is not None:
        whole("dim", dim, 1)
    if delta is not None:
        real("delta", delta, "above 0 and below 1", 0, 1)
    if rounds is not None:
        whole("rounds", rounds, 0)
    if honest_clients is not None:
        whole("honest_clients", honest_clients, 1)
    if honest_fraction is not None:
        real("honest_fraction", honest_fraction, "above 0 and at most 1", 0, 1, closed="]")
    if honest_clients is not None and honest_fraction is not None:
        raise ValueError(f"honest_fraction = {honest_fraction}: must not be given with honest_clients")
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise ValueError(f"head = {head!r}: must be 64 hexadecimal digits, as rqm account and rqm train print it")


def _text(report: "Report") -> str:
    """The report, the answer first."""
    answers = {
        "verified": "Verified: chain, signatures and ε are consistent.",
        "wrong": "Wrong: do not rely on this ledger.",
        "cannot verify": "Cannot verify: this verifier has no answer for a part of it.",
    }
    lines = [f"{report.path}", answers[report.status]]
    lines += [f"wrong: {text}" for text in report.wrong]
    lines += [f"cannot verify: {text}" for text in report.unsure]
    lines += [f"note: {text}" for text in report.notes]
    if report.head_hash is not None:
        charges, rounds = many(report.charges, "charge"), many(report.rounds, "round")
        lines.append(f"{charges} for {rounds}; head {report.head_hash}")
    if report.headline is not None:
        lines += ["", f"{report.headline} (this verifier's own bound)"]
    if report.assumptions is not None:
        lines += ["It assumes that:", *(f"- {text}" for text in report.assumptions)]
    return "\n".join(lines)
