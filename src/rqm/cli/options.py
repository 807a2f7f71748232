"""Options that commands share; those of mechanisms are made from what each says about itself."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rqm._util.checks import nearest
from rqm.bounds import Adversary, Neighboring
from rqm.cli import names
from rqm.mechanisms.base import Option
from rqm.mechanisms.rappor import Rappor
from rqm.mechanisms.registry import kinds

if TYPE_CHECKING:
    from rqm.mechanisms.base import Mechanism

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataOption = Annotated[Path | None, typer.Option(help="Folder of the data; else $RQM_DATA, then the user's cache.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the plan: --set server.rate=0.5.")
]
HonestClientsOption = Annotated[int | None, typer.Option(help="Honest clients of every round, dropouts included.")]
HonestFractionOption = Annotated[float | None, typer.Option(help="The honest fraction of the population.")]
AdversaryOption = Annotated[
    Adversary | None, typer.Option(help="server (knows who takes part) or outsider (sees only the models).")
]
NeighboringOption = Annotated[Neighboring | None, typer.Option(help="The neighboring relation.")]
PopulationOption = Annotated[int | None, typer.Option(help="N, the users that a round's clients are sampled from.")]
DeltaOption = Annotated[
    float | None, typer.Option(help="δ; else the plan's or the ledger's, else 1e-5 or one over the population.")
]


Reports = Annotated[int | None, typer.Option(help=f"Of {Rappor.kind}: reports of one value that are seen (1).")]


def or_counted_by(count: Callable[..., None]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``with_mechanism``, and RAPPOR, which counts values: then ``count`` is called with it, and its own options."""
    return lambda command: with_mechanism(command, count)


def with_mechanism(command: Callable[..., None], count: Callable[..., None] | None = None) -> Callable[..., None]:
    """Give a command the options of all mechanisms that send integers; it is called with ``mech``, which they describe.

    Mechanisms share an option of the same name. One that the chosen mechanism does not have is refused.
    """
    signature = inspect.signature(command, eval_str=True)
    known = {name: made.options() for name, made in kinds().items() if made.integers}
    known |= {} if count is None else {Rappor.kind: Rappor.options()}
    merged: dict[str, dict[str, Option]] = {}
    for kind, options in known.items():
        for name in options.keys() - signature.parameters.keys():
            merged.setdefault(name, {})[kind] = options[name]

    def run(mechanism: str = "rqm", **given: Any) -> None:
        own = {name: value for name in merged if (value := given.pop(name)) is not None}
        if count is not None and mechanism == Rappor.kind:
            _allowed(mechanism, own, Rappor.options())
            wanted = inspect.signature(count).parameters.keys() & given.keys()
            for name in given.keys() - wanted:
                if given[name] != signature.parameters[name].default:
                    raise ValueError(f"{name} = {given[name]}: must not be given with --mechanism {Rappor.kind}")
            count(Rappor(**own), **{name: given[name] for name in wanted})
            return
        if given.get("reports") is not None:
            raise ValueError(f"reports = {given['reports']}: must come with --mechanism {Rappor.kind}")
        command(mech=_built(mechanism, own, list(known)), **given)

    words = f"The mechanism: {', '.join(known)}."
    added = [_parameter("mechanism", str, words, "rqm", autocompletion=names.mechanisms)]
    for name, uses in sorted(merged.items(), key=lambda item: list(known).index(next(iter(item[1])))):
        first = next(iter(uses.values()))
        added.append(_parameter(name, first.type | None, f"{first.help.rstrip('.')} ({_defaults(uses)}).", None))
    rest = [one for name, one in signature.parameters.items() if name != "mech"]
    run.__signature__ = signature.replace(parameters=[*added, *rest])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*added, *rest)}
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    return run


def _defaults(uses: dict[str, Option]) -> str:
    """Who has an option, and with which default: "rqm, pbm: 16"."""
    alike: dict[Any, list[str]] = {}
    for kind, one in uses.items():
        alike.setdefault(one.default, []).append(kind)
    return "; ".join(", ".join(who) + ("" if default is None else f": {default:g}") for default, who in alike.items())


def _parameter(name: str, kind: Any, words: str, default: Any, **more: Any) -> inspect.Parameter:
    kept = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kept, default=default, annotation=Annotated[kind, typer.Option(help=words, **more)])


def _built(kind: str, given: dict[str, Any], known: list[str]) -> "Mechanism":
    """Make the mechanism that the options describe; an option of another mechanism is an error."""
    if kind not in known:
        raise ValueError(f"mechanism = {kind}: must be one of {', '.join(known)}{nearest(kind, known)}")
    _allowed(kind, given, kinds()[kind].options())
    return kinds()[kind].from_dict({"mechanism": kind, **given})


def _allowed(kind: str, given: dict[str, Any], allowed: dict[str, Option]) -> None:
    """Refuse options of another mechanism, and ask for those that this one cannot do without."""
    for name in sorted(given.keys() - allowed.keys()):
        usable = ", ".join(f"--{option}" for option in sorted(allowed))
        raise ValueError(f"{name} = {given[name]}: must not be given with --mechanism {kind}, which takes {usable}")
    for one in allowed.values():
        if one.required and one.name not in given:
            raise ValueError(
                f"{one.name} = None: must be given with --mechanism {kind}: {one.help[0].lower()}{one.help[1:]}"
            )
