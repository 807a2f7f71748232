"""Files that are written whole, private where they must be, and tables that are read from them."""

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from rqm._util.files import MAX_TABLE_DEPTH, parse_table, read_bytes, read_json, read_toml, write_atomically


@pytest.fixture
def anybodys_umask():
    previous = os.umask(0)
    yield
    os.umask(previous)


@pytest.mark.parametrize("new", [False, True])
def test_a_private_file_is_its_owners_alone_from_the_beginning(new, tmp_path, monkeypatch, anybodys_umask):
    path, modes = tmp_path / "key", []
    real = os.fsync

    def look(handle):
        modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    for name in ("key.part", f"key.{os.getpid()}.part"):  # left by a killed process, readable by all
        (tmp_path / name).write_bytes(b"old")
    write_atomically(path, b"secret", new=new, private=True)
    assert modes[0] == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b"secret"
    write_atomically(tmp_path / "open", b"x")
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o666


def test_a_file_takes_the_place_of_a_private_one_that_anybody_could_read(tmp_path, anybodys_umask):
    path = tmp_path / "key"
    path.write_bytes(b"old")
    write_atomically(path, b"secret", private=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("new", [False, True])
def test_the_folder_is_on_the_disk_after_the_new_name(new, tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def look(handle):
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        synced.append((kind, (tmp_path / "x").exists()))
        real(handle)

    monkeypatch.setattr(os, "fsync", look)
    write_atomically(tmp_path / "x", b"data", new=new)
    assert synced == [("file", False), ("folder", True)]


def test_a_new_file_is_not_put_over_another(tmp_path):
    write_atomically(tmp_path / "x", b"first", new=True)
    with pytest.raises(FileExistsError):
        write_atomically(tmp_path / "x", b"second", new=True)
    assert (tmp_path / "x").read_bytes() == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


NOT_TABLES = {
    "list": b"[]",
    "null": b"null",
    "number": b"3",
    "text": b'"x"',
    "nothing": b"",
    "half": b'{"a": 1',
    "not UTF-8": b"\xff\xfe\xff",
    "deep": b'{"a":' * 100_000,
    "a little deep": b'{"a":' * MAX_TABLE_DEPTH + b"{}" + b"}" * MAX_TABLE_DEPTH,
    "long number": b'{"a": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("name", NOT_TABLES)
def test_what_is_no_table_is_a_value_error_that_names_the_file(name, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(NOT_TABLES[name])
    with pytest.raises(ValueError, match="must be a plan") as caught:
        read_json(path, "a plan")
    assert str(caught.value).startswith(f"{path}: is damaged")
    assert len(str(caught.value)) < 500


def test_tables_as_deep_as_is_allowed_are_read():
    values = {}
    for _ in range(MAX_TABLE_DEPTH - 1):
        values = {"a": values}
    assert parse_table(json.dumps(values)) == values
    assert parse_table("a = [[[1]]]", tomllib.loads) == {"a": [[[1]]]}
    with pytest.raises(ValueError, match="nested deeper"):
        parse_table("a = " + "[" * 100_000, tomllib.loads)


@pytest.mark.parametrize(
    "read", [lambda path: read_json(path, "a plan"), lambda path: read_toml(path, "a plan"), read_bytes]
)
def test_a_file_without_an_end_is_not_read(read, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (Path("/dev/zero"), pipe):
        with pytest.raises(ValueError, match="is a device or a pipe: must be a file"):
            read(path)


def test_a_file_may_have_so_many_bytes(tmp_path):
    (tmp_path / "x").write_bytes(b"1234")
    assert read_bytes(tmp_path / "x", 4) == b"1234"
    with pytest.raises(ValueError, match="x: has more than 0 MiB"):
        read_bytes(tmp_path / "x", 3)


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path):
    """A pipe of `>(command)`, or a device. Root could replace it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"what was found")
        assert os.read(reader, 100) == b"what was found"
        assert stat.S_ISFIFO(pipe.stat().st_mode)
    finally:
        os.close(reader)
    for folder in (tmp_path, Path("/")):
        with pytest.raises(IsADirectoryError) as refused:
            write_atomically(folder, b"x")
        assert refused.value.filename == str(folder)
