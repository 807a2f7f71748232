"""How a command prints its result: JSON, or a sentence and a table, in signs that the terminal can show."""

import codecs
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from math import inf
from typing import Any
from unicodedata import name as unicode_name

import typer

REPLACEMENTS = {
    **{"≤": "<=", "≥": ">=", "≈": "~", "±": "+-", "×": "x", "·": "*", "√": "sqrt", "∞": "inf", "→": "->"},
    **{"–": "-", "…": "...", "′": "'", "’": "'", "₂": "2", "━": "=", "─": "-", "é": "e"},
}
"""What is printed for signs that a terminal cannot show; Greek letters are printed by their names."""


@dataclass(frozen=True)
class Result:
    """The result of a command, printed as text or as JSON.

    Attributes:
        facts: All of the result, for JSON.
        sentence: What the result means, printed first.
        rows: The rows of a table, printed next.
        heads: The heads of its columns.
        notes: Texts that are printed next.
        lines: Lines that are printed last and never broken: paths, or commands to copy.
        exit_code: The exit code of the command.
    """

    facts: dict[str, Any]
    sentence: str = ""
    rows: Sequence[Sequence[str]] = ()
    heads: Sequence[str] = ()
    notes: Sequence[str] = ()
    lines: Sequence[str] = ()
    exit_code: int = 0

    def print(self, as_json: bool) -> None:
        """Print the result.

        Args:
            as_json: Whether to print one JSON object and nothing else. JSON has no infinity, so
                it is printed as the string "inf".
        """
        if as_json:
            typer.echo(json.dumps(_finite(self.facts)))
            return
        if self.sentence:
            say(self.sentence, style="bold")
        if self.rows:
            print_table(self.rows, self.heads)
        for note in self.notes:
            say(note)
        for line in self.lines:
            typer.echo(line)


def _finite(value: Any) -> Any:
    """Replace infinities by strings."""
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return "inf" if value == inf else value


def say(text: str, *, style: str = "") -> None:
    """Print a text: on a terminal, lines break between words; in a pipe they stay whole."""
    from rich.console import Console
    from rich.text import Text

    console = Console()
    console.print(Text(text, style), soft_wrap=not console.is_terminal)


def print_table(rows: Sequence[Sequence[str]], heads: Sequence[str] = ()) -> None:
    """Print a table, with numbers on the right: as wide as the terminal, or in a pipe one line for each row."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # a table takes only what it needs
    table = Table(box=None, show_header=bool(heads), pad_edge=False, padding=(0, 2, 0, 0))
    for index, cells in enumerate(zip(*rows, strict=True)):
        is_numeric = index > 0 and all(cell == "" or cell[0].isdigit() for cell in cells)
        table.add_column(
            heads[index] if heads else "",
            justify="right" if is_numeric else "left",
            no_wrap=index == 0 and not heads,
            overflow="fold",
        )
    verdict_styles = {"good": "green", "missing": "yellow"}
    verdict_styles |= dict.fromkeys(("broken", "CONTRADICTED", "SURVIVED"), "bold red")
    for row in rows:
        table.add_row(*(Text(cell, verdict_styles.get(cell, "")) for cell in row))
    console.print(table)


def adapt_to_terminal() -> None:
    """Print other signs instead of those that stdout or stderr cannot encode, such as epsilon for ε in Latin-1."""
    codecs.register_error("rqm-plain", _replace)
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # rich prints nothing on a terminal of width 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="rqm-plain")


def _replace(error: UnicodeError) -> tuple[str, int]:
    """What is printed for signs that cannot be encoded: epsilon for ε, 2^20 for 2²⁰."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = ""
    superscripts = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
    for index in range(error.start, error.end):
        sign = error.object[index]
        if sign in superscripts:
            is_first = index == 0 or error.object[index - 1] not in superscripts
            text += "^" * is_first + "0123456789-"[superscripts.index(sign)]
        elif unicode_name(sign, "").startswith("GREEK"):
            text += unicode_name(sign).split()[-1].lower()
        else:
            text += REPLACEMENTS.get(sign, "?")
    return text, error.end
