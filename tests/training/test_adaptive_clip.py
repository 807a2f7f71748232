"""A clip that follows a private quantile: its budget, its account, where it goes, and runs that go on."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

import rqm
from rqm import Gaussian, Noiseless, Plan, SeededRandom, StochasticRounding, account, simulate
from rqm.bounds import gaussian_epsilon
from rqm.mechanisms.pbm import PBM
from rqm.plan.plan import Adapt, ClientWork, Transforms
from rqm.related.vqsgd import VQSGD
from rqm.training.adaptive_clip import AdaptiveClip
from rqm.training.run import carry_out
from rqm.training.trainer import Trainer
from tests.plans import change_plan, make_plan
from tests.training.small import federation, model

CPU = torch.device("cpu")
PLAN = make_plan(
    model="own",
    mechanism=Noiseless(clip=10.0),
    clients=12,
    rounds=6,
    evaluate_every=3,
    transforms=Transforms(l2_clip=1.0, rotate=True),
    adapt=Adapt(start=0.5),
)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_vector_and_bit_keep_to_one_budget_whatever_the_clip(share):
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(200, 5)) * 10 ** rng.uniform(-6, 6, size=(200, 1)))
    for start in (1e-5, 0.3, 1e4):
        made = AdaptiveClip(Adapt(start=start, share=share), 2.0, CPU)
        sent = made.messages(rows)
        norms = rows.norm(dim=1)
        assert sent.norm(dim=1).max() <= 2.0 * (1 + 1e-6)  # and what is a hair too long is scaled once more
        assert torch.equal(sent[:, -1] > 0, norms <= made.state.double().exp())
        back = sent[:, :-1] * (made.clip / made.vector_length)
        kept = rows * torch.clamp(made.clip / norms, max=1)[:, None]
        assert back.numpy() == pytest.approx(kept.numpy(), rel=1e-6)


def test_the_account_is_the_published_split_of_the_noise():
    """Andrew et al. 2021, Theorem 1: z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2), with the noise σ_b of the sum of bits in {0, 1}."""
    z, share, clients = 4.0, 0.2, 50
    made = AdaptiveClip(Adapt(share=share), 1.0, CPU)
    on_vector, on_bits = z / made.vector_length, z / made.bit / 2  # of clipped vectors over their clip; of bits
    assert on_vector == pytest.approx((z**-2 - (2 * on_bits) ** -2) ** -0.5)
    plan = change_plan(PLAN, mechanism=Gaussian(z), rounds=1, clients=clients, dim=20, delta=1e-5)
    assert account(plan).epsilon == pytest.approx(gaussian_epsilon(2 / z, 1e-5), rel=1e-6)
    assert account(plan).dim == 32
    mean, bits = plan.private_mean(), []
    for seed in range(400):  # what is added to the sum of the bits
        noise = mean.server_noise(lambda _, seed=seed: seed)
        total = mean.reveal(torch.zeros(32, dtype=torch.float64), clients, noise, round_index=0)
        bits.append(clients * float(mean.decode(total, clients)[-1]) / made.bit / 2)
    close = 5 / sqrt(2 * 400)
    assert np.std(bits) == pytest.approx(on_bits, rel=close)
    assert np.std(bits) != pytest.approx(1.5 * on_bits, rel=close)


def test_the_certified_epsilon_counts_the_bit_as_a_coordinate():
    few = change_plan(PLAN, mechanism=PBM(clip=0.5, theta=0.1, levels=4), dim=32, rounds=1, delta=1e-5)
    assert account(few).dim == 64  # 33 are padded
    assert account(change_plan(few, adapt=None)).dim == 32
    assert account(few).epsilon >= account(change_plan(few, adapt=None)).epsilon - 1e-9
    assert account(few).wire_bits_per_parameter == pytest.approx(2 * account(few).bits_under_secagg)


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_clip_goes_to_the_quantile_in_geometric_steps(quantile):
    norms = np.random.default_rng(1).lognormal(1.0, 1.0, size=4000)
    rows = torch.from_numpy(norms)[:, None].float() * torch.tensor([[0.6, -0.8]])
    made = AdaptiveClip(Adapt(quantile=quantile, start=0.01), 1.0, CPU)
    first = made.messages(rows).mean(dim=0)
    made.update(first)
    assert made.clip == pytest.approx(0.01 * exp(0.2 * quantile), rel=1e-4)  # nobody was short enough
    for _ in range(200):
        made.update(made.messages(rows).mean(dim=0))
    assert abs((norms <= made.clip).mean() - quantile) < 0.01
    assert abs((norms <= 1.2 * made.clip).mean() - quantile) > 0.01


def test_one_bit_finds_the_quantile_through_its_noise():
    """A secure sum of one bit a coordinate: the clip stays as near as its noise says."""
    norms = np.random.default_rng(2).lognormal(0.0, 0.5, size=400)
    rows = torch.from_numpy(norms)[:, None].float() * torch.tensor([[0.6, -0.8, 0.0]])
    mean = rqm.private_mean(
        mechanism=StochasticRounding(clip=1.0, margin=2.0, levels=2), dim=4, clients=400, rounds=300
    )
    made = AdaptiveClip(Adapt(start=0.05, share=0.3), mean.max_length, CPU)
    seen = []
    for turn in range(300):
        total = torch.zeros(4, dtype=torch.int32)
        mean.add_messages(made.messages(rows), total, SeededRandom(1, turn), round_index=turn)
        made.update(mean.decode(total, 400, round_index=turn))
        seen.append(log(made.clip))
    assert np.mean(seen[100:]) == pytest.approx(log(np.median(norms)), abs=0.1)
    assert np.std(seen[100:]) > 0.02  # noise there is


@pytest.mark.parametrize("work", ["gradient", "local"])
def test_a_run_that_goes_on_has_the_same_clip(tmp_path, work):
    plan = change_plan(PLAN, client=ClientWork(work=work, batch=5), checkpoint_every=2)

    def trainer(plan, data):
        return Trainer(plan, data, model())

    straight = Trainer(plan, federation(), model())
    while straight.done < plan.participation.rounds:
        straight.step()
    late = iter((False, False, False, True))
    with pytest.raises(TimeoutError):
        carry_out(plan, federation(), tmp_path / "run", make=trainer, out_of_time=lambda: next(late))
    again = []

    def kept(plan, data):
        again.append(trainer(plan, data))
        return again[0]

    carry_out(plan, federation(), tmp_path / "run", make=kept)
    assert torch.equal(again[0].clip, straight.clip)
    assert torch.equal(again[0].values, straight.values)
    assert float(straight.clip) != pytest.approx(log(0.5))


@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(clip=1.0, margin=1.0, levels=2), VQSGD(epsilon=20.0), Gaussian(0.5)]
)
def test_the_clip_follows_from_what_was_revealed_alone(mechanism):
    """Whoever sees the sums of all rounds knows every clip: it tells nothing besides, and nothing more is charged."""
    trainer = Trainer(change_plan(PLAN, mechanism=mechanism), federation(), model())
    again, seen, collect = AdaptiveClip(PLAN.adapt, trainer.mean.max_length, CPU), [], trainer.aggregator.collect

    def overheard(*given):
        found = collect(*given)
        seen.append(found.total.clone())
        return found

    trainer.aggregator.collect = overheard
    for turn in range(PLAN.participation.rounds):
        trainer.step()
        again.update(trainer.mean.decode(seen[turn], PLAN.participation.clients, round_index=turn))
        assert torch.equal(again.state, trainer.clip)
    assert float(again.state) != pytest.approx(log(0.5))


def test_noise_makes_no_clip_of_zero_or_infinity():
    for far in (-1e30, 1e30):
        made = AdaptiveClip(Adapt(rate=50.0, start=1.0), 1.0, CPU)
        made.update(torch.tensor([0.0, far]))
        assert 0 < made.clip < float("inf")
        assert torch.isfinite(made.messages(torch.ones(1, 1))).all()


def test_both_aggregators_reveal_the_same_sum():
    plan = change_plan(PLAN, mechanism=StochasticRounding(clip=1.0, margin=1.0, levels=2), rounds=2)
    ideal, real = (simulate(change_plan(plan, secagg=kind), model(), federation()) for kind in ("ideal", "real"))
    assert [one.loss for one in ideal] == [one.loss for one in real]


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"adapt: must come with transforms.l2_clip"):
        change_plan(PLAN, transforms=Transforms())
    with pytest.raises(ValueError, match="adapt: must come without correlated noise"):
        change_plan(PLAN, mechanism=StochasticRounding(levels=2), noise=2.0, min_separation=2, sampling="fixed-order")
    with pytest.raises(ValueError, match=r"adapt.share = 1: must be between 0 and 1"):
        Adapt(share=1)
    values = PLAN.to_dict()
    assert values["adapt"]["quantile"] == 0.5
    assert Plan.from_dict(values) == PLAN
    assert change_plan(PLAN, adapt=None).to_dict()["adapt"] is None
    with pytest.raises(ValueError, match=r"adapt.quantil"):
        Plan.from_dict({"adapt": {"quantil": 0.3}})
