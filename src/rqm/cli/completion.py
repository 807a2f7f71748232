"""Names that a shell completes. Nothing is imported before they are needed."""

from collections.abc import Callable, Iterable
from pathlib import Path


def completion(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Turn a function that lists names into one that lists those with a given beginning."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def experiments(incomplete: str) -> list[str]:
    """Shipped experiments, plans, ledgers and folders."""
    from rqm.config.experiments import names

    return completion(names)(incomplete) + files(incomplete)


def files(incomplete: str) -> list[str]:
    """Plans, ledgers and folders."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    names = [f"{path}/" if path.is_dir() else str(path) for path in sorted(folder.glob("[!.]*"))]
    return [name for name in names if name.startswith(incomplete) and name.endswith(("/", ".toml", ".jsonl"))]


@completion
def mechanisms() -> Iterable[str]:
    """Mechanisms that send integers."""
    from rqm.registry import kinds

    return [name for name, mechanism in kinds().items() if mechanism.has_integer_messages]


@completion
def figures() -> Iterable[str]:
    """The paper's figures."""
    from rqm.report.paper_figures import PAPER_FIGURES

    return PAPER_FIGURES


@completion
def benchmarks() -> Iterable[str]:
    """Benchmarks, in a clone."""
    from rqm.cli.bench import list_benchmarks

    return list_benchmarks()


@completion
def mutants() -> Iterable[str]:
    """Deliberately broken mechanisms and protocols."""
    from rqm.audit.mutants import MUTANTS

    return [mutant.name for mutant in MUTANTS]
