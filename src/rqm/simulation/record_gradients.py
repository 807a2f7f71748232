"""Gradients of a silo's records: which take part in a round, and the sum of their clipped gradients.

The sum is computed in batches of bounded memory. For dense layers and plain convolutions it takes one forward and one
backward pass for a whole batch. Other models are differentiated record by record, by `torch.func` where that works.
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.data.federated_data import Tensors
from rqm.randomness import SecureRandom
from rqm.simulation.layer_gradients import (
    TOLERANCE,
    ExampleLosses,
    clipped_sum,
    record_layers,
    scale_rows,
    squared_lengths,
)
from rqm.simulation.models import trained_parameters

ClippedSum = Callable[[Tensor, Tensor, float], Tensor]
"""From inputs, labels and a clip to the sum of the records' clipped gradients, in float64."""


def records_of_round(
    rate: float | None, batches: int, count: int, round_index: int, words: Callable[[int], Any], hashes: Any = None
) -> Any:
    """Which of a silo's records take part in a round.

    Args:
        rate: Each record is drawn with this probability; None or 1: a fixed order is used.
        batches: Number of batches of the fixed order. 1 takes all records in every round.
        count: Number of records.
        round_index: The round, from 0.
        words: Draws that many secret words of 64 bits.
        hashes: The hash of each record, which decides its batch. Needed if records may be added or removed, since the
            batch of a record must not depend on the others. None: records are dealt out in their order.

    Returns:
        A boolean for each record.
    """
    if rate is not None and rate < 1:
        return words(count) < np.uint64(rate * 2.0**64)
    keys = np.arange(count) if hashes is None else hashes
    return keys % batches == round_index % batches


def record_hashes(inputs: Tensor, labels: Tensor) -> Any:
    """A hash of 64 bits of each record.

    Args:
        inputs: Inputs of the records.
        labels: Labels of the records.

    Returns:
        An array of unsigned integers.
    """
    records = zip(inputs.cpu().contiguous().numpy(), labels.cpu().contiguous().numpy(), strict=True)
    key = b"rqm, the batch of a record"
    digests = [blake2b(x.tobytes() + y.tobytes(), digest_size=8, key=key).digest() for x, y in records]
    return np.frombuffer(b"".join(digests), dtype="<u8")


