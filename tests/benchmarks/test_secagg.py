"""The benchmark of secure aggregation, at a small size; and the model of its costs."""

import numpy as np
import pytest

from benchmarks import secagg, secagg_scale


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(secagg, "COUNT", 500)
    monkeypatch.setattr(secagg, "REPEATS", 1)
    monkeypatch.setattr(secagg, "COORDINATES", (100, 200))
    monkeypatch.setattr(secagg, "SPARSE", (40, 60))
    monkeypatch.setenv("RQM_PEERS", str(tmp_path))


def test_without_a_peer_it_says_so(small):
    result = secagg.bench()
    assert result.ratios == {}
    assert any("Flower was not measured" in note for note in result.notes)
    assert set(result.entries) == {secagg.OURS, secagg.OURS_ALL, secagg.OURS_FEW}


def test_ratios_are_theirs_over_ours(small, monkeypatch):
    class Peer:
        def __init__(self, python, shares):
            self.process = self

        def kill(self):
            pass

        def round(self):
            return 100.0, 10**9

    monkeypatch.setattr(secagg, "Flower", Peer)
    monkeypatch.setattr(secagg, "peer_python", lambda: "python")
    result = secagg.bench()
    assert result.to_dict()["ratios"].keys() == {
        *("time", "bytes", "39 shares: time", "39 shares: bytes"),
        *("few coordinates: time", "few coordinates: bytes"),
    }
    assert result.ratios["time"] == pytest.approx(100 / result.entries[secagg.OURS].seconds)
    assert result.ratios["bytes"] == pytest.approx(10**9 / secagg.ours(secagg.DERIVED, 40, 500)[1].bytes_up, 0.02)
    assert result.checks[f"time, over {secagg.FLOWER}"]["wanted"] == 2


def test_the_model_finds_what_made_the_times():
    runs = [
        {"clients": n, "count": d, "masks": k, "threshold": k // 2 + 1, "signatures": n * (n > 20), "bits": 10}
        for n, k in ((20, 4), (100, 10), (400, 60))
        for d in (10**3, 10**5, 10**6)
    ]
    truth = np.array([1e-3, 2e-4, 1e-9, 3e-10, 5e-5])
    for run in runs:
        run["client_seconds"] = float(truth @ secagg_scale.client_terms(run))
    found = secagg_scale.fit(runs, secagg_scale.client_terms, "client_seconds")
    np.testing.assert_allclose(found, truth, rtol=1e-6)


@pytest.mark.parametrize(("clients", "count", "within"), [(20, 7, 1e-12), (70, 500, 0.02)])
def test_bytes_are_known_beforehand(clients, count, within):
    """On average, where neighbours are drawn."""
    run = secagg_scale.one(clients, count)
    assert run["client_bytes_up"] == pytest.approx(secagg_scale.bytes_up(secagg_scale.setting(clients, count)), within)


def test_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(secagg_scale, "COUNT", 300)
    monkeypatch.setattr(secagg_scale, "MEASURED", [(20, 100), (20, 300), (30, 300), (40, 300)])
    monkeypatch.setattr(secagg_scale, "EXTRAPOLATED", [1000])
    found = secagg_scale.study()
    assert [run["clients"] for run in found["model"]] == [20, 30, 40, 1000]
    assert secagg_scale.draw(found, tmp_path / "out.png").stat().st_size > 10_000
