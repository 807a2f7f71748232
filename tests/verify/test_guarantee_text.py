"""The verifier's texts: the assumptions are those of the accountant, word for word, and change with every claim."""

import random
from collections import Counter

import pytest

from rqm import (
    CorrelatedNoise,
    DiscreteGaussian,
    Gaussian,
    Participation,
    PrivateMean,
    StochasticRounding,
    ThreatModel,
    private_mean,
    private_record_mean,
)
from rqm.accounting import guarantee as accounting_guarantee
from rqm.accounting.accountant import Question
from rqm.accounting.accountant import assumptions as accountant_assumptions
from rqm.bounds import Assumption
from rqm.config.account import account_ledger
from rqm.related.vqsgd import VQSGD
from rqm.verify import guarantee_text, verify
from rqm.verify.ledger_claims import read_claims
from tests.verify.ledgers import describe, ledger_bytes

BITS = StochasticRounding(clip=0.5, levels=2, margin=9.0)
WIDE_BITS = StochasticRounding(clip=4 / 2**8, levels=2, margin=8.0)
INTEGERS = DiscreteGaussian(clip=1.0, scale=0.2, steps=511, bits=15)
USERS = {"dim": 64, "clients": 40, "delta": 1e-6, "rounds": 6}
SILOS = {"dim": 60, "clients": 4, "delta": 1e-6, "rounds": 12, "record_clip": 1.0, "l2_clip": 16.0}


def users(mechanism=BITS, **values):
    return private_mean(mechanism=mechanism, **USERS | values)


def silos(**values):
    return private_record_mean(mechanism=INTEGERS, **SILOS | values)


