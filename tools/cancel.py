"""The picture of docs/cancel.md: noise in the models, round by round, with independent and with correlated noise.

``python -m tools.cancel``, some seconds. Lines are predicted. Dots are simulated with the integers of the experiment
``cancel`` at ε = 1: the rounding of 1,000 clients, and the correlated noise that they add and cancel.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rqm.accounting.calibration import gaussian_noise
from rqm.config.experiments import find
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.core.base import BaseMean
from rqm.correlated.factorization import Workload, banded
from rqm.correlated.integer_noise import IntegerNoise
from rqm.correlated.noise import CorrelatedNoise

OUT = Path(__file__).parents[1] / "docs" / "images" / "cancel.png"
WIDTH = 2000
"""Coordinates that are simulated."""


def spread(workload: Workload, covariance: np.ndarray) -> np.ndarray:
    """The deviation of the noise in the model after each round, from the covariance of the rounds' noise."""
    return np.asarray(np.sqrt(np.einsum("ts,su,tu->t", workload.matrix, covariance, workload.matrix)))


def simulated(plan: Plan, noise: CorrelatedNoise, seed: int = 0) -> np.ndarray:
    """The same of drawn integers, over the L2 clip."""
    rng, channel, who = np.random.default_rng(seed), plan.mechanism.discrete, plan.participation

    def sums(noise: IntegerNoise) -> np.ndarray:
        pmf, _ = noise.summed(who.clients)
        return np.asarray(rng.choice(len(pmf), p=pmf, size=(who.rounds, WIDTH)) - len(pmf) // 2)

    transient, residual = sums(noise.transient), 0 if noise.residual is None else sums(noise.residual)
    canceled = transient + (noise.gain - 1) * residual
    rounding = rng.binomial(who.clients, 0.5, size=canceled.shape) - who.clients / 2
    total = rounding + canceled + residual - np.vstack([np.zeros(WIDTH, dtype=int), canceled[:-1]])
    models = plan.workload.matrix @ total * channel.grid.step / (plan.transforms.l2_clip or 1.0)
    return np.asarray(models.std(axis=1))


def trusted_noise(mean: BaseMean) -> float:
    """The noise multiplier of a trusted server's Gaussian with the same ε."""
    return gaussian_noise(mean.release, mean.participation, mean.threat_model, mean.delta, mean.guarantee().epsilon)


def main() -> None:
    """Draw it."""
    plan = Sweep.from_toml(find("cancel")).variants["cancelled, ε=1"]
    mean, workload, rounds = plan.private_mean(), plan.workload, plan.participation.rounds
    channel, clip, noise = plan.mechanism.discrete, plan.transforms.l2_clip or 1.0, mean.noise
    assert isinstance(noise, CorrelatedNoise)
    alone = trusted_noise(mean)
    difference = np.eye(rounds) - np.eye(rounds, k=-1)
    scale = plan.participation.clients**0.5 * channel.grid.step / clip
    amplified = np.eye(rounds) + (noise.gain - 1) * difference  # how residual noise enters the rounds
    transient = noise.transient_std**2 * difference @ difference.T
    ours = scale**2 * (np.eye(rounds) / 4 + transient + noise.residual_std**2 * amplified @ amplified.T)
    inverse = np.linalg.inv(banded(workload, 64).matrix)
    lines = {
        "independent noise": (alone**2 * np.eye(rounds), "C3"),
        "correlated noise, from an untrusted server": (ours, "C0"),
        "the best trusted server: banded, 64 rounds": (alone**2 * inverse @ inverse.T, "C2"),
    }
    unit = spread(workload, lines["independent noise"][0]).max()
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, (covariance, colour) in lines.items():
        axes.plot(np.arange(1, rounds + 1), spread(workload, covariance) / unit, color=colour, label=name)
    some = slice(9, None, 20)
    dots = simulated(plan, noise)[some] / unit
    axes.plot(np.arange(1, rounds + 1)[some], dots, "o", ms=4, color="C0", label="correlated noise, simulated integers")
    axes.set(xlabel="round", ylabel="noise in the model", xlim=(0, rounds), ylim=(0, None))
    axes.set_title("The same ε = 1 for every user: noise that is left in the model", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(OUT, dpi=150)
    print(OUT.relative_to(OUT.parents[2]))


if __name__ == "__main__":
    main()
