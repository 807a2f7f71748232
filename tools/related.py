"""Every system that the paper names: what it is here, whom its ε holds against, and a command that runs it."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A system of the paper's related work, by its ``key`` in the paper's bibliography."""

    key: str
    name: str
    here: str
    against: str
    published: str
    command: str


def rows() -> list[Row]:
    """All of them; the first is the paper itself."""
    values = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    return [Row(**one) for one in values["systems"]]


def table() -> str:
    """All of them, in Markdown."""
    heads = "| system | here | what its ε holds against | as published | a command |\n|---|---|---|---|---|"
    lines = [f"| {row.name} | {row.here} | {row.against} | {row.published} | `{row.command}` |" for row in rows()]
    return "\n".join([heads, *lines])