CASES = {
    "server": (users(), range(6)),
    "one round": (users(rounds=1), [0]),
    "one round of many": (users(), [0]),
    "one client": (users(clients=1, mechanism=Gaussian(3.0, local=True)), range(6)),
    "zero-out": (users(neighboring="zero-out"), range(6)),
    "max participations": (users(max_participations=2), range(6)),
    "repeated rounds": (users(max_participations=2), [0, 0, 1, 2, 2, 2, 3]),
    "more rounds than planned": (users(), range(9)),
    "thousands of rounds and clients": (users(clients=2000, rounds=3000, max_participations=1200), range(2345)),
    "honest clients": (users(honest_clients=30), range(6)),
    "one honest client": (users(honest_clients=1), range(2)),
    "all clients honest": (users(honest_clients=40), range(6)),
    "honest fraction": (users(honest_fraction=0.75, population=2000, dim=2048), range(6)),
    "honest fraction and dropouts": (
        users(honest_fraction=1 / 3, population=2000, min_survivors=38, dim=2048),
        range(6),
    ),
    "dropouts": (users(min_survivors=30), range(6)),
    "dropouts and honest clients": (users(min_survivors=30, honest_clients=35), range(6)),
    "min separation": (users(min_separation=2), range(6)),
    "min separation and one participation": (users(min_separation=5, max_participations=1), range(6)),
    "min separation of all rounds": (users(min_separation=9), range(6)),
    "min separation in some rounds": (users(min_separation=3), [3, 4, 5]),
    "few coordinates": (users(coordinates=16), range(6)),
    "transient noise": (users(WIDE_BITS, noise=CorrelatedNoise(5.0), min_separation=3, dim=256), range(6)),
    "residual noise": (users(WIDE_BITS, noise=CorrelatedNoise(20.0, 1.5, 5), min_separation=3, dim=256), range(6)),
    "transient noise of one participation": (
        users(WIDE_BITS, noise=CorrelatedNoise(5.0), max_participations=1, dim=256, min_survivors=36),
        range(3),
    ),
    "trusted Gaussian": (users(Gaussian(3.0)), range(6)),
    "trusted Gaussian and a fraction": (
        users(Gaussian(3.0), honest_fraction=0.5, population=2000, min_survivors=30),
        range(6),
    ),
    "local Gaussian": (users(Gaussian(3.0, local=True), min_survivors=30), range(6)),
    "vqSGD": (users(VQSGD(epsilon=4.0), honest_clients=30, neighboring="zero-out"), range(6)),
    "local vqSGD": (users(VQSGD(epsilon=1.0, local=True), honest_clients=1), range(6)),
    "records": (silos(), range(12)),
    "one honest silo": (silos(honest_clients=1), range(12)),
    "honest silos and dropouts": (silos(honest_clients=3, min_survivors=3), range(12)),
    "replaced records": (silos(neighboring="replace-one", min_separation=4), range(12)),
    "sampled records": (silos(sampling_rate=0.05), range(12)),
    "all records sampled": (silos(sampling_rate=1.0), range(12)),
    "ordered records": (silos(min_separation=4), range(12)),
    "ordered records, each once": (silos(min_separation=12), range(12)),
    "correlated noise of silos": (silos(noise=CorrelatedNoise(60.0), min_separation=4), range(12)),
    "outsider": (users(adversary="outsider", population=2000), range(6)),
    "outsider and a fraction": (users(adversary="outsider", population=2000, honest_fraction=0.9, dim=2048), range(6)),
    "outsider and dropouts": (users(adversary="outsider", population=2000, min_survivors=30), range(6)),
    "outsider and a trusted Gaussian": (users(Gaussian(3.0), adversary="outsider", population=2000), range(6)),
    "outsider, a trusted Gaussian and a fraction": (
        users(Gaussian(3.0), adversary="outsider", population=2000, honest_fraction=0.9),
        range(6),
    ),
    "outsider, a local Gaussian and a fraction": (
        users(Gaussian(3.0, local=True), adversary="outsider", population=2000, honest_fraction=0.9),
        range(6),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_assumptions_are_those_of_the_accountant(tmp_path, name):
    mean, charges = CASES[name]
    (tmp_path / "ledger.jsonl").write_bytes(ledger_bytes(charges, describe(mean)))
    report, (guarantee, _) = verify(tmp_path), account_ledger(tmp_path)
    unit = mean.threat_model.unit
    assert report.assumptions == [assumption.text(unit) for assumption in guarantee.assumptions]
    is_outsider = mean.threat_model.adversary == "outsider"
    assert report.status == ("cannot verify" if is_outsider else "verified"), report.unsure
    assert (report.unit, report.neighboring) == (unit, mean.threat_model.neighboring)
    assert report.adversary == mean.threat_model.adversary


def texts_of(mean, charges):
    return guarantee_text.assumptions(read_claims(describe(mean)), Counter(charges))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("server", {"clients": 41}),
        ("server", {"honest_clients": 39}),
        ("server", {"min_survivors": 39}),
        ("server", {"max_participations": 5}),
        ("server", {"min_separation": 2}),
        ("max participations", {"max_participations": 3}),
        ("honest clients", {"honest_clients": 31}),
        ("honest clients", {"honest_fraction": 0.75, "population": 2000, "sampling": "uniform"}),
        ("honest fraction", {"honest_fraction": 0.76}),
        ("honest fraction", {"population": 2001}),
        ("dropouts", {"min_survivors": 31}),
        ("min separation", {"min_separation": 3}),
        ("min separation", {"max_participations": 1}),
        ("transient noise", {"min_separation": 2}),
        ("transient noise", {"clients": 41}),
        ("transient noise of one participation", {"rounds": 7}),
        ("trusted Gaussian", {"mechanism": Gaussian(3.0, local=True)}),
        ("records", {"clients": 5}),
        ("records", {"sampling_rate": 0.5}),
        ("sampled records", {"sampling_rate": 0.06}),
        ("ordered records", {"min_separation": 3}),
        ("correlated noise of silos", {"min_separation": 3}),
        ("outsider", {"population": 2001}),
        ("outsider", {"clients": 41}),
        ("outsider", {"min_survivors": 39}),
        ("outsider", {"adversary": "server"}),
    ],
)
def test_another_claim_gives_another_text(name, changes):
    mean, charges = CASES[name]
    assert texts_of(mean.with_values(**changes), charges) != texts_of(mean, charges)


@pytest.mark.parametrize("name", [name for name, (_, charges) in CASES.items() if len(charges) > 1])
def test_another_number_of_charges_gives_another_text(name):
    mean, charges = CASES[name]
    assert texts_of(mean, [*charges, max(charges) + 1]) != texts_of(mean, charges)


