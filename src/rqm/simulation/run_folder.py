"""A run in a folder: its plan, its ledger, a line of metrics for each round, checkpoints, and a summary at the end."""

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
from rqm.config.plan import PLAN, Plan
from rqm.config.run_files import METRICS, SUMMARY
from rqm.data.federated_data import FederatedData
from rqm.ledger.budget_guard import Guard, delta_of
from rqm.ledger.ledger import LEDGER
from rqm.ledger.signing import LedgerError
from rqm.simulation import checkpoint
from rqm.simulation.loop import Outcome, RunState, run_round

MakeState = Callable[[Plan, FederatedData], RunState]


def carry_out(
    plan: Plan,
    data: FederatedData,
    folder: Path,
    watch: Callable[[Outcome], object] | None = None,
    out_of_time: Callable[[], bool] = lambda: False,
    *,
    resume: bool | None = None,
    make: MakeState = RunState,
    **guard_options: Any,
) -> dict[str, Any]:
    """Train to the end of the plan, from the last checkpoint if there is one.

    All is validated before anything is written. The run ends early when the plan's budget does not pay for another
    round. An interrupted run ends with the same files as any other, except for seconds and the ledger.

    Args:
        plan: The plan.
        data: Its data.
        folder: The folder of the run.
        watch: Called after each round; None: no ε is computed before the end.
        out_of_time: Asked after each round whether to save and stop.
        resume: True: the folder must hold a run of this plan. False: it must be new or empty. None: either.
        make: Makes the state of the run.
        **guard_options: Options of the `Guard`: `expect_head`, `certificate`, `key`, `witness`, `seeded`.

    Returns:
        The summary.

    Raises:
        TimeoutError: If time ran out before the end; the run is saved.
        KeyboardInterrupt: After Ctrl-C, at the end of a round; the run is saved.
    """
    is_new = _is_new(folder, resume)
    if plan.delta is None:
        plan = replace(plan, delta=delta_of(folder) or default_delta(plan.participation.population))
    state = make(plan, data)
    if not is_new and not state.plan.can_continue(Plan.of_run(folder)):
        raise ValueError(f"out = {folder}: holds the run of another plan")
    metrics_bytes, head = checkpoint.restore(state, folder)
    if head is not None and not (folder / LEDGER).exists():
        raise LedgerError(f"{folder}: its ledger ({LEDGER}) is gone, which ended with {head} or later")
    with _opened(state, folder, guard_options, is_new=is_new) as guard:
        guard.check(head, state.rounds_done)
        if guard.charges[state.rounds_done]:  # that round may have canceled the noise already
            state.secure_sum.chain.restart()
        last = _run_rounds(state, folder, metrics_bytes, watch, out_of_time)
    loss, accuracy = state.evaluate() if last is None else (last.loss, last.accuracy)
    summary = {**_summary(state), "loss": loss, "accuracy": accuracy}
    write_json(folder / SUMMARY, summary)
    return summary


def _is_new(folder: Path, resume: bool | None) -> bool:
    """Whether a run begins in this folder."""
    if (folder / PLAN).exists() and resume is not False:
        return False
    if resume:
        Plan.of_run(folder)  # raises
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"out = {folder}: must be a new or empty folder; continue a run with --resume {folder}")
    return True


