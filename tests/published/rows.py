"""What a row of the table of published values holds, where values come from, and how rqm's are compared with them."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cache

ROUNDING = 2e-9
"""Relative: rqm rounds every δ and ε up, by 1e-10 or less; the rest is floating point on both sides."""


@dataclass(frozen=True)
class Tolerance:
    """The allowed range of ours / published, and its reason."""

    lower: float
    upper: float
    reason: str


@dataclass(frozen=True)
class Row:
    """A published value.

    Attributes:
        source: Author, year and title, or project, version and commit.
        where: Section, table, file or test.
        convention: Neighboring relation, sampling, what the noise multiplier is relative to, accountant.
        quantity: What was published, with its parameters.
        published: The value as printed there.
        compute: What rqm computes.
        tolerance: The allowed ratio; half a unit of the last digit printed, if it is left out.
        value: The value, where `published` is an expression.
        backend: "dp_accounting" where rqm passes the computation on to it.
    """

    source: str
    where: str
    convention: str
    quantity: str
    published: str
    compute: Callable[[], float]
    tolerance: Tolerance | None = None
    value: float | None = None
    backend: str = "rqm"

    @property
    def number(self) -> float:
        """The published value."""
        return float(self.published) if self.value is None else self.value

    @property
    def allowed(self) -> Tolerance:
        """The allowed range of ours / published."""
        if self.tolerance is not None:
            return self.tolerance
        if self.value is not None:
            return Tolerance(1 - ROUNDING, 1 + ROUNDING, "an exact expression")
        exponent = Decimal(self.published).as_tuple().exponent
        assert isinstance(exponent, int)
        half_unit = 0.5 * 10.0**exponent / abs(self.number) + ROUNDING
        return Tolerance(1 - half_unit, 1 + half_unit, "digits printed")


@cache
def ratio(row: Row) -> float:
    """Ours / published."""
    return float(row.compute()) / row.number


def agrees(row: Row, factor: float = 1.0) -> bool:
    """Whether our value, times `factor`, lies in the allowed range."""
    return row.allowed.lower <= factor * ratio(row) <= row.allowed.upper


def within(relative: float, reason: str) -> Tolerance:
    """A range on both sides."""
    return Tolerance(1 - relative, 1 + relative, reason)


def at_least(relative: float, reason: str) -> Tolerance:
    """For a value of ours that is rounded up: no less than the published one."""
    return Tolerance(1 - ROUNDING, 1 + relative, reason)


def at_most(relative: float, reason: str) -> Tolerance:
    """For a published value that was rounded up: ours is no more."""
    return Tolerance(1 - relative, 1 + ROUNDING, reason)


# -- sources --------------------------------------------------------------------------------------

DP_ACCOUNTING = "dp_accounting 0.6.0 (Google), tests"
GOOGLE_DP = "differential-privacy b5b0286 (Google), C++ and Go tests"
PIPELINE_DP = "PipelineDP ec6e56e (OpenMined and Google), tests"
TF_PRIVACY = "TensorFlow-Privacy 0.9.0, 03035d5 (Google), tests"
OLD_TF_PRIVACY = "TensorFlow-Privacy ee35642 of April 2022 (Google), tests"
OPACUS = "Opacus 1.5.4, 4d0ebc8 (Meta), tests"
PFL = "pfl-research 0.5.1, c9d1f32 (Apple), tests"
AUTODP = "autodp 0.2.3.1, 06489ea (Wang and others), tutorials"
OPENDP = "OpenDP 0.15.1-dev, bc6e18b, tests and user guide"
DIFFPRIVLIB = "diffprivlib 0.6.6, 5d9c9d8 (IBM), tests"
FOURIER = "Fourier-Accountant 2d9702b (Koskela, Jälkö and Honkela 2020), tests"
GDP_CODE = "Deep-Learning-with-GDP 2ce8400 (Bu, Dong, Long and Su 2020), documentation of the code"
JAX_PRIVACY = "jax_privacy 2.3.0.dev0, 8967688 (Google DeepMind), tests"
FEDERATED = "google-research/federated a5af8c4 (Denisov et al. 2022), tests"
YOUN = "Youn et al. 2023, Randomized Quantization is All You Need for Differential Privacy in Federated Learning"
THEORY = "theory.md, this project's own derivation (kept outside the repository); not an independent source"

# -- reasons for tolerances -----------------------------------------------------------------------

SEVEN_PLACES = "the test asserts 7 decimals"
DISCRETIZED = "discretized privacy losses on both sides, rounded up, with different intervals"

# -- conventions ----------------------------------------------------------------------------------

EXACT = "exact δ(ε); σ is the noise over the L2 sensitivity; no sampling"
ADD = f"add-or-remove-one; {EXACT}"
REPLACE = "replace-one, which doubles the sensitivity; exact δ(ε); σ is the noise over the L2 clip; no sampling"
RDP = "Rényi divergences, ε by Canonne, Kamath and Steinke 2020 (Prop. 12)"
RDP_GAUSSIAN = f"{RDP}, the minimum over all real orders; σ is the noise over the L2 sensitivity; no sampling"
POISSON = "add-or-remove-one; Poisson sampling; noise multiplier over the L2 clip"
POISSON_RDP = f"{POISSON}; {RDP}"
POISSON_PLD = f"{POISSON}; privacy loss distributions"
RESPONSE = "replace-one input; local; no noise multiplier; pure ε or D_α"
STRATEGY = "L2 sensitivity of C x for vectors of norm 1 (replacing a vector by zero)"

OPACUS_ORDERS = tuple([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)))
"""Rényi orders of Opacus, and of TensorFlow Privacy's test of zCDP."""
