"""The command line: one thin file a command, each parses, calls one public function and prints."""

import gc
import sys
from typing import Annotated

import typer

from rqm import __version__
from rqm._util.threads import wait_quietly
from rqm.cli import account, advise, audit, bench, doctor, explore, figures, init, keys, privacy, report, train, verify
from rqm.cli.errors import ANSWERED, told

app = typer.Typer(
    name="rqm",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("privacy")(privacy.command)
app.command("account")(account.command)
app.command("advise")(advise.command)
app.add_typer(audit.app, name="audit")
app.command("figures")(figures.command)
app.command("bench")(bench.command)
app.command("train")(train.command)
app.command("experiments")(train.experiments)
app.command("report")(report.command)
app.command("explore")(explore.command)
app.command("doctor")(doctor.command)
app.command("verify")(verify.command)
app.command("init")(init.command)
app.add_typer(keys.app, name="keys")


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
    gc.set_threshold(20_000, 20, 20)  # importing makes many objects and no rubbish: a tenth of a short command's time
    try:
        code = app(prog_name="rqm", standalone_mode=False)
    except ANSWERED as error:
        message, code = told(error, typer.main.get_command(app), sys.argv[1:])
        typer.echo("rqm: " + " ".join(message.split()), err=True)
    sys.exit(code if isinstance(code, int) else 0)
