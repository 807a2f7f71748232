"""Verify a ledger, or the folder of a run."""

import json
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from os.path import isdir
from pathlib import Path
from typing import NamedTuple

from . import guarantee_text
from .epsilon_bound import privacy_spent
from .hash_chain import check_heads, check_signatures, read_lines
from .ledger_claims import compare_with_auditor, compare_with_plan, read_claims, read_mean, sent_values
from .verification_report import Report, Row, Unverifiable, parse_json, read_bytes, shown


class Ledger(NamedTuple):
    """What a ledger holds.

    Attributes:
        description: That of its first line.
        charges: How often each round was charged.
        hashes: The hashes of all lines.
    """

    description: Row
    charges: Counter[int]
    hashes: list[str]


def verify(
    path: Path | str,
    *,
    key: str | Path | None = None,
    witness: Path | str | None = None,
    head: str | None = None,
    dim: int | None = None,
    delta: float | None = None,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    rounds: int | None = None,
) -> Report:
    """Read a ledger, or the folder of a run, and check everything that can be checked from outside.

    What the auditor knows from elsewhere is given; a ledger that says otherwise is wrong.

    Args:
        path: A ledger, or the folder of a run.
        key: The public key of the server, in hexadecimal or in a file.
        witness: A file of heads that were reported to a witness.
        head: The hash of a last line that was written down.
        dim: The number of the model's parameters.
        delta: δ.
        honest_clients: The honest clients of a round.
        honest_fraction: The honest fraction of the population.
        rounds: Releases that are known of.

    Returns:
        What was found.

    >>> verify("/nothing").unsure
    ['/nothing: cannot be read (No such file or directory)']
    """
    path = Path(path)
    report = Report(str(path))
    honest = {"honest_clients": honest_clients, "honest_fraction": honest_fraction}
    is_run = isdir(path)  # which never fails
    lines: list[Row] = []
    with _reporting_doubts(report):
        lines = read_lines(read_bytes(path / "ledger.jsonl" if is_run else path), report)
    if not lines:
        return report
    charges = Counter(line["round"] for line in lines[1:])
    ledger = Ledger(lines[0]["about"], charges, [line["hash"] for line in lines])
    report.charges = charges.total()
    report.rounds = len(charges)
    report.head_hash = ledger.hashes[-1]
    if report.wrong:
        return report
    checks = [
        partial(check_signatures, lines, key, report),
        partial(check_heads, ledger.hashes, witness, head, report),
        partial(
            compare_with_auditor, ledger.description, {"dim": dim, "delta": delta, "rounds": rounds, **honest}, report
        ),
        partial(_account, ledger, report),
    ]
    for name, check in (
        ("plan.json", _check_plan),
        ("metrics.jsonl", _check_metrics),
        ("checkpoint.safetensors", _check_checkpoint),
        ("summary.json", _check_summary),
    ):
        if is_run and (path / name).exists():
            checks.append(partial(check, path / name, ledger, report))
    for run_check in checks:  # a doubt in one does not keep the others from running
        with _reporting_doubts(report):
            run_check()
    return report


@contextmanager
def _reporting_doubts(report: Report) -> Iterator[None]:
    """Report what cannot be verified, and go on."""
    try:
        yield
    except Unverifiable as doubt:
        report.unsure.append(str(doubt))
    except Exception as error:  # not foreseen, so nothing is known
        report.unsure.append(f"a value is beyond what can be computed with ({type(error).__name__})")


def _account(ledger: Ledger, report: Report) -> None:
    """ε of all charges by this verifier's own bound, and the conditions under which it holds."""
    claims = read_claims(ledger.description)
    report.delta = claims.delta
    report.unit = claims.unit
    report.neighboring = claims.neighboring
    report.adversary = claims.adversary
    if ledger.charges:
        report.assumptions = guarantee_text.assumptions(claims, ledger.charges)
    spent = privacy_spent(claims, ledger.charges)
    report.epsilon = spent.epsilon
    report.lower = spent.lower
    report.max_participations = spent.releases
    report.min_honest = spent.honest
    report.headline = guarantee_text.headline(claims, spent)


# -- the other files of a run must not state more, or something else, than was charged for ---------


def _check_plan(path: Path, ledger: Ledger, report: Report) -> None:
    """The plan is that of what was charged for."""
    compare_with_plan(read_mean(ledger.description), parse_json(read_bytes(path)), path.name, report)


def _check_metrics(path: Path, ledger: Ledger, report: Report) -> None:
    """Every round with metrics (counted from 1) was charged (counted from 0)."""
    rows = [parse_json(raw) for raw in read_bytes(path).split(b"\n")[:-1]]
    numbers = [row["round"] for row in rows if isinstance(row, dict) and type(row.get("round")) is int]
    if len(numbers) < len(rows):
        raise Unverifiable("metrics.jsonl: has lines that cannot be read")
    uncharged = [number for number in numbers if not ledger.charges[number - 1]]
    if uncharged:
        report.wrong.append(
            f"metrics.jsonl has {len(uncharged)} rounds that were not charged, the first is {uncharged[0]}"
        )


def _check_statement(path: Path, ledger: Ledger, stated: Row, report: Report) -> None:
    """What a file states of the model is what was charged for; a name that it does not state is not compared."""
    mean = read_mean(ledger.description)
    if "delta" in stated and stated["delta"] != mean.get("delta"):
        report.wrong.append(f"delta = {shown(mean.get('delta'))}: {path.name} says {shown(stated['delta'])}")
    if "parameters" in stated:
        dim = sent_values(ledger.description.get("plan"), stated["parameters"])
        if dim != mean.get("dim"):
            report.wrong.append(
                f"dim = {shown(mean.get('dim'))}: {path.name} has {shown(stated['parameters'])} parameters"
            )
    if "ledger_head" in stated and stated["ledger_head"] not in ledger.hashes:
        head = shown(stated["ledger_head"])
        report.wrong.append(f"{path.name} was written at the head {head}, which is not in the ledger")


def _check_checkpoint(path: Path, ledger: Ledger, report: Report) -> None:
    """The model is that of the ledger, and no later than it."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, 2**24)))
        state = json.loads(header["__metadata__"]["state"])
        rounds = state["round"]
        stated = {"parameters": prod(header["values"]["shape"]), "ledger_head": state["ledger_head"]}
        if type(stated["parameters"]) is not int or type(rounds) is not int:
            raise TypeError("its size and its round must be whole numbers")
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise Unverifiable(f"{path.name}: cannot be read ({type(error).__name__}: {error})") from None
    _check_statement(path, ledger, stated, report)
    if rounds > len(ledger.charges):
        report.wrong.append(f"{path.name} is of {shown(rounds)} rounds: {len(ledger.charges)} were charged")


def _check_summary(path: Path, ledger: Ledger, report: Report) -> None:
    """What a run states at its end is what was charged for, with an ε that can be true."""
    summary = parse_json(read_bytes(path))
    if not isinstance(summary, dict):
        raise Unverifiable(f"{path.name}: cannot be read")
    stated = {name: value for name, value in summary.items() if value is not None}
    _check_statement(path, ledger, stated, report)
    epsilon = stated.get("epsilon")
    if epsilon is None or report.epsilon is None or report.lower is None:
        return
    if type(epsilon) not in (int, float) or not epsilon >= report.lower:
        report.wrong.append(f"{path.name} states ε = {shown(epsilon)}: no ε below {report.lower:.4g} can be true")
    elif epsilon < report.epsilon / 1.10:  # at most so many times the accountant's
        raise Unverifiable(f"{path.name} states ε = {epsilon:.6g}: this verifier can only confirm {report.epsilon:.6g}")
