"""An event says what happened: one release of a sum. What it costs is the accountant's to say."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import final

import numpy as np

from rqm._util.checks import FloatArray, real, whole
from rqm.mechanisms.base import Mechanism
from rqm.mechanisms.channel import Channel
from rqm.mechanisms.transient import Cancel, Transient
from rqm.privacy.composition import LOW, Rdp, gaussian_rdp
from rqm.privacy.gaussian import vector_gdp
from rqm.privacy.holding import gaussian_handed, gaussian_paths
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

    With a ``record_clip`` a client is a silo: what is protected is a record, whose vector is within that clip, and
    which moves the silo's vector by no more, wherever it lies.
    """

    mechanism: Mechanism
    dim: int
    l2_clip: float
    cancel: Cancel | None = None
    separation: int = 1
    record_clip: float | None = None

    def __post_init__(self) -> None:
        """Validate every value."""
        if not self.mechanism.private:
            raise TypeError(f"{type(self.mechanism).__name__} adds no noise: there is no privacy to account for")
        whole("dim", self.dim, 1)
        real("l2_clip", self.l2_clip, "a positive finite number", 0, inf)
        whole("separation", self.separation, 1)
        if self.record_clip is not None:
            real("record_clip", self.record_clip, "a positive finite number", 0, inf)

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
        if self.record_clip is not None:
            raise ValueError("record_clip: Rényi divergences are not computed for records")
        return _rdp(
            self.mechanism.channel, tuple(map(float, orders)), honest, self.dim, self.l2_clip, neighbours, quick
        )

    def attained(self, orders: Sequence[float], honest: int) -> FloatArray:
        """Below what no bound by ``rdp`` can be, of releases that are dear: coordinates at their worst, all or few."""
        mech, budget = self.mechanism.channel, (self.l2_clip / self.mechanism.channel.clip) ** 2
        count = np.where(np.array(orders) <= LOW, min(self.dim, budget), self.dim)
        return np.asarray(count * attained(mech, tuple(map(float, orders)), honest, law="sampled"))

    def mu(self, neighbours: Neighbours, honest: int, lost: float, *, quick: bool = False) -> float:
        """μ for which it is μ-GDP but for outcomes of probability ``lost``, as deployed; infinite if none is known."""
        z = self.mechanism.gaussian_multiplier
        if z is not None:
            return self.least_mu(neighbours, honest)
        if self.cancel:
            known = self._cancelled if self.record_clip is None else self._ordered
            return known(neighbours, honest, lost, quick)
        return vector_gdp(
            self.mechanism.channel,
            honest=honest,
            dim=self.dim,
            l2_clip=self.l2_clip,
            moved=self.moved(neighbours),
            lost=lost,
            neighbours=neighbours,
            law="sampled",
            quick=quick,
        )

    def moved(self, neighbours: Neighbours) -> float | None:
        """How far one record moves a silo's vector; None: what is protected is the whole vector."""
        return None if self.record_clip is None else (2 if neighbours == "replace" else 1) * self.record_clip

    def least_mu(self, neighbours: Neighbours, honest: int) -> float:
        """What μ would be if the noise at zero were Gaussian: no certificate for vectors under a budget is below."""
        z, far = self.mechanism.gaussian_multiplier, 2.0 if neighbours == "replace" else 1.0
        goes, stays, times = self.cancel if isinstance(self.cancel, tuple) else (self.cancel or 0.0, 0.0, 1)
        if z is None:
            channel = self.mechanism.channel
            longest = min(self.l2_clip, channel.clip * self.dim**0.5)  # the clip of every coordinate may bind first
            longest = longest if self.record_clip is None else self.record_clip
            variance = float(channel.variance(0.0)) if channel.additive is None else channel.additive.near
            z = (honest * variance) ** 0.5 / longest
            goes, stays = (one * honest**0.5 * channel.grid.step / longest for one in (goes, stays))
        if stays:
            return float(far * gaussian_handed(self.separation, goes**2, stays**2, times, z**2) ** 0.5)
        return float(far * (gaussian_paths(self.separation, goes**2, z**2) ** 0.5 if goes else 1 / z))

    def _cancelled(self, neighbours: Neighbours, honest: int, lost: float, quick: bool) -> float:
        from rqm.privacy.cancel import cancelled_gdp  # noqa: PLC0415 (takes the compiler)

        assert self.cancel is not None
        return cancelled_gdp(
            self.mechanism.channel,
            Transient.of(self.cancel),
            honest=honest,
            separation=self.separation,
            dim=self.dim,
            l2_clip=self.l2_clip,
            lost=lost,
            neighbours=neighbours,
            quick=quick,
        )

    def _ordered(self, neighbours: Neighbours, honest: int, _: float, quick: bool) -> float:
        """But for tails, which are charged for in ``in_order``."""
        from rqm.privacy.ordered import rise  # noqa: PLC0415 (takes the compiler)

        mech, far = self.mechanism.channel.additive, self.moved(neighbours)
        assert mech is not None
        assert far is not None
        found = rise(mech, Transient.of(self.cancel or 0), honest, self.separation, quick=quick)
        return found * far / mech.clip * mech.steps / 2

    def in_order(self, neighbours: Neighbours, honest: int, count: int, delta: float, *, quick: bool = False) -> float:
        """ε of a record that is in ``count`` such releases, of noise that is taken back."""
        from rqm.privacy.ordered import ordered_epsilon  # noqa: PLC0415 (takes the compiler)

        mech, far = self.mechanism.channel.additive, self.moved(neighbours)
        assert mech is not None
        assert far is not None
        return ordered_epsilon(
            mech,
            Transient.of(self.cancel or 0),
            honest=honest,
            separation=self.separation,
            dim=self.dim,
            moved=far,
            count=count,
            delta=delta,
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
