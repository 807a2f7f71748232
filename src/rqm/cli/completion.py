"""Names that a shell completes. Nothing is imported before they are needed."""

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path


def completion(module: str, attribute: str) -> Callable[[str], list[str]]:
    """A function that lists the names with a given beginning.

    Args:
        module: A module of this package, imported when a name is completed.
        attribute: A function of the module without arguments, or a dictionary, that lists all names.

    Returns:
        The function.
    """

    def complete(incomplete: str) -> list[str]:
        source = getattr(import_module(f"rqm.{module}"), attribute)
        names: Iterable[str] = source() if callable(source) else source
        return [name for name in names if name.startswith(incomplete)]

    return complete


mechanisms = completion("cli.options", "integer_mechanisms")
figures = completion("report.paper_figures", "PAPER_FIGURES")
benchmarks = completion("cli.bench", "list_benchmarks")
mutants = completion("cli.audit", "mutant_names")


def experiments(incomplete: str) -> list[str]:
    """Shipped experiments, plans, ledgers and folders."""
    return completion("config.experiments", "names")(incomplete) + files(incomplete)


def files(incomplete: str) -> list[str]:
    """Plans, ledgers and folders."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    names = [f"{path}/" if path.is_dir() else str(path) for path in sorted(folder.glob("[!.]*"))]
    return [name for name in names if name.startswith(incomplete) and name.endswith(("/", ".toml", ".jsonl"))]
