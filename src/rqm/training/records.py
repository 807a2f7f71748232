"""Per-record gradients: the sum of a silo's records' gradients, each clipped, in batches of bounded memory.

Of dense layers and plain convolutions all that is needed is what each layer saw and the error that came back: one
forward and one backward pass for a whole batch. A dense layer's gradient of one record is an outer product, whose
length is known without it, and the sum of clipped ones is one product of matrices (Goodfellow 2015). Other models are
differentiated record by record, by ``torch.func`` where it can, else one after the other.
"""

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, final

import numpy as np
import torch
from torch import nn

from rqm.core.record_mean import PrivateRecordMean, RecordSum
from rqm.randomness import SecureRandom
from rqm.training.batched import Loss, conv_gradients, plain_layers

RECORDS, FLOATS = {"cpu": 128, "cuda": 1024}, 2**26
"""Records of a virtual batch by device, and floats of their gradients where those are made one by one, at most."""
TOLERANCE = 1e-3
"""Two ways to the same sum differ by less, and so does a record's loss in two batches, in float32."""

KEY = b"rqm, the batch of a record"

Way = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""From records and a clip to the sum of their clipped gradients, in float64."""


def taken(rate: float | None, batches: int, count: int, turn: int, coins: Callable[[int], Any], own: Any = None) -> Any:
    """Which of a silo's records take part in a round: drawn at a ``rate``, in a fixed order of ``batches``, or all.

    ``coins`` gives so many words of 64 bits, which nobody else knows. ``own`` are words that belong to the records and
    stay the same for the whole run: in a fixed order they say to which batch each belongs, if some may be removed.
    """
    if rate is not None and rate < 1:
        return coins(count) < np.uint64(rate * 2.0**64)
    places = np.arange(count) if own is None else own
    return places % batches == turn % batches


def own_words(inputs: torch.Tensor, labels: torch.Tensor) -> Any:
    """A word of 64 bits for every record that depends on it alone: one record more or less changes no other's."""
    rows = zip(inputs.cpu().contiguous().numpy(), labels.cpu().contiguous().numpy(), strict=True)
    found = [blake2b(x.tobytes() + y.tobytes(), digest_size=8, key=KEY).digest() for x, y in rows]
    return np.frombuffer(b"".join(found), dtype="<u8")


