"""The app of `rqm init --flower` for federations of few nodes on this machine."""

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE, TEMPLATE = ROOT / "examples" / "flower", ROOT / "src" / "rqm" / "flower" / "template"
FEDERATION = "you.private-app"
CONFIG = "num-server-rounds=2 rqm.epsilon=1000.0 rqm.clients=4 rqm.min-survivors=3"
"""Four clients with little noise: ε is huge, so that the model improves in one round."""
POLICY = """\
epsilon = 1e12
release_epsilon = 1e12
delta = 1e-5
l2_clip = 1.0
clients = 4
honest_clients = 4
max_participations = 1000
mechanisms = ["pbm", "rounding"]
roster = "roster.txt"
"""
"""Of a node among four. It allows far more than an owner should."""


def written(folder, policy=POLICY, settings=""):
    """Write the app with a policy for its nodes, and more lines of its table: `flwr run` changes only given keys."""
    shutil.copytree(TEMPLATE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / "policy.toml").write_text(policy)
    with (folder / "pyproject.toml").open("a") as table:
        table.write(settings)
    return folder
