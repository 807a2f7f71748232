"""The guarantee of a ledger in words: one headline, and one sentence for each assumption."""

from collections import Counter

from .epsilon_bound import PrivacySpent
from .ledger_claims import Claims

ADVERSARIES = {
    ("server", "user"): "the server",
    ("server", "record"): "the server and other silos",
    ("outsider", "user"): "an outsider who sees every model but not who takes part",
}


def is_by_trusted_server(claims: Claims) -> bool:
    """Whether the server adds the noise, and sees every vector."""
    return claims.kind == "gaussian" and not claims.hides_alone


def headline(claims: Claims, spent: PrivacySpent) -> str:
    """Return the guarantee in one line.

    Args:
        claims: What one release is, and who takes part.
        spent: ε of all charges.

    Returns:
        The line.
    """
    mu = "" if spent.mu is None else f", μ ≤ {spent.mu:.4g}"
    is_trusted = is_by_trusted_server(claims)
    adversary = (
        "anyone who sees only what the server releases" if is_trusted else ADVERSARIES[claims.adversary, claims.unit]
    )
    level = f"{claims.unit}-level ({claims.neighboring})"
    return f"ε ≤ {spent.epsilon:.4g}, δ = {claims.delta:.3g}{mu}, {level}, against {adversary}"


def assumptions(claims: Claims, charges: Counter[int]) -> list[str]:
    """Return the conditions under which the guarantee holds.

    Args:
        claims: What one release is, and who takes part.
        charges: How often each round was charged.

    Returns:
        One sentence for each.
    """
    unit = claims.unit
    texts = _trust(claims)
    is_outsider = claims.adversary == "outsider"
    if _rests_on_fraction(claims) or (is_outsider and not claims.dropouts):
        texts.append(
            f"each round's {claims.clients:,} clients are drawn uniformly at random from {claims.population:,} users, "
            "independently of earlier rounds"
        )
    if is_outsider and not claims.dropouts:
        texts.append("the adversary never learns who takes part in a round")
    texts += _rounds(claims, charges)
    if claims.noise is not None:
        window = f"in each of the {claims.window:,} rounds from a participation on"
        texts.append(
            f"the number of honest silos holds {window}, and each cancels its noise in its next message"
            if unit == "record"
            else f"the number of honest clients holds {window}, and each delivers both of its messages"
        )
    if claims.sampling_rate not in (None, 1):
        texts.append(
            f"each record is included in a round independently with probability {claims.sampling_rate:.10g} "
            "(Poisson sampling), and only its silo knows the sample"
        )
    texts.append(
        "nothing else is computed from the protected data and released: the clip, the learning rate and all other "
        "parameters are chosen without it, or from what was released"
    )
    return texts


def _rests_on_fraction(claims: Claims) -> bool:
    """Whether ε depends on the fraction of users that is honest.

    That of a Gaussian does against an outsider only: colluding users know when they took part.
    """
    if claims.honest_fraction is None:
        return False
    return claims.adversary == "outsider" if claims.kind == "gaussian" else not claims.hides_alone


def _trust(claims: Claims) -> list[str]:
    """Who is trusted with what."""
    member, device = ("silo", "silo") if claims.unit == "record" else ("client", "device")
    clients = claims.clients
    honest = claims.honest_clients or clients
    is_trusted = is_by_trusted_server(claims)
    needs_others = not (is_trusted or claims.hides_alone)
    is_number = needs_others and claims.honest_fraction is None
    texts = []
    if is_trusted:
        texts.append("the server is trusted: it sees every vector, adds the noise and keeps it secret")
    if needs_others and not (is_number and honest == 1):
        texts.append("secure aggregation reveals only the sum of each round")
    if claims.hides_alone or (is_number and honest == 1):
        texts.append(f"the {claims.unit}'s own {device} is honest")
    elif is_number:
        extent = f"all {clients:,}" if honest == clients else f"at least {honest:,} of the {clients:,}"
        texts.append(f"{extent} {member}s of every round are honest")
    if _rests_on_fraction(claims):
        fraction = "all" if claims.honest_fraction == 1 else f"{claims.honest_fraction:.10g} of the"
        texts.append(f"{fraction} {claims.population:,} users are honest")
    if claims.min_survivors is not None and needs_others:
        texts.append(
            f"rounds that end with fewer than {claims.min_survivors:,} of {clients:,} clients are discarded, "
            "and whether a client drops out does not depend on its data"
        )
    return texts


def _rounds(claims: Claims, charges: Counter[int]) -> list[str]:
    """In how many rounds, and in which, a user or record takes part."""
    total = charges.total()
    limit = claims.limit(charges)
    participations = total if claims.adversary == "outsider" else sum(count for _, count in charges.most_common(limit))
    extent = "all" if participations >= total else f"at most {participations:,}"
    texts = ["there is one round" if total == 1 else f"a {claims.unit} takes part in {extent} of the {total:,} rounds"]
    if claims.min_separation > 1 and limit > 1:
        texts.append(f"two participations of a {claims.unit} are at least {claims.min_separation:,} rounds apart")
    rounds = max(claims.rounds, max(charges) + 1)
    if claims.unit == "record" and (claims.min_separation > 1 or (claims.max_participations or rounds) < rounds):
        texts.append("the rounds of a record follow from the record alone (a fixed order of batches)")
    return texts
