"""What goes together in a `PrivateMean`: every combination without a proof is refused."""

from typing import TYPE_CHECKING

from rqm.encoding.records import check_records, record_length

if TYPE_CHECKING:
    from rqm.encoding.private_mean import PrivateMean


def check_mean(mean: "PrivateMean") -> None:
    """Refuse a private mean whose parts do not go together.

    Args:
        mean: The private mean.

    Raises:
        ValueError: If no guarantee is known for the combination, or it cannot be encoded.
    """
    mechanism, who, threat = mean.mechanism, mean.participation, mean.threat_model
    threat.check(who)
    check_records(mean)
    if mean.noise is not None:
        _check_noise(mean)
    if mean.is_subset and (mean.l2_clip is None or not mean.rotate):
        raise ValueError(
            f"coordinates = {mean.coordinates}: must come with an L2 clip and a rotation, after which all are alike"
        )
    if mean.is_subset and (mean.noise is not None or mechanism.correlation is not None):
        raise ValueError(
            f"coordinates = {mean.coordinates}: must not be given with correlated noise, as each round chooses others"
        )
    if mechanism.has_integer_messages and mean.modulus > 2**31:
        raise ValueError(
            f"clients = {who.clients}: a sum over so many of {mechanism.discrete.levels} levels does not fit 31 bits"
        )
    if mechanism.vector_mechanism is not None and (mean.is_subset or mean.noise is not None):
        raise ValueError(
            f"mechanism = {mechanism.kind!r}: must come without correlated noise, and with all coordinates"
        )
    if mechanism.is_local and mechanism.has_integer_messages and threat.honest_clients != 1:
        raise ValueError(
            f"honest_clients = {threat.honest_clients}: must be 1, since each client's message is accounted for alone"
        )
    if mechanism.needs_l2_clip and mean.l2_clip is None:
        raise ValueError(f"l2_clip = None: must be given for the mechanism {mechanism.kind}, whose noise it scales")
    if mechanism.correlation is not None:
        who.check_bands(mechanism.correlation.bands)
    if mean.record_clip is not None:
        record_length(mean)


def _check_noise(mean: "PrivateMean") -> None:
    """Refuse correlated noise where the proof does not cover it."""
    mechanism, threat = mean.mechanism, mean.threat_model
    assert mean.noise is not None
    if threat.adversary != "server":
        raise ValueError(
            "noise: correlated noise must come with adversary = 'server'; an outsider sees no more than it does"
        )
    if threat.honest_fraction is not None:
        raise ValueError(
            f"honest_fraction = {threat.honest_fraction}: must be a number of clients of every round "
            "(honest_clients) with correlated noise"
        )
    if threat.unit == "record" and mean.noise.residual_std:
        raise ValueError("noise.residual_std: must be 0 for records: a silo cancels all of its transient noise")
    if mechanism.has_integer_messages:
        if threat.unit == "user" and (mechanism.discrete.levels != 2 or not mechanism.discrete.is_affine):
            raise ValueError("noise: must come with two levels outside the clip (mechanism rounding, levels = 2)")
        mean.noise.check_integers()
    elif mechanism.gaussian_multiplier is None or not mechanism.trusted_server or mechanism.correlation is not None:
        raise ValueError(f"noise: must come with two levels, or a trusted server's Gaussian; not with {mechanism.kind}")
