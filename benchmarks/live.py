"""Exchanges of a live federation: those of the example against those of an app that does nothing.

``python -m benchmarks.live --out results`` (some minutes) starts a SuperLink and four SuperNodes on loopback, with TLS
and authentication, and runs two apps in it, one after the other. The messages of one are empty, and its clients import
nothing but Flower. The other is the example (``examples/flower``: four silos, signed keys, policies,
secure sums), whose exchanges are timed at its server. A round has three: its end goes with the beginning of the next.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import machine_name

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "flower"
TIMING_PREFIX = "benchmark: "
EXCHANGES = 10
PURPOSES = {
    ("config", "rqm-plan"): "the check",
    ("config", "rqm", "rqm-plan"): "the first or the last",
    ("arrays", "config", "rqm", "rqm-plan"): "vectors",
    ("config", "rqm", "rqm-next", "rqm-plan"): "the end of a round, with the next",
}
"""The purpose of an exchange, by the records of its messages."""
Timed = list[tuple[Any, int, float]]
"""Exchanges: purpose, number of replies, seconds."""
CLIENT = """
from flwr.app import ConfigRecord, RecordDict, Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(RecordDict({"nothing": ConfigRecord({"nothing": 0})}), reply_to=message)
"""
SERVER = f"""
import json
from time import monotonic, sleep
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while len(list(grid.get_node_ids())) < 4:
        sleep(0.5)
    nodes = list(grid.get_node_ids())
    for _ in range({EXCHANGES}):
        content = RecordDict({{"nothing": ConfigRecord({{"nothing": 0}})}})
        begun = monotonic()
        replies = list(grid.send_and_receive([Message(content, node, "train") for node in nodes]))
        print("{TIMING_PREFIX}" + json.dumps(["nothing", len(replies), monotonic() - begun]), flush=True)
    print("ServerApp-side Evaluate Metrics", flush=True)
"""
TIMED = f"""

import json as _json
from time import monotonic as _monotonic
from rqm.flower import grid as _grid

_send = _grid.IsolatingGrid.send_and_receive


def _timed(self, messages, *, timeout=None):
    messages, begun = list(messages), _monotonic()
    replies = list(_send(self, messages, timeout=timeout))
    records = sorted(messages[0].content) if messages else []
    print("{TIMING_PREFIX}" + _json.dumps([records, len(replies), _monotonic() - begun]), flush=True)
    return replies


_grid.IsolatingGrid.send_and_receive = _timed
"""


def example() -> Any:
    """The example's federation, as a module."""
    spec = importlib.util.spec_from_file_location("federation", EXAMPLE / "federation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def apps(folder: Path) -> tuple[Path, Path]:
    """Write both apps: one that does nothing, and the example, timed."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    nothing, ours = (Path(shutil.copytree(EXAMPLE, folder / name, ignore=ignored)) for name in ("nothing", "ours"))
    (nothing / "app" / "task.py").unlink()
    (nothing / "app" / "client_app.py").write_text(CLIENT)
    (nothing / "app" / "server_app.py").write_text(SERVER)
    with (ours / "app" / "server_app.py").open("a") as file:
        file.write(TIMED)
    return nothing, ours


def timed(federation: Any, app: Path, limit: float = 500) -> Timed:
    """Run an app; what its server says of its exchanges."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = federation.run("", limit, app)
    if code:
        raise RuntimeError(f"{app.name} did not come to its end:\n{output.getvalue()[-3000:]}")
    plain = re.sub("\x1b\\[[0-9;]*m", "", output.getvalue())
    return [tuple(json.loads(line.split(TIMING_PREFIX)[1])) for line in plain.splitlines() if TIMING_PREFIX in line]


@contextlib.contextmanager
def federation(folder: Path) -> Iterator[Any]:
    """The example's, with four nodes."""
    with ExitStack() as stack:
        folder.mkdir()
        running = example().Federation(folder, folder / "state", stack)
        running.enrol(4, (EXAMPLE / "policy.toml").read_text())
        running.link()
        for number in range(4):
            running.node(number, 4)
        yield running


def measure() -> dict[str, Any]:
    """Run both apps in one federation, and compare them."""
    with tempfile.TemporaryDirectory(prefix="rqm-live-") as name:
        folder = Path(name)
        nothing, ours = apps(folder)
        with federation(folder / "federation") as running:
            return compared(timed(running, nothing), timed(running, ours))


def compared(empty: Timed, ours: Timed) -> dict[str, Any]:
    """Our exchanges by purpose over empty ones, without the first of each, in which processes start.

    SuperNodes ask for messages every three seconds, and so does Flower's own server for replies. So means are compared
    beside medians.
    """
    exchanges = [
        (PURPOSES.get(tuple(records), "+".join(records)), count, seconds) for records, count, seconds in ours if records
    ]
    base = seconds_of(empty)
    purposes = sorted({purpose for purpose, _, _ in exchanges[1:]})
    seconds_by_purpose = {purpose: seconds_of(exchanges, purpose) for purpose in purposes}

    def ratios(average: Callable[[list[float]], float]) -> dict[str, float]:
        return {purpose: average(values) / average(base) for purpose, values in seconds_by_purpose.items()}

    return {
        "machine": machine_name(),
        "empty": base,
        "ours": exchanges,
        "empty_median": median(base),
        "ours_median": {purpose: median(values) for purpose, values in seconds_by_purpose.items()},
        "ratios": ratios(median),
        "ratios_of_means": ratios(mean),
    }


def seconds_of(exchanges: Timed, kind: str | None = None) -> list[float]:
    """How long all but the first took, of all nodes, of a kind."""
    return [seconds for purpose, count, seconds in exchanges[1:] if count == 4 and kind in (None, purpose)]


def main() -> None:
    """Measure, save, and say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args()
    results = {**measure(), "command": "python -m benchmarks.live --out results"}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "live.json").write_text(json.dumps(results, indent=1) + "\n")
    json.dump(results, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
