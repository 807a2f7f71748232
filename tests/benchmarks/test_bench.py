"""Benchmarks: fair peers, honest ratios, files that can be read. Never how fast something is."""

import json

import numpy as np
import pytest

from benchmarks import BENCHMARKS, Entry, Result, measure, run
from benchmarks.encode import algorithm_2, in_chunks, opendp
from rqm import RQM
from tests.goodness import p_value


def test_the_peer_draws_from_the_papers_law():
    mech, x = RQM(), np.full(400_000, 0.3)
    rng = np.random.default_rng(1)
    for sample in (algorithm_2(mech, x, rng), in_chunks(mech, x.astype(np.float32), rng)):
        counts = np.bincount(sample, minlength=16)
        assert p_value(counts, mech.pmf(0.3)) > 1e-6
        assert p_value(counts, RQM(keep=0.42 * 1.02).pmf(0.3)) < 1e-6


def test_ratios_compare_items_a_second():
    result = Result("x", "ours", ["peer"], {"ours": Entry(2.0, 800), "peer": Entry(1.0, 100)})
    assert result.ratios == {"peer": 4.0}
    result.check("what", 4.0, 5)
    assert result.checks == {"what": {"measured": 4.0, "wanted": 5}}
    assert result.machine


def test_contenders_run_in_turns():
    order = []
    entries = measure({name: (lambda name=name: order.append(name), 1) for name in "ab"}, repeats=2)
    assert order[:2] == ["a", "b"]
    assert set(entries) == {"a", "b"}
    turns = "".join(order[2:])
    assert [name for i, name in enumerate(turns) if i == 0 or turns[i - 1] != name] == ["a", "b", "a", "b"]


def test_results_are_saved_as_json_and_a_picture(tmp_path):
    result = Result("x", "ours", ["peer"], {"ours": Entry(2.0, 800), "peer": Entry(1.0, 100)}, notes=["a note"])
    data, picture = result.save(tmp_path / "deep")
    facts = json.loads(data.read_text())
    assert facts["ratios"] == {"peer": 4.0}
    assert facts["rates"] == {"ours": 400.0, "peer": 100.0}
    assert {"name", "machine", "entries", "notes", "command"} <= facts.keys()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_unknown_names_and_missing_peers_are_told(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="nope"):
        run("nope")
    assert set(BENCHMARKS) == {
        "divergence",
        "privacy",
        "encode",
        "cuda",
        "round",
        "scale",
        "cifar",
        "records",
        "secagg",
        "flower",
        "start",
    }
    monkeypatch.setenv("RQM_PEERS", str(tmp_path))
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert opendp() is None


def test_the_network_of_cifar_has_its_published_size():
    torch = pytest.importorskip("torch")
    from benchmarks.cifar_model import CifarCNN, CifarCNNSure

    assert sum(p.numel() for p in CifarCNN().parameters()) == 1_626_442
    assert CifarCNNSure()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_the_five_scripts_are_those_of_the_documents(monkeypatch):
    from benchmarks import start

    found = start.scripts()
    assert len(found) == 5
    assert all("import rqm" in code for code in found.values())
    monkeypatch.setattr(start, "seconds", lambda code: 1.0 if code == start.TORCH else 2.0)
    monkeypatch.setattr(start, "first_round", lambda: 2.5)
    result = start.bench(repeats=1)
    assert result.checks["3 s over a first round of rqm train, beyond importing torch"]["measured"] == 2.0
    assert set(result.ratios.values()) == {2.0}
    assert len(result.ratios) == 5


def test_growth_is_told_by_slopes():
    from benchmarks import growth

    assert growth.slope([1, 10, 100, 1000], [5.0, 10.0, 100.0, 1000.0]) == pytest.approx(1)
    assert growth.slope([1, 10, 100], [1.0, 1.0, 1.0]) == pytest.approx(0)
    assert growth.slope([1, 10, 100], [1.0, 1.0, 10.0], least=10) == pytest.approx(1)
    assert growth.cache() >= 2**20
    for make, sizes, _, _ in growth.STUDIES.values():
        make(sizes[0])()
