"""An app whose unit is a user: that of ``rqm init --flower``, with the model and the data of the example's silos."""

import shutil
from pathlib import Path

ROOT, HERE = Path(__file__).parents[3], Path(__file__).parent
EXAMPLE = ROOT / "examples" / "flower"
POLICY = (HERE / "policy.toml").read_text()
"""Of a node among four."""


def written(folder):
    """Write it, with the example's federation beside it."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    template = ROOT / "src" / "rqm" / "flower" / "template"
    shutil.copy(template / "app" / "client_app.py", folder / "app" / "client_app.py")
    for name in ("pyproject.toml", "policy.toml"):
        shutil.copy(HERE / name, folder / name)
    return folder
