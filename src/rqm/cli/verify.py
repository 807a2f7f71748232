"""`rqm verify`: whether a ledger is intact, and which ε its charges amount to, by an independent verifier."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rqm._util.checks import real, whole
from rqm._util.text import many
from rqm.cli.formatting import Result

if TYPE_CHECKING:
    from rqm.verify import Report


def command(
    ledger: Path,
    key: str | None = None,
    witness: Path | None = None,
    head: str | None = None,
    dim: int | None = None,
    delta: float | None = None,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    rounds: int | None = None,
) -> Result:
    """Verify a ledger: hash chain, signatures, witness, its claims, and ε by an independent bound.

    The verifier shares no code with the ledger's writer or the accountant. Give it what you know from another source
    (the key, the witness, the size of the model), which shows whether the whole file was replaced. The exit code is 0
    if the ledger is consistent, 1 if something is wrong, and 3 if something cannot be verified.

    Examples:

        rqm verify runs/first

        rqm verify ledger.jsonl --key server.pub --witness heads.jsonl --dim 102334 --rounds 100 --json

    Args:
        ledger: A ledger (ledger.jsonl), or the folder of a run.
        key: The server's public key from another source, in hexadecimal or in a file.
        witness: The file of a witness that recorded every head: detects a rollback.
        head: A head that was noted earlier: must be in the ledger.
        dim: The number of the model's parameters, if you know it.
        delta: The δ that was promised.
        honest_clients: Honest clients of every round, dropouts included.
        honest_fraction: The honest fraction of the population.
        rounds: The number of releases that you know of. The ledger must have this many charges.
    """
    from rqm.accounting.participation import ThreatModel
    from rqm.verify import verify

    # a value that no ledger can hold is a mistake of the caller and does not make the ledger wrong
    if dim is not None:
        whole("dim", dim, 1)
    if delta is not None:
        real("delta", delta, "above 0 and below 1", 0, 1)
    if rounds is not None:
        whole("rounds", rounds, 0)
    if head is not None and not re.fullmatch("[0-9a-f]{64}", head):
        raise ValueError(f"head = {head!r}: must be 64 hexadecimal digits, as rqm account and rqm train print it")
    ThreatModel(honest_clients=honest_clients, honest_fraction=honest_fraction)
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
    exit_code, answer = {
        "verified": (0, "Verified: chain, signatures and ε are consistent."),
        "wrong": (1, "Wrong: do not rely on this ledger."),
        "cannot verify": (3, "Cannot verify: this verifier has no answer for a part of it."),
    }[report.status]
    return Result(report.to_dict(), notes=[str(report.path), answer, *_notes(report)], exit_code=exit_code)


def _notes(report: "Report") -> list[str]:
    """What was found in the ledger, and its ε with the assumptions."""
    notes = [f"wrong: {text}" for text in report.wrong]
    notes += [f"cannot verify: {text}" for text in report.unsure]
    notes += [f"note: {text}" for text in report.notes]
    if report.head_hash is not None:
        charges = many(report.charges, "charge")
        rounds = many(report.rounds, "round")
        notes.append(f"{charges} for {rounds}; head {report.head_hash}")
    if report.headline is not None:
        notes += ["", f"{report.headline} (this verifier's own bound)"]
    if report.assumptions is not None:
        notes += ["It assumes that:", *(f"- {text}" for text in report.assumptions)]
    return notes
