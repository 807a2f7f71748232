"""A user's or a record's (ε, δ) for a whole run, with all that it means: of events in a setting, planned or charged."""

from dataclasses import asdict, dataclass, replace
from math import ceil, exp, sqrt
from typing import Any, NamedTuple

from rqm._util.words import many
from rqm.privacy.accountant import Charges, gaussian_noise, lost_of, profile_of, releases_of, spent
from rqm.privacy.event import Event
from rqm.privacy.factorization import Workload, banded
from rqm.privacy.iterates import gain
from rqm.privacy.setting import Floor, Setting

HOPELESS = 100
"""An ε beyond this protects nobody."""


class Chosen(NamedTuple):
    """A public choice of coordinates: of how many, how much longer than C what is sent may be, and what that takes."""

    of: int
    second_clip: float
    clipped_away: float


@dataclass(frozen=True)
class Guarantee:
    """(ε, δ)-differential privacy of a user over a whole run, certified: it holds for all inputs of everyone.

    ``accountant`` names the bound that gave ε: the Gaussian certificate (``gaussian``), privacy loss distributions
    (``pld``) or Rényi divergences (``rdp``, at ``order``). ``dim`` counts the coordinates that are sent,
    ``per_coordinate`` is D₂ of one of them in one round; ``noise_std_over_gaussian`` is the noise of the sum over that
    of a trusted server's Gaussian with the same ε by its exact account (of few coordinates it may be below 1: there
    a Gaussian is not the best noise). With a ``trusted_server`` it holds against whoever sees only what the server
    publishes. Where only some of ``chosen_of`` coordinates are sent, vectors are clipped again, at ``second_clip``
    times C, which takes the part ``clipped_away`` of them on average at most; the noise is then that of the whole
    decoded mean, without the error of the choice. Where the ``unit`` is a record, clients are silos, the noise is in
    units of ``record_clip``, and with a ``record_rate`` each round's records are drawn by their silo in secret; in a
    fixed order, each as often, a Gaussian would take ``fixed_order_noise`` times as much for the same ε.
    """

    epsilon: float
    delta: float
    neighbours: str
    unit: str
    observer: str
    participations: int
    honest: int
    rounds: int
    clients: int
    population: int | None
    dim: int
    accountant: str
    order: float | None
    per_coordinate: float | None
    noise_multiplier: float
    noise_std_over_gaussian: float | None
    bits_per_coordinate: int
    bits_under_secagg: int | None
    wire_bits_per_parameter: float | None = None
    iterate_noise_over_independent: float = 1.0
    separation: int | None = None
    honest_fraction: float | None = None
    chosen_of: int | None = None
    second_clip: float | None = None
    clipped_away: float | None = None
    trusted_server: bool = False
    certified: bool = True
    record_clip: float | None = None
    record_rate: float | None = None
    fixed_order_noise: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything, ready for JSON."""
        return asdict(self)

    @property
    def whom(self) -> str:
        """Against whom it holds, in words."""
        if self.trusted_server:
            return "whoever sees the noised sums but not the server's memory"
        return {"server": "the server", "outsider": "an outsider who sees all models, but not who took part"}[
            self.observer
        ]

    @property
    def changed(self) -> str:
        """What may differ between neighbours, in words."""
        return {
            "replace": "replaced by another",
            "zero-out": "replaced by zero",
            "add-remove": "added or removed",
        }[self.neighbours]

    @property
    def bound(self) -> str:
        """What gave ε, in words."""
        words = {"gaussian": "Gaussian certificate", "pld": "privacy loss distributions", "rdp": "Rényi divergences"}
        return words[self.accountant] + ("" if self.order is None else f", α = {self.order:g}")

    @property
    def sentence(self) -> str:
        """The guarantee in one sentence that anybody can read, with all of its conditions."""
        if self.epsilon > HOPELESS:
            return (
                f"An ε of {self.epsilon:.3g} protects nobody, whatever else is true (δ = {self.delta:.3g}, against "
                f"{self.whom})"
            )
        if self.unit == "record":
            return self._of_record
        other = {"replace": "any other data in their place", "zero-out": "zeros in their place"}[self.neighbours]
        crowd = f"all {self.clients:,}" if self.honest == self.clients else f"{self.honest:,} of {self.clients:,}"
        both = "" if self.separation is None else " and deliver both of their messages"
        who = f"{crowd} clients of every round are honest{both}"
        if self.honest_fraction is not None:
            who = (
                f"a round's {self.clients:,} clients are drawn at random from {self.population:,} users of whom "
                f"{self.honest_fraction:.4g} are honest"
            )
        elif self.honest == 1:
            who = "its own device is honest"
        odds = f"{exp(self.epsilon):,.0f}" if self.epsilon >= 5 else f"{exp(self.epsilon):.3g}"
        sums = (
            "" if self.trusted_server or self.honest == 1 else ", of which it sees the sums alone (secure aggregation)"
        )
        return (
            f"Certified for every {self.unit}: whatever {self.whom} makes of all the rounds{sums}, it is at most "
            f"e^ε = {odds} times likelier with this {self.unit}'s data than with {other} "
            f"(ε = {self.epsilon:.4g}), but for a chance of δ = {self.delta:.3g}, if {who} and nobody takes part in "
            f"more than {self._rounds}"
        )

    @property
    def _rounds(self) -> str:
        return f"{self.participations:,} of the {self.rounds:,} rounds" if self.rounds > 1 else "the one round"

    @property
    def _of_record(self) -> str:
        """The sentence for a record of a silo."""
        other = {"replace": "with any other in its place", "add-remove": "without it"}[self.neighbours]
        silos = f"all {self.clients:,}" if self.honest == self.clients else f"{self.honest:,} of the {self.clients:,}"
        who = "its own silo is" if self.honest == 1 else f"{silos} silos of every round, its own among them, are"
        apart = "" if self.separation is None else f", {self.separation:,} apart"
        drawn = (
            f"is in no more than {self._rounds}{apart}"
            if self.record_rate in (None, 1)
            else f"is drawn for each of the {many(self.rounds, 'round')} with a chance of {self.record_rate:.4g}, "
            "which only its silo sees"
        )
        sums = (
            "" if self.trusted_server or self.honest == 1 else ", of which they see the sums alone (secure aggregation)"
        )
        against = self.whom if self.trusted_server else "the server and other silos"
        odds = f"{exp(self.epsilon):,.0f}" if self.epsilon >= 5 else f"{exp(self.epsilon):.3g}"
        return (
            f"Certified for every record: whatever {against} make of all the rounds{sums}, it is at most e^ε = {odds} "
            f"times likelier with this record than {other}, or the other way round (ε = {self.epsilon:.4g}), but for a "
            f"chance of δ = {self.delta:.3g}, if {who} honest and the record {drawn}"
        )

    def __str__(self) -> str:
        """The guarantee in words, with its conditions."""
        a = {"user": "a user's vectors", "record": "a record"}[self.unit]
        whom = self.whom if self.unit == "user" or self.trusted_server else "the server and other silos"
        who = {"user": "client", "record": "silo"}[self.unit]
        lines = [
            f"({self.epsilon:.4g}, {self.delta:.3g})-DP for every {self.unit} against {whom}, certified;",
            f"  {a} {self.changed} in up to {self.participations:,} of {many(self.rounds, 'round')},",
            f"  {self.honest:,} of {many(self.clients, who)} of a round honest, "
            f"{many(self.dim, 'coordinate')} ({self.bound}).",
        ]
        if self.record_rate is not None:
            lines.append(
                f"  Its silo draws each round's records in secret, each with a chance of {self.record_rate:.4g}."
            )
        if self.fixed_order_noise is not None:
            better = "less" if self.fixed_order_noise > 1 else "more: take a fixed order"
            lines.append(
                f"  That takes {better}: in a fixed order, as often, a record needs {self.fixed_order_noise:.3g} times "
                "the noise."
            )
        if self.honest_fraction is not None:
            lines.append(
                f"  It assumes that a round's clients are drawn at random from {self.population:,} users, of whom "
                f"{self.honest_fraction:.4g} are honest."
            )
        if self.per_coordinate is not None:
            lines.append(f"  D₂ of one coordinate in one round: {self.per_coordinate:.4g}.")
        if self.separation is not None:
            both = "deliver both messages" if self.unit == "user" else "are there"
            lines.append(
                f"  It assumes that so many {both}, in each of the {self.separation:,} rounds from a participation on."
            )
        if self.chosen_of is not None:
            lines.append(f"  They are a public choice of {self.chosen_of:,} for each round: nothing rests on which.")
        if self.noise_std_over_gaussian is not None:
            what = "Gaussian at the same ε" if self.separation is None else "Gaussian of the same shape"
            lines.append(f"  The noise is {self.noise_std_over_gaussian:.4f} times a trusted server's {what}.")
        if self.iterate_noise_over_independent != 1:
            lines.append(
                f"  The noise of the models is {self.iterate_noise_over_independent:.4f} times independent noise's."
            )
        if self.epsilon > HOPELESS:
            lines.append(
                "  An ε of this size protects nobody: clip in L2, rotate, and widen the margin (rqm.calibrate)."
            )
        under = "" if self.bits_under_secagg is None else f", {self.bits_under_secagg} under secure aggregation"
        if self.chosen_of is not None and self.wire_bits_per_parameter is not None:
            under += f": {many(self.wire_bits_per_parameter, 'bit')} a parameter"
        lines.append(f"  {many(self.bits_per_coordinate, 'bit')} a coordinate{under}.")
        if self.unit == "record":
            lines.append(f"  {self.sentence}.")
        return "\n".join(lines)


def guarantee(
    event: Event,
    setting: Setting,
    charges: Charges | None = None,
    *,
    parameters: int | None = None,
    under: int | None = None,
    workload: Workload | None = None,
    chosen: Chosen | None = None,
) -> Guarantee:
    """What a run of such events guarantees to every user, as planned or of the ``charges`` alone.

    ``parameters`` are those of the model: without rotation as many as coordinates are sent; ``under`` are the bits of
    all messages that carry one of them. ``workload`` is how the server steps where noise is taken back: by default with
    momentum 0.9 and a rate that falls to zero. ``chosen`` says of how many the coordinates are a public choice.
    """
    mech, dim, setting = event.mechanism, event.dim, setting.charged(charges)
    epsilon, accountant, order = spent(event, setting, charges)
    profile = profile_of(setting, charges)
    count = releases_of(setting, profile)
    floor = setting.floor(count * event.separation or None)
    noise, over = _noise(event, setting, charges, epsilon)
    if chosen is not None:  # in units of the first clip, and of the noise of a mean that is sent in full
        noise, over = noise * chosen.second_clip, None if over is None else over * chosen.second_clip
    if under is None and mech.integers:
        under = mech.channel.sum_bits(setting.clients)
    wire = (
        None if under is None else mech.message_bits(dim) if mech.hides_alone else under * dim
    )  # in the clear, or not
    return Guarantee(
        epsilon=epsilon,
        delta=setting.delta or 0.0,
        neighbours=setting.neighbours,
        unit=setting.unit,
        observer=setting.observer,
        participations=count,
        honest=1 if mech.hides_alone else floor.honest,
        rounds=sum(times * rounds for times, rounds in profile.items()),
        clients=setting.clients,
        population=setting.population,
        dim=dim,
        accountant=accountant,
        order=order,
        per_coordinate=_coordinate(event, setting, floor),
        noise_multiplier=noise,
        noise_std_over_gaussian=over,
        bits_per_coordinate=mech.bits,
        bits_under_secagg=under,
        wire_bits_per_parameter=None if wire is None else wire / (parameters or dim),
        iterate_noise_over_independent=_iterates(event, setting, charges, epsilon, workload),
        separation=event.separation if event.cancel and mech.integers else None,
        honest_fraction=setting.honest if isinstance(setting.honest, float) else None,
        chosen_of=None if chosen is None else chosen.of,
        second_clip=None if chosen is None else chosen.second_clip,
        clipped_away=None if chosen is None else chosen.clipped_away,
        trusted_server=mech.trusted_server,
        record_clip=event.record_clip,
        record_rate=setting.record_rate,
        fixed_order_noise=_fixed_order(setting, charges, epsilon),
    )


def _fixed_order(setting: Setting, charges: Charges | None, epsilon: float) -> float | None:
    """Noise of a Gaussian on records in a fixed order, each in as many rounds as are expected, over sampled ones'."""
    if setting.record_rate in (None, 1) or not 0 < epsilon < HOPELESS:
        return None
    rate, rounds = setting.record_rate or 1.0, sum(profile_of(setting, charges).values())
    fixed = replace(setting, record_rate=None, participations=max(1, ceil(rate * rounds)), rounds=rounds)
    return gaussian_noise(fixed, epsilon) / gaussian_noise(setting, epsilon, charges)


