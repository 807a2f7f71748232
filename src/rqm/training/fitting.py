"""Whether a model, a loss and data fit together, and whether a guarantee covers all that they learn."""

import copy

import torch
from torch import nn

from rqm.data.federated_data import FederatedData
from rqm.training.models import Loss, cross_entropy, example_losses


def size(model: nn.Module) -> int:
    """The parameters that are trained."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: must be a torch.nn.Module")
    trained = [one for one in model.parameters() if one.requires_grad]
    if not trained:
        raise ValueError("model: has no parameters to train")
    other = next((one.dtype for one in trained if one.dtype != torch.float32), None)
    if other is not None:
        raise TypeError(f"model: has parameters of {other}; must be torch.float32 (model.float())")
    return sum(one.numel() for one in trained)


def check_model(model: nn.Module, data: FederatedData, loss: Loss | None = None) -> None:
    """Refuse, in one line, what cannot be trained: tried on a copy, with one user's examples, and forgotten."""
    size(model)
    trial = copy.deepcopy(model).cpu().train()
    before = {name: value.clone() for name, value in trial.named_buffers()}
    first = int(data.train.sizes.argmax())
    inputs, labels = data.train[first]
    state = torch.get_rng_state()
    try:
        example_losses(trial, inputs, labels, loss or cross_entropy).mean().backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        reason = str(error).strip().splitlines()
        what = "the cross-entropy (give loss= for another)" if loss is None else "loss"
        raise ValueError(
            f"model: fails on inputs of shape {tuple(inputs.shape)} and labels of {tuple(labels.shape)} with {what}: "
            f"{reason[0] if reason else type(error).__name__}"
        ) from None
    finally:
        torch.set_rng_state(state)
    changed = [name for name, value in trial.named_buffers() if not torch.equal(value, before[name])]
    if changed:
        raise ValueError(
            f"model: {changed[0]} changes with the users' data in every pass, beside the gradient, and no ε covers it "
            "(batch normalisation does so); use GroupNorm or LayerNorm, or track_running_stats=False"
        )
    sparse = [name for name, one in trial.named_parameters() if one.grad is not None and one.grad.is_sparse]
    if sparse:
        raise ValueError(f"model: {sparse[0]} has sparse gradients, which tell what a user has; give sparse=False")
