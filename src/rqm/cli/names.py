"""Names that a shell can complete: asked for when somebody presses Tab, so nothing is imported before."""

from pathlib import Path


def _beginning(names: list[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def experiments(incomplete: str) -> list[str]:
    """Experiments that come along, plans, ledgers and folders."""
    from rqm.plan.experiments import names

    return _beginning(names(), incomplete) + files(incomplete)


def files(incomplete: str) -> list[str]:
    """Plans, ledgers and folders."""
    here = Path(incomplete)
    folder = here if incomplete.endswith("/") else here.parent
    try:
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError:
        return []
    kept = [
        f"{one}/" if one.is_dir() else str(one) for one in found if one.is_dir() or one.suffix in (".toml", ".jsonl")
    ]
    return _beginning(kept, incomplete)


def mechanisms(incomplete: str) -> list[str]:
    """Mechanisms that send integers."""
    from rqm.mechanisms.registry import kinds

    return _beginning([name for name, made in kinds().items() if made.integers], incomplete)


def figures(incomplete: str) -> list[str]:
    """The paper's figures."""
    from rqm.report.paper import FIGURES

    return _beginning(list(FIGURES), incomplete)


def benchmarks(incomplete: str) -> list[str]:
    """Benchmarks, in a clone."""
    from rqm.cli.bench import known

    return _beginning(list(known()), incomplete)


def mutants(incomplete: str) -> list[str]:
    """Mistakes that are made on purpose."""
    from rqm.audit.mutants import MUTANTS

    return _beginning([one.name for one in MUTANTS], incomplete)
