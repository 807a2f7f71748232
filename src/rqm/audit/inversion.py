"""Can a picture be rebuilt from what its owner sent? Deep leakage from gradients (Zhu, Liu and Han 2019).

The attacker looks for pictures whose gradient is what it has seen, by L-BFGS. It is given all that helps it: the model,
everybody's labels, how gradients were clipped; and of all that it rebuilds with the right label, from two beginnings,
the picture closest to the truth is counted. What it sees differs: the gradient itself, rounded levels, levels of RQM,
or sums of many clients.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import ndimage, optimize, stats
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from rqm._util.checks import FloatArray, whole
from rqm._util.stats import mean_and_interval
from rqm.data.federated_data import FederatedData
from rqm.mechanisms.rounding import Rounding
from rqm.mechanisms.rqm import RQM
from rqm.randomness import SeededRandom

SMOOTH = (0.0, 0.1)
"""Weights of a prior for smooth pictures (total variation): the attack is made with each, the better is counted."""
KINDS = ("plain gradient", "rounded, 4 bits", "RQM, 4 bits", "sum, no noise", "sum, RQM, 4 bits")


class Victim(nn.Module):
    """The small network that deep leakage was shown on: strided convolutions and sigmoids, twice differentiable."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        rng = torch.Generator().manual_seed(seed)
        self.body = nn.Sequential(
            nn.Conv2d(1, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, stride=2, padding=2),
            nn.Sigmoid(),
            nn.Conv2d(12, 12, 5, padding=2),
            nn.Sigmoid(),
            nn.Flatten(),
            nn.Linear(588, classes),
        )
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.uniform_(-0.5, 0.5, generator=rng)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores."""
        return torch.as_tensor(self.body(x))

    def gradients(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The gradient of each picture's loss, a row each; it can be differentiated again."""
        parameters: dict[str, torch.Tensor] = dict(self.named_parameters())

        def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(functional_call(self, values, (x[None],)), y[None])

        found = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, pictures, labels)
        return torch.cat([part.flatten(1) for part in found.values()], dim=1)


@dataclass(frozen=True)
class Reconstruction:
    """One attack: what was seen, the true picture, what was rebuilt, and how alike they are (SSIM, 1 is equal).

    ``identified``: among a hundred pictures of its class the true one is the most alike.
    """

    kind: str
    picture: int
    truth: FloatArray
    rebuilt: FloatArray
    similarity: float
    identified: bool


def audit_inversion(
    data: FederatedData,
    *,
    pictures: int = 4,
    seeds: int = 1,
    clients: int = 40,
    iterations: int = 300,
    device: str = "cpu",
) -> Iterator[Reconstruction]:
    """Attack ``pictures`` of the data, each with ``seeds`` models; yield reconstructions as they are found."""
    pictures, seeds, clients = whole("pictures", pictures, 1), whole("seeds", seeds, 1), whole("clients", clients, 2)
    images, labels = data.test_inputs, data.test_labels
    chosen = np.random.default_rng(0).permutation(len(labels))
    if pictures * clients > len(chosen):
        raise ValueError(f"pictures = {pictures}: {data.name} has only {len(chosen)} to choose from")
    x = (images[torch.from_numpy(chosen)].double() / 255).unsqueeze(1).to(device)
    y = labels[torch.from_numpy(chosen)].to(device)
    for seed in range(seeds):
        victim = Victim(data.classes, seed).double().to(device)
        for number in range(pictures):
            others = slice(pictures + number * (clients - 1), pictures + (number + 1) * (clients - 1))
            crowd = torch.cat([x[number : number + 1], x[others]]), torch.cat([y[number : number + 1], y[others]])
            truth, like = x[number, 0].cpu().numpy(), _same_class(data, int(y[number]), int(chosen[number]))
            for kind in KINDS:
                many = crowd if kind.startswith("sum") else (x[number : number + 1], y[number : number + 1])
                rebuilt = _attack(victim, *many, kind, SeededRandom(seed, number), iterations)
                best = max(rebuilt, key=partial(similarity, truth))
                yield Reconstruction(kind, number, truth, best, similarity(truth, best), identified(best, truth, like))
            if len(like) and not seed:
                yield Reconstruction("another of its class", number, truth, like[0], similarity(truth, like[0]), False)