def _noise(event: Event, setting: Setting, charges: Charges | None, epsilon: float) -> tuple[float, float | None]:
    """The noise of the sum over the L2 clip, and over that of a trusted server's Gaussian at the same ε."""
    mech = event.mechanism
    if mech.gaussian_multiplier is not None:
        noise = mech.on_sum(setting.clients)
        return noise, noise / mech.gaussian_multiplier
    if event.cancel:
        return _cancelled(event, setting, charges)
    if mech.whole is not None:
        noise = sqrt(setting.clients * mech.whole.variance(event.dim))
    else:
        noise = sqrt(setting.clients * float(mech.channel.variance(0.0))) / (event.record_clip or event.l2_clip)
    if not 0 < epsilon < 1e6:
        return noise, None
    return noise, noise / gaussian_noise(replace(setting, honest=None, survivors=None), epsilon, charges)


def _cancelled(event: Event, setting: Setting, charges: Charges | None) -> tuple[float, float | None]:
    """The noise that stays, over the L2 clip; and that of all kinds over a trusted server's of the same shape."""
    profile = profile_of(setting, charges)
    count = releases_of(setting, profile)
    floor = setting.floor(count * event.separation or None)
    channel = event.mechanism.channel
    left = event.cancel[1] * channel.grid.step if isinstance(event.cancel, tuple) else 0.0
    noise = sqrt(setting.clients * (float(channel.variance(0.0)) + left**2)) / (event.record_clip or event.l2_clip)
    spent_mu = event.mu(setting.neighbours, floor.honest, lost_of(event, setting, profile))
    return noise, spent_mu / event.least_mu(setting.neighbours, setting.clients)


