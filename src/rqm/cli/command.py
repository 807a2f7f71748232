"""A typer command that is described by its docstring, prints its result and adds itself to its errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from rqm.cli.errors import EXPECTED_ERRORS
from rqm.cli.formatting import Result
from rqm.cli.progress import Bar


class Command(TyperCommand):
    """A typer command.

    The help of its options and arguments is the `Args:` section of its docstring. It has an option
    `--json`. The function returns a `Result`, which is printed as text or as JSON. Errors get the
    context of the command as `ctx`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.help, _, section = (self.help or "").partition("\n\nArgs:\n")
        texts = dict(re.findall(r"^    (\w+): (.+(?:\n        .+)*)", section, flags=re.MULTILINE))
        for param in self.params:
            if param.name in texts:
                param.help = " ".join(texts[param.name].split())
            if param.default is False:
                param.secondary_opts = []  # typer's --no-sweep besides --sweep
        json_help = "Print one JSON object and nothing else."
        self.params.append(TyperOption(param_decls=["as_json", "--json"], is_flag=True, default=False, help=json_help))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line."""
        with _errors_of(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> None:
        """Run the command and print its result."""
        values = {name: value for name, value in ctx.params.items() if name != "as_json"}
        Bar.is_visible = not ctx.params["as_json"]
        with _errors_of(ctx):
            result: Result | None = ctx.invoke(self.callback, **values)
            if result is not None:
                result.print(ctx.params["as_json"])
                raise typer.Exit(result.exit_code)


@contextmanager
def _errors_of(ctx: Any) -> Iterator[None]:
    """Add the context to errors that have none."""
    try:
        yield
    except EXPECTED_ERRORS as error:
        error.ctx = getattr(error, "ctx", None) or ctx
        raise