@final
class PerRecord:
    """The clipped gradients of a model's records. ``losses`` gives one number for every record, of it alone.

    Each record is differentiated by itself, whatever the model and the loss do with others beside it, by ``torch.func``
    or one after the other. If they are known to treat every record ``alone``, all of a batch go through the model
    together, which is many times faster: then what is stated rests on that. ``like`` are inputs and labels of the
    records' shapes and types; their values, which are private, are not looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        losses: Loss,
        mean: PrivateRecordMean,
        like: tuple[torch.Tensor, torch.Tensor],
        *,
        alone: bool = False,
    ) -> None:
        self.model, self.losses, self.mean, self.length = model, losses, mean, mean.record_length
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        trial = made_up(*like)
        check_apart(model, losses, *trial)
        self.name, self.way = self._best(*trial, alone=alone)
        most = RECORDS.get(self.parameters[0].device.type, RECORDS["cpu"])
        self.size = most if self.name == "layers" else max(1, min(most, FLOATS // mean.dim))

    def gather(self, inputs: torch.Tensor, labels: torch.Tensor, seed: int | None = None) -> RecordSum:
        """The sum of so many records' clipped gradients. One that raises counts as zero, as one that is not finite.

        What the model draws itself, as dropout does, is drawn from a secret, or in simulations from a ``seed``.
        """
        device = self.parameters[0].device
        found = RecordSum(torch.zeros(self.mean.dim, dtype=torch.float64, device=device), 0)
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(int(SecureRandom().words(1)[0]) >> 1 if seed is None else seed)
            for some in torch.split(torch.arange(len(labels), device=labels.device), self.size):
                if len(some):
                    found = found.plus(self._sum(inputs[some], labels[some]), len(some))
        return found

    def _sum(self, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        try:
            return self.way(inputs, labels, self.length)
        except Exception:
            if len(labels) == 1:
                return torch.zeros(self.mean.dim, dtype=torch.float64, device=self.parameters[0].device)
            each = [self._sum(inputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
            return torch.stack(each).sum(dim=0)

    def _best(self, inputs: torch.Tensor, labels: torch.Tensor, *, alone: bool) -> tuple[str, Way]:
        """The fastest way that comes to the same as one record after the other, tried on some."""
        ways: dict[str, Way] = {"layers": self._by_layers} if alone else {}
        ways["vmap"] = self._by_vmap  # the first time that costs seconds: not tried if a better one is good
        training = self.model.training
        self.model.eval()  # dropout would differ
        try:
            # nobody's gradient is clipped, and everybody's
            one = {clip: self._by_one(inputs[:3], labels[:3], clip) for clip in (1e9, 1e-3)}
            for name, way in ways.items():
                if all(_agrees(partial(way, inputs[:3], labels[:3], clip), each) for clip, each in one.items()):
                    return name, way
        finally:
            self.model.train(training)
        return "one by one", self._by_one

    def _clipped(self, rows: torch.Tensor, clip: float) -> torch.Tensor:
        """The sum of some gradients, a row each."""
        return factors(_squares(rows).sqrt(), clip, rows).sum(dim=0, dtype=torch.float64)

    def _by_one(self, inputs: torch.Tensor, labels: torch.Tensor, clip: float) -> torch.Tensor:
        total = torch.zeros(self.mean.dim, dtype=torch.float64, device=self.parameters[0].device)
        for i in range(len(labels)):
            loss = self.losses(self.model, inputs[i : i + 1], labels[i : i + 1]).sum()
            parts = torch.autograd.grad(loss, self.parameters, allow_unused=True)
            flat = [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, parts, strict=True)]
            total += self._clipped(torch.cat([g.reshape(-1) for g in flat])[None], clip)
        return total

    def _by_vmap(self, inputs: torch.Tensor, labels: torch.Tensor, clip: float) -> torch.Tensor:
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        values = {name: p.detach() for name, p in self.model.named_parameters()}

        def alone(own: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            called = partial(torch.func.functional_call, self.model, {**values, **own})
            return self.losses(called, x[None], y[None]).sum()  # type: ignore[arg-type]

        own = {name: values[name] for name in names}
        each = torch.func.vmap(torch.func.grad(alone), in_dims=(None, 0, 0), randomness="different")(
            own, inputs, labels
        )
        return self._clipped(torch.cat([each[name].flatten(1) for name in names], dim=1), clip)

    def _by_layers(self, inputs: torch.Tensor, labels: torch.Tensor, clip: float) -> torch.Tensor:
        layers = plain_layers(self.model)
        seen: list[tuple[int, torch.Tensor, torch.Tensor]] = []

        def note(number: int) -> Callable[..., None]:
            return lambda _module, given, output: seen.append((number, given[0].detach(), output))

        hooks = [layer.register_forward_hook(note(number)) for number, (layer, _) in enumerate(layers)]
        try:
            losses = self.losses(self.model, inputs, labels)
        finally:
            for hook in hooks:
                hook.remove()
        if not layers or sorted(number for number, *_ in seen) != list(range(len(layers))):
            raise ValueError("a layer of another kind, or one that is used twice")
        if any(len(given) != len(labels) for _, given, _ in seen):
            raise ValueError("a layer that sees other rows than records")
        errors = torch.autograd.grad(losses.sum(), [output for *_, output in seen])
        found = {
            number: _Layer.of(layers[number][0], given, error)
            for (number, given, _), error in zip(seen, errors, strict=True)
        }
        length = torch.stack([one.squares for one in found.values()]).sum(dim=0).sqrt()
        return torch.cat([part.reshape(-1) for number in sorted(found) for part in found[number].summed(length, clip)])


class _Layer:
    """What one layer's gradients are made of, a row for each record: whole, or the two sides of an outer product."""

    def __init__(self, parts: list[torch.Tensor], squares: torch.Tensor, product: bool, bias: bool) -> None:
        self.parts, self.squares, self.product, self.bias = parts, squares, product, bias

    @classmethod
    def of(cls, layer: Any, given: torch.Tensor, error: torch.Tensor) -> "_Layer":
        bias = layer.bias is not None
        if isinstance(layer, nn.Linear) and given.dim() == 2:
            squares = _squares(error) * (_squares(given) + bias)
            return cls([error, given], squares, product=True, bias=bias)
        if isinstance(layer, nn.Linear):  # sequences: outer products add up
            error, given = (part.flatten(1, -2) for part in (error, given))
            parts = [torch.bmm(error.transpose(1, 2), given).flatten(1), error.sum(dim=1)]
        else:
            parts = list(conv_gradients(layer, given, error))
        parts = parts if bias else parts[:1]
        squares = torch.stack([_squares(part) for part in parts]).sum(dim=0)
        return cls(parts, squares, product=False, bias=bias)

    def summed(self, length: torch.Tensor, clip: float) -> list[torch.Tensor]:
        """The sum over all records, each scaled as its whole gradient is; in float64."""
        if not self.product:
            return [factors(length, clip, part).sum(dim=0, dtype=torch.float64) for part in self.parts]
        error, given = factors(length, clip, self.parts[0].double()), self.parts[1]
        given = given.masked_fill(~torch.isfinite(length)[:, None], 0).double()
        return [error.T @ given, *([error.sum(dim=0)] if self.bias else [])]