def _iterates(
    event: Event, setting: Setting, charges: Charges | None, epsilon: float, workload: Workload | None
) -> float:
    """The noise of the models over that of a trusted server's independent Gaussian noise with the same ε."""
    shape = event.mechanism.correlation
    if shape is not None:
        workload = Workload(setting.rounds, shape.momentum, shape.schedule)
        return banded(workload, shape.bands).over_independent(workload)  # whoever comes back, for either
    if not event.cancel or not 0 < epsilon < 1e6:
        return 1.0
    persistent = event.mechanism.on_sum(setting.clients)
    goes, left, times = event.cancel if isinstance(event.cancel, tuple) else (event.cancel, 0.0, 1)
    if event.mechanism.integers:
        channel = event.mechanism.channel
        persistent, goes, left = (
            sqrt(setting.clients) * one / (event.record_clip or event.l2_clip)
            for one in (sqrt(float(channel.variance(0.0))), goes * channel.grid.step, left * channel.grid.step)
        )
    gains = gain(workload or Workload(setting.rounds))
    alone = gaussian_noise(replace(setting, honest=None, survivors=None), epsilon, charges)
    return gains.noise(persistent, goes, left, times) / gains.noise(alone, 0.0)


def _coordinate(event: Event, setting: Setting, floor: Floor) -> float | None:
    """D₂ of one coordinate in one round."""
    if not event.mechanism.integers or event.cancel or event.record_clip is not None:
        return None
    mech, neighbours = event.told.mechanism, setting.neighbours if event.mechanism.whole is None else "replace"
    one = Event(mech, 1, mech.channel.clip)
    return float(one.rdp((2.0,), neighbours, floor.honest).values[0])
