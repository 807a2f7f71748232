"""A mechanism that the package knows nothing of, in one file."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Self, final

import numpy as np

from rqm import TableMechanism
from rqm.mechanisms.base import ProposalRequest, option


@final
@dataclass(frozen=True)
class Lazy(TableMechanism):
    """Rounds to one of two levels beyond the clip, and now and then says either of them for no reason."""

    kind: ClassVar[str] = "lazy"

    clip: float = option(1.0, "c.", flag=False)
    margin: float = option(1.0, "How far the levels lie beyond the clip.")
    lazy: float = option(0.25, "The chance of not looking at the input.")

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", 2)
        self._validate()

    @property
    def output_range(self) -> Fraction:
        """Rows have less than their level's mean, so outcomes lie farther out than the levels of the inputs."""
        return self.input_range / (1 - Fraction(self.lazy))

    @property
    def input_range(self) -> Fraction:
        return 1 + Fraction(self.margin)

    def log_rows(self) -> Any:
        return np.log([[1 - self.lazy / 2, self.lazy / 2], [self.lazy / 2, 1 - self.lazy / 2]])

    @property
    def min_noise(self) -> float:
        return 1.0

    def with_noise(self, amount: float) -> Self:
        return self.with_parameters(margin=amount - 1)

    @classmethod
    def proposals(cls, ask: ProposalRequest) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "lazy rounding", {}
