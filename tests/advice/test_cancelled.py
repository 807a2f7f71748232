"""Noise that cancels among the candidates: ranked by what is left in the models, at what it costs, where it applies."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rqm import PrivateMean, SeededRandom, advise, mechanism_from_dict
from rqm.advice.adviser import pareto
from rqm.advice.cancelled import LONGEST, NAME, ROUNDS, cancelled
from rqm.advice.candidates import Request
from rqm.mechanisms.transient import Transient
from rqm.privacy.setting import Setting

MANY = {"clients": 1000, "population": 10**5, "rounds": 30}
FEW = {"clients": 100, "population": 10**4, "epsilon": 4, "dim": 4096}


@cache
def found():
    return advise(epsilon=1, dim=2**16, **MANY)


def named(advice):
    return next(one for one in advice.candidates if one.name == NAME)


@pytest.mark.slow
def test_it_comes_first_by_the_noise_in_the_models_though_single_rounds_are_noisier():
    first, *others = found().candidates
    assert first.name == NAME
    assert first.iterate_noise == pytest.approx(0.431, abs=0.003)
    assert all(first.mse > 4 * one.mse for one in others if one.name != "vqSGD")
    trusted = others[-1]
    assert trusted.trusted_server
    assert trusted.iterate_noise == 1
    values = [one.iterate_noise for one in found().candidates[:-1]]
    assert values == sorted(values)
    for one in others:  # independent noise: the models have the noise of the rounds
        assert one.iterate_noise == pytest.approx((one.mse / trusted.mse) ** 0.5)
        assert one.messages == 1
        assert one.cancel is None


@pytest.mark.slow
def test_it_is_what_an_account_says_of_both_messages():
    one = json.loads(json.dumps(found().to_dict()))["candidates"][0]
    mech = mechanism_from_dict(one["mechanism"])
    mean = PrivateMean(dim=2**16, mechanism=mech, cancel=one["cancel"], participations=1, **MANY)
    assert 0.98 < mean.guarantee.epsilon == one["epsilon"] <= 1
    assert mean.guarantee.iterate_noise_over_independent == one["iterate_noise"]
    assert mean.guarantee.bits_under_secagg == one["bits_under_secagg"] == one["bits_per_coordinate"] == 26
    assert one["messages"] == 2


def test_its_cost_is_said():
    one = named(found())
    for words in (
        "one round later",
        "26 bits for both messages",
        "a fixed order, each once",
        "1,000 honest clients in each of the 30 rounds",
        "momentum 0.9, a rate that falls to zero over 30 rounds",
        "PBM needs 4 instead of 26 bits for 2.3 times as much",
    ):
        assert words in one.why
    assert "noise in the models" in found().candidates[1].why


def test_its_error_is_that_of_one_round_both_messages_in_it():
    one, clients, draws = named(found()), 1000, 2000
    coins = one.mechanism.encode(np.zeros((clients, draws)), SeededRandom(1)).sum(axis=0, dtype=np.int64)
    held = Transient.of(one.cancel)
    drawn = [held.both(held.draw(clients * draws, SeededRandom(seed)))[part] for part, seed in enumerate((2, 3))]
    came, went = (part.reshape(clients, draws).sum(axis=0, dtype=np.int64) for part in drawn)
    mean = one.mechanism.decode(coins, clients) + (came - went) * one.mechanism.grid.step / clients
    assert float((mean**2).mean()) / one.mechanism.clip**2 == pytest.approx(one.mse, rel=0.1)


def test_bits_count_for_both_messages():
    few = advise(epsilon=1, dim=2**16, bits=4, **MANY)
    assert NAME not in {one.name for one in few.candidates}
    assert few.left_out[NAME] == "bits = 4: must be at least 24, for both messages"
    with pytest.raises(ValueError, match="bits = 23: must be at least 24"):
        alone(replace(found().request, bits_of_both=23))
    plain = alone(replace(found().request, bits_of_both=24))
    assert (plain.bits_per_coordinate, plain.iterate_noise) == (24, pytest.approx(0.449, abs=0.003))  # all of it goes
    assert found().request.to_dict()["bits_of_both"] == 32
    assert not found().left_out


def alone(request):
    """Noise that cancels without its rivals; None where it is not even looked for."""
    return next((make() for _, make in cancelled(request)), None)


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        ({"rounds": 5, "observer": "outsider"}, "observer server"),
        ({"rounds": 5, "participations": 1, "honest": 0.8}, "honest = 0.8: must be a number"),
        ({"rounds": 5, "participations": 2}, "separation = None: must be given"),
        ({"rounds": 101, "participations": 1}, "population = 10000: must be at least 10100"),
        ({"rounds": LONGEST + 1, "participations": 1, "population": 10**6}, "takes minutes"),
        ({"rounds": ROUNDS + 1, "separation": 100}, "takes minutes"),
    ],
)
def test_where_it_cannot_be_the_reason_is_given(who, reason):
    setting = Setting(**{"clients": 100, "population": 10**4, **who})
    with pytest.raises(ValueError, match=reason):
        alone(Request(setting=setting, dim=4096, epsilon=4.0, bits_of_both=32))


@pytest.mark.slow
def test_a_reason_is_part_of_the_advice_and_nothing_is_said_where_there_is_nothing_to_take_back():
    advice = advise(**FEW, rounds=5, participations=2)
    assert NAME not in {one.name for one in advice.candidates}
    assert "separation = None: must be given" in advice.to_dict()["left_out"][NAME]
    for change in ({"rounds": 1}, {"epsilon": None, "noise": 2.0, "rounds": 5}):
        assert not advise(**{**FEW, **change}).left_out
    for clients, pure in ((1, True), (1, False)):
        setting = Setting(clients=clients, rounds=5, participations=1)
        assert alone(Request(setting=setting, epsilon=4.0, bits_of_both=32, pure=pure)) is None


@pytest.mark.slow
def test_where_coins_are_too_coarse_it_stands_behind():
    advice = advise(clients=100, population=3400, rounds=2, dim=2**15, epsilon=10)
    one = named(advice)
    assert one.iterate_noise > 1.1 > advice.best.iterate_noise
    assert advice.best.name != NAME
    assert "% more noise in the models" in one.why


@pytest.mark.slow
def test_users_who_come_back_and_clients_who_collude():
    advice = advise(**FEW, rounds=40, separation=10, honest=80)
    assert advice.request.setting.releases == 4
    assert advice.request.to_dict()["participations"] == 4
    one = named(advice)
    assert "each 10 rounds apart" in one.why
    assert "80 honest clients in each of the 10 rounds" in one.why
    who = {"clients": 100, "population": 10**4, "rounds": 40, "separation": 10}
    mean = PrivateMean(dim=4096, mechanism=one.mechanism, cancel=one.cancel, honest=80, **who)
    assert mean.guarantee.epsilon == one.epsilon <= 4
    all_honest = PrivateMean(dim=4096, mechanism=one.mechanism, cancel=one.cancel, **who)
    assert all_honest.guarantee.epsilon < 0.95 * one.epsilon


def test_lines_of_errors_of_single_rounds_are_without_it():
    assert NAME not in pareto(found().request, [1.0])
