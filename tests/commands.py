"""Commands as a user types them: in this process, which is fast, or in a process of their own."""

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import dataclass
from unittest.mock import patch

from rqm.cli import main


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def rqm(*args, folder="."):
    """Run an `rqm` command, errors and exit code included."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["rqm", *map(str, args)]),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    return Done(code, out.getvalue(), err.getvalue())


def rqm_json(*args, **options):
    """The JSON object that a command prints."""
    done = rqm(*args, "--json", **options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def process(*args, **options):
    """Run Python in a process of its own, without a time limit, because the machine may be busy."""
    return subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, check=False, **options)
