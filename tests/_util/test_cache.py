"""The folder of what a user's machine may forget."""

from rqm._util import cache


def test_the_folder_is_configurable(monkeypatch, tmp_path):
    monkeypatch.setenv("RQM_CACHE", "off")
    assert cache.folder() is None
    monkeypatch.setenv("RQM_CACHE", str(tmp_path / "chosen"))
    assert cache.folder() == tmp_path / "chosen"
    monkeypatch.delenv("RQM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "rqm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.folder().parts[-2:] == (".cache", "rqm")