@final
class RecordGradients:
    """Computes the sum of records' gradients, each clipped.

    Args:
        model: The model that is trained.
        losses: Gives the loss of each record.
        mean: States to which length gradients are clipped.
        examples: Inputs and labels with the shapes and types of the records. Their values are not read.
        is_separable: Whether the model and the loss are known to treat each record alone, whatever else is in the
            batch. The guarantee then rests on that, and whole batches go through the model, which is many times
            faster. If False, each record is differentiated alone.

    Raises:
        ValueError: If the model or the loss mixes records.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: ExampleLosses,
        mean: PrivateRecordMean,
        examples: Tensors,
        *,
        is_separable: bool = False,
    ) -> None:
        self.model, self.losses, self.mean = model, losses, mean
        self.parameters = trained_parameters(model)
        self.device = self.parameters[0].device
        trial = artificial_records(*examples)
        check_separable(model, losses, *trial)
        self.method = self._fastest_method(*trial, is_separable=is_separable)
        self.batch_size = 1024 if self.device.type == "cuda" else 128
        if self.method != self._by_layers:  # which has no gradients of single records: at most 256 MB
            self.batch_size = max(1, min(self.batch_size, 2**26 // mean.dim))

    def clipped_sum(self, inputs: Tensor, labels: Tensor, seed: int | None = None) -> RecordSum:
        """Compute the sum of some records' clipped gradients.

        Args:
            inputs: Inputs of the records.
            labels: Labels of the records.
            seed: Seed of what the model draws, such as dropout; None: a secret.

        Returns:
            The sum. A record whose gradient is not finite, or raises an error, counts as zero.
        """
        total = self._zeros()
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(int(SecureRandom().words(1)[0]) >> 1 if seed is None else seed)
            for batch in zip(torch.split(inputs, self.batch_size), torch.split(labels, self.batch_size), strict=True):
                total += self._batch_sum(*batch)
        return RecordSum(total, len(labels))

    def _batch_sum(self, inputs: Tensor, labels: Tensor) -> Tensor:
        try:
            return self.method(inputs, labels, self.mean.record_length)
        except Exception:
            if len(labels) < 2:
                return self._zeros()
            records = zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True)
            return sum((self._batch_sum(*record) for record in records), self._zeros())

    def _zeros(self) -> Tensor:
        return torch.zeros(self.mean.dim, dtype=torch.float64, device=self.device)

    def _fastest_method(self, inputs: Tensor, labels: Tensor, *, is_separable: bool) -> ClippedSum:
        """The fastest method that agrees with one record after another, tried on three records."""
        # Importing torch.func takes seconds, so it is tried only if layers do not agree.
        methods = [self._by_layers, self._by_vmap] if is_separable else [self._by_vmap]
        records, is_training = (inputs[:3], labels[:3]), self.model.training
        self.model.eval()  # dropout would differ
        try:
            # With the first clip no gradient is clipped, with the second all are.
            expected = {clip: self._one_by_one(*records, clip) for clip in (1e9, 1e-3)}
            for method in methods:
                if all(_agrees(partial(method, *records, clip), total) for clip, total in expected.items()):
                    return method
        finally:
            self.model.train(is_training)
        return self._one_by_one

    def _by_layers(self, inputs: Tensor, labels: Tensor, clip: float) -> Tensor:
        return clipped_sum(record_layers(self.model, self.losses, inputs, labels)[1], clip)

    def _by_vmap(self, inputs: Tensor, labels: Tensor, clip: float) -> Tensor:
        trained = {name: p.detach() for name, p in self.model.named_parameters() if p.requires_grad}

        def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            model: Any = partial(torch.func.functional_call, self.model, parameters)
            return self.losses(model, x[None], y[None]).sum()

        gradient = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), randomness="different")
        rows = gradient(trained, inputs, labels)
        return _clipped_rows(torch.cat([rows[name].flatten(1) for name in trained], dim=1), clip)

    def _one_by_one(self, inputs: Tensor, labels: Tensor, clip: float) -> Tensor:
        rows: list[Tensor] = []
        for record in zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True):
            loss = self.losses(self.model, *record).sum()
            gradients = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
            rows.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        return _clipped_rows(torch.stack(rows), clip)


def _clipped_rows(rows: Tensor, clip: float) -> Tensor:
    """The sum of some gradients, one row each, each clipped."""
    return scale_rows(rows, squared_lengths(rows).sqrt(), clip).sum(dim=0, dtype=torch.float64)


def _agrees(method: Callable[[], Tensor], expected: Tensor) -> bool:
    try:
        return bool((method() - expected).norm() <= TOLERANCE * expected.norm())
    except Exception:  # a model that this method is not for
        return False


def artificial_records(inputs: Tensor, labels: Tensor) -> Tensors:
    """Four records of the same shapes and types, which do not depend on the values of the given ones.

    Args:
        inputs: Inputs of some records.
        labels: Labels of some records.

    Returns:
        Inputs and labels.
    """
    values = torch.rand((4, *inputs.shape[1:]), generator=torch.Generator().manual_seed(0))
    if not inputs.is_floating_point():  # bytes of pixels; other integers may be indices, of which 0 exists
        values = 255 * values if inputs.dtype == torch.uint8 else torch.zeros_like(values)
    return values.to(inputs), labels.new_zeros((4, *labels.shape[1:]))


def check_separable(model: nn.Module, losses: ExampleLosses, inputs: Tensor, labels: Tensor) -> None:
    """Refuse a model or a loss that mixes records: the loss of a record must depend on no other record.

    Args:
        model: The model.
        losses: Gives the loss of each record.
        inputs: Inputs of three records on which it is tried.
        labels: Their labels.

    Raises:
        ValueError: If records are mixed, or the model has a state that changes.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(f"model: {name} (batch normalization) mixes records; use GroupNorm or LayerNorm")
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    for dropout in dropouts:
        dropout.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            trials = [losses(model, inputs[records], labels[records]) for records in ([0, 1], [0, 2], [0])]
    finally:
        for dropout in dropouts:
            dropout.train()
    if any(not torch.equal(value, buffers[name]) for name, value in model.named_buffers()):
        raise ValueError("model: a buffer changes in a forward pass, so records influence one another; remove it")
    if [tuple(trial.shape) for trial in trials] != [(2,), (2,), (1,)]:
        raise ValueError("loss: must give one number for every record, not their mean (reduction='none')")
    first = torch.stack([trial[0] for trial in trials])
    if not (first - first[2]).abs().max() <= TOLERANCE * first[2].abs() + 1e-6:
        raise ValueError("model: the loss of a record depends on which others are in its batch; records must not mix")
