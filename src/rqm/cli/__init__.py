"""The command line. Each command has a module that parses, calls one public function and prints the result."""

import gc
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rqm import __version__
from rqm._util.threads import wait_quietly
from rqm.cli.command import Command
from rqm.cli.errors import EXPECTED_ERRORS, describe, interrupts_as_abort
from rqm.cli.formatting import adapt_to_terminal

COMMANDS = {
    "privacy": "privacy.command",
    "account": "account.command",
    "advise": "advise.command",
    "audit": "audit.app",
    "figures": "figures.command",
    "bench": "bench.command",
    "train": "train.command",
    "experiments": "train.experiments",
    "report": "report.command",
    "explore": "explore.command",
    "doctor": "doctor.command",
    "verify": "verify.command",
    "init": "init.command",
    "keys": "keys.app",
    "flower": "flower.app",
}
"""Every command, and the module and function that defines it. A module is imported when its command is used."""


class Commands(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None."""
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the command line."""
        with interrupts_as_abort():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with interrupts_as_abort():
            return super().invoke(ctx)


def _load(name: str) -> Any:
    """Import a command, or a group of commands."""
    module, attribute = COMMANDS[name].split(".")
    app = getattr(import_module(f"rqm.cli.{module}"), attribute)
    if not isinstance(app, typer.Typer):
        function = app
        app = typer.Typer(rich_markup_mode="markdown", add_completion=False)
        app.command(name, cls=Command)(function)
    command: Any = typer.main.get_command(app)
    command.name = name
    return command


app = typer.Typer(
    name="rqm",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"rqm {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Private, few-bit federated learning with the Randomized Quantization Mechanism (RQM).

    Start with `rqm privacy`, which bounds what one coordinate leaks, whatever the other clients send. Then use
    `rqm account` for the guarantee of a whole training run to every user.
    """


def main() -> None:
    """Run the command line. An error ends it with one line on stderr and the documented exit code."""
    wait_quietly()
    adapt_to_terminal()
    gc.set_threshold(20_000, 20, 20)  # imports create many objects and no garbage: saves a tenth of a short command
    try:
        if "" in sys.argv[1:]:
            raise ValueError(f"argument {sys.argv.index('', 1)} is empty: must be left out, or say something")
        code = app(prog_name="rqm", standalone_mode=False)
    except EXPECTED_ERRORS as error:
        message, code = describe(error)
        typer.echo("rqm: " + " ".join(message.split()), err=True)
    sys.exit(code if isinstance(code, int) else 0)
