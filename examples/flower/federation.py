"""A federation on this machine: a SuperLink and SuperNodes on loopback with TLS, and a run of an app in it.

    python federation.py --kill 2

Certificates and keys are new. All processes are stopped at the end.
"""

import argparse
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Thread, Timer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rqm._util.files import write_atomically
from rqm.secagg import Identity

HERE, TOOLS = Path(__file__).parent, Path(sys.executable).parent


class Authority:
    """A certificate authority in a folder: its certificate is `ca.pem`, its key is never written."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "ca.pem"
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rqm example authority")])
        certificate = self._sign(self.subject, self.key, is_authority=True)
        self.path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A key for one process on this machine, and its certificate: paths of certificate and key."""
        key, paths = ec.generate_private_key(ec.SECP256R1()), (self.folder / f"{name}.pem", self.folder / f"{name}.key")
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        paths[0].write_bytes(self._sign(subject, key).public_bytes(serialization.Encoding.PEM))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_atomically(paths[1], secret, private=True)
        return paths

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool = False
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self.key, hashes.SHA256())


def identity(folder: Path, name: str) -> tuple[Path, Path]:
    """A SuperNode's key pair, as OpenSSH writes them: paths of the private and of the public key."""
    key, paths = ec.generate_private_key(ec.SECP384R1()), (folder / name, folder / f"{name}.pub")
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_atomically(paths[0], secret, private=True)
    paths[1].write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return paths


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, seconds: float = 60) -> None:
    """Wait until a process listens on a port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"no process listens on port {port} after {seconds:.0f} s")


def stop(process: subprocess.Popen) -> None:
    """Stop a process with everything that it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def kill(process: subprocess.Popen, log: Path, round_: int) -> None:
    """Kill a SuperNode that is in every round when it has been asked to train.

    Before the first round it gets a check and two messages. Then each third message asks for training, because the two
    that end a round begin the next.
    """
    while log.read_text().count("Received successfully") < 3 * round_ + 1:
        time.sleep(0.05)
    print(f"*** killing the SuperNode with pid {process.pid} in round {round_}", flush=True)
    os.killpg(process.pid, signal.SIGKILL)


def kill_owing(processes: list[subprocess.Popen], logs: list[Path]) -> None:
    """Kill the first SuperNode that is asked to settle: after the check and the five messages of its own round."""
    while True:
        for process, log in zip(processes, logs, strict=True):
            if log.exists() and log.read_text().count("Received successfully") >= 7:
                print(f"*** killing the SuperNode with pid {process.pid} between its two messages", flush=True)
                os.killpg(process.pid, signal.SIGKILL)
                return
        time.sleep(0.05)


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--app", type=Path, default=HERE, help="the folder of the app; this one if none is given")
    parser.add_argument("--set", default="", help="the run's configuration, as flwr run --run-config takes it")
    parser.add_argument("--state", type=Path, default=Path("rqm-state"), help="the server's state: ledger, model, key")
    parser.add_argument(
        "--kill",
        metavar="ROUND",
        type=int,
        action="append",
        default=[],
        help="kill one SuperNode when it is asked to train in this round; may be given again",
    )
    parser.add_argument(
        "--kill-owing",
        action="store_true",
        help="kill the first SuperNode before it settles its correlated noise",
    )
    parser.add_argument("--policy", type=Path, help="a policy for all nodes, instead of the app's own")
    parser.add_argument("--keep", type=Path, help="a new folder for logs, keys and the nodes' own ledgers")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which all is stopped")
    return parser.parse_args()


