"""The command line: one thin file a command, each parses, calls one public function and prints."""

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperGroup

from rqm import __version__
from rqm._util.threads import wait_quietly
from rqm.cli.errors import ANSWERED, told
from rqm.cli.words import speak_plainly

SETTINGS: dict[str, Any] = {
    "add_completion": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "markdown",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
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
}
"""Every command, and where it is: a module of this folder is loaded when its command is called."""


class Commands(TyperGroup):
    """The commands of ``COMMANDS``, each loaded when it is asked for."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or none."""
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _loaded(cmd_name)
        return super().get_command(ctx, cmd_name)

    def make_context(self, *given: Any, **more: Any) -> Any:
        """Read what was typed; whoever stops that is told so, which typer would leave out."""
        return _stoppable(super().make_context, *given, **more)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; whoever stops it is told so, too."""
        return _stoppable(super().invoke, ctx)


def _stoppable(work: Callable[..., Any], *given: Any, **more: Any) -> Any:
    try:
        return work(*given, **more)
    except BaseException as error:
        behind: BaseException | None = error
        while behind is not None and not isinstance(behind, KeyboardInterrupt):
            before = None if behind.__suppress_context__ else behind.__context__
            behind = behind.__cause__ or before  # compiled code makes a SystemError of it
        if behind is None:
            raise
        raise typer.Abort from None


def _loaded(name: str) -> Any:
    module, _, attribute = COMMANDS[name].partition(".")
    found = getattr(import_module(f"rqm.cli.{module}"), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(**SETTINGS | {"add_completion": False})
        alone.command(name)(found)
        found = alone
    made = typer.main.get_command(found)
    made.name = name
    for one in getattr(made, "commands", {name: made}).values():
        _explain(one)
    return made


def _explain(command: Any) -> None:
    """Give arguments their help again, which typer hands to a click that forgets it (8.5)."""
    hints = get_type_hints(command.callback, include_extras=True)
    for param in command.params:
        if param.param_type_name == "argument" and param.help is None:
            told = [one.help for one in getattr(hints.get(param.name), "__metadata__", ()) if hasattr(one, "help")]
            param.help = told[0] if told else None


app = typer.Typer(name="rqm", cls=Commands, no_args_is_help=True, **SETTINGS)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"rqm {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Private, few-bit federated learning with the Randomized Quantization Mechanism (RQM).

    Start with `rqm privacy`: what one coordinate leaks, at most, whatever the other clients send. Then `rqm account`:
    what a whole training run guarantees to every user.
    """


def main() -> None:
    """Run the command line; a bad value ends with exit code 2 and one line that names it."""
    wait_quietly()
    speak_plainly()
    gc.set_threshold(20_000, 20, 20)  # importing makes many objects and no rubbish: a tenth of a short command's time
    try:
        if "" in sys.argv[1:]:
            raise ValueError(f"argument {sys.argv.index('', 1)} is empty: must be left out, or say something")
        code = app(prog_name="rqm", standalone_mode=False)
    except ANSWERED as error:
        message, code = told(error, typer.main.get_command(app), sys.argv[1:])
        typer.echo("rqm: " + " ".join(message.split()), err=True)
    sys.exit(code if isinstance(code, int) else 0)
