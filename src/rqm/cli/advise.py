"""`rqm advise`: which mechanism to use for a budget of privacy and bits."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rqm.bounds import Adversary, Neighboring, Unit
from rqm.cli.formatting import Result
from rqm.cli.progress import progress

if TYPE_CHECKING:
    from rqm.advice.adviser import Advice


def command(
    clients: int = 1,
    dim: int = 1,
    epsilon: float | None = None,
    noise: float | None = None,
    delta: float | None = None,
    bits: int | None = None,
    levels: int | None = None,
    population: int | None = None,
    rounds: int = 1,
    max_participations: int | None = None,
    min_separation: int = 1,
    honest_clients: int | None = None,
    honest_fraction: float | None = None,
    adversary: Adversary = "server",
    neighboring: Neighboring = "replace-one",
    l2_clip: float = 1.0,
    max_bits_per_parameter: float | None = None,
    mean_length: float | None = None,
    unit: Unit = "user",
    plot: Path | None = None,
) -> Result:
    """Rank the mechanisms that reach an ε within a number of bits, by their worst-case error.

    The error (`mse`) is that of one coordinate of the decoded mean, in units of clip². The clip is 4 C / √d after a
    rotation and C for a single coordinate. With several rounds, correlated noise is ranked too. All mechanisms are
    then ranked by the noise in the models, relative to a trusted server's, and the bits of correlated noise are those
    of both messages. If only some coordinates are sent, the error includes that of the choice.

    Examples:

        rqm advise --clients 1000 --population 1000000 --rounds 250 --dim 1048576 --epsilon 10

        rqm advise --clients 100 --population 3400 --rounds 1500 --min-separation 34 --dim 1048576 --epsilon 10

        rqm advise --clients 1 --epsilon 5.4699 --levels 16 --json

    Args:
        clients: n, clients in a round's sum; 1 is local privacy.
        dim: d, coordinates of a client's vector (padded, if rotated).
        epsilon: The target ε.
        noise: Instead of ε, the noise of the sum, in units of the L2 clip.
        delta: δ; default pure DP for one coordinate of one client, else 1e-5 or 1/population.
        bits: Bits that a client may send for a coordinate (4; 32 for two messages).
        levels: Instead of bits, the largest number of outcomes: 16 is 4 bits.
        population: N, the users that a round's clients are sampled from.
        rounds: T, rounds of training.
        max_participations: The most rounds that a user takes part in; default 1, or what --min-separation allows.
        min_separation: The fewest rounds from one participation of a user to the next, if users take turns.
        honest_clients: Honest clients of every round, dropouts included.
        honest_fraction: The honest fraction of the population.
        adversary: server (knows who takes part) or outsider (sees only the models).
        neighboring: The neighboring relation.
        l2_clip: C, the L2 clip of a client's vector.
        max_bits_per_parameter: Send some coordinates, so that masked vectors have at most this size.
        mean_length: The length of the clients' mean in L2 clips (1). Alone, it chooses how many coordinates are sent.
        unit: What is protected; for records use rqm.calibrate_records.
        plot: Draw error against ε (with few coordinates, against bits) into this file.
    """
    from rqm.advice.adviser import advise

    if unit == "record":
        raise ValueError(
            "unit = record: must be user; for records of silos rqm.calibrate_records finds the noise, and whether "
            "they are drawn in secret or taken in a fixed order"
        )
    with progress("comparing mechanisms") as bar:
        advice = advise(
            clients=clients,
            dim=dim,
            epsilon=epsilon,
            noise=noise,
            delta=delta,
            bits=bits,
            levels=levels,
            population=population,
            rounds=rounds,
            max_participations=max_participations,
            min_separation=min_separation,
            honest_clients=honest_clients,
            honest_fraction=honest_fraction,
            adversary=adversary,
            neighboring=neighboring,
            l2_clip=l2_clip,
            max_bits_per_parameter=max_bits_per_parameter,
            mean_length=mean_length,
            progress=bar.update,
        )
    if plot is not None:
        _plot(advice, plot)
    return _result(advice, plot)


def _plot(advice: "Advice", plot: Path) -> None:
    """Draw error against ε, or against bits if only some coordinates are sent."""
    from rqm.advice.adviser import sweep
    from rqm.report.plots import plot_error_by_bits, plot_error_by_epsilon, save

    with progress("comparing mechanisms") as bar:
        if advice.best.coordinates is not None:
            limits = [0.01 * 2**k for k in range(11)] + [32.0]  # bits per parameter
            requests = [replace(advice.request, max_bits_per_parameter=limit) for limit in limits]
            save(plot_error_by_bits(sweep(requests, bar.update)), plot)
            return
        center = advice.request.epsilon or advice.best.epsilon
        requests = [replace(advice.request, epsilon=center * 2**k, noise=None) for k in range(-3, 3)]
        save(plot_error_by_epsilon(sweep(requests, bar.update)), plot)


def _result(advice: "Advice", plot: Path | None) -> Result:
    """The winner, all candidates, and the parameters of the winner."""
    best = advice.best
    request = advice.request
    is_correlated = advice.criterion == "iterate_noise"
    heads = ["", "ε", "error, clip²", "noise of models" if is_correlated else "over the best", "bits", "under secagg"]
    rows = []
    for candidate in advice.candidates:
        ratio = candidate.iterate_noise if is_correlated else advice.cost(candidate) / advice.cost(best)
        row = [candidate.name, *(f"{number:.4g}" for number in (candidate.epsilon, candidate.mse, ratio))]
        row += [str(candidate.bits_per_coordinate), str(candidate.bits_under_secagg or "")]
        if best.coordinates is not None:
            row += [f"{candidate.coordinates or request.dim:,}", f"{candidate.wire_bits_per_parameter or 32:.3g}"]
        rows.append(row)
    parameters = {key: entry for key, entry in best.mechanism.to_dict().items() if key != "rows"}
    if best.coordinates is not None:
        heads += ["coordinates", "bits per parameter"]
        parameters["coordinates"] = best.coordinates
    if best.noise is not None:
        parameters["noise"] = best.noise.to_dict()
    delta = "pure DP" if request.pure else f"δ = {request.delta:.3g}"
    threat_model = request.threat_model
    notes = [f"Not ranked, {name}: {reason}." for name, reason in advice.left_out.items()]
    notes.append(
        f"Certified for every user, {delta}, {threat_model.neighboring}, against the {threat_model.adversary}."
    )
    notes.append(f"the best: {parameters}")
    lines = [] if plot is None else [str(plot)]
    return Result(advice.to_dict(), f"{best.name}: {best.reason}.", rows, heads, notes, lines)
