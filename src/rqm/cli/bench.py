"""``rqm bench``: how many times faster than a peer, measured in the same run."""

import json
from typing import Annotated

import typer


def command(
    name: Annotated[str | None, typer.Argument(help="Which benchmark; none prints their names.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run a benchmark and print its ratio to each peer.

    Examples:

        rqm bench divergence

        rqm bench divergence --json
    """
    from rqm.bench import BENCHMARKS

    if name is None:
        for known, run in BENCHMARKS.items():
            typer.echo(f"{known:16}{(run.__doc__ or '').strip()}")
        return
    if name not in BENCHMARKS:
        raise ValueError(f"NAME = {name}: must be among {', '.join(BENCHMARKS)}")
    result = BENCHMARKS[name]()
    if as_json:
        typer.echo(json.dumps(result.to_dict()))
        return
    typer.echo(f"{result.name} on {result.machine}: {result.seconds['rqm'] * 1e3:.3g} ms")
    for peer, ratio in result.ratios.items():
        typer.echo(f"  {ratio:8.1f} times faster than {peer} ({result.seconds[peer] * 1e3:.3g} ms)")
