"""``python -m rqm.report.explorer page FILE`` writes the page, ``… grid`` recomputes its precomputed values."""

import argparse
import sys
from pathlib import Path

from rqm.report.explorer import build, compute_grid, format_grid


def main(arguments: list[str] | None = None) -> None:
    """Write the page or the grid."""
    parser = argparse.ArgumentParser(prog="python -m rqm.report.explorer")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("page", help="write the page").add_argument("file", type=Path)
    commands.add_parser("grid", help="recompute grid.json: some minutes")
    chosen = parser.parse_args(arguments)
    if chosen.command == "page":
        chosen.file.write_text(build(), encoding="utf-8")
        return
    grid = compute_grid(lambda line: print(line, file=sys.stderr, flush=True))
    Path(__file__).with_name("grid.json").write_text(format_grid(grid), encoding="utf-8")


if __name__ == "__main__":
    main()
