"""The generated data set."""

import numpy as np
import torch

from rqm.data.class_names import CHARACTERS
from rqm.data.glyphs import FONTS, character_bitmaps, draw, glyphs, picture_counts


def test_glyphs_follow_from_their_seed():
    (images, labels), (same_images, same_labels), (other_images, _) = (draw(seed, 5, 40) for seed in (0, 0, 1))
    assert (images == same_images).all()
    assert (labels == same_labels).all()
    assert (images != other_images).any()
    assert images.shape == (40, 28, 28)
    assert images.dtype == np.uint8


def test_every_font_draws_every_character():
    for font in range(len(FONTS)):
        drawn = character_bitmaps(font)
        assert drawn.shape == (62, 1, 64, 64)
        assert (drawn.amax(dim=(1, 2, 3)) > 0.5).all(), FONTS[font]
        distinct = {bytes((picture > 0.5).numpy()) for picture in drawn}
        assert len(distinct) >= 60  # O and 0, or l and I, may look the same


def test_numbers_of_pictures_imitate_federated_emnist():
    counts = picture_counts(0, 3400)
    assert 215 < counts.mean() < 237
    assert 80 < counts.std() < 98
    assert counts.min() >= 20
    assert counts.max() <= 500


def test_writers_are_drawn_when_they_are_read_and_differ_from_the_test_writers():
    threads = torch.get_num_threads()
    data = glyphs(seed=3, writers=10, test_writers=4)
    assert torch.get_num_threads() == threads
    assert len(data.train) == 10
    assert data.classes == len(CHARACTERS) == 62
    assert int(data.train.inputs.max()) == 0  # nothing is drawn yet
    images, labels = data.train[2]
    assert int(images.amax()) > 200
    assert labels.max() < 62
    assert torch.equal(images, torch.from_numpy(draw(3, 2, len(labels))[0]))
    assert int(data.train.inputs[: data.train.offsets[2]].max()) == 0
    assert len(data.test_labels) == 4 * 30
