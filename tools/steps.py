"""Two pictures for the documents: how RQM encodes one number, and a vector's way from the clients to the server.

python -m tools.steps docs/images
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from rqm.mechanisms.discrete import DiscreteMechanism
from rqm.mechanisms.rqm import RQM
from rqm.randomness import SeededRandom

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MECH = RQM(clip=1.0, margin=1.0, levels=16, keep=0.42)  # the paper's
KEPT = (0, 3, 4, 7, 11, 14, 15)
"""One outcome of keeping each inner level with probability 0.42."""
X = 0.6
INK, PALE, LEVEL, INPUT, CHOSEN = "#22303c", "#c3ccd4", "#1b6ca8", "#e08a00", "#c8322b"
DIM, CLIENTS, BOUND = 64, 40, 1.0


def bracket(x: float, kept: tuple[int, ...] = KEPT, mech: DiscreteMechanism = MECH) -> tuple[int, int, float]:
    """The kept levels next to x, below and above, and the chance of rounding up.

    >>> below, above, up = bracket(0.6)
    >>> values = MECH.grid.values
    >>> below, above, round(float((1 - up) * values[below] + up * values[above]), 9)
    (7, 11, 0.6)
    """
    values = mech.grid.values
    below = max(i for i in kept if values[i] <= x)
    above = min(i for i in kept if values[i] > x)
    return below, above, float((x - values[below]) / (values[above] - values[below]))


def keep_bracket_round(path: Path) -> Path:
    """Draw the four steps into ``path``."""
    figure = Figure(figsize=(8.4, 8.0), facecolor="white")
    figure.set_layout_engine("constrained", hspace=0.07, h_pad=0.06)
    titles = (
        "1   Levels: 16 integers, evenly spaced from −2c to 2c. The input x lies in [−c, c]",
        "2   Keep: each inner level with probability q = 0.42, the two ends always",
        "3   Bracket: x lies between its nearest kept neighbours",
        "4   Round: up or down, so that the mean is x. One integer is sent: 4 bits",
    )
    below, above, up = bracket(X)
    values = MECH.grid.values
    for number, (ax, title) in enumerate(zip(figure.subplots(4, 1, sharex=True), titles, strict=True), start=1):
        _levels(ax, number, (below, above))
        ax.set_title(title, loc="left", fontsize=11.5, color=INK, fontweight="bold", pad=10)
        ax.plot(X, 0, "o", color=INPUT, ms=10, zorder=5, mec="white", mew=1.5)
        if number == 1:
            ax.annotate(f"x = {X:g} c", (X, 0), (X, 0.55), ha="center", color=INPUT, fontsize=11, fontweight="bold")
        elif number == 3:
            for end in (below, above):
                arrow = {"arrowstyle": "-|>", "color": CHOSEN, "lw": 1.6, "shrinkA": 8, "shrinkB": 3}
                ax.annotate("", (values[end], 0), (X, 0), arrowprops=arrow)
        elif number == 4:
            _round(ax, below, above, up)
    ax.set_xlim(-2.2, 2.2)
    ax.set_xticks(np.arange(-2, 3), ["−2c", "−c", "0", "c", "2c"], color=INK)
    figure.savefig(path, dpi=160)
    return path


def _levels(ax: "Axes", number: int, chosen: tuple[int, int]) -> None:
    ax.axvspan(-MECH.clip, MECH.clip, color=INPUT, alpha=0.09, lw=0)
    ax.axhline(0, color=PALE, lw=1, zorder=0)
    for i, value in enumerate(MECH.grid.values):
        kept = number == 1 or i in KEPT
        colour = CHOSEN if number > 2 and i in chosen else LEVEL if kept else PALE
        faint = number > 2 and i not in chosen
        ax.plot(
            [value] * 2,
            [-0.42, 0.42],
            color=colour,
            lw=3 if kept else 1.3,
            ls="-" if kept else (0, (2, 2)),
            alpha=0.35 if faint and kept else 1,
            solid_capstyle="round",
        )
        ax.text(value, -0.55, str(i), ha="center", va="top", fontsize=9, color=colour if not faint else PALE)
    ax.set_ylim(-1, 1)
    ax.set_yticks([])
    ax.spines[["top", "right", "left", "bottom"]].set_visible(False)
    ax.tick_params(length=0)


def _round(ax: "Axes", below: int, above: int, up: float) -> None:
    values = MECH.grid.values
    for end, chance, bend, side in ((below, 1 - up, 0.35, "right"), (above, up, -0.35, "left")):
        arrow = {
            "arrowstyle": "-|>",
            "color": CHOSEN,
            "lw": 0.8 + 3 * chance,
            "shrinkA": 8,
            "shrinkB": 2,
            "connectionstyle": f"arc3,rad={bend}",
        }
        ax.annotate("", (values[end], 0.42), (X, 0), arrowprops=arrow)
        ax.text(values[end], 0.52, f"send {end}: {chance:.0%}", ha=side, color=CHOSEN, fontsize=11, fontweight="bold")


def stages() -> list[tuple[str, str, Any]]:
    """A client's vector after every step of its way, then the sum and what the server makes of it; by the library."""
    from rqm.core.transform import Rotation, clip_and_rotate  # noqa: PLC0415

    rng = np.random.default_rng(3)
    shape = np.exp(-np.arange(DIM) / 9) * np.where(np.arange(DIM) % 3 == 1, -1, 1)
    all_clients = 0.7 * shape + 0.08 * rng.normal(size=(CLIENTS, DIM))
    clipped, _ = clip_and_rotate(all_clients, BOUND, None)
    rotation = Rotation(DIM, seed=5)
    rotated = rotation.forward(clipped)
    mech = RQM(clip=4 * BOUND / DIM**0.5, margin=1.0, levels=16, keep=0.42)
    encoded = mech.encode(rotated, SeededRandom(1)).astype(np.int64)
    modulus = 2 ** mech.sum_bits(CLIENTS)
    masked = (encoded[0] + (SeededRandom(2).words(DIM) % np.uint64(modulus)).astype(np.int64)) % modulus
    total = encoded.sum(axis=0)
    mean = rotation.inverse(mech.decode(total, CLIENTS)[None])[0]
    return [
        ("its gradient", "64 coordinates", all_clients[0]),
        ("clip", "to length C = 1", clipped[0]),
        ("rotate", "by public random signs and Hadamard", rotated[0]),
        ("encode", "to 16 levels: all noise is added here", encoded[0]),
        ("mask", f"modulo {modulus}: all that the server receives", masked),
        ("sum", f"of {CLIENTS} clients: the masks cancel", total),
        ("decode, rotate back", "to the mean (line: the true one)", mean),
        ("", "", clipped.mean(axis=0)),
    ]


