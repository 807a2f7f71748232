"""The data set `glyphs`: 62 classes of characters, drawn from matplotlib's fonts in a style for each writer.

A writer has a font, slant, size, rotation, position and stroke thickness. Every picture adds its own
elastic distortion and noise. Numbers of pictures imitate Federated EMNIST (3,400 writers, 226 ± 89
pictures). Everything follows from a seed, and pictures are drawn when a writer is first read.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from rqm._util.checks import whole
from rqm._util.threads import usable_cores
from rqm.config.model_sizes import IMAGE_SIDE
from rqm.data.class_names import CHARACTERS
from rqm.data.federated_data import Clients, FederatedData

FONTS = [
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
]
STYLE_STREAM, COUNT_STREAM = 0, 1
"""Streams of random numbers of one seed."""


@lru_cache(maxsize=1)
def glyphs(seed: int = 0, writers: int = 3400, test_writers: int = 340) -> FederatedData:
    """Generate the data set.

    Args:
        seed: Seed of all styles, counts and pictures.
        writers: Number of training clients, whose pictures are drawn when they are first read.
        test_writers: Number of further writers, whose pictures are the test set.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """
    seed = whole("seed", seed, 0)
    counts = picture_counts(seed, whole("writers", writers, 1))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # The system allocates a page when it is first written, so pictures that are never drawn take no memory.
    images = np.zeros((offsets[-1], IMAGE_SIDE, IMAGE_SIDE), dtype=np.uint8)
    labels = np.zeros(offsets[-1], dtype=np.int64)

    @cache
    def draw_once(writer: int) -> None:
        examples = slice(offsets[writer], offsets[writer + 1])
        images[examples], labels[examples] = draw(seed, writer, int(counts[writer]))

    def draw_test(writer: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
        return draw(seed, writer, 30)

    torch_threads = torch.get_num_threads()  # they would wait for each other after every operation on small pictures
    with ThreadPoolExecutor(usable_cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        test = list(pool.map(draw_test, range(writers, writers + whole("test_writers", test_writers, 1))))
    torch.set_num_threads(torch_threads)
    test_images, test_labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*test, strict=True))
    train = Clients(torch.from_numpy(images), torch.from_numpy(labels), offsets, draw_once)
    return FederatedData("glyphs", train, test_images, test_labels, len(CHARACTERS))


def picture_counts(seed: int, writers: int) -> npt.NDArray[np.int64]:
    """The number of pictures of each writer: 226 ± 89, between 20 and 500."""
    shape = (226 / 89) ** 2
    counts = np.random.default_rng([seed, COUNT_STREAM]).gamma(shape, 226 / shape, size=writers)
    return np.clip(counts, 20, 500).astype(np.int64)


def draw(seed: int, writer: int, count: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Draw the pictures of a writer.

    Args:
        seed: Seed of the data set.
        writer: Index of the writer.
        count: Number of pictures.

    Returns:
        Pictures (count, 28, 28) with ink 255 on background 0, and their labels.
    """
    rng = np.random.default_rng([seed, STYLE_STREAM, writer])
    proportions = rng.dirichlet(np.concatenate([np.full(10, 4.0), np.full(52, 1.0)]))
    labels = rng.choice(len(CHARACTERS), size=count, p=proportions)
    slant = rng.normal(0, 0.2)
    rotation = rng.normal(0, 0.08)
    width, height = rng.uniform(0.75, 1.05, size=2)
    shift = rng.normal(0, 0.06, size=2)
    contrast = rng.uniform(2.5, 6)
    threshold = rng.uniform(0.25, 0.6)
    distortion_std = rng.uniform(0.02, 0.08)
    noise_std = rng.uniform(0, 0.08)

    jitter = rng.normal(0, 1, size=(count, 4))  # of each picture's rotation, shift (2) and size
    angle = rotation + 0.05 * jitter[:, 0]
    affine = np.zeros((count, 2, 3))
    affine[:, 0, 0] = np.cos(angle) / width
    affine[:, 0, 1] = slant + np.sin(angle)
    affine[:, 1, 0] = -np.sin(angle)
    affine[:, 1, 1] = np.cos(angle) / height
    affine[:, :, :2] *= (1 + 0.04 * jitter[:, 3])[:, None, None]
    affine[:, :, 2] = shift + 0.03 * jitter[:, 1:3]
    grid = functional.affine_grid(
        torch.from_numpy(affine).float(), [count, 1, IMAGE_SIDE, IMAGE_SIDE], align_corners=False
    )
    distortion = torch.from_numpy(rng.normal(0, distortion_std, size=(count, 2, 5, 5))).float()
    distortion = functional.interpolate(distortion, size=(IMAGE_SIDE, IMAGE_SIDE), mode="bicubic", align_corners=True)
    characters = character_bitmaps(int(rng.integers(len(FONTS))))[torch.from_numpy(labels)]
    ink = functional.grid_sample(characters, grid + distortion.permute(0, 2, 3, 1), align_corners=False)[:, 0]
    ink = ((ink - threshold) * contrast + 0.5).clamp(0, 1)
    ink += torch.from_numpy(rng.normal(0, noise_std, size=ink.shape)).float() * (ink > 0)
    return (ink.clamp(0, 1) * 255).round().byte().numpy(), labels


@cache
def character_bitmaps(font: int) -> torch.Tensor:
    """All characters in one font, (62, 1, 64, 64), ink 1 on background 0."""
    try:
        import matplotlib  # noqa: PLC0415 (an extra)
        from matplotlib.ft2font import FT2Font  # noqa: PLC0415
    except ModuleNotFoundError:
        raise ModuleNotFoundError("glyphs are drawn with matplotlib: pip install 'rqm[report]'") from None
    face = FT2Font(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{FONTS[font]}.ttf"))
    face.set_size(56, 72)
    side = 64
    pictures = torch.zeros(len(CHARACTERS), 1, side, side)
    for index, character in enumerate(CHARACTERS):
        face.set_text(character)
        face.draw_glyphs_to_bitmap()
        bitmap = np.asarray(face.get_image(), dtype=np.float32) / 255
        rows = np.flatnonzero(bitmap.any(axis=1))
        columns = np.flatnonzero(bitmap.any(axis=0))
        bitmap = bitmap[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1][:side, :side]
        height, width = bitmap.shape
        top = (side - height) // 2
        left = (side - width) // 2
        pictures[index, 0, top : top + height, left : left + width] = torch.from_numpy(bitmap)
    return functional.avg_pool2d(pictures, 3, stride=1, padding=1)  # thin strokes survive the reduction to 28×28
