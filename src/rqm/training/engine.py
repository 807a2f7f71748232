"""One run on several processes, GPUs or machines: ``torchrun --nproc-per-node 2 -m rqm train PLAN --out DIR``.

The first process leads: it draws who takes part, charges, decodes, steps, evaluates and writes. The others take their
share of a round's clients, and remember nothing from one round to the next. What a client sends follows from the plan's
seed and from its place in the round, and whole numbers may be added up in any order: so the run is the same to the last
bit, however many there are. What they cannot share (see ``shares``) the first one does alone.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import distributed

from rqm.data.federated_data import FederatedData
from rqm.plan.plan import Plan
from rqm.training.aggregate import Ideal
from rqm.training.trainer import Trainer

GIVEN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun, or whoever starts the processes, tells each of them."""
Make = Callable[[Plan, FederatedData], Trainer]


@contextmanager
def joined(load: Callable[[str], FederatedData]) -> Iterator[Make | None]:
    """How the first process makes a trainer; None in the others, when the first is done with all its runs.

    Alone, that is how a trainer is always made. ``load`` finds data by the name in a plan.
    """
    if not all(os.environ.get(name) for name in GIVEN) or os.environ["WORLD_SIZE"] == "1":
        yield Trainer
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
                yield _lead
            finally:
                _tell(None)
    finally:
        distributed.destroy_process_group()


def shares(trainer: Trainer) -> bool:
    """Whether clients of a round can be done elsewhere: their messages are whole numbers, and they remember nothing.

    Nor does the model, nor a generator that all of them draw from; and nobody watches.
    """
    is_ideal = isinstance(trainer.aggregator, Ideal)
    remembers = trainer.corrections is not None or any(True for _ in trainer.model.buffers())
    is_shared = trainer.mean.has_integer_messages and not trainer.mean.sums_records
    return is_ideal and is_shared and not remembers and not trainer.observer.plants and not trainer.plan.dropout


@final
class Sharing:
    """A round's clients, in groups, dealt out to all processes. The first one's view."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def deal(self, staying: list[int], turn: int) -> slice:
        """Tell the others of a round, and the model as it is; return which groups are one's own."""
        _tell((staying, turn, [part.cpu() for part in _shown(self.trainer)]))
        return slice(self.rank, None, self.size)

    def add_up(self, total: torch.Tensor, losses: torch.Tensor) -> None:
        """Add what the others have found, in place."""
        for part in (total, losses):
            whole = part.cpu()  # the same tensor, on a CPU
            distributed.reduce(whole, 0)
            part.copy_(whole)


def _lead(plan: Plan, data: FederatedData) -> Trainer:
    """A trainer whose rounds are shared, if they can be."""
    trainer = Trainer(plan, data)
    if shares(trainer):
        _tell(trainer.plan.to_dict())
        assert isinstance(trainer.aggregator, Ideal)
        trainer.aggregator.sharing = Sharing(trainer)
    return trainer


def _follow(load: Callable[[str], FederatedData]) -> None:
    """Do one's share of every round that the first process tells of, until it is done."""
    trainer: Trainer | None = None
    while (told := _tell()) is not None:
        if isinstance(told, dict):
            plan = Plan.from_dict(told)
            trainer = Trainer(plan, load(plan.data))
            continue
        assert trainer is not None
        assert isinstance(trainer.aggregator, Ideal)
        staying, turn, shown = told
        for mine, part in zip(_shown(trainer), shown, strict=True):
            mine.copy_(part)
        sharing = Sharing(trainer)
        total, losses = trainer.aggregator.part(staying, turn, slice(sharing.rank, None, sharing.size))
        sharing.add_up(total, losses)


def _shown(trainer: Trainer) -> list[torch.Tensor]:
    """All that clients see of the server in a round."""
    return [part for part in (trainer.values, trainer.clip, trainer.state) if part is not None]


def _tell(told: Any = None) -> Any:
    """What the first process tells all others; they call it without anything."""
    box = [told]
    distributed.broadcast_object_list(box, 0)
    return box[0]
