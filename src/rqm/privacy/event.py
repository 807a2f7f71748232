"""An event says what happened: one release of a sum. What it costs is the accountant's to say."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import final

from rqm._util.checks import real, whole
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.privacy.composition import Rdp, gaussian_rdp
from rqm.privacy.gaussian import vector_gdp
from rqm.privacy.setting import Neighbours
from rqm.privacy.vector import vector_rdp


@final
@dataclass(frozen=True)
class Event:
    """One release: the sum of clients' vectors of ``dim`` coordinates within ``l2_clip``, sent by ``mechanism``."""

    mechanism: Mechanism
    dim: int
    l2_clip: float

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.mechanism.private:
            raise TypeError(f"{type(self.mechanism).__name__} adds no noise: there is no privacy to account for")
        whole("dim", self.dim, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)

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

    def mu(self, neighbours: Neighbours, honest: int, lost: float, *, quick: bool = False) -> float:
        """μ for which it is μ-GDP but for outcomes of probability ``lost``, as deployed; infinite if none is known."""
        z = self.mechanism.gaussian_multiplier
        if z is not None:
            return (2.0 if neighbours == "replace" else 1.0) / z
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
        z = self.mechanism.gaussian_multiplier
        if z is None:
            channel = self.mechanism.channel
            longest = min(self.l2_clip, channel.clip * self.dim**0.5)  # the clip of every coordinate may bind first
            variance = float(channel.variance(0.0)) if channel.additive is None else channel.additive.near
            z = (honest * variance) ** 0.5 / longest
        return (2.0 if neighbours == "replace" else 1.0) / z


@lru_cache(maxsize=256)
def _rdp(
    mech: Channel, orders: tuple[float, ...], honest: int, dim: int, l2_clip: float, neighbours: Neighbours, quick: bool
) -> Rdp:
    values = vector_rdp(
        mech, orders, honest=honest, dim=dim, l2_clip=l2_clip, neighbours=neighbours, law="sampled", quick=quick
    )
    return Rdp(orders, values, neighbours)
