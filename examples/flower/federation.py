"""A federation on this machine: a SuperLink and some SuperNodes on loopback, with TLS, and a run of the app in it.

    python federation.py --nodes 4 --set 'rqm.rounds=3 rqm.clients=4 rqm.survivors=3'

Certificates are made for the occasion. Everything that is started here is stopped here.
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
from threading import Thread

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE = Path(__file__).parent


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority of our own, and a certificate by it for this machine: paths of authority, certificate and key."""
    now = datetime.datetime.now(datetime.UTC)

    def made(name: str, issuer: x509.Name | None, key: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder().subject_name(subject).issuer_name(issuer or subject).public_key(key.public_key())
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )  # fmt: skip
        if issuer is not None:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(by, hashes.SHA256())

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = made("rqm example authority", None, authority_key, authority_key)
    own = made("localhost", authority.subject, key, authority_key)
    paths = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    paths[0].write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(own.public_bytes(serialization.Encoding.PEM))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    paths[2].touch(mode=0o600)
    paths[2].write_bytes(secret)
    return paths


def identity(folder: Path, name: str) -> tuple[Path, Path]:
    """A SuperNode's key pair, as OpenSSH writes them: paths of the private and of the public key."""
    key, paths = ec.generate_private_key(ec.SECP384R1()), (folder / name, folder / f"{name}.pub")
    paths[0].touch(mode=0o600)
    paths[0].write_bytes(key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    ))  # fmt: skip
    paths[1].write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return paths


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, seconds: float = 60) -> None:
    """Wait until somebody listens on a port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nobody listens on port {port} after {seconds:.0f} s")


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
    """Kill a SuperNode when it has been asked to train: the third of the five messages of a round."""
    while log.read_text().count("Received successfully") < 5 * (round_ - 1) + 3:
        time.sleep(0.05)
    print(f"*** killing the SuperNode with pid {process.pid} in round {round_}", flush=True)
    os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    """Start, run, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--set", default="", help="the run's configuration, as flwr run --run-config takes it")
    parser.add_argument("--ledger", type=Path, default=Path("rqm-ledger"), help="the folder of the ledger")
    parser.add_argument(
        "--kill", metavar="ROUND", type=int, action="append", default=[],
        help="kill one SuperNode when it is asked to train in this round; may be given again",
    )  # fmt: skip
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which all is stopped")
    given = parser.parse_args()
    tools = Path(sys.executable).parent
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rqm-flower-")))
        authority, certificate, key = certificates(folder)
        environment = {
            **os.environ, "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", "RQM_LEDGER": str(given.ledger.absolute()),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2", "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip

        def start(name: str, *arguments: str) -> subprocess.Popen:
            log = (folder / f"{arguments[0]}-{name}.log").open("wb")
            process = subprocess.Popen(
                [str(tools / arguments[0]), *arguments[1:]],
                env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            stack.callback(stop, process)
            return process

        port = free_port()
        start("link", "flower-superlink", "--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate),
              "--ssl-keyfile", str(key), "--host", "127.0.0.1", "--port", str(port),
              "--enable-supernode-auth")  # fmt: skip
        (folder / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
            f'root-certificates = "{authority}"\n'
        )
        wait_for(port)
        identities = [identity(folder, f"node-{number}") for number in range(given.nodes)]
        for _, public in identities:  # only these may join
            subprocess.run(
                [str(tools / "flwr"), "supernode", "register", str(public), "here"],
                env=environment, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
        nodes = [
            start(str(number), "flower-supernode", "--root-certificates", str(authority),
                  "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()),
                  "--auth-supernode-private-key", str(identities[number][0]),
                  "--ssl-ca-certfile", str(authority), "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key),
                  "--node-config", f"partition-id={number} num-partitions={given.nodes}")
            for number in range(given.nodes)
        ]  # fmt: skip
        for number, round_ in enumerate(given.kill):
            victim = given.nodes - 1 - number
            log = folder / f"flower-supernode-{victim}.log"
            Thread(target=kill, args=(nodes[victim], log, round_), daemon=True).start()
        command = [str(tools / "flwr"), "run", str(HERE), "here", "--stream"]
        command += ["--run-config", given.set] if given.set else []
        run = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        stack.callback(stop, run)
        end, finished = time.monotonic() + given.limit, False
        assert run.stdout is not None
        for line in run.stdout:
            print(line, end="", flush=True)
            finished |= "ServerApp-side Evaluate Metrics" in line
            if "Run finished" in line or ("run_id" in line and "status" in line and "finished" in line):
                break
            if time.monotonic() > end:
                print(f"*** stopped after {given.limit:.0f} s", file=sys.stderr)
                return 1
        if not finished:
            for path in sorted(folder.glob("*.log")):
                print(f"--- {path.name}\n{path.read_text()[-3000:]}", file=sys.stderr)
        return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
