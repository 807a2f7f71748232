"""Files beside the ledger: how often each node was chosen, and who was proved to have spoilt a round."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from rqm._util.checks import shown
from rqm._util.files import read_json, write_json

PARTICIPANTS, LIARS = "participants.json", "liars.json"
Told = TypeVar("Told", int, str)


def told(path: Path, kind: type[Told]) -> dict[int, Told]:
    """What a file says of nodes: nothing, if there is none."""
    what = "how often it took part" if kind is int else "a reason"
    found = read_json(path, "nodes") if path.exists() else {}
    for node, value in found.items():
        if not re.fullmatch("0|[1-9][0-9]{0,19}", node) or type(value) is not kind or str(value).startswith("-"):
            raise ValueError(f"{path}: is damaged: {shown(node)} = {shown(value)} must be a node and {what}")
    return {int(node): value for node, value in found.items()}


def tell(path: Path, nodes: Mapping[int, Any]) -> None:
    """Write down what is said of nodes."""
    write_json(path, {str(node): value for node, value in nodes.items()})
