"""Glyphs: 62 classes of characters, drawn from the fonts that come with matplotlib, a style for each writer.

A writer has a font, slant, size, rotation, position and stroke thickness; every picture adds an elastic distortion and
noise of its own. Sizes imitate Federated EMNIST (3,400 writers, 226 ± 89 pictures). Everything follows from a seed;
pictures are made when a client is first asked for.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from rqm._util.checks import whole
from rqm._util.threads import in_turns
from rqm.data.clients import Clients, FederatedData
from rqm.data.labels import CHARACTERS

FONTS = [
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
]
WRITERS, TEST_WRITERS, TEST_EACH = 3400, 340, 30
TEMPLATE, SIDE = 64, 28
STYLE, SIZES = 0, 1
"""What a seed is used for."""


@cache
def templates(font: int) -> torch.Tensor:
    """All characters in one font, 64×64, ink 1 on background 0."""
    try:
        import matplotlib  # noqa: PLC0415 (an extra)
        from matplotlib.ft2font import FT2Font  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ModuleNotFoundError("glyphs are drawn with matplotlib: pip install 'rqm[report]'") from None
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{FONTS[font]}.ttf"
    out = torch.zeros(len(CHARACTERS), 1, TEMPLATE, TEMPLATE)
    face = FT2Font(str(path))
    face.set_size(56, 72)
    for index, character in enumerate(CHARACTERS):
        face.set_text(character)
        face.draw_glyphs_to_bitmap()
        picture = np.asarray(face.get_image(), dtype=np.float32) / 255
        rows, columns = (np.flatnonzero(picture.any(axis=axis)) for axis in (1, 0))
        picture = picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1][:TEMPLATE, :TEMPLATE]
        top, left = (TEMPLATE - picture.shape[0]) // 2, (TEMPLATE - picture.shape[1]) // 2
        out[index, 0, top : top + picture.shape[0], left : left + picture.shape[1]] = torch.from_numpy(picture)
    return functional.avg_pool2d(out, 3, stride=1, padding=1)  # thin strokes survive the reduction to 28×28


def sizes(seed: int, writers: int) -> npt.NDArray[np.int64]:
    """Pictures of each writer: 226 ± 89 on average, from 20 to 500."""
    rng = np.random.default_rng([seed, SIZES])
    shape = (226 / 89) ** 2
    return np.clip(rng.gamma(shape, 226 / shape, size=writers), 20, 500).astype(np.int64)


def write(seed: int, writer: int, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The pictures and labels of one writer."""
    rng = np.random.default_rng([seed, STYLE, writer])
    mix = rng.dirichlet(np.concatenate([np.full(10, 4.0), np.full(52, 1.0)]))
    labels = rng.choice(len(CHARACTERS), size=count, p=mix)
    slant, turn = rng.normal(0, 0.2), rng.normal(0, 0.08)
    width, height = rng.uniform(0.75, 1.05, size=2)
    place, contrast, edge = rng.normal(0, 0.06, size=2), rng.uniform(2.5, 6), rng.uniform(0.25, 0.6)
    wobble, noise = rng.uniform(0.02, 0.08), rng.uniform(0, 0.08)

    each = rng.normal(0, 1, size=(count, 4))  # every picture's own turn, shift and size
    angle = turn + 0.05 * each[:, 0]
    affine = np.zeros((count, 2, 3))
    affine[:, 0, 0], affine[:, 0, 1] = np.cos(angle) / width, slant + np.sin(angle)
    affine[:, 1, 0], affine[:, 1, 1] = -np.sin(angle), np.cos(angle) / height
    affine[:, :, :2] *= (1 + 0.04 * each[:, 3])[:, None, None]
    affine[:, :, 2] = place + 0.03 * each[:, 1:3]
    shape = [count, 1, SIDE, SIDE]
    grid = functional.affine_grid(torch.from_numpy(affine).float(), shape, align_corners=False)
    bend = torch.from_numpy(rng.normal(0, wobble, size=(count, 2, 5, 5))).float()
    bend = functional.interpolate(bend, size=(SIDE, SIDE), mode="bicubic", align_corners=True)
    ink = functional.grid_sample(
        templates(int(rng.integers(len(FONTS))))[torch.from_numpy(labels)],
        grid + bend.permute(0, 2, 3, 1),
        align_corners=False,
    )
    ink = ((ink[:, 0] - edge) * contrast + 0.5).clamp(0, 1)
    ink += torch.from_numpy(rng.normal(0, noise, size=ink.shape)).float() * (ink > 0)
    return (ink.clamp(0, 1) * 255).round().byte().numpy(), labels


@contextmanager
def one_thread() -> Iterator[None]:
    """Small pictures, without torch's threads: they would wait for each other after every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@lru_cache(maxsize=1)
def glyphs(seed: int = 0, writers: int = WRITERS, test_writers: int = TEST_WRITERS) -> FederatedData:
    """The generated set: training writers made lazily, and a test set by writers who are not among them."""
    seed = whole("seed", seed, 0)
    count = sizes(seed, whole("writers", writers, 1))
    offsets = np.concatenate([[0], np.cumsum(count)])
    # The system gives memory to a page when it is first written: writers nobody asked for cost nothing.
    images = np.zeros((offsets[-1], SIDE, SIDE), dtype=np.uint8)
    labels = np.zeros(offsets[-1], dtype=np.int64)
    done: set[int] = set()

    def prepare(writer: int) -> None:
        if writer not in done:
            part = slice(offsets[writer], offsets[writer + 1])
            images[part], labels[part] = write(seed, writer, int(count[writer]))
            done.add(writer)

    test: list[Any] = [None] * whole("test_writers", test_writers, 1)

    def fill(part: slice) -> None:
        with one_thread():
            test[part] = [write(seed, writers + i, TEST_EACH) for i in range(part.start, part.stop)]

    in_turns(fill, len(test))
    test_images, test_labels = (torch.from_numpy(np.concatenate(part)) for part in zip(*test, strict=True))
    train = Clients(torch.from_numpy(images), torch.from_numpy(labels), offsets, prepare)
    return FederatedData("glyphs", train, test_images, test_labels, len(CHARACTERS))
