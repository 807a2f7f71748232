"""The process that is kept warm: a message has a copy of its own; what cannot have one starts as Flower does it."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("flwr")
from flwr.supercore.constant import ExecutorType, TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor, subprocess_executor

from rqm.flower import superexec, warm

SERVED = """
import json, os, sys, threading, types
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from rqm.flower import warm

X25519PrivateKey.generate()  # so that there is a generator, which a copy could go on with

def flwr_clientapp():
    if "fail" in sys.argv:
        raise RuntimeError("of this message alone")
    told = {"argv": sys.argv, "pid": os.getpid(), "parent": os.getppid(), "drawn": np.random.random(),
            "key": X25519PrivateKey.generate().private_bytes_raw().hex(),
            "given": sys.stdin.read(), "threads": threading.active_count()}
    os.write(1, (json.dumps(told) + "\\n").encode())
    sys.exit(3 if "bad" in sys.argv else 0)

if sys.argv[1:] == ["load"]:
    warm.load()
sys.modules["flwr.supernode.cli.flwr_clientapp"] = types.SimpleNamespace(flwr_clientapp=flwr_clientapp)
print(os.getpid(), flush=True)
warm.serve()
"""


def served(*lines, options=()):
    """What copies of a warm process tell, and its own number; it has ended."""
    done = subprocess.run(
        [sys.executable, "-c", SERVED, *options],
        input="".join(json.dumps(one) + "\n" for one in lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    own, *found = done.stdout.split("\n")
    return int(own), [json.loads(one) for one in found if one], done.stderr


def test_every_message_has_a_process_of_its_own_and_the_warm_one_ends_with_its_input():
    own, found, _ = served(["--token", "a"], ["fail"], ["--token", "b", "bad"])
    assert sorted(one["argv"] for one in found) == [
        ["flwr-clientapp", "--token", "a"],
        ["flwr-clientapp", "--token", "b", "bad"],
    ]
    assert len({own, *(one["pid"] for one in found)}) == 3
    assert all(one["given"] == "" for one in found)  # what other messages are told is not theirs to read
    assert len({one["drawn"] for one in found}) == 2
    assert len({one["key"] for one in found}) == 2


def test_a_message_that_fails_says_why():
    assert "of this message alone" in served(["fail"])[2]


@pytest.mark.slow
def test_with_all_that_it_loads_no_thread_is_running():
    _, found, _ = served(["--token", "a"], options=["load"])
    assert [one["threads"] for one in found] == [1]


def spec(**given):
    values = {
        "task_type": TaskType.CLIENT_APP,
        "runtime_api_address": "127.0.0.1:9",
        "token": "secret",
        "insecure": False,
        "root_certificates_path": "ca.pem",
        "runtime_dependency_install": False,
        "parent_pid": 7,
        "suppress_output": False,
        "task_id": 1,
    }
    return ExecutionSpec(**values | given)


@pytest.fixture
def started(monkeypatch):
    """The command lines that Flower's own executor starts."""
    lines = []
    fake = type("subprocess", (), {"Popen": staticmethod(lines.append)})
    monkeypatch.setattr(subprocess_executor, "subprocess", fake)
    return lines


@pytest.mark.parametrize("given", [{}, {"insecure": True, "root_certificates_path": None}, {"parent_pid": None}])
def test_a_warm_process_is_told_what_flower_would_start(started, given):
    SubprocessExecutor().launch(spec(**given))
    assert started == [["flwr-clientapp", *superexec.command_line(spec(**given))]]


@pytest.fixture
def told(monkeypatch, tmp_path):
    """An executor whose warm process writes down what it is told."""
    heard = tmp_path / "heard"
    monkeypatch.setattr(superexec, "WARM", ["sh", "-c", f"exec cat > {heard}"])
    executor = superexec.WarmExecutor()
    yield executor, heard
    executor.close()
    executor._warm.wait()


def test_client_apps_come_from_the_warm_process_and_nothing_else_does(told, started):
    executor, heard = told
    executor.launch(spec())
    executor.launch(spec(task_type=TaskType.SERVER_APP))
    executor.launch(spec(runtime_dependency_install=True))  # other versions than are loaded
    executor.close()
    executor._warm.wait()
    assert [json.loads(line) for line in heard.read_text().splitlines()] == [superexec.command_line(spec())]
    assert [line[0] for line in started] == ["flwr-serverapp", "flwr-clientapp"]


def test_without_a_warm_process_a_message_starts_as_flower_does_it(told, started):
    executor, _ = told
    executor._warm.kill()
    executor._warm.wait()
    executor.launch(spec())
    assert started == [["flwr-clientapp", *superexec.command_line(spec())]]


def test_a_warm_process_that_is_dying_is_not_waited_for(told, started, monkeypatch):
    executor, _ = told
    executor._warm.kill()
    executor._warm.wait()
    monkeypatch.setattr(executor._warm, "poll", lambda: None)  # it has not been noticed yet
    executor.launch(spec())
    assert len(started) == 1


def test_flowers_superexec_takes_this_executor_for_processes_and_its_own_for_the_rest(monkeypatch):
    monkeypatch.setattr(superexec, "WARM", ["cat"])
    made = run_superexec.get_executor
    monkeypatch.setattr(run_superexec, "get_executor", made)  # put back at the end
    superexec.install()
    executor = run_superexec.get_executor(ExecutorType.SUBPROCESS, executor_config=None, insecure=True)
    assert isinstance(executor, superexec.WarmExecutor)
    executor.close()
    with pytest.raises(ValueError, match="onfig"):
        run_superexec.get_executor(ExecutorType.KUBERNETES, executor_config=None)


def test_what_is_loaded_is_there_to_be_loaded():
    assert all(find_spec(name) for name in warm.NEEDED)
