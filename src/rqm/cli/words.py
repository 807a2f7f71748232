"""How a command says something: whole words on a terminal, whole lines in a pipe."""

import codecs
import json
import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any
from unicodedata import name as name_of

import typer

WORDS = ("<=", ">=", "~", "+-", "x", "*", "sqrt", "inf", "->", "-", "...", "'", "'", "2", "=", "-", "e")
PLAIN = dict(zip("≤≥≈±×·√∞→–…′’₂━─é", WORDS, strict=True))
"""Signs as a terminal or a file that knows few of them is told them."""
RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def _plain(error: UnicodeError) -> tuple[str, int]:
    """What is written for signs that cannot be: epsilon for ε, 2^20 for 2²⁰."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = ""
    for place in range(error.start, error.end):
        sign, before = error.object[place], error.object[max(0, place - 1) : place]
        if sign in RAISED:
            text += ("" if before and before in RAISED + "⁻" else "^") + str(RAISED.index(sign))
        elif sign == "⁻":
            text += "^-"
        elif (found := name_of(sign, "")).startswith("GREEK"):
            text += found.split()[-1].lower()
        else:
            text += PLAIN.get(sign, "?")
    return text, error.end


def speak_plainly() -> None:
    """Say in other signs what the terminal, or the file that is written to, has none for (ε in Latin-1); and say it."""
    codecs.register_error("rqm-plain", _plain)
    if not os.environ.get("COLUMNS", "80").strip("0"):
        del os.environ["COLUMNS"]  # a terminal of no width at all, in which rich writes nothing
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="rqm-plain")


def say(text: str, *, bold: bool = False, whole: bool = False) -> None:
    """Print a text; on a terminal lines break between words, and what belongs to an indented line stays indented.

    What is to stay ``whole``, such as JSON, is not broken.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    style = "bold" if bold else ""
    for line in text.splitlines():
        if whole or not console.is_terminal:
            console.print(line, style=style, soft_wrap=True, highlight=False, markup=False)
            continue
        inner = line.lstrip(" ")
        console.print(Padding(Text(inner, style), (0, 0, 0, len(line) - len(inner)), expand=False), highlight=False)


def listing(found: Mapping[str, str]) -> None:
    """Print names and what each is: side by side on a terminal, a line each in a pipe."""
    from rich.console import Console
    from rich.table import Table

    console, widest = Console(), max(map(len, found))
    if not console.is_terminal:
        for name, what in found.items():
            console.print(f"{name:{widest + 2}}{what}", soft_wrap=True, highlight=False, markup=False)
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=widest < console.width // 2, overflow="fold")
    for name, what in found.items():
        table.add_row(name, what)
    console.print(table, highlight=False)


def show_found(
    found: dict[str, Any],
    as_json: bool,
    heads: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    out: Path | None,
    name: str,
    said: str,
) -> None:
    """Print what was found, in a sentence and a table, or JSON; with a folder also write it, and the picture."""
    from rqm._util.files import write_json

    if out is not None:
        write_json(out / f"{name}.json", found)
        if name in ("inversion", "membership"):
            from rqm.report.attacks import draw

            draw(out / f"{name}.json")
    if as_json:
        typer.echo(json.dumps(found))
        return
    from rich.console import Console
    from rich.table import Table

    say(f"{said}.", bold=True)
    table = Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if out is not None:
        typer.echo(f"written to {out}")