def random_case(draw):
    """A random private mean of users, and random charges without gaps."""
    clients, rounds = draw.randint(1, 3000), draw.choice([1, 2, draw.randint(3, 5000)])
    adversary = draw.choice(["server", "server", "outsider"])
    fraction = draw.choice([None, draw.random() or 0.5])
    honest = draw.randint(1, clients) if fraction is None and adversary == "server" and draw.random() < 0.5 else None
    is_uniform = adversary == "outsider" or fraction is not None
    is_limited = adversary == "server"
    mechanism = draw.choice([BITS, BITS, Gaussian(3.0), Gaussian(3.0, local=True), VQSGD(epsilon=4.0)])
    can_correlate = mechanism is BITS and not is_uniform
    mean = PrivateMean(
        dim=64,
        mechanism=mechanism,
        participation=Participation(
            clients=clients,
            rounds=rounds,
            population=clients * draw.randint(1, 2000) if is_uniform else None,
            sampling="uniform" if is_uniform else draw.choice(["available", "fixed-order"]),
            max_participations=draw.choice([None, draw.randint(1, rounds + 2)]) if is_limited else None,
            min_separation=draw.choice([1, draw.randint(1, rounds + 2)]) if is_limited and not is_uniform else 1,
            min_survivors=draw.choice([None, draw.randint(1, clients)]),
        ),
        threat_model=ThreatModel(adversary, "replace-one", "user", honest, fraction),
        noise=CorrelatedNoise(3.0) if can_correlate and draw.random() < 0.5 else None,
        delta=1e-6,
    )
    first = draw.choice([0, draw.randrange(rounds)])
    charges = list(range(first, draw.randint(first, rounds + 3) + 1))
    return mean, charges + draw.choices(charges, k=draw.choice([0, 0, 1, 5]))


def test_assumptions_of_random_ledgers_are_those_of_the_accountant():
    draw, order = random.Random(1), Assumption.__subclasses__()
    for _ in range(500):
        try:
            mean, charges = random_case(draw)
        except ValueError:  # it does not go together
            continue
        question = Question.of(mean.release, mean.participation, mean.threat_model, 1e-6, Counter(charges))
        names = sorted(set(accountant_assumptions(question)), key=lambda assumption: order.index(type(assumption)))
        assert texts_of(mean, charges) == [assumption.text("user") for assumption in names], (mean, charges)


def test_without_charges_there_are_no_assumptions(verify_bytes):
    assert verify_bytes(ledger_bytes([])).assumptions is None


# -- the headline ---------------------------------------------------------------------------------


def test_adversaries_are_those_of_the_accountant():
    assert guarantee_text.ADVERSARIES == accounting_guarantee.ADVERSARY_TEXTS


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("server", "user-level (replace-one), against the server"),
        ("zero-out", "user-level (zero-out), against the server"),
        ("vqSGD", "user-level (zero-out), against the server"),
        ("trusted Gaussian", "user-level (replace-one), against anyone who sees only what the server releases"),
        ("local Gaussian", "user-level (replace-one), against the server"),
        ("replaced records", "record-level (replace-one), against the server and other silos"),
        ("sampled records", "record-level (add-or-remove-one), against the server and other silos"),
    ],
)
def test_the_headline_states_epsilon_delta_relation_and_adversary(verify_bytes, name, ending):
    mean, charges = CASES[name]
    report = verify_bytes(ledger_bytes(charges, describe(mean)))
    assert report.headline.startswith(f"ε ≤ {report.epsilon:.4g}, δ = 1e-06, ")
    assert report.headline.endswith(ending)


def test_the_headline_states_mu_where_epsilon_is_that_of_a_gaussian(verify_bytes):
    mean, charges = CASES["trusted Gaussian"]
    assert f"μ ≤ {2 / 3.0 * 6**0.5:.4g}" in verify_bytes(ledger_bytes(charges, describe(mean))).headline
    mean, charges = CASES["sampled records"]
    assert "μ" not in verify_bytes(ledger_bytes(charges, describe(mean))).headline
