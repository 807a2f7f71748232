"""Flower's simulation of an app whose nodes trust the server, beside any SuperLink that runs already."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from rqm._util.checks import whole
from rqm._util.files import write_atomically
from rqm.flower.app_check import read_app
from rqm.flower.federation_folder import simulated_state
from rqm.ledger.node_policy import POLICY, TRUSTING


def simulate(app: Path, nodes: int, run_config: str = "") -> int:
    """Run an app with `flwr run` in a SuperLink of its own, which is stopped at the end.

    Its nodes read a policy that trusts the server. Everything is kept in the folder `simulated` of the user's state,
    apart from real federations.

    Args:
        app: The folder of the app.
        nodes: Number of simulated nodes.
        run_config: What `flwr run --run-config` takes.

    Returns:
        The exit code of `flwr run`, or 1 if the run has failed, which `flwr run` does not report.

    Raises:
        ValueError: If the folder has no Flower app.
        OSError: If the SuperLink does not start.
    """
    read_app(app)
    whole("nodes", nodes, 2)
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="rqm-simulation-") as folder:
        home, state = Path(folder), simulated_state()
        state.mkdir(mode=0o700, exist_ok=True)
        write_atomically(state / POLICY, TRUSTING.encode())
        control, runtime = _free_ports(2)
        environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
            "RQM_STATE": str(state),
            "FLWR_HOME": folder,
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(runtime),
        }
        options = ["--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(runtime)]
        options += ["--control-api-address", f"127.0.0.1:{control}"]
        with (home / "superlink.log").open("wb") as log:
            link = subprocess.Popen(
                [programs / "flower-superlink", *options],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything below is stopped, too
                _wait_for(link, (control, runtime), home / "superlink.log")
                command = [str(programs / "flwr"), "run", str(app), "local", "--stream"]
                command += ["--federation-config", f"num-supernodes={nodes}"]
                command += ["--run-config", run_config] if run_config else []
                standard_error = 2  # standard output is for the command's own result
                code = subprocess.run(command, env=environment, check=False, stdout=standard_error).returncode
                return code or int(_has_failed(programs / "flwr", environment))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(link.pid, signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    link.wait(10)
                with suppress(ProcessLookupError):
                    os.killpg(link.pid, signal.SIGKILL)


def _has_failed(flwr: Path, environment: dict[str, str]) -> bool:
    """Whether the only run of a SuperLink has failed."""
    command = [str(flwr), "list", "local", "--format", "json"]
    listed = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    return "finished:failed" in listed.stdout


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(server.getsockname()[1]) for server in sockets]
    for server in sockets:
        server.close()
    return ports


def _wait_for(link: "subprocess.Popen[bytes]", ports: tuple[int, int], log: Path) -> None:
    """Wait until a SuperLink accepts connections; which port `flwr` uses depends on its version."""
    startup_seconds = 60.0  # How long a SuperLink may take to start.
    end = monotonic() + startup_seconds
    while monotonic() < end and link.poll() is None:
        for port in ports:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
        sleep(0.2)
    raise ChildProcessError(f"flower-superlink does not start: {log.read_text(errors='replace')[-500:]}")
