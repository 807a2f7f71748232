"""Values on disk: found again, never believed when damaged, never in the way."""

import json
import stat

import pytest

from rqm import PBM, RQM, renyi
from rqm._util import cache
from rqm.privacy import vector, worst_case


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("RQM_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(worst_case, "_KEPT", worst_case.OrderedDict())
    return tmp_path / "kept"


def test_what_was_written_is_read_to_the_last_bit(place):
    value = {"a": 0.1 + 0.2, "b": [1, 5e-324, "x"], "c": True}
    cache.write("f", [1.5, "x"], value)
    assert cache.read("f", [1.5, "x"]) == value
    (file,) = place.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_every_argument_and_the_code_count(place, monkeypatch):
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
def test_a_damaged_file_is_no_file(place, cut):
    cache.write("f", [1], [0.25])
    (file,) = place.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:cut])
    assert cache.read("f", [1]) is None
    file.write_bytes(whole.replace(b"0.25", b"0.24"))  # one digit, still JSON
    assert cache.read("f", [1]) is None
    file.write_bytes(b"[" * 100_000)
    assert cache.read("f", [1]) is None
    file.write_bytes(whole)
    assert cache.read("f", [1]) == [0.25]


def test_what_is_not_finite_is_not_kept(place):
    cache.write("f", [1], {"upper": float("inf")})
    cache.write("f", [2], [float("nan")])
    assert not place.exists()


def test_a_folder_that_cannot_be_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RQM_CACHE", str(tmp_path / "file" / "below"))
    cache.write("f", [1], 1)
    assert cache.read("f", [1]) is None
    cache.write("f", [object()], 1)  # an argument without an exact form


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("RQM_CACHE", "off")
    assert cache.folder() is None
    monkeypatch.delenv("RQM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "rqm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder().parts[-2:] == (".cache", "rqm")


def test_a_bound_is_read_again_and_not_worked_out(place, monkeypatch):
    mech = RQM(levels=4)
    first = renyi(mech, [2, 8], 5)
    assert len(list(place.iterdir())) == 2
    worst_case._KEPT.clear()
    monkeypatch.setattr(worst_case, "_found", None)
    assert renyi(mech, [8, 2], 5) == first[::-1]
    with pytest.raises(TypeError):
        renyi(mech, 3, 5)


def test_a_forged_bound_is_not_believed(place):
    mech = RQM(levels=4)
    bound = renyi(mech, 2, 5)
    (file,) = place.iterdir()
    held = json.loads(file.read_bytes())
    file.write_text(json.dumps({**held, "value": held["value"].replace(str(bound.upper), "0.0001")}))
    worst_case._KEPT.clear()
    assert renyi(mech, 2, 5) == bound


def test_a_foreign_mechanism_is_not_kept(place, monkeypatch):
    """Its law may change from one day to the next."""
    assert worst_case._lasting(PBM(), 5)
    monkeypatch.setattr(PBM, "__module__", "somebody.else")
    assert not worst_case._lasting(PBM(), 5)
    renyi(PBM(levels=3), 2, 5)
    assert not place.exists()


def test_the_gain_of_a_vector_is_kept(place, monkeypatch):
    asked = (((0.4, 0.6), (0.6, 0.4)), (2.0, 8.0), 10, "replace")
    vector.gain.cache_clear()
    first = vector.gain(*asked)
    vector.gain.cache_clear()
    monkeypatch.setattr(vector, "_gain", None)
    again = vector.gain(*asked)
    assert (again.log_kappa == first.log_kappa).all()
    assert (again.most == first.most).all()
    vector.gain.cache_clear()
