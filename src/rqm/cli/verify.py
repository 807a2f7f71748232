"""``rqm verify``: whether a ledger is what was written, and what it says was spent, by an independent reader."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rqm._util.checks import real, whole
from rqm._util.words import many
from rqm.cli.options import JsonOption, number_or_share
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
    honest: Annotated[
        str | None, typer.Option(help="The honest clients of a round, or their share, to rely on.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Releases that you know of: as many must be charged.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify a ledger: its chain, its signatures, its witness, what it says, and ε by a second, independent bound.

    It shares no code with the ledger's writer or with the accountant. Give it what you know from elsewhere (the key,
    the witness, the size of the model): from inside, a file that was written anew looks like any other. It ends with 0
    if all is well, 1 if something is wrong, and 3 if something cannot be verified, which it never guesses.

    Examples:

        rqm verify runs/first

        rqm verify ledger.jsonl --key server.pub --witness heads.jsonl --dim 102334 --rounds 100 --json
    """
    from rqm.verify import verify

    share = number_or_share(honest)
    _possible(dim, delta, rounds, head, share)
    found = verify(
        ledger,
        key=key,
        witness=witness,
        head=head,
        dim=dim,
        delta=delta,
        honest=share,
        rounds=rounds,
    )
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        say(_say(found))
    raise typer.Exit(CODES[found.status])


def _possible(
    dim: int | None, delta: float | None, rounds: int | None, head: str | None, honest: int | float | None
) -> None:
    """Refuse what no ledger could say: that is a slip of whoever asks, and no reason to distrust the ledger."""
    if dim is not None:
        whole("dim", dim, 1)
    if delta is not None:
        real("delta", delta, "above 0 and below 1", 0, 1)
    if rounds is not None:
        whole("rounds", rounds, 0)
    if isinstance(honest, float):
        real("honest", honest, "a fraction above 0 and at most 1", 0, 1, closed="]")
    elif honest is not None:
        whole("honest", honest, 1)
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise ValueError(f"head = {head!r}: must be 64 hexadecimal digits, as rqm account and rqm train print it")


def _say(found: "Report") -> str:
    """What was found, a line each; what it means comes first."""
    means = {
        "verified": "verified: nothing contradicts what it says",
        "wrong": "wrong: do not rely on it",
        "cannot verify": "cannot verify: some of it is beyond this verifier, which does not guess",
    }
    lines = [f"{found.path}: {means[found.status]}"]
    lines += [f"wrong: {one}" for one in found.wrong]
    lines += [f"cannot verify: {one}" for one in found.unsure]
    lines += [f"note: {one}" for one in found.notes]
    if found.head is not None:
        lines.append(
            f"{many(found.charges, 'charge')} for {many(found.rounds, 'round')}; the ledger ends with {found.head}."
        )
    if found.epsilon is not None and found.delta is not None:
        lines.append(
            f"ε ≤ {found.epsilon:.4g} at δ = {found.delta:g}, by this verifier's own bound, for a {found.unit} in "
            f"{many(found.participations or 0, 'release')} with {many(found.honest or 0, 'honest client')}."
        )
    return "\n".join(lines)
