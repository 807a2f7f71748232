"""The real protocol gives the ideal sum, round for round."""

from random import Random

import pytest
import torch

from rqm import PBM, RQM, Noiseless, StochasticRounding
from rqm.config.plan import Adapt, ClientWork, ServerStep, Transforms
from rqm.config.round_parameters import protocol
from rqm.ledger.node_policy import corrupt
from rqm.mechanisms.additive import Skellam
from rqm.mechanisms.gaussian import Gaussian
from rqm.secagg import security
from rqm.secagg.local import aggregate
from rqm.secagg.wire import STAGES, Kind
from rqm.simulation.loop import RunState
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model

PLAN = make_plan(
    data="blobs",
    clients=8,
    rounds=6,
    device="cpu",
    mechanism=RQM(clip=0.5),
    server=ServerStep(rate=0.5),
    evaluate_every=3,
)


def ideal_and_real(plan):
    states = [RunState(change_plan(plan, secagg=kind), federation(), model()) for kind in ("ideal", "real")]
    states[0].updates.groups = None  # clients one after the other, as in the protocol: gradients to the last bit
    return states


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        change_plan(PLAN, mechanism=PBM(clip=0.5), client=ClientWork("local", epochs=1, batch=4)),
        change_plan(PLAN, mechanism=StochasticRounding(clip=0.5, levels=65536), client_dropout=0.2, min_survivors=5),
        change_plan(PLAN, mechanism=Skellam(clip=0.5, scale=1.0, bits=8)),  # modulo 256, and it wraps
        change_plan(
            PLAN,
            mechanism=StochasticRounding(clip=0.5, levels=2),
            transforms=Transforms(l2_clip=1.0, rotate=True),
            client_dropout=0.2,
            min_survivors=5,
        ),
        change_plan(PLAN, transforms=Transforms(l2_clip=1.0, rotate=True), adapt=Adapt(start=0.5)),
        change_plan(PLAN, client=ClientWork("fedcomgate", batch=4), server=ServerStep("sgd", rate=0.05)),
        change_plan(PLAN, client=ClientWork("fedaq", batch=4), server=ServerStep("sgd", rate=0.05)),
    ],
    ids=[
        *("rqm", "pbm, local steps", "65,536 levels and losses", "modular", "rotated, losses", "a clip that moves"),
        *("fedcomgate", "fedaq"),
    ],
)
def test_the_real_protocol_gives_the_ideal_sum(plan):
    ideal, real = ideal_and_real(plan)
    completed = 0
    for _ in range(plan.participation.rounds):
        ideal_outcome, real_outcome = ideal.step(), real.step()
        assert (ideal_outcome.survivors, ideal_outcome.discarded, ideal_outcome.bits_up) == (
            real_outcome.survivors,
            real_outcome.discarded,
            real_outcome.bits_up,
        )
        assert ideal_outcome.clients_loss == real_outcome.clients_loss
        assert (ideal.values == real.values).all()
        if not real_outcome.discarded:
            completed += 1
            assert real_outcome.secagg_bytes_up > ideal_outcome.bits_up / 8
    assert completed >= 2


def test_a_round_below_the_minimum_is_discarded_and_charged():
    state = RunState(change_plan(PLAN, secagg="real", client_dropout=0.6, min_survivors=7), federation(), model())
    values = state.values.clone()
    outcomes = [state.step() for _ in range(4)]
    assert all(outcome.discarded and outcome.secagg_bytes_up is None for outcome in outcomes)
    assert state.guard.charges == {0: 1, 1: 1, 2: 1, 3: 1}
    assert (state.values == values).all()


def test_a_client_with_a_vector_that_is_not_finite_sends_zero():
    data = federation()
    data.train[3][0][0] = torch.nan
    ideal, real = (RunState(change_plan(PLAN, clients=12, secagg=kind), data, model()) for kind in ("ideal", "real"))
    with pytest.warns(UserWarning, match="1 client had gradients"):
        ideal.step()
    with pytest.warns(UserWarning, match="1 client had gradients"):
        real.step()
    assert (ideal.values == real.values).all()


