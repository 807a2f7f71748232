"""The benchmark of secure aggregation, at a small size; and the model of its costs."""

import numpy as np
import pytest

from benchmarks import secagg, secagg_few, secagg_scale
from rqm import RQM, Participation, PrivateMean, SeededRandom
from rqm.config.experiments import find
from rqm.config.sweep import Sweep
from rqm.secagg import Params
from rqm.secagg.local import aggregate


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(secagg, "COUNT", 500)
    monkeypatch.setattr(secagg, "REPEATS", 1)
    monkeypatch.setattr(secagg, "COORDINATES", (100, 200))
    monkeypatch.setattr(secagg, "SPARSE", (40, 60))
    monkeypatch.setenv("RQM_PEERS", str(tmp_path))


@pytest.mark.slow
def test_without_a_peer_it_says_so(small):
    result = secagg.bench()
    assert result.ratios == {}
    assert any("Flower was not measured" in note for note in result.notes)
    assert set(result.entries) == {secagg.OURS, secagg.OURS_ALL, secagg.OURS_FEW}


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(secagg_scale, "COUNT", 300)
    monkeypatch.setattr(secagg_scale, "MEASURED", [(20, 100), (20, 300), (30, 300), (40, 300)])
    monkeypatch.setattr(secagg_scale, "EXTRAPOLATED", [1000])
    found = secagg_scale.study()
    assert [run["clients"] for run in found["model"]] == [20, 30, 40, 1000]
    assert secagg_scale.draw(found, tmp_path / "out.png").stat().st_size > 10_000


def test_forty_clients_of_few_coordinates_send_thirty_kilobytes_each():
    """Messages of a private mean of the paper's model, through the true protocol, and back."""
    mech, who = RQM(clip=0.03, margin=20.0), Participation(clients=40)
    mean = PrivateMean(mechanism=mech, dim=1_018_174, participation=who, coordinates=2**14)
    x = np.random.default_rng(0).normal(size=1_018_174)
    two = [mean.encode_simulated(x, SeededRandom(place)) for place in range(2)]
    params = Params(40, mean.coordinates, 16, b"few", *secagg.DERIVED)
    total, _, cost = aggregate(params, lambda u: two[u % 2])
    assert cost.bytes_up / 40 < 30_000
    assert (total == 20 * (two[0] + two[1])).all()
    assert mean.decode(total, 40).shape == (1_018_174,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "masked", "everything"),
    [
        ("few-coordinates-3400", 0.03, 0.15),
        pytest.param("few-coordinates", 0.2, 0.35, marks=pytest.mark.slow),
    ],
)
def test_the_shipped_experiments_send_few_bits_a_parameter(experiment, masked, everything):
    plan = list(Sweep.from_toml(find(experiment)).variants.values())[1]
    found = secagg_few.one(experiment, secagg_few.params_of(plan), plan.private_mean().dim)
    assert found["vector_bits_per_parameter"] <= masked
    assert found["vector_bytes"] < found["masked_bytes"] < 1.25 * found["vector_bytes"]  # with a tag for each neighbour
    assert found["bits_per_parameter"] <= everything
    assert sum(found["by_kind"].values()) == pytest.approx(found["bytes_up"])