def summary(found: list[Reconstruction]) -> dict[str, dict[str, Any]]:
    """For each kind: the mean similarity with its 95 % confidence interval, and how many pictures were identified.

    Pictures are what is independent: models of one picture are averaged, and one that identifies it is enough. The
    interval of the share that was identified is Clopper and Pearson's.
    """
    out: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(one.kind for one in found):
        some = [one for one in found if one.kind == kind]
        numbers = sorted({one.picture for one in some})
        groups = [[one for one in some if one.picture == number] for number in numbers]
        mean, half = mean_and_interval([np.mean([one.similarity for one in group]) for group in groups])
        hits = stats.binomtest(sum(any(one.identified for one in group) for group in groups), len(groups))
        low, high = hits.proportion_ci(0.95)
        out[kind] = {
            "attacks": len(some),
            "pictures": len(groups),
            "similarity": float(mean),
            "half_width": None if np.isnan(half) else float(half),
            "identified": hits.k / len(groups),
            "identified_low": float(low),
            "identified_high": float(high),
        }
    return out


def identified(rebuilt: FloatArray, truth: FloatArray, like: FloatArray) -> bool:
    """Whether the true picture, and no other of its class, is the one most correlated with what was rebuilt."""

    def correlation(picture: FloatArray) -> float:
        a, b = picture - picture.mean(), rebuilt - rebuilt.mean()
        return float((a * b).sum() / max(1e-12, float(np.sqrt((a * a).sum() * (b * b).sum()))))

    return bool(correlation(truth) > max((correlation(picture) for picture in like), default=-1.0))


def similarity(a: FloatArray, b: FloatArray) -> float:
    """Structural similarity (Wang et al. 2004) of two pictures in [0, 1], over windows of 7 by 7."""

    def mean(x: FloatArray) -> Any:
        return ndimage.uniform_filter(x, 7)[3:-3, 3:-3]

    m, n = mean(a), mean(b)
    both, va, vb = mean(a * b) - m * n, mean(a * a) - m * m, mean(b * b) - n * n
    c1, c2 = 0.01**2, 0.03**2
    return float(np.mean((2 * m * n + c1) * (2 * both + c2) / ((m * m + n * n + c1) * (va + vb + c2))))


def _same_class(data: FederatedData, label: int, but: int) -> FloatArray:
    """Other pictures of the same class, at most 99."""
    rows = torch.nonzero(data.test_labels == label).flatten()
    return np.asarray((data.test_inputs[rows[rows != but][:99]].double() / 255).cpu())


def _attack(
    victim: Victim, x: torch.Tensor, y: torch.Tensor, kind: str, rng: SeededRandom, iterations: int
) -> list[FloatArray]:
    """The pictures with the first one's label that were rebuilt from what is seen of the clients' gradients."""
    own = victim.gradients(x, y).detach()
    seen, clip = _seen(own, kind, rng)
    starts = np.random.default_rng(rng.stream(1).words(1)).random((len(SMOOTH), x.numel()))
    found: list[FloatArray] = []
    for smooth, start in zip(SMOOTH, starts, strict=True):
        objective = _objective(victim, seen, clip, y, smooth)
        result = optimize.minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, 1)] * len(start),
            options={"maxiter": iterations, "maxcor": 50},
        )
        found += list(result.x.reshape(-1, 28, 28)[(y == y[0]).cpu().numpy()])
    return found


def _seen(own: torch.Tensor, kind: str, rng: SeededRandom) -> tuple[torch.Tensor, float]:
    """The mean gradient as the attacker sees it, and the clip of each coordinate."""
    clip = float(own.abs().max())
    if "no noise" in kind or kind == "plain gradient":
        return own.mean(dim=0), clip
    if "RQM" in kind:
        clip = float(own.square().mean().sqrt())
    mech = RQM(clip=clip) if "RQM" in kind else Rounding(clip=clip, levels=16)
    total = mech.encode_sum(own.cpu().numpy(), rng)
    return torch.from_numpy(np.asarray(mech.decode(total, len(own)))).to(own), clip


def _objective(
    victim: Victim, seen: torch.Tensor, clip: float, y: torch.Tensor, smooth: float
) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """The distance of the gradient of some pictures from what is seen, and its derivative."""
    scale = float(seen.square().sum())

    def value(flat: FloatArray) -> tuple[float, FloatArray]:
        x = torch.from_numpy(flat).to(seen).reshape(-1, 1, 28, 28).requires_grad_()
        mean = victim.gradients(x, y).clamp(-clip, clip).mean(dim=0)
        loss = (mean - seen).square().sum() / scale
        if smooth:
            loss = loss + smooth * sum(x.diff(dim=d).square().add(1e-6).sqrt().mean() for d in (-1, -2))
        (slope,) = torch.autograd.grad(loss, x)
        return loss.item(), slope.cpu().numpy().ravel()

    return value
