"""An event says what happened: one release of a sum. What it costs is the accountant's to say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import final

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.transient import Transient
from rqm.privacy.composition import Rdp, gaussian_rdp
from rqm.privacy.gaussian import vector_gdp
from rqm.privacy.holding import gaussian_paths
from rqm.privacy.setting import Neighbours
from rqm.privacy.vector import vector_rdp
from rqm.privacy.worst_case import attained


@final
@dataclass(frozen=True)
class Event:
    """One release: the sum of clients' vectors of ``dim`` coordinates within ``l2_clip``, sent by ``mechanism``.

    With ``cancel`` every client adds noise of that deviation and takes it back one round later: in steps of a channel's
    levels, or, where a trusted server does it, of the sum in L2 clips. Then what one release tells of a user comes out
    in up to ``separation`` rounds, in which he takes part once.
    """

    mechanism: Mechanism
    dim: int
    l2_clip: float
    cancel: float | None = None
    separation: int = 1

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.mechanism.private:
            raise TypeError(f"{type(self.mechanism).__name__} adds no noise: there is no privacy to account for")
        whole("dim", self.dim, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        whole("separation", self.separation, 1)

    @property
    def told(self) -> "Event":
        """The same as the accountant sees it: of a vector that is sent as a whole, what can differ."""
        mechanism, dim, l2_clip = self.mechanism.told(self.dim, self.l2_clip)
        return self if mechanism is self.mechanism else replace(self, mechanism=mechanism, dim=dim, l2_clip=l2_clip)

    @property
    def dear(self) -> bool:
        """Whether each order takes long: the law has kinks inside the clip, and a certificate looks at all of them."""
        return self.mechanism.integers and not self.mechanism.channel.budgeted

    def rdp(self, orders: Sequence[float], neighbours: Neighbours, honest: int, *, quick: bool = False) -> Rdp:
        """What it leaks of one of ``honest`` clients at some orders, as deployed: by the law that is sampled.

        ``quick`` looks at few inputs of the others: good enough to search with, but it certifies nothing.
        """
        z = self.mechanism.gaussian_multiplier
        if z is not None:
            return gaussian_rdp(z, orders, neighbours)
        return _rdp(
            self.mechanism.channel, tuple(map(float, orders)), honest, self.dim, self.l2_clip, neighbours, quick
        )

    def attained(self, orders: Sequence[float], honest: int) -> FloatArray:
        """Below what no bound by ``rdp`` can be, of releases that are dear: every coordinate at its worst."""
        return self.dim * attained(self.mechanism.channel, tuple(map(float, orders)), honest, law="sampled")

    def mu(self, neighbours: Neighbours, honest: int, lost: float, *, quick: bool = False) -> float:
        """μ for which it is μ-GDP but for outcomes of probability ``lost``, as deployed; infinite if none is known."""
        z = self.mechanism.gaussian_multiplier
        if z is not None:
            return self.least_mu(neighbours, honest)
        if self.cancel:
            return self._cancelled(neighbours, honest, lost, quick)
        if not self.mechanism.channel.budgeted:
            return inf
        return vector_gdp(
            self.mechanism.channel,
            honest=honest,
            dim=self.dim,
            l2_clip=self.l2_clip,
            lost=lost,
            neighbours=neighbours,
            law="sampled",
            quick=quick,
        )

    def least_mu(self, neighbours: Neighbours, honest: int) -> float:
        """What μ would be if the noise at zero were Gaussian: no certificate for vectors under a budget is below."""
        z, taken_back = self.mechanism.gaussian_multiplier, self.cancel or 0.0
        if z is None:
            channel = self.mechanism.channel
            longest = min(self.l2_clip, channel.clip * self.dim**0.5)  # the clip of every coordinate may bind first
            variance = float(channel.variance(0.0)) if channel.additive is None else channel.additive.near
            z = (honest * variance) ** 0.5 / longest
            taken_back *= honest**0.5 * channel.grid.step / longest
        far = 2.0 if neighbours == "replace" else 1.0
        return far * (gaussian_paths(self.separation, taken_back**2, z**2) ** 0.5 if taken_back else 1 / z)

    def _cancelled(self, neighbours: Neighbours, honest: int, lost: float, quick: bool) -> float:
        from rqm.privacy.cancel import cancelled_gdp  # noqa: PLC0415 (takes the compiler)

        assert self.cancel is not None
        return cancelled_gdp(
            self.mechanism.channel,
            Transient(self.cancel),
            honest=honest,
            separation=self.separation,
            dim=self.dim,
            l2_clip=self.l2_clip,
            lost=lost,
            neighbours=neighbours,
            quick=quick,
        )


@lru_cache(maxsize=256)
def _rdp(
    mech: Channel, orders: tuple[float, ...], honest: int, dim: int, l2_clip: float, neighbours: Neighbours, quick: bool
) -> Rdp:
    values = vector_rdp(
        mech, orders, honest=honest, dim=dim, l2_clip=l2_clip, neighbours=neighbours, law="sampled", quick=quick
    )
    return Rdp(orders, values, neighbours)