class Federation:
    """A SuperLink and its SuperNodes, with their logs in a folder; all stop with the stack."""

    def __init__(self, folder: Path, state: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.issuer = Authority(folder)
        self.authority = self.issuer.path
        self.port = free_port()
        self.environment = {
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
        }
        self.roster = folder / "roster.txt"
        server = {"FLWR_HOME": folder, "RQM_STATE": state.absolute(), "RQM_ROSTER": self.roster}
        self.server_environment = self.environment | {name: str(path) for name, path in server.items()}

    def tls(self, name: str) -> list[str]:
        """The options by which a process shows its certificate; no two processes share a key."""
        certificate, key = self.issuer.issue(name)
        options = {"ca-certfile": self.authority, "certfile": certificate, "keyfile": key}
        return [text for name, path in options.items() for text in (f"--ssl-{name}", str(path))]

    def start(self, name: str, program: str, environment: dict[str, str], *options: str) -> subprocess.Popen:
        """Start a program, and write its log."""
        log = (self.folder / f"{program}-{name}.log").open("ab")
        command = [str(TOOLS / program), *options]
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.stack.callback(stop, process)
        return process

    def link(self, *options: str) -> subprocess.Popen:
        """Start the SuperLink, and wait for it."""
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        options = (*self.tls("server"), *address, "--enable-supernode-auth", *options)
        process = self.start("link", "flower-superlink", self.server_environment, *options)
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.authority}"\n'
        )
        wait_for(self.port)
        return process

    def enrol(self, nodes: int, policy: str) -> None:
        """Give each node an identity, a policy and the roster in a folder of its own."""
        keys, homes = [], [self.folder / f"home-{number}" for number in range(nodes)]
        for home in homes:
            home.mkdir()
            keys.append(Identity.new(home / "identity.key").public.hex())
            (home / "policy.toml").write_text(policy)
        for path in (self.roster, *(home / "roster.txt" for home in homes)):
            path.write_text("\n".join(keys) + "\n")

    def node(self, number: int, nodes: int) -> subprocess.Popen:
        """Start a SuperNode with a state folder of its own. The first time, its key is registered at the SuperLink."""
        private = self.folder / f"node-{number}"
        if not private.exists():
            private, public = identity(self.folder, f"node-{number}")
            register = [str(TOOLS / "flwr"), "supernode", "register", str(public), "here"]
            subprocess.run(register, env=self.server_environment, check=True, stdout=subprocess.DEVNULL)
        home = self.folder / f"home-{number}"
        environment = self.environment | {"FLWR_HOME": str(home), "RQM_STATE": str(home)}
        link = ["--root-certificates", str(self.authority), "--superlink", f"127.0.0.1:{self.port}"]
        port = free_port()
        node_options = ["--host", "127.0.0.1", "--port", str(port), "--auth-supernode-private-key", str(private)]
        config = f'partition-id={number} num-partitions={nodes} rqm-policy="{home / "policy.toml"}"'
        options = (*link, *node_options, *self.tls(f"tls-{number}"), "--node-config", config)
        return self.start(str(number), "flower-supernode", environment, *options)

    def run(self, config: str, limit: float, app: Path = HERE) -> int:
        """Run the app, and print its log; 0 if it came to its end."""
        command = [str(TOOLS / "flwr"), "run", str(app), "here", "--stream"]
        command += ["--run-config", config] if config else []
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "start_new_session": True}
        run = subprocess.Popen(command, env=self.server_environment, **options)
        self.stack.callback(stop, run)
        timer, finished = Timer(limit, stop, [run]), False  # also of a run that says nothing
        timer.daemon = True
        timer.start()
        for line in run.stdout:
            print(line, end="", flush=True)
            finished |= "ServerApp-side Evaluate Metrics" in line
            if "Run finished" in line or ("run_id" in line and "status" in line and "finished" in line):
                break
        timer.cancel()
        if not finished:
            for path in sorted(self.folder.glob("*.log")):
                print(f"--- {path.name}\n{path.read_text()[-3000:]}", file=sys.stderr)
        return 0 if finished else 1


def main() -> int:
    """Start, run, stop."""
    options = arguments()
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rqm-flower-")))
        folder = folder.absolute()
        folder.mkdir(exist_ok=options.keep is None)
        federation = Federation(folder, options.state, stack)
        federation.enrol(options.nodes, (options.policy or options.app / "policy.toml").read_text())
        federation.link()
        nodes = [federation.node(number, options.nodes) for number in range(options.nodes)]
        for number, round_ in enumerate(options.kill):
            victim = options.nodes - 1 - number
            log = folder / f"flower-supernode-{victim}.log"
            Thread(target=kill, args=(nodes[victim], log, round_), daemon=True).start()
        if options.kill_owing:
            logs = [folder / f"flower-supernode-{number}.log" for number in range(options.nodes)]
            Thread(target=kill_owing, args=(nodes, logs), daemon=True).start()
        return federation.run(options.set, options.limit, options.app.absolute())


if __name__ == "__main__":
    sys.exit(main())
