"""What an error says on the command line: one line that names what was typed, and what to type instead."""

import re
from collections.abc import Sequence
from typing import Any

import typer

from rqm._util.checks import nearest
from rqm._util.extras import how_to_install

REFUSED: Any = typer.BadParameter.__mro__[2]
"""The base of all errors of usage: click's, or that of the copy of click that typer brings."""
LONGEST = 200
"""Characters of a path that a message shows: its end."""
BEYOND = ArithmeticError | RecursionError | MemoryError
ANSWERED = (typer.Abort, REFUSED, ValueError, TypeError, ImportError, OSError, *BEYOND.__args__)
"""Errors that end a command with one line; any other is a mistake of ours, and shows where it is."""


def told(error: BaseException, group: Any, typed: Sequence[str]) -> tuple[str, int]:
    """The line and the exit code of an error of the command that was ``typed`` after the name of the ``group``."""
    if isinstance(error, typer.Abort):
        return "stopped by the user", 130
    if isinstance(error, REFUSED):
        return _usage(error, _reached(group, typed)), error.exit_code
    if isinstance(error, ValueError | TypeError | BEYOND):
        return as_typed(_of_value(error), options_of(group, typed), typed), 2
    return as_typed(_of_machine(error), options_of(group, typed), typed), 1


def _of_value(error: BaseException) -> str:
    beyond = f"a value is beyond what can be computed with ({type(error).__name__}: {error})"
    return beyond if isinstance(error, BEYOND) else str(error)


def _of_machine(error: BaseException) -> str:
    """What is missing: a file, or a library."""
    if isinstance(error, ModuleNotFoundError):
        return str(how_to_install(error))
    if isinstance(error, FileExistsError) and error.filename is not None:
        return f"{str(error.filename)[-LONGEST:]}: is there already, and is no folder"
    if isinstance(error, OSError) and error.strerror:
        where = "writing" if error.filename is None else str(error.filename)[-LONGEST:]
        return f"{where}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error)


def _usage(error: Any, reached: Any) -> str:
    """An error of usage: what click says, once, and where help is."""
    context = getattr(error, "ctx", None) or reached
    path = context.command_path
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"give a command; {path} --help lists all" + (
            "; rqm doctor is a good first one" if path == "rqm" else ""
        )
    said = re.split(r" \(?(?:Did you mean|Possible options)", error.format_message())[0].rstrip(". ")
    wrong = re.match(r"No such (command|option):? '?([\w-]+)'?", said)
    if wrong:
        return f"{path} has no {wrong[1]} {wrong[2]}{_meant(wrong[2], _names(context, wrong[1]))} ({path} --help)"
    example = re.search(r"^ *(rqm \w.*)$", context.command.help or "", flags=re.M)
    such = f"; for example: {example[1]}" if example and said.startswith("Missing") else ""
    return f"{said}{such} ({path} --help)"


def _names(context: Any, what: str) -> list[str]:
    """The commands, or the options, of the command that was reached."""
    if what == "command":
        return list(context.command.list_commands(context))
    return [name for param in context.command.params for name in (*param.opts, *param.secondary_opts)]


def _meant(name: str, names: list[str]) -> str:
    """What may have been meant; that all options begin alike makes them no nearer to each other."""
    bare = {one.lstrip("-"): one for one in names}
    near = nearest(name.lstrip("-"), bare)
    return re.sub(r"(?<=mean )(.*)(?=\?)", lambda found: bare[found[0]], near)


def _reached(group: Any, typed: Sequence[str]) -> Any:
    """The context of the command that was typed, as far as there is one."""
    context = typer.Context(group, info_name="rqm")
    for word in typed:
        command = context.command
        inner = command.get_command(context, word) if hasattr(command, "get_command") else None
        if inner is not None:
            context = typer.Context(inner, parent=context, info_name=word)
    return context


def options_of(group: Any, typed: Sequence[str]) -> set[str]:
    """The options of the command that was typed, as Python names them."""
    params = _reached(group, typed).command.params
    return {param.name for param in params if param.param_type_name == "option"}


def as_typed(message: str, options: set[str], typed: Sequence[str]) -> str:
    """Turn the library's "keep = 2: must be …" into what was typed: "--keep 2: …", or "--set keep=2: …".

    >>> as_typed("keep = 2: must be below 1", {"keep"}, ["privacy", "--keep", "2"])
    '--keep 2: must be below 1'
    >>> as_typed("out = None: must be a new folder", {"out"}, ["train", "demo"])
    '--out (not given): must be a new folder'
    >>> as_typed("margin = -3: must be 0 or more", {"out"}, ["train", "demo", "--set", "mechanism.margin=-3"])
    '--set mechanism.margin=-3: must be 0 or more'
    """
    found = re.match(r"^([A-Za-z_][\w.]*) = (.*?): (must .*)$", message, flags=re.DOTALL)
    found = found or re.match(r"^([A-Za-z_][\w.]*) = (.*?): (.*)$", message, flags=re.DOTALL)
    if found is None:
        return message
    name, value, rest = found[1], found[2].strip("'"), found[3]
    flag = f"--{name.replace('_', '-')}"
    if name == "set" or name.isupper():
        name = name.replace("set", "--set")
        return f"{name}: {rest}" if value == "None" else f"{name} {value}: {rest}"
    if name in options and value == "None":
        return f"{flag}: {rest}" if rest.startswith("must be given") else f"{flag} (not given): {rest}"
    given = [word for word in typed if word.startswith((f"{name}=", f"mechanism.{name}="))]
    if name in options and any(word.split("=")[0] == flag for word in typed) and f"{name}={value}" not in given:
        return f"{flag} {value}: {rest}"
    return f"--set {given[-1]}: {rest}" if given else message
