"""Command lines: whatever is typed, one line and an exit code, never a traceback."""

import contextlib
import io
import sys
from random import Random
from unittest.mock import patch

from rqm.cli import main
from rqm.registry import kinds
from tools.fuzz.target import Target

ODD = (
    *(
        "0",
        "1",
        "2",
        "3",
        "-1",
        "-0",
        "1e308",
        "-1e308",
        "1e309",
        "5e-324",
        "1e-300",
        "nan",
        "inf",
        "-inf",
        "0.5",
        "1e12",
    ),
    *("18446744073709551617", "9" * 400, "9" * 5000, "0x10", "1_0", "٣", "", " ", "x", "\0", "\ud800", "é", "-", "--"),
    *("[", "[" * 5000, "{", "1,2", ",", "0.5," * 2000, "/", ".", "/dev/null", "a=b", "=", "rounds=0", "rounds=1e999"),
    *("clients=18446744073709551617", "mechanism.keep=nan", "mechanism=3", "seeds=0", "dim=" + "[" * 5000),
)
PRIVACY = ("--alpha", "--clients", "--seed", "--others", "--distribution")
ACCOUNT = (
    *("--delta", "--adversary", "--neighboring", "--honest-clients", "--honest-fraction", "--population"),
    *("--set", "--save"),
)
TRAIN = ("--set", "--out", "--resume", "--data", "--seed", "--delta", "--budget-epsilon", "--expect-head", "--minutes")


class Commands(Target):
    """A command with odd options, in this process."""

    name = "command line"
    part = 0.5
    allowed = ()

    def prepare(self) -> None:
        """The options of all mechanisms."""
        self.options = sorted({f"--{name}" for made in kinds().values() for name in made.options()})

    def line(self, rng: Random) -> list[str]:
        """A command that is refused, or takes no time."""
        few = rng.choice((1, 1, 2, 3))
        command = rng.choice(("privacy", "privacy", "account", "train", "report", "", "priv", "--version"))
        if command == "privacy":
            mechanism = rng.choice(("rqm", "pbm", "rounding", "response", "table", rng.choice(ODD)))
            line = ["--mechanism", mechanism, "--levels", "2"] if rng.random() < 0.7 else []
            names = (*PRIVACY, *self.options)
        elif command == "account":  # a name that is none: no plan is accounted for, which takes time
            line, names = [rng.choice(("nobody", rng.choice(ODD), "/dev/null", "x.toml"))], ACCOUNT
        else:
            line, names = [rng.choice(("nobody", rng.choice(ODD), "x.toml"))], TRAIN
        for _ in range(few):
            line += [rng.choice(names), rng.choice(ODD)]
        if "--json" not in line and rng.random() < 0.5:
            line.append("--json")
        return [command, *line]

    def attack(self, rng: Random) -> None:
        """Run it."""
        out, err, code = io.StringIO(), io.StringIO(), 0
        line = self.line(rng)
        with (
            patch.object(sys, "argv", ["rqm", *line]),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 0 if end.code is None else -1
            except Exception as error:
                raise AssertionError(f"{type(error).__name__} escapes from: {line}") from error
        said = err.getvalue()
        if code not in (0, 1, 2) or (code and len(said.strip().splitlines()) != 1) or "Traceback" in said:
            raise AssertionError(f"exit code {code} and {said[:300]!r} from: {line}")


TARGETS = (Commands,)
