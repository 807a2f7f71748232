"""``python -m tools.kinds`` writes the table of all mechanisms into docs/which-mechanism.md, from the registry."""

from pathlib import Path

from rqm.mechanisms.base import Mechanism
from rqm.registry import kinds

PAGE = Path(__file__).parents[1] / "docs" / "which-mechanism.md"
BEGIN, END = "<!-- the registry's -->", "<!-- end -->"


def row(made: type[Mechanism]) -> str:
    """One mechanism: what it is, what can be set, and what it says about itself."""
    mech = made()
    about = (made.__doc__ or "").split("\n")[0].rstrip(".").replace("``", "`")
    options = ", ".join(f"`{name}`" for name in made.options()) or "–"
    facts = {
        "integers": mech.has_integer_messages,
        "adds noise": mech.adds_noise,
        "calibrated": mech.min_noise is not None,
    }
    return f"| `{made.kind}` | {about} | {options} | {' | '.join('yes' if said else '' for said in facts.values())} |"


def table() -> str:
    """All mechanisms of the package, in Markdown."""
    heads = ["name", "", "options", "sends integers", "adds noise", "`rqm.calibrate`"]
    own = [made for made in kinds().values() if made.__module__.startswith("rqm.")]
    return "\n".join(["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *map(row, own)])


def written(text: str) -> str:
    """A page with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
    print(PAGE)