def walk(path: Path) -> Path:
    """Draw the way of a vector into ``path``."""
    *shown, (_, _, truth) = stages()
    figure = Figure(figsize=(8.4, 9.2), layout="constrained", facecolor="white")
    places = figure.subplots(len(shown), 1, sharex=True)
    for number, (ax, (name, words, values)) in enumerate(zip(places, shown, strict=True)):
        at_server = number >= 5
        ax.bar(np.arange(DIM), values, width=0.8, color=CHOSEN if name == "mask" else INPUT if at_server else LEVEL)
        if number == len(shown) - 1:
            ax.step(np.arange(DIM) - 0.5, truth, where="post", color=INK, lw=1.3)
        ax.set_title(
            f"{'server' if at_server else 'client'}:  {name}",
            loc="left",
            fontsize=11,
            color=INK,
            fontweight="bold",
            pad=4,
        )
        ax.set_title(words, loc="right", fontsize=9.5, color=INK, pad=4)
        ax.axhline(0, color=INK, lw=0.6)
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        ax.tick_params(labelsize=8, length=2, colors=INK)
    places[-1].set_xticks([])
    figure.savefig(path, dpi=150)
    return path


if __name__ == "__main__":
    _out = Path(sys.argv[1])
    print(keep_bracket_round(_out / "keep-bracket-round.png"))
    print(walk(_out / "walk.png"))
