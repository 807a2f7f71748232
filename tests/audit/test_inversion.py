"""Gradients give pictures away, sums with RQM do not; the scores know the difference."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rqm._util.files import write_json
from rqm._util.pictures import packed, unpacked
from rqm.audit.inversion import KINDS, Victim, audit_inversion, identified, similarity, summary
from rqm.data import load
from rqm.report.attacks import draw


@pytest.fixture(scope="module")
def found():
    return list(audit_inversion(load("glyphs"), pictures=1, clients=4, iterations=60))


@pytest.mark.slow
def test_a_plain_gradient_gives_its_picture_away_and_a_noisy_sum_does_not(found):
    by_kind = {one.kind: one for one in found}
    assert set(KINDS) < set(by_kind)
    assert by_kind["plain gradient"].similarity > 0.6
    assert by_kind["plain gradient"].identified
    assert by_kind["sum, RQM, 4 bits"].similarity < 0.45
    assert by_kind["plain gradient"].similarity > by_kind["sum, RQM, 4 bits"].similarity + 0.3


@pytest.mark.slow
def test_the_summary_and_the_picture(found, tmp_path):
    scores = summary(found)
    assert scores["plain gradient"]["identified"] == 1.0
    assert scores["plain gradient"]["half_width"] is None  # one attack has no interval
    models = summary(found * 2)["plain gradient"]
    assert (models["attacks"], models["pictures"], models["half_width"]) == (2, 1, None)  # no more pictures than before
    more = summary([*found, *(replace(one, picture=1) for one in found)])["plain gradient"]
    assert more["half_width"] == pytest.approx(0.0)
    assert more["identified_low"] < 0.2 < more["identified_high"] == 1.0
    truth = found[0].truth
    text = packed(truth)
    assert np.abs(unpacked(text) / 255 - truth).max() <= 0.5 / 255 + 1e-12
    pictures = {kind: [{"picture": text, "similarity": 1.0}] for kind in KINDS}
    write_json(tmp_path / "i.json", {"kinds": scores, "pictures": {"the picture": [{"picture": text}], **pictures}})
    assert draw(tmp_path / "i.json").stat().st_size > 10_000


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
    assert identified(truth + 0.5 * rng.random((28, 28)), truth, others)
    assert not identified(others[3], truth, others)
    assert sum(identified(rng.random((28, 28)), truth, others) for _ in range(100)) < 20  # chance is 1 in 21


def test_the_victims_gradients_are_those_of_plain_backward_passes():
    victim = Victim(62, 0).double()
    x, y = torch.rand(3, 1, 28, 28, dtype=torch.float64), torch.tensor([1, 5, 61])
    rows = victim.gradients(x, y)
    for i in range(3):
        victim.zero_grad()
        torch.nn.functional.cross_entropy(victim(x[i : i + 1]), y[i : i + 1]).backward()
        plain = torch.cat([p.grad.reshape(-1) for p in victim.parameters()])
        assert torch.allclose(rows[i], plain, atol=1e-12)


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="clients = 1"):
        next(audit_inversion(load("glyphs"), clients=1))
    with pytest.raises(ValueError, match="pictures = 100000"):
        next(audit_inversion(load("glyphs"), pictures=100_000))
