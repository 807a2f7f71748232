"""``python -m tools.notebooks [--check] [FILE …]``: run the notebooks of the documents and keep what they print.

A cell's code runs in the order of the notebook, in one module; what it prints, the value of its last line, and the
figures that it leaves open become its outputs. Nothing of Jupyter is needed. ``--check`` compares and writes nothing.
"""

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "notebooks"
DOTS = 80
"""Of an inch of a figure."""

Cell = dict[str, Any]


def lines(text: str) -> list[str]:
    """A text as a notebook holds it."""
    return text.splitlines(keepends=True)


def carry_out(code: str, module: ModuleType) -> tuple[str, Any]:
    """Run a cell; what it printed, and the value of its last line, if that is one."""
    tree = ast.parse(code)
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if last is not None and not code.rstrip().endswith(";"):
        tree.body.pop()
    else:
        last = None
    said, value = io.StringIO(), None
    with contextlib.redirect_stdout(said):
        exec(compile(tree, "cell", "exec"), vars(module))
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), vars(module))
    return said.getvalue(), value


def figures() -> list[bytes]:
    """The figures that a cell has left open, as PNG; they are closed."""
    plots = sys.modules.get("matplotlib.pyplot")
    found = []
    for number in plots.get_fignums() if plots else []:
        held = io.BytesIO()
        plots.figure(number).savefig(held, format="png", dpi=DOTS, metadata={"Software": None})  # type: ignore[union-attr]
        found.append(held.getvalue())
    if plots:
        plots.close("all")
    return found


def outputs(code: str, module: ModuleType, alt: str) -> list[Cell]:
    """What a cell leaves behind."""
    said, value = carry_out(code, module)
    found: list[Cell] = [{"output_type": "stream", "name": "stdout", "text": lines(said)}] if said else []
    if value is not None:
        data = {"text/plain": lines(str(value))}
        found.append({"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data})
    for picture in figures():
        data = {"image/png": base64.b64encode(picture).decode(), "text/alt": [alt], "text/plain": [alt]}  # type: ignore[dict-item]
        found.append({"output_type": "display_data", "metadata": {}, "data": data})
    return found


def run(path: Path) -> dict[str, Any]:
    """The notebook with the outputs of a run of today."""
    notebook: dict[str, Any] = json.loads(path.read_text())
    os.environ.setdefault("MPLBACKEND", "Agg")
    module = ModuleType("notebook")
    sys.modules["notebook"] = module
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                alt = cell["metadata"].get("alt", "A figure")
                cell["outputs"] = outputs("".join(cell["source"]), module, alt)
    return notebook


def texts(notebook: dict[str, Any]) -> list[str]:
    """All that a notebook has printed; of figures only that they are there."""
    kept = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            kept.append("".join(output.get("text") or output["data"]["text/plain"]))
    return kept


def main(arguments: list[str] | None = None) -> None:
    """Run them, and write or compare."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks")
    parser.add_argument("file", nargs="*", type=Path, default=sorted(FOLDER.glob("*.ipynb")))
    parser.add_argument("--check", action="store_true", help="compare with what is kept, write nothing")
    chosen = parser.parse_args(arguments)
    for path in chosen.file:
        now = run(path)
        if not chosen.check:
            path.write_text(json.dumps(now, indent=1, ensure_ascii=False) + "\n")
        elif texts(now) != texts(json.loads(path.read_text())):
            raise SystemExit(f"{path}: prints something else today; python -m tools.notebooks {path}")


if __name__ == "__main__":
    main()
