"""The verifier's ε: never less than the accountant's, at most a tenth more, and no less than what attacks reach."""

import ast
import random
from collections import Counter
from itertools import product
from math import exp, inf, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

import rqm.verify
from rqm import PBM, RQM, Gaussian, PrivateMean, Rounding
from rqm.mechanisms.additive import Binomial, DiscreteGaussian, Skellam
from rqm.mechanisms.response import RandomizedResponse
from rqm.plan.account import account_ledger
from rqm.plan.guard import Guard
from rqm.verify import laws, verify
from tests.verify.ledgers import MEAN, about, written


def test_what_no_exponential_can_tell_is_not_understated(check):
    """d coins, up with chance u, all turned: ε beyond 709, where e^ε is no number."""
    for dim, margin in ((256, 0.1), (1000, 0.6)):
        mean = PrivateMean(
            dim=dim, clients=1, mechanism=Rounding(levels=2, margin=margin), delta=1e-6, l2_clip=None, rotate=False
        )
        u, up = (2 + margin) / (2 + 2 * margin), np.arange(dim + 1)
        loss, chance = (2 * up - dim) * log(u / (1 - u)), binom.pmf(up, dim, u)
        found = check(written([0], about(mean))).epsilon
        assert (chance * np.maximum(0, -np.expm1(np.minimum(0, found - loss)))).sum() <= 1e-6


def some_mechanism(draw, clip, deviation, clients):
    """Any mechanism that can be verified, of about so much noise a client, in clips."""
    kind = draw.choice(["rounding", "rqm", "pbm", "additive", "additive", "gaussian"])
    deviation = max(deviation, 1.02)
    if kind == "rounding":
        levels = draw.choice([2, 2, 4])
        wide = max(deviation, 1.001) * (levels - 1)
        return Rounding(clip=clip, levels=levels, margin=min(wide, 8000) - 1)
    if kind == "rqm":
        levels = draw.choice([2, 4, 8, 16])
        keep = draw.choice([0.42, draw.uniform(0.05, 0.95), tuple(draw.uniform(0.1, 0.9) for _ in range(levels - 2))])
        wide = max(2 * deviation, (levels - 1) * (1 + draw.random()))
        return RQM(clip=clip, levels=levels, margin=min(wide, 8000) - 1, keep=keep or 0.5)
    if kind == "pbm":
        levels = draw.choice([2, 4, 16])
        return PBM(clip=clip, theta=0.5 / min(deviation * sqrt(levels - 1), 8000), levels=levels)
    if kind == "additive":
        steps, bits = draw.choice([(3, 8), (7, 8), (15, 10), (31, 12)])
        scale = min(deviation, 2**bits / 7 / steps / sqrt(clients))
        return draw.choice([DiscreteGaussian, Skellam, Binomial])(clip=clip, scale=scale, steps=steps, bits=bits)
    return Gaussian(noise_multiplier=deviation * sqrt(clients) * clip, local=draw.random() < 0.3)


