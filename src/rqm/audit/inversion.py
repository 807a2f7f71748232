"""Gradient inversion: can a picture be rebuilt from what its owner sent?

Deep leakage from gradients (Zhu, Liu and Han 2019): the attacker searches for pictures whose gradient is
the observed one, by L-BFGS. It knows the model, all labels, and how gradients were clipped. It tries two
priors, and of the pictures with the right label the one closest to the truth counts. What it observes
differs: the gradient, rounded levels, levels of RQM, or sums over clients.
"""

from collections.abc import Iterator, Sequence
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
from rqm._util.numeric import mean_and_interval
from rqm.data.federated_data import FederatedData
from rqm.mechanisms.rqm import RQM
from rqm.mechanisms.stochastic_rounding import StochasticRounding
from rqm.randomness import SeededRandom

OBSERVATIONS = ("plain gradient", "rounded, 4 bits", "RQM, 4 bits", "sum, no noise", "sum, RQM, 4 bits")
"""What the attacker observes."""


def victim_model(classes: int, seed: int) -> nn.Module:
    """The network of Zhu, Liu and Han (2019): strided convolutions and sigmoids, which are twice differentiable.

    Args:
        classes: Number of classes.
        seed: Seed of the weights.

    Returns:
        A model in float64.
    """
    model = nn.Sequential(
        *(nn.Conv2d(1, 12, 5, stride=2, padding=2), nn.Sigmoid()),
        *(nn.Conv2d(12, 12, 5, stride=2, padding=2), nn.Sigmoid()),
        *(nn.Conv2d(12, 12, 5, padding=2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(588, classes)),
    )
    rng = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5, rng)
    return model.double()


