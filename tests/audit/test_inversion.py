"""Gradient inversion: gradients reveal pictures, sums with RQM do not; the scores know the difference."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm._util.files import write_json
from rqm._util.text import picture_to_text, text_to_picture
from rqm.audit.inversion import (
    OBSERVATIONS,
    Reconstruction,
    audit_inversion,
    picture_gradients,
    similarity,
    summary,
    victim_model,
)
from rqm.data import load
from rqm.report.plots import draw_attack


@pytest.mark.slow
def test_a_plain_gradient_reveals_its_picture_and_a_noisy_sum_does_not(tmp_path):
    attacks = list(audit_inversion(load("glyphs"), pictures=1, clients=4, iterations=60))
    scores = summary(attacks)
    assert set(OBSERVATIONS) < set(scores)
    plain, noisy_sum = scores["plain gradient"], scores["sum, RQM, 4 bits"]
    assert plain["similarity"] > 0.6
    assert plain["identified"] == 1.0
    assert plain["half_width"] is None  # one attack has no interval
    assert noisy_sum["similarity"] < min(0.45, plain["similarity"] - 0.3)
    repeated = summary(attacks * 2)["plain gradient"]
    assert (repeated["attacks"], repeated["pictures"], repeated["half_width"]) == (2, 1, None)
    two = summary([*attacks, *(replace(attack, picture=1) for attack in attacks)])["plain gradient"]
    assert two["half_width"] == pytest.approx(0.0)
    assert two["identified_low"] < 0.2 < two["identified_high"] == 1.0
    row = [{"picture": picture_to_text(attacks[0].truth), "similarity": 1.0}]
    assert np.abs(text_to_picture(row[0]["picture"]) / 255 - attacks[0].truth).max() <= 0.5 / 255 + 1e-12
    write_json(tmp_path / "i.json", {"kinds": scores, "pictures": dict.fromkeys(["the picture", *OBSERVATIONS], row)})
    assert draw_attack(tmp_path / "i.json").stat().st_size > 10_000


def test_similarity_is_one_for_equal_pictures_and_low_for_noise():
    rng = np.random.default_rng(0)
    picture = np.zeros((28, 28))
    picture[8:20, 10:14] = 1
    assert similarity(picture, picture) == pytest.approx(1)
    assert similarity(picture, rng.random((28, 28))) < 0.2
    assert similarity(picture, np.clip(picture + 0.02 * rng.random((28, 28)), 0, 1)) > 0.5


def test_a_picture_is_identified_only_if_no_other_is_closer():
    rng = np.random.default_rng(1)
    truth, others = rng.random((28, 28)), rng.random((20, 28, 28))

    def identified(rebuilt):
        return Reconstruction("", 0, truth, rebuilt, others).identified

    assert identified(truth + 0.5 * rng.random((28, 28)))
    assert not identified(others[3])
    assert sum(identified(rng.random((28, 28))) for _ in range(100)) < 20  # 1 in 21 by chance


def test_gradients_are_those_of_plain_backward_passes():
    model = victim_model(62, 0)
    x, y = torch.rand(3, 1, 28, 28, dtype=torch.float64), torch.tensor([1, 5, 61])
    for i, row in enumerate(picture_gradients(model, x, y)):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        assert torch.allclose(row, torch.cat([p.grad.reshape(-1) for p in model.parameters()]), atol=1e-12)


@pytest.mark.parametrize("change", [{"clients": 1}, {"pictures": 100_000}])
def test_values_out_of_range_are_named(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        next(audit_inversion(load("glyphs"), **change))
