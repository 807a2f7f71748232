"""Errors of a command in one line: what was typed, why it is wrong, and what to type instead."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from rqm._util.checks import nearest
from rqm._util.imports import how_to_install

ClickException: Any = typer.BadParameter.__mro__[2]
"""The base class of usage errors: click's, or that of the copy of click inside some versions of typer."""
EXPECTED_ERRORS: Any = (
    *(ValueError, TypeError, ImportError, OSError, ArithmeticError, RecursionError, MemoryError),
    *(ClickException, typer.Abort),
)
"""Errors that end a command with one line. Any other error is a bug and shows a traceback."""


@contextmanager
def interrupts_as_abort() -> Iterator[None]:
    """Raise `typer.Abort` on Ctrl-C, also where compiled code turned the KeyboardInterrupt into another error."""
    try:
        yield
    except BaseException as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, KeyboardInterrupt):
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        if cause is None:
            raise
        raise typer.Abort from None


def describe(error: BaseException) -> tuple[str, int]:
    """The message and the exit code of an error.

    Args:
        error: One of `EXPECTED_ERRORS`.

    Returns:
        The message, in the words of the command line, and the exit code.
    """
    context = getattr(error, "ctx", None)
    if isinstance(error, typer.Abort):
        return str(error) or "stopped by the user", 130
    if isinstance(error, ClickException):
        return _usage_message(error, context), error.exit_code
    if isinstance(error, ArithmeticError | RecursionError | MemoryError):
        message = f"a value is beyond what can be computed with ({type(error).__name__}: {error})"
        code = 2
    elif isinstance(error, ValueError | TypeError):
        message = str(error)
        code = 2
    else:
        message = _system_message(error)
        code = 1
    return message if context is None else as_typed(message, context), code


def _system_message(error: BaseException) -> str:
    """What is wrong with a file or a library."""
    if isinstance(error, ModuleNotFoundError):
        return str(how_to_install(error))
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    path = "writing" if error.filename is None else str(error.filename)
    return f"{path}: {error.strerror[0].lower()}{error.strerror[1:]}"


def _usage_message(error: Any, context: Any) -> str:
    """What is wrong with a command line, and which help to read."""
    if context is None:
        return str(error.format_message())
    path = context.command_path
    if type(error).__name__ == "NoArgsIsHelpError":
        hint = "; rqm doctor is a good first one" if path == "rqm" else ""
        return f"give a command; {path} --help lists all{hint}"
    message = re.split(r" \(?(?:Did you mean|Possible options)", error.format_message())[0].rstrip(". ")
    misspelled = re.match(r"No such (command|option):? '?([\w-]+)'?", message)
    if misspelled:
        message = f"{path} has no {misspelled[1]} {misspelled[2]}{_suggestion(misspelled[1], misspelled[2], context)}"
    example = re.search(r"^ *(rqm \w.*)$", context.command.help or "", flags=re.M)
    if example and message.startswith("Missing"):
        message += f"; for example: {example[1]}"
    return f"{message} ({path} --help)"


def _suggestion(kind: str, name: str, context: Any) -> str:
    """The command or option that was probably meant, as the end of a message."""
    if kind == "command":
        return nearest(name, context.command.list_commands(context))
    options = [option for param in context.command.params for option in (*param.opts, *param.secondary_opts)]
    return nearest(name.lstrip("-"), (option.lstrip("-") for option in options)).replace("mean ", "mean --")


def as_typed(message: str, context: Any) -> str:
    """Turn a message of the library into one about the command line.

    The library writes "keep = 2: must be below 1". Depending on what was typed this becomes
    "--keep 2: must be below 1" or "--set mechanism.keep=2: must be below 1".

    Args:
        message: The message of the library.
        context: The context of the command.

    Returns:
        The message with the option as it was typed; unchanged if the message names no option.
    """
    parts = re.fullmatch(r"([A-Za-z_][\w.]*) = (.*?): (must .*|[^:]*)", message, flags=re.DOTALL)
    if parts is None:
        return message
    name = parts[1]
    value = parts[2].strip("'")
    problem = parts[3]
    options = {param.name for param in context.command.params if param.param_type_name == "option"}
    was_typed = name in options and context.get_parameter_source(name).name == "COMMANDLINE"
    prefixes = (f"{name}=", f"mechanism.{name}=")
    settings = [setting for setting in context.params.get("settings") or [] if setting.startswith(prefixes)]
    if name == "set" or name.isupper():
        label = "--set" if name == "set" else name
    elif name in options and (value == "None" or (was_typed and f"{name}={value}" not in settings)):
        label = f"--{name.replace('_', '-')}"
    else:
        return f"--set {settings[-1]}: {problem}" if settings else message
    if value == "None":
        value = "(not given)" if name in options and not problem.startswith("must be given") else ""
    return f"{label} {value}".strip() + f": {problem}"
