"""The picture of docs/cancel.md: noise in the models, round by round, with and without taking it back.

``python -m tools.cancel``, some seconds. Lines are predicted, dots simulated with integers of the experiment ``cancel``
at ε = 1: 1,000 clients' coins, and the transient noise that they add and take back.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rqm.mechanisms.transient import Transient
from rqm.plan.experiments import find
from rqm.plan.plan import Plan
from rqm.plan.sweep import Sweep
from rqm.privacy.accountant import gaussian_noise
from rqm.privacy.factorization import Workload, banded

OUT = Path(__file__).parents[1] / "docs" / "images" / "cancel.png"
WIDTH = 2000
"""Coordinates that are simulated."""


def spread(workload: Workload, covariance: np.ndarray) -> np.ndarray:
    """The deviation of the noise in the model after each round, from the covariance of the rounds' noise."""
    return np.asarray(np.sqrt(np.einsum("ts,su,tu->t", workload.matrix, covariance, workload.matrix)))


def simulated(plan: Plan, seed: int = 0) -> np.ndarray:
    """The same of drawn integers, over the L2 clip."""
    rng, channel, rounds = np.random.default_rng(seed), plan.mechanism.channel, plan.rounds
    drawn = Transient.of(plan.cancel or 0.5)

    def sums(one: Transient) -> np.ndarray:
        law, _ = one.summed(plan.clients)
        return np.asarray(rng.choice(len(law), p=law, size=(rounds, WIDTH)) - len(law) // 2)

    goes, stays = sums(drawn), sums(drawn.left) if drawn.stays else 0
    back = goes + (drawn.times - 1) * stays
    coins = rng.binomial(plan.clients, 0.5, size=back.shape) - plan.clients / 2
    noise = coins + back + stays - np.vstack([np.zeros(WIDTH, dtype=int), back[:-1]])
    models = plan.workload.matrix @ noise * channel.grid.step / (plan.transforms.l2_clip or 1.0)
    return np.asarray(models.std(axis=1))


def main() -> None:
    """Draw it."""
    plan = Sweep.from_toml(find("cancel")).variants["cancelled, ε=1"]
    mean, workload, rounds = plan.private_mean(), plan.workload, plan.rounds
    channel, clip = plan.mechanism.channel, plan.transforms.l2_clip or 1.0
    alone = gaussian_noise(mean.setting, mean.guarantee.epsilon)
    taken = np.eye(rounds) - np.eye(rounds, k=-1)
    scale = plan.clients**0.5 * channel.grid.step / clip
    held = mean.held
    amplified = np.eye(rounds) + (held.times - 1) * taken  # how the part that stays comes and goes
    ours = np.eye(rounds) / 4 + held.deviation**2 * taken @ taken.T + held.stays**2 * amplified @ amplified.T
    ours = scale**2 * ours
    inverse = np.linalg.inv(banded(workload, 64).matrix)
    lines = {
        "independent noise": (alone**2 * np.eye(rounds), "C3"),
        "noise that cancels, from an untrusted server": (ours, "C0"),
        "the best trusted server: banded, 64 rounds": (alone**2 * inverse @ inverse.T, "C2"),
    }
    unit = spread(workload, lines["independent noise"][0]).max()
    figure = Figure(figsize=(7.2, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, (covariance, colour) in lines.items():
        axes.plot(np.arange(1, rounds + 1), spread(workload, covariance) / unit, color=colour, label=name)
    some = slice(9, None, 20)
    dots = simulated(plan)[some] / unit
    axes.plot(
        np.arange(1, rounds + 1)[some], dots, "o", ms=4, color="C0", label="noise that cancels, simulated integers"
    )
    axes.set(xlabel="round", ylabel="noise in the model", xlim=(0, rounds), ylim=(0, None))
    axes.set_title("The same ε = 1 for every user: what is left of its noise in the model", fontsize=10)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(OUT, dpi=150)
    print(OUT.relative_to(OUT.parents[2]))


if __name__ == "__main__":
    main()
