"""A live federation's exchanges: ours against those of an app that does nothing, in the same federation.

``python -m benchmarks.live --out results`` (some minutes) starts a SuperLink and four SuperNodes on loopback, with TLS
and authentication, and runs two apps in it, one after the other: one whose messages are empty and whose clients import
nothing but Flower; and the example (``examples/flower``: four silos, signed keys, policies, secure sums), whose
exchanges are timed as its server sees them. A round has three: the end of a round goes with the beginning of the next.

The federation is that of the example, whose nodes answer by copies of a warm process. The app that does nothing also
runs in one as Flower sets it up, whose SuperNodes start a process for each message.
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
SAID = "benchmark: "
EXCHANGES = 10
WHAT = {
    ("rqm",): "the first or the last",
    ("arrays", "config", "rqm"): "vectors",
    ("rqm", "rqm-next"): "the end of a round, with the next",
}
"""What an exchange is for, by the records of its messages."""
Timed = list[tuple[Any, int, float]]
"""Exchanges: what for, how many replies, seconds."""
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
        print("{SAID}" + json.dumps(["nothing", len(replies), monotonic() - begun]), flush=True)
    print("ServerApp-side Evaluate Metrics", flush=True)
"""
TIMED = f"""

import json as _json
from time import monotonic as _monotonic
from rqm.flower import grid as _grid
from rqm.flower.records import NEXT as _NEXT

_send = _grid.PatientGrid.send_and_receive


def _timed(self, messages, *, timeout=None):
    messages, begun = list(messages), _monotonic()
    found = _send(self, messages, timeout=timeout)
    what = sorted(name for name in messages[0].content) if messages else []
    print("{SAID}" + _json.dumps([what, len(found), _monotonic() - begun]), flush=True)
    return found


_grid.PatientGrid.send_and_receive = _timed
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
    (nothing / "app" / "client.py").write_text(CLIENT)
    (nothing / "app" / "server.py").write_text(SERVER)
    with (ours / "app" / "server.py").open("a") as file:
        file.write(TIMED)
    return nothing, ours


def timed(federation: Any, app: Path, limit: float = 500) -> Timed:
    """Run an app; what its server says of its exchanges."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = federation.run("", limit, app)
    if code:
        raise RuntimeError(f"{app.name} did not come to its end:\n{said.getvalue()[-3000:]}")
    plain = re.sub("\x1b\\[[0-9;]*m", "", said.getvalue())
    return [tuple(json.loads(line.split(SAID)[1])) for line in plain.splitlines() if SAID in line]


@contextlib.contextmanager
def federation(folder: Path, *, warm: bool) -> Iterator[Any]:
    """The example's, with four nodes; where they are not ``warm`` a message's process starts from nothing."""
    with ExitStack() as stack:
        folder.mkdir()
        found = example().Federation(folder, folder / "ledger", stack)
        found.enrol(4, (EXAMPLE / "policy.toml").read_text())
        found.link()
        for number in range(4):
            found.node(number, 4, warm=warm)
        yield found


def measure() -> dict[str, Any]:
    """Start both federations, one after the other, run the apps, and compare."""
    with tempfile.TemporaryDirectory(prefix="rqm-live-") as name:
        folder = Path(name)
        nothing, ours = apps(folder)
        with federation(folder / "cold", warm=False) as cold:
            plain = timed(cold, nothing)
        with federation(folder / "warm", warm=True) as warm:
            trivial = timed(warm, nothing)
            own = timed(warm, ours)
    return compared(plain, trivial, own)


def compared(plain: Timed, trivial: Timed, own: Timed) -> dict[str, Any]:
    """Our exchanges, by what they are for, over trivial ones; without the first of each, in which processes start.

    A SuperNode asks for messages every three seconds, and so does Flower's own server for replies: trivial exchanges of
    warm nodes take three seconds or six. So means are compared beside medians.
    """
    exchanges = [(WHAT.get(tuple(what), "+".join(what)), count, seconds) for what, count, seconds in own if what]
    bases = {"flower": seconds_of(plain), "same federation": seconds_of(trivial)}
    kinds = {kind: seconds_of(exchanges, kind) for kind in sorted({what for what, *_ in exchanges[1:]})}

    def over(of: Callable[[list[float]], float]) -> dict[str, dict[str, float]]:
        return {name: {kind: of(found) / of(base) for kind, found in kinds.items()} for name, base in bases.items()}

    return {
        "machine": machine_name(),
        "trivial": bases,
        "ours": exchanges,
        "trivial_median": {name: median(base) for name, base in bases.items()},
        "ours_median": {kind: median(found) for kind, found in kinds.items()},
        "ratios": over(median),
        "ratios_of_means": over(mean),
    }


def seconds_of(exchanges: Timed, kind: str | None = None) -> list[float]:
    """How long all but the first took, of all nodes, of a kind."""
    return [seconds for what, count, seconds in exchanges[1:] if count == 4 and kind in (None, what)]


def main() -> None:
    """Measure, save, and say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    given = parser.parse_args()
    found = {**measure(), "command": "python -m benchmarks.live --out results"}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "live.json").write_text(json.dumps(found, indent=1) + "\n")
    json.dump(found, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