def some_release(seed, most):
    """What a random ledger is about, and how often each round was charged."""
    draw = random.Random(seed)
    clients, dim, rotate = int(2 * (most / 2) ** draw.random()), int(2 ** (24 * draw.random())), draw.random() < 0.7
    coordinates = 1 << (dim - 1).bit_length() if rotate else dim
    rounds = 1 + int(300 ** draw.random())
    cap = draw.choice([None, 1, 1 + int(rounds ** draw.random())])
    clip = min(draw.choice([1, 2.5, 4, 4, 8]) / sqrt(coordinates), draw.choice([1, 0.7]))
    noise = 10 ** draw.uniform(-0.7, 1.2) * sqrt(min(rounds, cap or rounds))
    mech = some_mechanism(draw, clip, noise / clip / sqrt(clients), clients)
    honest = draw.choice([None, None, draw.randint(1, clients), draw.uniform(0.3, 1)])
    mean = PrivateMean(
        dim=dim,
        clients=clients,
        mechanism=mech,
        delta=10 ** draw.uniform(-9, -4),
        l2_clip=1.0 if mech.needs_l2_clip or draw.random() < 0.9 else None,
        rotate=rotate,
        rounds=rounds,
        participations=cap,
        honest=honest,
        survivors=draw.choice([None, None, draw.randint(max(1, clients * 2 // 3), clients)]),
        population=clients * draw.choice([1, 10, 1000]) if isinstance(honest, float) else None,
        neighbours=draw.choice(["replace", "replace", "zero-out"]),
    )
    turns = list(range(draw.randint(1, rounds)))
    return mean, turns + draw.choices(turns, k=draw.choice([0, 0, 1, 5]))


def compared(path, seed, most):
    """The accountant's ε of a random ledger, and what the verifier says."""
    mean, charges = some_release(seed, most)
    path.write_bytes(written(charges, about(mean)))
    found, stated = verify(path), mean.spent(Counter(charges)).epsilon
    odd = stated > 500 or max(Counter(charges).values()) > 1
    if isinstance(mean.honest, float) and odd and found.status == "cannot verify":
        pytest.skip("a fraction of honest clients, and rounds done again, or an ε so large that it is not computed")
    assert (found.status, found.charges) == ("verified", len(charges)), found
    return stated, found


def agrees(stated, found):
    """Beyond a hundred thousand the accountant may have no Gaussian bound."""
    least = found.lower if found.epsilon > 1e5 else stated
    return found.lower <= stated and least <= found.epsilon <= 1.10 * stated


@pytest.mark.parametrize("seed", range(30))
def test_epsilon_is_the_accountants_and_at_most_a_tenth_more(tmp_path, seed):
    stated, found = compared(tmp_path / "some.jsonl", seed, most=60)
    assert agrees(stated, found)


@pytest.mark.parametrize(
    ("seed", "most"), [(209, 60), (282, 60), (303, 60), (387, 60), (1136, 1000), (1227, 1000), (1921, 1000)]
)
def test_epsilon_of_ledgers_about_which_they_disagreed(tmp_path, seed, most):
    """Clips that bind before the L2 norm; losses of hundreds, of a fraction; narrow noise; one coordinate and zero."""
    assert agrees(*compared(tmp_path / "some.jsonl", seed, most))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_epsilon_of_many_more_ledgers(tmp_path, seed):
    stated, found = compared(tmp_path / "some.jsonl", seed, most=1000)
    assert agrees(stated, found)


@pytest.mark.slow
@pytest.mark.parametrize("mech", [Rounding(levels=2, margin=3.0), PBM(theta=0.1), RQM(levels=4, margin=9.0)])
def test_epsilon_among_ten_thousand_clients(tmp_path, mech):
    mean = PrivateMean(dim=2**20, clients=10_000, mechanism=mech.changed(clip=4 / 1024), delta=1e-7)
    (tmp_path / "some.jsonl").write_bytes(written([0], about(mean)))
    assert mean.spent({0: 1}).epsilon <= verify(tmp_path / "some.jsonl").epsilon <= 1.10 * mean.spent({0: 1}).epsilon


def test_a_fraction_that_is_nearly_gaussian_and_beyond_all_losses_is_not_verified(tmp_path):
    """Its μ is near to that of its variance, but no δ of an ε that is computed is enough."""
    mean, charges = some_release(916, 60)
    (tmp_path / "some.jsonl").write_bytes(written(charges, about(mean)))
    assert verify(tmp_path / "some.jsonl").status == "cannot verify"


def test_a_ledger_of_the_guard_says_what_rqm_account_says(tmp_path):
    with Guard(MEAN, tmp_path) as guard:
        for turn in (0, 1, 1, 2, 3):
            guard.charge(turn)
    found, (stated, charged) = verify(tmp_path), account_ledger(tmp_path)
    assert found.status == "verified", found
    assert (found.charges, found.rounds, found.participations) == (5, 4, 4)
    assert found.head == charged["head"]
    assert stated.epsilon <= found.epsilon <= 1.10 * stated.epsilon


def summed(coins):
    """The law of a sum of independent coins."""
    law = np.ones(1)
    for p in coins:
        law = np.convolve(law, [1 - p, p])
    return law


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("margin", [1.0, 3.0])
@pytest.mark.parametrize("neighbours", ["replace", "zero-out"])
def test_epsilon_is_no_less_than_what_two_coordinates_leak(check, clients, margin, neighbours):
    """An oracle: the exact δ of two coordinates at many inputs of everyone, at the ε that is verified."""
    mech, delta = Rounding(levels=2, margin=margin), 1e-3
    mean = PrivateMean(
        dim=2, clients=clients, mechanism=mech, delta=delta, l2_clip=1.2, rotate=False, neighbours=neighbours
    )
    epsilon, worst = check(written([0], about(mean))).epsilon, []
    inputs = [x for x in product((1, 0.6, 0, -0.6, -1), repeat=2) if np.hypot(*x) <= 1.2]
    others = list(product((-1, 1), repeat=clients - 1))

    def law(u, rest):
        return summed([(1 + v / (1 + margin)) / 2 for v in (u, *rest)])

    for x, y in product(inputs, inputs if neighbours == "replace" else [(0, 0)]):
        for first, second in product(others, repeat=2):
            p, q = (np.outer(law(vector[0], first), law(vector[1], second)) for vector in (x, y))
            worst += [np.maximum(a - exp(epsilon) * b, 0).sum() for a, b in ((p, q), (q, p))]
    assert max(worst) <= delta


@pytest.mark.parametrize("margin", [0.5, 4.0, 40.0])
def test_one_coordinate_of_one_client_is_exact(check, margin):
    """Without others ε is that of one coin, which a formula tells."""
    mean = PrivateMean(
        dim=1, clients=1, mechanism=Rounding(levels=2, margin=margin), delta=1e-9, rotate=False, l2_clip=1.0
    )
    p = (1 + 1 / (1 + margin)) / 2
    exact = log((p - 1e-9) / (1 - p))
    assert exact <= check(written([0], about(mean))).epsilon <= 1.01 * exact


@pytest.mark.parametrize("mech", [DiscreteGaussian, Skellam, Binomial])
@pytest.mark.parametrize("clients", [1, 5])
def test_epsilon_is_no_less_than_what_additive_noise_lets_through(check, mech, clients):
    """The exact δ of two coordinates at all levels, from the noise that is sampled."""
    made, delta = mech(scale=2.0, steps=3, bits=6), 1e-4
    mean = PrivateMean(dim=2, clients=clients, mechanism=made, delta=delta, l2_clip=None, rotate=False)
    epsilon, law = check(written([0], about(mean))).epsilon, made.summed(clients)
    p = np.outer(law, law)
    for turns in product(range(-3, 4), repeat=2):
        q = np.roll(p, turns, axis=(0, 1))
        assert np.maximum(p - exp(epsilon) * q, 0).sum() <= delta


@pytest.mark.parametrize("levels", [2, 4, 6, 16, 64])
@pytest.mark.parametrize("keep", [0.05, 0.42, 0.9, None])
def test_rebuilt_rows_are_those_that_are_sampled(levels, keep):
    """The integer table to the last unit, for one chance of keeping a level and for many."""
    draw = random.Random(levels)
    keep = tuple(draw.uniform(0.05, 0.95) for _ in range(levels - 2)) or 0.5 if keep is None else keep
    mech = RQM(levels=levels, margin=2.0 * levels, keep=keep)
    for j in (levels // 2 - 1, levels // 2):
        assert (laws._row(mech.to_dict(), j) * 2**40).tolist() == mech.table[j].tolist()


def test_what_an_attack_reaches_is_a_part_of_epsilon(check):
    mean = PrivateMean(
        dim=2**20, clients=1000, mechanism=Rounding(clip=4 / 1024, levels=2, margin=9), delta=1e-6, rounds=5
    )
    found = check(written(range(5), about(mean)))
    assert 0.2 * found.epsilon < found.lower < found.epsilon


def test_no_noise_at_the_ends_is_no_privacy(check):
    mean = PrivateMean(dim=4, clients=5, mechanism=Rounding(levels=2, margin=0.0), delta=1e-6)
    found = check(written([0], about(mean)))
    assert (found.status, found.epsilon, found.to_dict()["epsilon"]) == ("verified", inf, "inf")


def test_nothing_charged_is_nothing_spent(check):
    assert (check(written([])).status, check(written([])).epsilon) == ("verified", 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"mechanism": RQM()},
        {"mechanism": Rounding(levels=4, margin=1.0)},
        {"mechanism": RandomizedResponse()},
        {"observer": "outsider", "population": 100, "participations": None},
    ],
)
def test_what_it_has_no_bound_for_it_does_not_guess(check, changes):
    changes = {**MEAN.to_dict(), "mechanism": MEAN.mechanism, **changes}
    del changes["private_mean"]
    found = check(written([0], about(PrivateMean(**changes))))
    assert (found.status, found.epsilon) == ("cannot verify", None)


def test_a_fraction_needs_clients_who_were_drawn_at_random(check):
    said = about(MEAN.with_(honest=0.5, population=1000))
    assert check(written([0], said)).status == "verified"
    assert check(written([0], {**said, "sampling": "available"})).status == "cannot verify"


def test_it_shares_no_code_with_the_package():
    for path in Path(rqm.verify.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert all(not name.startswith("rqm") for name in names)