def test_large_rounds_use_a_sparse_graph():
    def params(**change):
        return protocol(change_plan(PLAN, **change), 10, b"x")

    large = params(clients=500)
    assert large.threshold == large.degree < 10  # nobody may be lost, all are honest
    assert large.minimum == 500
    assert (params().degree, params().threshold, params().minimum) == (7, 5, 8)
    assert (params(min_survivors=6).threshold, params(min_survivors=6).minimum) == (5, 6)
    assert (params(min_survivors=2).threshold, params(min_survivors=2).minimum) == (4, 2)
    sparse = params(clients=500, min_survivors=475, honest_clients=475)
    assert (sparse.degree, sparse.threshold, sparse.minimum) == security(500, 475, 25)
    assert sparse.degree < 60
    assert sparse.minimum > 475
    assert (
        params(clients=500, min_survivors=300, honest_clients=500).degree == 499
    )  # so many lost that all must be neighbours
    assert protocol(change_plan(PLAN, clients=500, min_survivors=475), 10, b"x", 470).degree == 499


@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_the_sum_is_that_of_the_survivors(rounds):
    """The example for Flower: survivors = 80; the sum is that of the survivors, at whatever stage others drop out."""
    chance = Random(rounds)
    for round_index in range(rounds):
        params = protocol(change_plan(PLAN, clients=100, min_survivors=80), 3, b"%d" % round_index)
        dropouts = {u: chance.choice(STAGES) for u in chance.sample(range(100), chance.randint(8, 20))}
        total, survivors, _ = aggregate(params, lambda u: [u % 16, 0, 1], dropouts)
        assert survivors == [u for u in range(100) if dropouts.get(u) not in (Kind.KEYS, Kind.SHARES, Kind.MASKED)]
        assert total.tolist() == [sum(u % 16 for u in survivors), 0, len(survivors)]


def test_corrupt_clients_raise_the_threshold_or_the_plan_is_refused():
    """A client's both secrets take 2t shares: all neighbours give one each, the corrupt ones two."""

    def params(threshold=0, **change):
        return protocol(change_plan(PLAN, **{"clients": 40, **change}), 10, b"x", threshold)

    assert params().threshold == params(min_survivors=28).threshold == 27
    assert params(honest_clients=20).threshold == 30
    assert params(honest_clients=36, min_survivors=30).threshold == 29
    for change in (
        {"min_survivors": 21, "honest_clients": 38},
        {"min_survivors": 29, "honest_clients": 20},
        {"honest_clients": 1},
    ):
        with pytest.raises(ValueError, match=r"survivors = \d+, threshold = \d+: must be at least"):
            params(**change)
    with pytest.raises(ValueError, match=r"threshold = 20: must be at least 24 and 23"):
        params(20, honest_clients=34)
    users = {"honest_fraction": 0.9, "population": 3400, "delta": 1e-5}
    corrupt_clients = corrupt(change_plan(PLAN, clients=40, **users).any_mean)
    assert 4 < corrupt_clients < 24  # a tenth of the users, and bad luck
    assert params(**users).threshold == max(27, (39 + corrupt_clients) // 2 + 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": Noiseless(clip=1.0)}, "secagg = 'real': must come with a mechanism that sends integers"),
        ({"mechanism": Gaussian(1.0), "transforms": Transforms(l2_clip=1.0)}, "must come with a mechanism"),
        ({"clients": 1}, "clients = 1: must be at least 2"),
        ({"secagg": "fake"}, "secagg = 'fake': must be one of ideal, real"),
    ],
)
def test_the_real_protocol_refuses_plans_that_it_cannot_carry_out(change, message):
    with pytest.raises(ValueError, match=message):
        change_plan(PLAN, **{"secagg": "real", **change})


@pytest.mark.parametrize(
    "change",
    [{}, {"client_dropout": 0.1}, {"min_survivors": 6}, {"client_dropout": 0.1, "min_survivors": 6}],
    ids=str,
)
def test_no_sum_is_revealed_of_fewer_clients_than_are_accounted_for(change):
    plan = change_plan(PLAN, **change)
    accounted = plan.private_mean(10).participation.min_survivors or plan.participation.clients
    assert protocol(plan, 10, b"x").minimum >= accounted
