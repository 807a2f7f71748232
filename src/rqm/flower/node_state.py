"""What the server remembers of nodes, in files beside the ledger: participations, and who corrupted rounds."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, final

from rqm._util.checks import shown
from rqm._util.files import read_json, write_json

PARTICIPATIONS_FILE, BLAMED_FILE = "participants.json", "blamed.json"
MAX_SUSPICIONS = 3
"""The number of corrupted rounds with a node as a likely cause, after which it is not chosen again in this run."""
Value = TypeVar("Value", int, str)


@final
class NodeState:
    """How often each node took part, and which nodes corrupted rounds.

    Attributes:
        participations: The number of rounds that each node was chosen for.
        blamed: A reason for each node that is not chosen again.
    """

    def __init__(self, folder: Path, max_participations: int | None) -> None:
        """Read the files of earlier runs.

        Args:
            folder: The folder of the ledger.
            max_participations: The most rounds that a node may take part in; None: no limit, and no file of
                participations is written.

        Raises:
            ValueError: If a file is damaged.
        """
        self.folder, self.max_participations = folder, max_participations
        self.participations = Counter(_read(folder / PARTICIPATIONS_FILE, int))
        self._proved = _read(folder / BLAMED_FILE, str)
        self.blamed = dict(self._proved)
        self._suspicions: Counter[int] = Counter()

    def check(self, rounds: int, min_survivors: int) -> None:
        """Refuse a file of participations that lacks some which the ledger was charged for.

        Args:
            rounds: The number of rounds that the ledger was charged for.
            min_survivors: The fewest nodes that were chosen for each of them.

        Raises:
            ValueError: If the file counts fewer.
        """
        recorded, needed = self.participations.total(), min_survivors * rounds
        if self.max_participations is not None and recorded < needed:
            raise ValueError(
                f"{self.folder / PARTICIPATIONS_FILE}: counts {recorded} participations: must be at least {needed}, "
                "for which the ledger beside it was charged; restore the file, or begin another ledger for other users"
            )

    def may_participate(self, node: int) -> bool:
        """Whether a node is not blamed, and has participations left."""
        limit = self.max_participations
        return node not in self.blamed and (limit is None or self.participations[node] < limit)

    def add_participations(self, nodes: Iterable[int]) -> None:
        """Count nodes as chosen for a round. When this returns, that is on disk."""
        self.participations.update(nodes)
        if self.max_participations is not None:
            _write(self.folder / PARTICIPATIONS_FILE, self.participations)

    def withdraw_participations(self, nodes: Iterable[int]) -> None:
        """Undo `add_participations` for a round in which no vector was asked for."""
        self.participations.subtract(nodes)

    def blame(self, reasons: Mapping[int, str], *, proved: bool) -> None:
        """Note which nodes corrupted a round.

        Args:
            reasons: A reason for each node.
            proved: Whether it is proved. Then the node is never chosen again, by later runs neither. Otherwise it is
                not chosen again in this run after `MAX_SUSPICIONS` rounds.
        """
        self._suspicions.update(reasons.keys())
        self.blamed |= {
            node: reason for node, reason in reasons.items() if proved or self._suspicions[node] >= MAX_SUSPICIONS
        }
        if proved:
            self._proved |= reasons
            _write(self.folder / BLAMED_FILE, self._proved)


def _read(path: Path, kind: type[Value]) -> dict[int, Value]:
    """A number or a text for each node; nothing if there is no file."""
    expected = "a number of participations" if kind is int else "a reason"
    entries = read_json(path, "nodes") if path.exists() else {}
    for node, value in entries.items():
        if not node.isdecimal() or type(value) is not kind or str(value).startswith("-"):
            raise ValueError(f"{path}: is damaged: {shown(node)}: {shown(value)} must be a node and {expected}")
    return {int(node): value for node, value in entries.items()}


def _write(path: Path, values: Mapping[int, Any]) -> None:
    write_json(path, {str(node): value for node, value in values.items()})