def _squares(rows: torch.Tensor) -> torch.Tensor:
    """The sum of squares of each row, added up in float64: how a length is clipped rests on it."""
    return rows.double().square().sum(dim=1)


def factors(length: torch.Tensor, clip: float, rows: torch.Tensor) -> torch.Tensor:
    """Rows scaled so that one of that length is within the clip; zero where the length is not finite."""
    scaled = rows * torch.where(length > clip, clip / length, 1.0).to(rows.dtype)[:, None]
    return scaled.masked_fill_(~torch.isfinite(length)[:, None], 0)


def _agrees(way: Callable[[], torch.Tensor], one: torch.Tensor) -> bool:
    try:
        return bool((way() - one).norm() <= TOLERANCE * one.norm())
    except Exception:  # a model that this way is not for
        return False


def made_up(inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Four records of these shapes and types, made of nothing that is private."""
    rng = torch.Generator().manual_seed(0)
    shape, kind = (4, *inputs.shape[1:]), inputs.dtype
    values = torch.rand(shape, generator=rng)
    values = values.to(kind) if kind.is_floating_point else (255 * values * (kind == torch.uint8)).to(kind)
    return values.to(inputs.device), torch.zeros((4, *labels.shape[1:]), dtype=labels.dtype, device=labels.device)


def check_apart(model: nn.Module, losses: Loss, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Refuse a model or a loss that mixes records: what one record's loss is must depend on no other."""
    mixing = next(
        (name for name, one in model.named_modules() if isinstance(one, nn.modules.batchnorm._BatchNorm)), None
    )
    if mixing is not None:
        raise ValueError(f"model: {mixing} (batch normalisation) mixes records; use GroupNorm or LayerNorm")
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    state, dropouts = (
        torch.get_rng_state(),
        [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)],
    )
    training = [one.training for one in dropouts]
    for one in dropouts:
        one.eval()
    try:
        with torch.no_grad():
            together = [losses(model, inputs[some], labels[some]) for some in ([0, 1], [0, 2], [0])]
    finally:
        for one, before in zip(dropouts, training, strict=True):
            one.train(before)
        torch.set_rng_state(state)
    if any(not torch.equal(value, buffers[name]) for name, value in model.named_buffers()):
        raise ValueError("model: remembers what it has seen (a buffer changes); no record may be in another's gradient")
    if any(one.dim() != 1 or len(one) != count for one, count in zip(together, (2, 2, 1), strict=True)):
        raise ValueError("loss: must give one number for every record, not their mean (reduction='none')")
    first = torch.stack([one[0] for one in together])
    if not (first - first[2]).abs().max() <= TOLERANCE * first[2].abs() + 1e-6:
        raise ValueError("model: the loss of a record depends on which others are in its batch; it mixes records")
