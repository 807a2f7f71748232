"""What a run promises its users, in one sentence with all of its conditions."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, final

from rqm._util.text import many

if TYPE_CHECKING:
    from rqm.accounting.guarantee import Guarantee


@final
@dataclass(frozen=True)
class Statement:
    """A guarantee as it is told: ``str`` is the sentence, ``details`` has every number; a notebook shows both.

    ``details`` is None where there is no noise. With a ``seed`` the noise can be repeated by anyone: the run was a
    simulation. ``again`` counts releases of rounds that were done once more after an interruption; ``asked`` is the ε
    that was asked for. ``behind`` is how many users there really are behind those who were declared.
    """

    details: "Guarantee | None"
    seed: int | None = None
    here: bool = True
    again: int = 0
    asked: float | None = None
    behind: int | None = None

    @property
    def epsilon(self) -> float:
        """ε of every user, over the whole run; infinite without noise."""
        return float("inf") if self.details is None else self.details.epsilon

    @property
    def delta(self) -> float | None:
        """δ, where there is noise."""
        return None if self.details is None else self.details.delta

    @property
    def certified(self) -> bool:
        """Whether it is proven for all inputs of everybody, and of secure randomness."""
        return self.details is not None and self.details.certified and self.seed is None

    @property
    def simulated(self) -> bool:
        """Whether the noise came from a seed."""
        return self.seed is not None

    def __str__(self) -> str:
        """The guarantee in one sentence."""
        if self.details is None:
            return "Not private: the clients' vectors were summed without noise, and there is no ε."
        found = self.details.sentence
        if self.again:
            asked = "" if self.asked is None else f", where {self.asked:g} was asked for"
            found += f"; this counts {many(self.again, 'round')} done again after an interruption{asked}"
        declared = self.details.participation.population
        if self.behind is not None and declared is not None and self.behind != declared:
            found += f"; the {declared:,} declared users are re-drawn from {self.behind:,} that are there"
        if self.seed is not None:
            found = (
                f"A simulation (anyone can repeat the noise of seed {self.seed}, so it hides no real data) of what is, "
                f"deployed with secure randomness, {found[0].lower()}{found[1:]}"
            )
        elif self.here:
            found += "; all clients ran in this process, which has seen their data"
        return found + "."

    def _repr_html_(self) -> str:
        details = "" if self.details is None else f"<pre>{escape(str(self.details))}</pre>"
        return f"<p>{escape(str(self))}</p><details><summary>All numbers</summary>{details}</details>"

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        found = {} if self.details is None else self.details.to_dict()
        return {**found, "simulated": self.simulated, "sentence": str(self)}
