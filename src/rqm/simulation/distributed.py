"""One run on several processes, GPUs or machines: `torchrun --nproc-per-node 2 -m rqm train PLAN --out DIR`.

The first process runs the rounds. The others compute a part of each round's clients, and remember nothing from one
round to the next. A client's message follows from the plan's seed and the client's position, and integers may be added
in any order. So the run is the same bit for bit, however many processes there are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from rqm.config.plan import Plan
from rqm.data.federated_data import FederatedData
from rqm.simulation.loop import RunState
from rqm.simulation.run_folder import MakeState
from rqm.simulation.secure_sum import MessageSum

Encode = Callable[..., Tensor]
"""`ClientUpdates.encode`."""


@contextmanager
def processes(load: Callable[[str], FederatedData]) -> Iterator[MakeState | None]:
    """Join the processes of torchrun, if there are any.

    Args:
        load: Loads data by the name in a plan.

    Yields:
        What makes the state of a run in the first process. None in the others, after all runs of the first one.
    """
    variables = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]
    if not all(variables) or variables[1] == "1":
        yield RunState
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    distributed.init_process_group("gloo")
    try:
        if distributed.get_rank():
            _follow(load)
            yield None
        else:
            try:
                yield _leading_state
            finally:
                _broadcast(None)
    finally:
        distributed.destroy_process_group()


def can_share(state: RunState) -> bool:
    """Whether other processes can compute clients of this run.

    Messages must be integers, and neither clients nor the model may remember anything or draw from a common generator.
    """
    has_common_state = state.plan.dropout or any(True for _ in state.model.buffers())
    return (
        state.plan.secagg == "ideal"
        and state.mean.has_integer_messages
        and not state.mean.sums_records
        and not state.observer.plants
        and state.updates.client_state is None
        and not has_common_state
    )


def _encode_shared(
    state: RunState, encode: Encode, client_ids: Sequence[int], round_index: int, messages: MessageSum
) -> Tensor:
    """`ClientUpdates.encode` in the first process: every process computes a part."""
    _broadcast((list(client_ids), round_index, [tensor.cpu() for tensor in _visible(state)]))
    return _encode_part(encode, client_ids, round_index, messages)


def _encode_part(encode: Encode, client_ids: Sequence[int], round_index: int, messages: MessageSum) -> Tensor:
    """Compute this process's part of the clients, and add up all parts in the first process."""
    chunk = slice(distributed.get_rank(), None, distributed.get_world_size())
    losses = encode(client_ids, round_index, messages, chunk)
    for tensor in (messages.total, losses):
        on_cpu = tensor.cpu()  # the same tensor, on a CPU
        distributed.reduce(on_cpu, 0)
        tensor.copy_(on_cpu)
    return losses


def _leading_state(plan: Plan, data: FederatedData) -> RunState:
    """The state of a run whose clients are shared if possible."""
    state = RunState(plan, data)
    if can_share(state):
        _broadcast(state.plan.to_dict())
        state.updates.encode = partial(_encode_shared, state, state.updates.encode)  # type: ignore[method-assign]
    return state


def _follow(load: Callable[[str], FederatedData]) -> None:
    """Compute a part of every round until the first process is done."""
    state: RunState | None = None
    while (request := _broadcast()) is not None:
        if isinstance(request, dict):
            plan = Plan.from_dict(request)
            state = RunState(plan, load(plan.data))
            continue
        assert state is not None
        client_ids, round_index, tensors = request
        for tensor, received in zip(_visible(state), tensors, strict=True):
            tensor.copy_(received)
        state.updates.begin_round(round_index)
        _encode_part(state.updates.encode, client_ids, round_index, state.secure_sum.messages(round_index))


def _visible(state: RunState) -> list[Tensor]:
    """What clients see of the server in a round."""
    return [tensor for name, tensor in state.tensors.items() if name != "moments"]


def _broadcast(message: Any = None) -> Any:
    """Send a message of the first process to all others, which receive it by the same call."""
    messages = [message]
    distributed.broadcast_object_list(messages, 0)
    return messages[0]
