"""Options that several commands share. Those of mechanisms are made from the registry of mechanisms."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rqm._util.checks import one_of
from rqm.cli import completion
from rqm.cli.formatting import Result
from rqm.mechanisms.base import Option
from rqm.registry import kinds
from rqm.related.rappor import Rappor

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the plan: --set server.rate=0.5.")
]
Function = Callable[..., Result]


def integer_mechanisms() -> dict[str, Any]:
    """The mechanisms that send integers, by name."""
    return {name: mechanism for name, mechanism in kinds().items() if mechanism.has_integer_messages}


def with_mechanism(*rappor_options: str) -> Callable[[Function], Function]:
    """Give a command an option `--mechanism` and the options of all mechanisms that send integers.

    The command is called with the mechanism that they describe as `mech`. Mechanisms share an
    option of the same name. An option that the chosen mechanism does not have is refused.

    Args:
        *rappor_options: The command's own options that apply to RAPPOR, which counts values and is
            no `Mechanism`; others are then refused. None: the command has no RAPPOR.

    Returns:
        A decorator.
    """

    def decorate(command: Function) -> Function:
        signature = inspect.signature(command, eval_str=True)
        mechanisms = integer_mechanisms() | ({Rappor.kind: Rappor} if rappor_options else {})
        options: dict[str, dict[str, Option]] = {}  # by the name of the option, then of the mechanism
        for kind, mechanism in mechanisms.items():
            for name, option in mechanism.options().items():
                if name not in signature.parameters:
                    options.setdefault(name, {})[kind] = option

        def run(mechanism: str, **values: Any) -> Result:
            one_of("mechanism", mechanism, mechanisms)
            parameters = {name: value for name in options if (value := values.pop(name)) is not None}
            _check(mechanism, parameters, mechanisms[mechanism].options())
            if mechanism == Rappor.kind:
                for name, value in values.items():
                    if name not in rappor_options and value != signature.parameters[name].default:
                        raise ValueError(f"{name} = {value}: must not be given with --mechanism {mechanism}")
                return command(mech=Rappor(**parameters), **values)
            if values.get("reports", 1) != 1:
                raise ValueError(f"reports = {values['reports']}: must come with --mechanism {Rappor.kind}")
            return command(mech=mechanisms[mechanism].from_dict({"mechanism": mechanism, **parameters}), **values)

        text = f"The mechanism: {', '.join(mechanisms)}."
        added = [_parameter("mechanism", str, text, "rqm", autocompletion=completion.mechanisms)]
        for name, uses in options.items():
            first = next(iter(uses.values()))
            defaults = (kind if use.default is None else f"{kind} {use.default:g}" for kind, use in uses.items())
            text = f"{first.help.rstrip('.')} ({', '.join(defaults)})."
            added.append(_parameter(name, first.type | None, text, None))
        signature_params = added + [param for name, param in signature.parameters.items() if name != "mech"]
        run.__signature__ = signature.replace(parameters=signature_params)  # type: ignore[attr-defined]
        run.__annotations__ = {param.name: param.annotation for param in signature_params}
        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        return run

    return decorate


def _parameter(name: str, kind: Any, text: str, default: Any, **options: Any) -> inspect.Parameter:
    """A parameter that typer turns into an option."""
    annotation = Annotated[kind, typer.Option(help=text, **options)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _check(kind: str, parameters: dict[str, Any], options: dict[str, Option]) -> None:
    """Refuse options of another mechanism, and a required option that is missing."""
    flags = ", ".join(f"--{option}" for option in sorted(options))
    for name, value in parameters.items():
        if name not in options:
            raise ValueError(f"{name} = {value}: must not be given with --mechanism {kind}, which takes {flags}")
    for option in options.values():
        if option.required and option.name not in parameters:
            text = option.help[0].lower() + option.help[1:].rstrip(".")
            raise ValueError(f"{option.name} = None: must be given with --mechanism {kind}: {text}")
