"""`rqm privacy`: what one coordinate leaks in one round."""

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from rqm._util.imports import start_lean
from rqm._util.text import many
from rqm.cli.formatting import Result
from rqm.cli.options import with_mechanism
from rqm.cli.progress import progress
from rqm.mechanisms.base import Mechanism
from rqm.related.rappor import Rappor

if TYPE_CHECKING:
    from rqm import RenyiBound


@with_mechanism("reports")
def command(
    mech: Mechanism | Rappor,
    *,
    clients: int = 1,
    alpha: float = 2.0,
    others: Literal["worst", "balanced", "random"] = "worst",
    seed: int = 0,
    distribution: Literal["paper", "sampled"] = "paper",
    reports: int = 1,
) -> Result:
    """Rényi privacy of **one coordinate in one round**, attained and certified. For vqsgd, of a whole message.

    Examples:

        rqm privacy --margin 1.0 --keep 0.42 --clients 40 --alpha 2

        rqm privacy --mechanism pbm --theta 0.25 --clients 40 --alpha 2 --json

        rqm privacy --mechanism rounding --levels 2 --margin 20 --clients 100

        rqm privacy --mechanism discrete-gaussian --scale 2 --clients 40

        rqm privacy --mechanism rappor --hashes 2 --reports 10

    Args:
        clients: n, the clients in the sum; 1 is local privacy.
        alpha: The Rényi order: 1 is KL, inf is pure differential privacy.
        others: The other clients' inputs; only 'worst' gives a guarantee.
        seed: Seed of --others random.
        distribution: The paper's pmf, or the integer table that is sampled in deployment.
        reports: Reports of one value, for --mechanism rappor.
    """
    if isinstance(mech, Rappor):
        return _rappor(mech, reports)
    start_lean()
    from rqm import renyi

    with progress("certifying"):
        bound = renyi(mech.discrete, alpha, clients, others, distribution=distribution, seed=seed)
    facts = _facts(mech, bound, others)
    if facts["per"].startswith("message"):
        note = "Of a whole message of any length, per round: no more of it can differ."
    else:
        note = "Per coordinate and per round. A model of d coordinates leaks up to d times as much each round."
    return Result(facts, facts["sentence"], _rows(facts), notes=[note])


def _rappor(rappor: Rappor, reports: int) -> Result:
    """ε of reports of RAPPOR."""
    facts = {
        "mechanism": {"mechanism": rappor.kind, **asdict(rappor)},
        "reports": reports,
        "epsilon": rappor.epsilon(reports),
        "epsilon_one": rappor.epsilon_one,
        "epsilon_infinity": rappor.epsilon_infinity,
        "epsilon_change": rappor.epsilon_change(reports),
        "recovered": rappor.recovered(reports),
    }
    notes = [
        f"a single report: ε = {rappor.epsilon_one:.6g}; any number of reports: ε = {rappor.epsilon_infinity:.6g}",
        f"whether the value changed, by equally many reports before and after: ε = {facts['epsilon_change']:.6g}",
        f"a bit of the permanent response is guessed correctly with probability {facts['recovered']:.6g}; near 1 the "
        "permanent response identifies a user",
    ]
    return Result(facts, f"{many(reports, 'report')} of one value: ε = {facts['epsilon']:.6g}, pure", notes=notes)


def _facts(mech: Mechanism, bound: "RenyiBound", others: str) -> dict[str, Any]:
    """All of the result, for JSON."""
    is_message = mech.vector_mechanism is not None
    channel = mech.discrete
    facts: dict[str, Any] = {
        "mechanism": mech.to_dict(),
        "alpha": bound.alpha,
        "clients": bound.clients,
        "neighboring": bound.neighboring,
        "threat_model": bound.threat_model,
        "per": "message and round" if is_message else "coordinate and round",
        "distribution": bound.distribution,
        "others": others,
        "lower": mech.differing_integers * bound.lower,
        "upper": mech.differing_integers * bound.upper,
        "certified": bound.certified,
        "worst": {
            "x": bound.witness.x,
            "x_prime": bound.witness.x_prime,
            "others": [{"x": x, "clients": count} for x, count in bound.witness.other_inputs.items()],
        },
        "variance_max": None if is_message else channel.variance_max / channel.clip**2,
        "bits": mech.bits,
    }
    if channel.theorem_bound is not None and bound.clients == 1:
        facts["theorem_bound"] = channel.theorem_bound
    return {**facts, "sentence": _sentence(facts)}


def _sentence(facts: dict[str, Any]) -> str:
    """What the bound means."""
    divergence = f"D_{facts['alpha']:g}"
    unit = facts["per"].replace(" and ", " in one ")
    if not facts["certified"]:
        return f"For these inputs {divergence} is {facts['lower']:.6g}; others may leak more: no guarantee."
    if facts["upper"] == inf:
        return "Not private: some outcomes reveal a client's value, whatever the others send."
    output = "its message" if facts["clients"] == 1 else f"the sum over {facts['clients']:,} clients"
    return (
        f"Replacing one client's value changes the distribution of {output} by {divergence} ≤ {facts['upper']:.6g} at "
        f"most, whatever all others send: proven, for one {unit}."
    )


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """The table of the result."""
    parameters = dict(facts["mechanism"])
    worst = facts["worst"]
    kind = parameters.pop("mechanism")
    if facts["certified"]:
        attained = "attained by some inputs"
        certified = f"{facts['upper']:.6g}   certified for all inputs of everyone"
    else:
        attained = f"these inputs ({facts['others']} others), ±clip"
        certified = "not a guarantee: other inputs may leak more (use --others worst)"
    rows = [
        ("mechanism", f"{kind}  {parameters}"),
        ("adversary sees", facts["threat_model"]),
        ("neighboring", f"{facts['neighboring']}, {facts['distribution']} distribution"),
        (f"D_{facts['alpha']:.6g}", f"{facts['lower']:.6g}   {attained}"),
        ("", certified),
        ("worst pair", f"x = {worst['x']:.6g}, x' = {worst['x_prime']:.6g} (in units of clip)"),
    ]
    if worst["others"]:
        rows.append(("others", ", ".join(f"{group['clients']} at {group['x']:.4g}" for group in worst["others"])))
    if "theorem_bound" in facts:
        rows.append(("Theorem 5.2", f"D_inf ≤ {facts['theorem_bound']:.6g}"))
    if facts["variance_max"] is not None:
        rows.append(("variance, bits", f"≤ {facts['variance_max']:.4g} clip² a client, {many(facts['bits'], 'bit')}"))
    return rows