def picture_gradients(model: nn.Module, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The gradient of each picture's loss, one per row. It can be differentiated again.

    Args:
        model: A model.
        pictures: Pictures.
        labels: Their classes.

    Returns:
        A matrix.
    """

    def _loss(parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    gradients = vmap(grad(_loss), in_dims=(None, 0, 0))(dict(model.named_parameters()), pictures, labels)
    return torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """One attack.

    Attributes:
        kind: What was observed.
        picture: Number of the picture.
        truth: The true picture, in [0, 1].
        rebuilt: The picture that was rebuilt.
        lookalikes: Other pictures of its class, at most 99.
    """

    kind: str
    picture: int
    truth: FloatArray
    rebuilt: FloatArray
    lookalikes: FloatArray

    @property
    def similarity(self) -> float:
        """The structural similarity of the two pictures; 1 if they are equal."""
        return similarity(self.truth, self.rebuilt)

    @property
    def identified(self) -> bool:
        """Whether the true picture is more correlated with what was rebuilt than any lookalike."""
        pictures = [picture.ravel() for picture in (self.rebuilt, self.truth, *self.lookalikes)]
        with np.errstate(invalid="ignore"):
            correlations = np.nan_to_num(np.corrcoef(pictures)[0])  # 0 for a picture of one color
        return bool((correlations[1] > correlations[2:]).all())


def audit_inversion(
    data: FederatedData,
    *,
    pictures: int = 4,
    seeds: int = 1,
    clients: int = 40,
    iterations: int = 300,
    device: str = "cpu",
) -> Iterator[Reconstruction]:
    """Attack pictures of the test set.

    Args:
        data: Pictures of 28 by 28.
        pictures: How many to attack.
        seeds: Models for each picture, which differ in their weights.
        clients: Clients of the sums, at least 2.
        iterations: Steps of L-BFGS.
        device: "cpu" or "cuda".

    Yields:
        Each attack when it is done, and for each picture another one of its class for comparison.
    """
    pictures = whole("pictures", pictures, 1)
    seeds = whole("seeds", seeds, 1)
    clients = whole("clients", clients, 2)
    order = np.random.default_rng(0).permutation(len(data.test_labels))
    if pictures * clients > len(order):
        raise ValueError(f"pictures = {pictures}: {data.name} has only {len(order)} to choose from")
    chosen = torch.from_numpy(order[: pictures * clients])
    x = (data.test_inputs[chosen].double() / 255).unsqueeze(1).to(device)
    y = data.test_labels[chosen].to(device)
    for seed in range(seeds):
        victim = victim_model(data.classes, seed).to(device)
        for number in range(pictures):
            first = pictures + number * (clients - 1)
            cohort = [number, *range(first, first + clients - 1)]
            truth = x[number, 0].cpu().numpy()
            lookalikes = _lookalikes(data, int(chosen[number]))
            for kind in OBSERVATIONS:
                senders = cohort if kind.startswith("sum") else [number]
                rebuilt = _attack(victim, x[senders], y[senders], kind, SeededRandom(seed, number), iterations)
                best = max(rebuilt, key=partial(similarity, truth))
                yield Reconstruction(kind, number, truth, best, lookalikes)
            if len(lookalikes) and not seed:
                yield Reconstruction("another of its class", number, truth, lookalikes[0], lookalikes)


def _lookalikes(data: FederatedData, index: int) -> FloatArray:
    """Other pictures of the same class, at most 99."""
    same_class = torch.nonzero(data.test_labels == data.test_labels[index]).flatten()
    return np.asarray(data.test_inputs[same_class[same_class != index][:99]].double().cpu()) / 255


def summary(attacks: Sequence[Reconstruction]) -> dict[str, dict[str, Any]]:
    """The scores of each kind of observation.

    Pictures are independent: the models of one picture are averaged, and one that identifies it is enough.

    Args:
        attacks: Attacks of all kinds.

    Returns:
        For each kind the mean similarity with the half-width of its 95 % confidence interval (Student), and
        the fraction of identified pictures with its 95 % interval (Clopper and Pearson).
    """
    scores: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(attack.kind for attack in attacks):
        of_kind = [attack for attack in attacks if attack.kind == kind]
        pictures = sorted({attack.picture for attack in of_kind})
        groups = [[attack for attack in of_kind if attack.picture == picture] for picture in pictures]
        mean, half_width = mean_and_interval([np.mean([attack.similarity for attack in group]) for group in groups])
        hits = stats.binomtest(sum(any(attack.identified for attack in group) for group in groups), len(groups))
        interval = hits.proportion_ci(0.95)
        scores[kind] = {
            "attacks": len(of_kind),
            "pictures": len(groups),
            "similarity": float(mean),
            "half_width": None if np.isnan(half_width) else float(half_width),
            "identified": hits.statistic,
            "identified_low": float(interval.low),
            "identified_high": float(interval.high),
        }
    return scores


def similarity(a: FloatArray, b: FloatArray) -> float:
    """The structural similarity of two pictures (Wang et al. 2004).

    Args:
        a: A picture in [0, 1].
        b: Another one.

    Returns:
        The mean over windows of 7 by 7; 1 if the pictures are equal.
    """
    mean_a, mean_b, mean_ab, mean_aa, mean_bb = (
        ndimage.uniform_filter(x, 7)[3:-3, 3:-3] for x in (a, b, a * b, a * a, b * b)
    )
    covariance = mean_ab - mean_a * mean_b
    variances = mean_aa - mean_a**2 + mean_bb - mean_b**2
    c1, c2 = 0.01**2, 0.03**2
    structure = (2 * covariance + c2) / (variances + c2)
    return float(np.mean((2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1) * structure))


def _attack(
    victim: nn.Module, x: torch.Tensor, y: torch.Tensor, kind: str, rng: SeededRandom, iterations: int
) -> list[FloatArray]:
    """Pictures with the first label that are rebuilt from what is observed of the clients' gradients."""
    observed, clip = _observe(picture_gradients(victim, x, y).detach(), kind, rng)
    scale = float(observed.square().sum())
    smoothness = (0.0, 0.1)  # weights of a prior for smooth pictures (total variation)
    starts = np.random.default_rng(rng.stream(1).words(1)).random((len(smoothness), x.numel()))

    def distance(flat: FloatArray, weight: float) -> tuple[float, FloatArray]:
        """The distance of the mean gradient of some pictures from the observed one, and its derivative."""
        guess = torch.from_numpy(flat).to(observed).reshape(x.shape).requires_grad_()
        loss = (picture_gradients(victim, guess, y).clamp(-clip, clip).mean(dim=0) - observed).square().sum() / scale
        for axis in (-1, -2) if weight else ():
            loss = loss + weight * guess.diff(dim=axis).square().add(1e-6).sqrt().mean()
        (derivative,) = torch.autograd.grad(loss, guess)
        return loss.item(), derivative.cpu().numpy().ravel()

    rebuilt: list[FloatArray] = []
    for weight, start in zip(smoothness, starts, strict=True):
        result = optimize.minimize(
            distance,
            start,
            (weight,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0, 1)] * len(start),
            options={"maxiter": iterations, "maxcor": 50},
        )
        rebuilt += list(result.x.reshape(x.shape)[(y == y[0]).cpu().numpy(), 0])
    return rebuilt


def _observe(gradients: torch.Tensor, kind: str, rng: SeededRandom) -> tuple[torch.Tensor, float]:
    """The mean gradient as the attacker sees it, and the clip of each coordinate."""
    clip = float(gradients.abs().max())
    if kind in ("plain gradient", "sum, no noise"):
        return gradients.mean(dim=0), clip
    mechanism: RQM | StochasticRounding = StochasticRounding(clip=clip, levels=16)
    if "RQM" in kind:
        mechanism = RQM(clip=float(gradients.square().mean().sqrt()))
    total = mechanism.encode_sum(gradients.cpu().numpy(), rng)
    mean = torch.from_numpy(np.asarray(mechanism.decode(total, len(gradients)))).to(gradients)
    return mean, mechanism.clip
