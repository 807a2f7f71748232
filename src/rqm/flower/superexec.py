"""Flower's SuperExec for a node, which starts the process of a message from one that is warm (``rqm.flower.warm``).

    flower-supernode … --isolation process
    python -m rqm.flower.superexec …    # every option of flower-superexec

Whatever cannot be started so is started as ``flower-superexec`` does it.
"""

import json
import subprocess
import sys
from importlib import import_module
from logging import WARNING
from typing import Any, final

from flwr.supercore import log
from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import ExecutorType, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, Executor, LaunchResult, SubprocessExecutor

run_superexec: Any = import_module("flwr.supercore.superexec.run_superexec")
WARM = [sys.executable, "-m", "rqm.flower.warm"]


@final
class WarmExecutor(SubprocessExecutor):
    """Flower's executor of processes; those of ClientApps come from a warm one."""

    def __init__(self) -> None:
        self._warm = subprocess.Popen(WARM, stdin=subprocess.PIPE, bufsize=0)

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a message."""
        # with dependencies of its own an app may need other versions of what is loaded
        if spec.task_type == TaskType.CLIENT_APP and not spec.runtime_dependency_install and self._told(spec):
            return LaunchResult.accepted()
        return super().launch(spec)

    def _told(self, spec: ExecutionSpec) -> bool:
        """Whether there is a warm process, and it has been told."""
        if self._warm.poll() is not None:
            log(WARNING, "rqm: no process is warm (it ended with %d): one is started anew", self._warm.returncode)
            return False
        assert self._warm.stdin is not None
        try:
            self._warm.stdin.write(json.dumps(command_line(spec)).encode() + b"\n")
        except OSError as error:
            log(WARNING, "rqm: no process is warm (%s): one is started anew", error)
            return False
        return True

    def close(self) -> None:
        """Let the warm process end."""
        if self._warm.stdin is not None:
            self._warm.stdin.close()


def command_line(spec: ExecutionSpec) -> list[str]:
    """The arguments of ``flwr-clientapp``."""
    found = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.insecure:
        found.append("--insecure")
    elif spec.root_certificates_path is not None:
        found += ["--root-certificates", spec.root_certificates_path]
    return found if spec.parent_pid is None else [*found, "--parent-pid", str(spec.parent_pid)]


def install() -> None:
    """Let Flower's SuperExec have this executor instead of its own for processes."""
    made = run_superexec.get_executor

    def chosen(executor_type: ExecutorType, **given: Any) -> Executor:
        return WarmExecutor() if executor_type == ExecutorType.SUBPROCESS else made(executor_type, **given)

    run_superexec.get_executor = chosen


if __name__ == "__main__":
    install()
    flower_superexec()
