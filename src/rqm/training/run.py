"""A run in a folder: its plan, a line of metrics for each round, checkpoints, and a summary at the end."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rqm._util.files import write_json
from rqm.accounting.participation import default_delta
from rqm.data.federated_data import FederatedData
from rqm.ledger.ledger import LEDGER
from rqm.ledger.signing import LedgerError
from rqm.plan.folder import METRICS, SUMMARY, recorded_head
from rqm.plan.guard import Guard, delta_of
from rqm.plan.plan import PLAN, Plan
from rqm.training import checkpoint
from rqm.training.trainer import Record, Trainer


def carry_out(
    plan: Plan,
    data: FederatedData,
    folder: Path,
    watch: Callable[[Record], object] = lambda _: None,
    out_of_time: Callable[[], bool] = lambda: False,
    *,
    resume: bool | None = None,
    expect_head: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    witness: str | Path | None = None,
    make: Callable[[Plan, FederatedData], Trainer] = Trainer,
    seeded: bool = False,
) -> dict[str, Any]:
    """Train to the end of the plan, from the last checkpoint if there is one; return the summary.

    With ``resume`` the folder must hold a run of this plan, without it must be new or empty; None takes either. All is
    validated before anything is written. Every round is charged to the ledger in the folder before it begins; when the
    plan's budget does not pay for another round, the run ends. (Who signs and who witnesses it: see ``Guard``.) When
    ``out_of_time`` says so, or at Ctrl-C, it saves after the round and raises TimeoutError or KeyboardInterrupt.
    ``make`` makes the trainer, and with ``seeded`` the ledger says that its answers came from seeded words.

    A checkpoint knows how many bytes of metrics came before it: what a killed process wrote after it is cut off, so a
    run that was interrupted ends with the same files as one that was not (but for the seconds, and the ledger).
    """
    new = _is_new(folder, resume)
    if plan.delta is None:
        plan = replace(plan, delta=delta_of(folder) or default_delta(plan.participation.population))
    trainer = make(plan, data)
    plan = trainer.plan
    if not new and not plan.can_continue(Plan.of_run(folder)):
        raise ValueError(f"out = {folder}: holds the run of another plan")
    size, head = checkpoint.restore(trainer, folder)
    vouched = {"expect_head": expect_head, "certificate": certificate, "key": key, "witness": witness, "seeded": seeded}
    with _guarded(trainer, folder, new, vouched) as guard:
        guard.check(head, trainer.done)
        if not guard.charges[trainer.done]:  # else that round has taken it back already, if only in part
            checkpoint.recall(trainer, folder)
        last = _rounds(trainer, folder, size, watch, out_of_time)
    loss, accuracy = (last.loss, last.accuracy) if last else trainer.evaluate()
    summary = {**_summary(trainer), "loss": loss, "accuracy": accuracy}
    write_json(folder / SUMMARY, summary)
    return summary


def _is_new(folder: Path, resume: bool | None) -> bool:
    """Whether a run begins in this folder; refuses what is not allowed."""
    if (folder / PLAN).exists() and resume is not False:
        return False
    if resume:
        Plan.of_run(folder)  # raises
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"out = {folder}: must be a new or empty folder; go on with a run by --resume {folder}")
    return True


@contextmanager
def _guarded(trainer: Trainer, folder: Path, new: bool, vouched: dict[str, Any]) -> Iterator[Guard]:
    """The folder with its plan, and the guard with its ledger; if one of them cannot be made, nothing is left."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    plan, ours = trainer.plan, False
    recorded = recorded_head(folder)
    if recorded is not None and not (folder / LEDGER).exists():
        raise LedgerError(f"{folder}: its ledger ({LEDGER}) is gone, which ended with {recorded} or later")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if new:
            write_json(folder / PLAN, plan.to_dict(), new=True)
            ours = True
        guard = Guard(
            trainer.mean,
            folder,
            plan=plan,
            budget=plan.budget_epsilon,
            users=len(trainer.data.train),
            **vouched,
        )
        if new and not guard.allows(0):
            guard.close()
            raise ValueError(
                f"budget_epsilon = {guard.budget:g}: must be at least {guard.epsilon(0):.4g}, which one round costs"
            )
    except BaseException as error:
        for name in (PLAN, LEDGER) if ours else ():
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # somebody else may have begun to use them
            for place in made:
                place.rmdir()
        if isinstance(error, FileExistsError):
            raise FileExistsError(f"out = {folder}: another run has just begun there") from None
        raise
    with guard:
        trainer.charge_to(guard)
        yield guard


def _rounds(
    trainer: Trainer, folder: Path, size: int, watch: Callable[[Record], object], out_of_time: Callable[[], bool]
) -> Record | None:
    """All rounds that are left; the last that was evaluated, if that is how the model is now."""
    last, plan, guard = None, trainer.plan, trainer.guard
    with (folder / METRICS).open("ab") as metrics, interrupts() as asked_to_stop:
        metrics.truncate(size)
        while trainer.done < plan.participation.rounds and guard.allows(trainer.done):
            record = trainer.step()
            last = record if record.loss is not None else last
            metrics.write((json.dumps(line(record)) + "\n").encode())
            metrics.flush()
            watch(replace(record, epsilon=guard.epsilon()) if guard.has_running_epsilon else record)
            late = out_of_time()
            stop = late or asked_to_stop()
            if stop or trainer.done % plan.checkpoint_every == 0 or trainer.done == plan.participation.rounds:
                checkpoint.save(trainer, folder, metrics.tell(), guard.head)
            if stop and trainer.done < plan.participation.rounds:
                raise TimeoutError(f"{folder}: out of time after round {trainer.done}") if late else KeyboardInterrupt
        if trainer.done < plan.participation.rounds:  # the budget is spent: evaluate what there is
            checkpoint.save(trainer, folder, metrics.tell(), guard.head)
            return None
    return last


def _summary(trainer: Trainer) -> dict[str, Any]:
    """A run at its end, but for how good the model is."""
    plan, guard, mechanism = trainer.plan, trainer.guard, trainer.plan.mechanism
    found: dict[str, Any] = {
        "rounds": trainer.done,
        "users_behind": trainer.behind,
        "parameters": len(trainer.values),
        "bits_up": trainer.bits_up * trainer.done,
        "bits_per_coordinate": mechanism.bits,
        "bits_under_secagg": trainer.mean.wire_bits,
        "float32_bits_up": 32 * plan.participation.clients * len(trainer.values) * trainer.done,
        "plan": plan.to_dict(),
    }
    if guard.ledger is not None:
        unfinished = trainer.done < plan.participation.rounds
        found |= {"delta": trainer.mean.delta, "ledger_head": guard.head, "budget_spent": unfinished}
        if guard.has_running_epsilon:
            found["epsilon"] = guard.epsilon()
    return found


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


def line(record: Record) -> dict[str, Any]:
    """A record as it is written: without what was not evaluated, and the clients' own loss marked for what it is."""
    values = {name: value for name, value in asdict(record).items() if value is not None and name != "epsilon"}
    if "clients_loss" in values:
        values["clients_loss_not_released"] = values.pop("clients_loss")
    return values