@contextmanager
def _opened(state: RunState, folder: Path, guard_options: dict[str, Any], *, is_new: bool) -> Iterator[Guard]:
    """The folder with its plan, and the guard with its ledger. If one of them cannot be made, nothing is left."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    files: tuple[str, ...] = ()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if is_new:
            write_json(folder / PLAN, state.plan.to_dict(), new=True)
            files = PLAN, LEDGER
        guard = open_guard(state, folder, guard_options)
    except BaseException as error:
        for name in files:
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):  # another run may have begun to use them
            for path in created:
                path.rmdir()
        if isinstance(error, FileExistsError):
            raise FileExistsError(f"out = {folder}: another run has just begun there") from None
        raise
    with guard:
        yield guard


def open_guard(state: RunState, folder: Path, guard_options: dict[str, Any]) -> Guard:
    """Charge a run to the ledger in a folder.

    Args:
        state: The run.
        folder: The folder.
        guard_options: Options of the `Guard`.

    Returns:
        The guard, which must be closed.

    Raises:
        ValueError: If the budget of a new run does not pay for one round. No ledger is then written.
    """
    budget, users = state.plan.budget_epsilon, len(state.data.train)
    if budget is not None and not (folder / LEDGER).exists():
        guard = Guard(state.mean, budget=budget, certificate=guard_options.get("certificate"))
        if not guard.allows(0):
            raise ValueError(
                f"budget_epsilon = {budget:g}: must be at least {guard.epsilon(0):.4g}, which one round costs"
            )
    guard = Guard(state.mean, folder, plan=state.plan, budget=budget, users=users, **guard_options)
    state.charge_to(guard)
    return guard


def _run_rounds(
    state: RunState,
    folder: Path,
    metrics_bytes: int,
    watch: Callable[[Outcome], object] | None,
    out_of_time: Callable[[], bool],
) -> Outcome | None:
    """All remaining rounds; the last one if it was carried out here, and is the last of the plan."""
    outcome, rounds, guard = None, state.plan.participation.rounds, state.guard
    with (folder / METRICS).open("ab") as metrics, _deferred_interrupts() as is_interrupted:
        metrics.truncate(metrics_bytes)
        while state.rounds_done < rounds and guard.allows(state.rounds_done):
            outcome = run_round(state, state.rounds_done)
            metrics.write((json.dumps(metrics_line(outcome)) + "\n").encode())
            metrics.flush()
            if watch is not None:
                watch(replace(outcome, epsilon=guard.epsilon()) if guard.has_running_epsilon else outcome)
            is_late = out_of_time()
            is_stopped, is_done = is_late or is_interrupted(), state.rounds_done == rounds
            if is_stopped or is_done or state.rounds_done % state.plan.checkpoint_every == 0:
                checkpoint.save(state, folder, metrics.tell(), guard.head)
            if is_stopped and not is_done:
                raise (
                    TimeoutError(f"{folder}: out of time after round {outcome.round}") if is_late else KeyboardInterrupt
                )
        if state.rounds_done == rounds:
            return outcome
        checkpoint.save(state, folder, metrics.tell(), guard.head)  # the budget is spent
        return None


def _summary(state: RunState) -> dict[str, Any]:
    """The summary of a run, except for loss and accuracy."""
    plan, guard, done = state.plan, state.guard, state.rounds_done
    summary: dict[str, Any] = {
        "rounds": done,
        "users_behind": state.users_behind,
        "parameters": len(state.values),
        "bits_up": state.bits_up * done,
        "bits_per_coordinate": plan.mechanism.bits,
        "bits_under_secagg": state.mean.wire_bits,
        "float32_bits_up": 32 * plan.participation.clients * len(state.values) * done,
        "plan": plan.to_dict(),
    }
    if guard.ledger is not None:
        is_budget_spent = done < plan.participation.rounds
        summary |= {"delta": state.mean.delta, "ledger_head": guard.head, "budget_spent": is_budget_spent}
        if guard.has_running_epsilon:
            summary["epsilon"] = guard.epsilon()
    return summary


@contextmanager
def _deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Let a first Ctrl-C wait for the end of the round. A second one acts at once."""
    received: list[int] = []

    def receive(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGINT, receive)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(signal.SIGINT, previous)


def metrics_line(outcome: Outcome) -> dict[str, Any]:
    """An outcome as it is written to the metrics: without values that are missing, or not of this round alone."""
    values = {name: value for name, value in asdict(outcome).items() if value is not None and name != "epsilon"}
    if "clients_loss" in values:
        values["clients_loss_not_released"] = values.pop("clients_loss")
    return values
