"""Commands as a user types them: in this process, which is quick, or in one of their own."""

import contextlib
import io
import subprocess
import sys
from dataclasses import dataclass
from unittest.mock import patch

from rqm.cli import main


@dataclass(frozen=True)
class Done:
    """What a command ended with, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def rqm(*args, folder="."):
    """Run a command of ours, errors and exit code included."""
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


def process(*args, **options):
    """Run Python in a process of its own, for as long as it takes: a busy machine is no error."""
    return subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, check=False, **options)
