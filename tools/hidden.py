"""``python -m tools.hidden``: what one person sends, and what everybody's messages together tell, as a picture.

Every person holds a picture of the same word with spots of its own. All go through ``rqm.private_mean`` as a model's
updates would: what is drawn is one person's vector, the same from that person's message alone, and from the sum of all.
"""

from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ft2font import FT2Font

import rqm

PLACE = Path(__file__).parents[1] / "docs" / "images" / "hidden.png"
WIDTH, HEIGHT, PEOPLE, EPSILON = 64, 16, 5000, 1.0
WORD = "Hello"


def word() -> Any:
    """The word in ink of 1 on a ground of 0."""
    font = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans-Bold.ttf"
    face = FT2Font(str(font))
    face.set_size(15, 72)
    face.set_text(WORD)
    face.draw_glyphs_to_bitmap()
    ink = np.asarray(face.get_image(), dtype=float) / 255
    ink = ink[np.flatnonzero(ink.any(axis=1)), :][:, np.flatnonzero(ink.any(axis=0))][:HEIGHT, :WIDTH]
    out = np.zeros((HEIGHT, WIDTH))
    top, left = (HEIGHT - ink.shape[0]) // 2, (WIDTH - ink.shape[1]) // 2
    out[top : top + ink.shape[0], left : left + ink.shape[1]] = ink
    return out


def pictures(people: int = PEOPLE) -> tuple[Any, Any, Any, rqm.PrivateMean]:
    """One person's vector, the same from its message alone, and the mean of all from their sum."""
    rng, ink = np.random.default_rng(0), word().ravel()
    dim = len(ink)
    mean = rqm.private_mean(epsilon=EPSILON, delta=1e-6, clients=people, dim=dim)
    single = rqm.private_mean(mechanism=mean.mechanism, delta=1e-6, clients=1, dim=dim)
    total, first, alone = 0, None, None
    for _ in range(people):
        own = ink + rng.normal(0, 0.35, size=dim)
        message = mean.encode(own / np.linalg.norm(own), rqm.SecureRandom())
        if first is None:
            first, alone = own, single.decode(message, 1)
        total = total + message
    return first, alone, mean.decode(total % mean.modulus, people), mean


def draw(path: Path = PLACE) -> Path:
    """Three pictures side by side."""
    first, alone, together, mean = pictures()
    titles = (
        "what one person has",
        "what leaves the device",
        f"{PEOPLE:,} people added up",
    )
    figure, axes = plt.subplots(1, 3, figsize=(7.2, 1.45), layout="constrained")  # can be read on a phone
    for axis, values, title in zip(axes, (first, alone, together), titles, strict=True):
        axis.imshow(np.asarray(values).reshape(HEIGHT, WIDTH), cmap="Greys", interpolation="nearest")
        axis.set_title(title, fontsize=12)
        axis.set_xticks([])
        axis.set_yticks([])
    found = mean.guarantee()
    figure.supxlabel(
        f"a random bit for each number: ε = {found.epsilon:.2g}, δ = {found.delta:.0e} for everyone, certified",
        fontsize=12,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=200, bbox_inches="tight")
    plt.close(figure)
    return path


if __name__ == "__main__":
    print(draw())
