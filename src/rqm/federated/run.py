"""A run in a folder: its plan, a line of metrics for each round, checkpoints, and a summary at the end."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rqm.channel import Channel
from rqm.federated import checkpoint
from rqm.federated.clients import FederatedData
from rqm.federated.loop import Record, Trainer
from rqm.federated.plan import Plan

if TYPE_CHECKING:
    from rqm.federated.guard import Guard  # takes the compiler, which a bare GPU machine lacks

PLAN, METRICS, SUMMARY = "plan.json", "metrics.jsonl", "summary.json"


def start(plan: Plan, folder: Path) -> None:
    """Lay out the folder of a new run; one that holds anything is left alone."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"out = {folder}: must be a new or empty folder; go on with a run by --resume {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / PLAN, plan.to_dict())


def write_json(path: Path, values: Any) -> None:
    """Write a JSON file, atomically."""
    checkpoint.write_atomically(path, (json.dumps(values, indent=1) + "\n").encode())


def saved_plan(folder: Path) -> Plan:
    """The plan of a run."""
    try:
        return Plan.from_dict(json.loads((folder / PLAN).read_text()))
    except FileNotFoundError:
        raise FileNotFoundError(f"resume = {folder}: holds no run ({PLAN} is missing)") from None


def carry_out(
    plan: Plan,
    data: FederatedData,
    folder: Path,
    watch: Callable[[Record], object] = lambda _: None,
    out_of_time: Callable[[], bool] = lambda: False,
    guard: "Guard | None" = None,
) -> dict[str, Any]:
    """Train to the end of the plan, from the last checkpoint if there is one; return the summary.

    When ``out_of_time`` says so, or at Ctrl-C, it saves after the round and raises TimeoutError or KeyboardInterrupt. A
    ``guard`` charges its ledger before every sum is used; when its budget does not pay for another round, the run ends.

    A checkpoint knows how many bytes of metrics came before it: what a killed process wrote after it is cut off, so a
    run that was interrupted ends with the same files as one that was not (but for the seconds).
    """
    trainer = Trainer(plan, data)
    size, head = checkpoint.restore(trainer, folder)
    if guard is not None:
        guard.check(head, trainer.done, trainer.coordinates)
        trainer.charge = guard.ledger.charge
    last: Record | None = None
    with (folder / METRICS).open("ab") as metrics, interrupts() as asked_to_stop:
        metrics.truncate(size)
        while trainer.done < plan.rounds and (guard is None or guard.allows(trainer.done)):
            record = trainer.step()
            last = record if record.accuracy is not None else last
            metrics.write((json.dumps(line(record)) + "\n").encode())
            metrics.flush()
            watch(record)
            late = out_of_time()
            stop = late or asked_to_stop()
            if stop or trainer.done % plan.checkpoint_every == 0 or trainer.done == plan.rounds:
                checkpoint.save(trainer, folder, metrics.tell(), guard.ledger.head if guard else None)
            if stop and trainer.done < plan.rounds:
                raise TimeoutError(f"{folder}: out of time after round {trainer.done}") if late else KeyboardInterrupt
        if trainer.done < plan.rounds:
            last = None  # the budget is spent: evaluate what there is
            checkpoint.save(trainer, folder, metrics.tell(), guard.ledger.head if guard else None)
    loss, accuracy = (last.loss, last.accuracy) if last else trainer.evaluate()
    mechanism = plan.mechanism
    summary: dict[str, Any] = {
        "rounds": trainer.done,
        "loss": loss,
        "accuracy": accuracy,
        "parameters": len(trainer.values),
        "bits_up": trainer.bits_up * trainer.done,
        "bits_per_coordinate": mechanism.bits,
        "bits_under_secagg": mechanism.sum_bits(plan.clients) if isinstance(mechanism, Channel) else None,
        "float32_bits_up": 32 * plan.clients * len(trainer.values) * trainer.done,
        "plan": plan.to_dict(),
    }
    if guard is not None:
        summary |= {"epsilon": guard.epsilon(), "delta": guard.ledger.charges[0]["about"]["delta"]}
        summary |= {"ledger_head": guard.ledger.head, "budget_spent": trainer.done < plan.rounds}
    write_json(folder / SUMMARY, summary)
    return summary


@contextmanager
def interrupts() -> Iterator[Callable[[], bool]]:
    """Let a first Ctrl-C wait for the end of the round, where the state is whole; a second one acts at once."""
    asked: list[int] = []

    def note(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def finished(folder: Path) -> bool:
    """Whether a run has come to its end."""
    return (folder / SUMMARY).exists()


def line(record: Record) -> dict[str, Any]:
    """A record as it is written: without what was not evaluated, and the clients' own loss marked for what it is."""
    values = {name: value for name, value in asdict(record).items() if value is not None}
    if "clients_loss" in values:
        values["clients_loss_not_released"] = values.pop("clients_loss")
    return values
