"""Values on disk: read again, never used when damaged, never in the way."""

import json
import stat

import pytest

from rqm import PBM, RQM
from rqm import renyi as renyi_bounds
from rqm._util import cache
from rqm.certify import kinks, renyi


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache, on disk and in memory."""
    monkeypatch.setenv("RQM_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


def forget():
    """Clear the caches in memory."""
    renyi._worst_case.cache_clear()
    kinks._scores.cache_clear()


def test_values_are_read_to_the_last_bit(folder):
    value = {"a": 0.1 + 0.2, "b": [1, 5e-324, "x"], "c": True}
    cache.write("f", [1.5, "x"], value)
    assert cache.read("f", [1.5, "x"]) == value
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_every_argument_and_the_code_count(folder, monkeypatch):
    cache.write("f", [1.5, {"keep": 0.42}], 1)
    for name, arguments in (
        ("g", [1.5, {"keep": 0.42}]),
        ("f", [1.5000000000000002, {"keep": 0.42}]),
        ("f", [1.5, {"keep": 0.43}]),
        ("f", [{"float": (1.5).hex()}, {"keep": 0.42}]),
    ):
        assert cache.read(name, arguments) is None
    monkeypatch.setattr(cache, "_code", lambda: "another")
    assert cache.read("f", [1.5, {"keep": 0.42}]) is None


@pytest.mark.parametrize("cut", [0, 1, 20, -1])
def test_a_damaged_file_is_not_used(folder, cut):
    cache.write("f", [1], [0.25])
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:cut])
    assert cache.read("f", [1]) is None
    file.write_bytes(whole.replace(b"0.25", b"0.24"))  # one digit, still JSON
    assert cache.read("f", [1]) is None
    file.write_bytes(b"[" * 100_000)
    assert cache.read("f", [1]) is None
    file.write_bytes(whole)
    assert cache.read("f", [1]) == [0.25]


def test_values_that_are_not_finite_are_not_stored(folder):
    cache.write("f", [1], {"upper": float("inf")})
    cache.write("f", [2], [float("nan")])
    assert not folder.exists()


def test_a_folder_that_cannot_be_created_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RQM_CACHE", str(tmp_path / "file" / "below"))
    cache.write("f", [1], 1)
    assert cache.read("f", [1]) is None
    cache.write("f", [object()], 1)  # an argument without an exact form


def test_the_folder_is_configurable(monkeypatch, tmp_path):
    monkeypatch.setenv("RQM_CACHE", "off")
    assert cache.folder() is None
    monkeypatch.delenv("RQM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "rqm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder().parts[-2:] == (".cache", "rqm")


def test_a_bound_is_read_and_not_computed_again(folder, monkeypatch):
    mech = RQM(levels=4)
    first = renyi_bounds(mech, [2, 8], 5)
    assert len(list(folder.iterdir())) == 2
    forget()
    monkeypatch.setattr(renyi, "_certified", None)
    assert renyi_bounds(mech, [8, 2], 5) == first[::-1]
    with pytest.raises(TypeError):
        renyi_bounds(mech, 3, 5)


def test_a_forged_bound_is_not_used(folder):
    mech = RQM(levels=4)
    bound = renyi_bounds(mech, 2, 5)
    (file,) = folder.iterdir()
    stored = json.loads(file.read_bytes())
    file.write_text(json.dumps({**stored, "value": stored["value"].replace(str(bound.upper), "0.0001")}))
    forget()
    assert renyi_bounds(mech, 2, 5) == bound


def test_bounds_of_a_foreign_mechanism_are_not_stored(folder, monkeypatch):
    """Its pmfs may change without a change of the package."""
    monkeypatch.setattr(PBM, "__module__", "somebody.else")
    renyi_bounds(PBM(levels=3), 2, 5)
    assert not folder.exists()
    monkeypatch.undo()


def test_the_scores_of_a_coordinate_are_read_and_not_computed_again(folder, monkeypatch):
    mech = RQM(levels=4)
    values = {"honest": 5, "dim": 16, "squared": 16.0, "farthest": 4.0, "failure": 1e-9, "distribution": "sampled"}
    first = kinks.interior_gdp(mech, **values)
    assert list(folder.iterdir())
    forget()
    monkeypatch.setattr(kinks, "_bounded_scores", None)
    assert kinks.interior_gdp(mech, **values) == first


def test_the_epsilon_of_a_coordinate_is_read_and_not_computed_again(folder, monkeypatch):
    mech = RQM(levels=4)
    first = kinks.coordinate_epsilon(mech, 1e-3, 5, "sampled")
    assert list(folder.iterdir())
    monkeypatch.setattr(kinks, "attained_epsilon", None)
    assert kinks.coordinate_epsilon(mech, 1e-3, 5, "sampled") == first
