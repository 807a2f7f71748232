"""Adaptive clipping: its budget, its accounting, its convergence, and resumed runs."""

from math import exp, log, sqrt

import numpy as np
import pytest
import torch

import rqm
from rqm import Gaussian, Noiseless, Plan, SeededRandom, StochasticRounding, account
from rqm.bounds import gaussian_epsilon
from rqm.config.plan import Adapt, Transforms
from rqm.mechanisms.pbm import PBM
from rqm.related.vqsgd import VQSGD
from rqm.simulation.adaptive_clip import AdaptiveClip
from rqm.simulation.loop import RunState
from tests.plans import change_plan, make_plan
from tests.simulation.small import federation, model

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
def test_vector_and_bit_stay_within_one_budget(share):
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(200, 5)) * 10 ** rng.uniform(-6, 6, size=(200, 1)))
    for start in (1e-5, 0.3, 1e4):
        adaptive_clip = AdaptiveClip(Adapt(start=start, share=share), 2.0, CPU)
        messages = adaptive_clip.messages(rows)
        norms = rows.norm(dim=1)
        assert messages.norm(dim=1).max() <= 2.0 * (1 + 1e-6)
        assert torch.equal(messages[:, -1] > 0, norms <= adaptive_clip.state.double().exp())
        decoded = messages[:, :-1] * (adaptive_clip.clip / adaptive_clip.vector_length)
        clipped = rows * torch.clamp(adaptive_clip.clip / norms, max=1)[:, None]
        assert decoded.numpy() == pytest.approx(clipped.numpy(), rel=1e-6)


def test_the_account_is_the_published_split_of_the_noise():
    """Andrew et al. 2021, Theorem 1: z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2), with the noise σ_b of the sum of bits in {0, 1}."""
    z, share, clients = 4.0, 0.2, 50
    adaptive_clip = AdaptiveClip(Adapt(share=share), 1.0, CPU)
    on_vector, on_bits = (
        z / adaptive_clip.vector_length,
        z / adaptive_clip.bit / 2,
    )  # of clipped vectors over their clip; of bits
    assert on_vector == pytest.approx((z**-2 - (2 * on_bits) ** -2) ** -0.5)
    plan = change_plan(PLAN, mechanism=Gaussian(z), rounds=1, clients=clients, dim=20, delta=1e-5)
    assert account(plan).epsilon == pytest.approx(gaussian_epsilon(2 / z, 1e-5), rel=1e-6)
    assert account(plan).dim == 32
    mean, bits = plan.private_mean(), []
    for seed in range(400):  # the noise in the sum of the bits
        noise = mean.server_noise(lambda _, seed=seed: seed)
        total = mean.reveal(torch.zeros(32, dtype=torch.float64), clients, noise, round_index=0)
        bits.append(clients * float(mean.decode(total, clients)[-1]) / adaptive_clip.bit / 2)
    close = 5 / sqrt(2 * 400)
    assert np.std(bits) == pytest.approx(on_bits, rel=close)
    assert np.std(bits) != pytest.approx(1.5 * on_bits, rel=close)


def test_the_certified_epsilon_counts_the_bit_as_a_coordinate():
    plan = change_plan(PLAN, mechanism=PBM(clip=0.5, theta=0.1, levels=4), dim=32, rounds=1, delta=1e-5)
    assert account(plan).dim == 64  # 33 are padded
    assert account(change_plan(plan, adapt=None)).dim == 32
    assert account(plan).epsilon >= account(change_plan(plan, adapt=None)).epsilon - 1e-9
    assert account(plan).wire_bits_per_parameter == pytest.approx(2 * account(plan).bits_under_secagg)


@pytest.mark.parametrize("quantile", [0.25, 0.5, 0.9])
def test_the_clip_approaches_the_quantile_in_geometric_steps(quantile):
    norms = np.random.default_rng(1).lognormal(1.0, 1.0, size=4000)
    rows = torch.from_numpy(norms)[:, None].float() * torch.tensor([[0.6, -0.8]])
    adaptive_clip = AdaptiveClip(Adapt(quantile=quantile, start=0.01), 1.0, CPU)
    first = adaptive_clip.messages(rows).mean(dim=0)
    adaptive_clip.update(first)
    assert adaptive_clip.clip == pytest.approx(
        0.01 * exp(0.2 * quantile), rel=1e-4
    )  # all norms are above the first clip
    for _ in range(200):
        adaptive_clip.update(adaptive_clip.messages(rows).mean(dim=0))
    assert abs((norms <= adaptive_clip.clip).mean() - quantile) < 0.01
    assert abs((norms <= 1.2 * adaptive_clip.clip).mean() - quantile) > 0.01


def test_one_noisy_bit_for_each_client_finds_the_quantile():
    """With a secure sum of one bit for each coordinate, the clip stays as close as the noise allows."""
    norms = np.random.default_rng(2).lognormal(0.0, 0.5, size=400)
    rows = torch.from_numpy(norms)[:, None].float() * torch.tensor([[0.6, -0.8, 0.0]])
    mean = rqm.private_mean(
        mechanism=StochasticRounding(clip=1.0, margin=2.0, levels=2), dim=4, clients=400, rounds=300
    )
    adaptive_clip = AdaptiveClip(Adapt(start=0.05, share=0.3), mean.max_length, CPU)
    log_clips = []
    for round_index in range(300):
        total = torch.zeros(4, dtype=torch.int32)
        mean.add_messages(adaptive_clip.messages(rows), total, SeededRandom(1, round_index), round_index=round_index)
        adaptive_clip.update(mean.decode(total, 400, round_index=round_index))
        log_clips.append(log(adaptive_clip.clip))
    assert np.mean(log_clips[100:]) == pytest.approx(log(np.median(norms)), abs=0.1)
    assert np.std(log_clips[100:]) > 0.02  # there is noise


@pytest.mark.parametrize(
    "mechanism", [StochasticRounding(clip=1.0, margin=1.0, levels=2), VQSGD(epsilon=20.0), Gaussian(0.5)]
)
def test_the_clip_follows_from_the_revealed_sums(mechanism):
    """The sums of all rounds determine every clip, so the clip reveals nothing more."""
    trainer = RunState(change_plan(PLAN, mechanism=mechanism), federation(), model())
    expected, totals, reveal = AdaptiveClip(PLAN.adapt, trainer.mean.max_length, CPU), [], trainer.secure_sum.reveal

    def recorded_reveal(*arguments):
        revealed = reveal(*arguments)
        totals.append(revealed.total.clone())
        return revealed

    trainer.secure_sum.reveal = recorded_reveal
    for round_index in range(PLAN.participation.rounds):
        trainer.step()
        expected.update(trainer.mean.decode(totals[round_index], PLAN.participation.clients, round_index=round_index))
        assert torch.equal(expected.state, trainer.tensors["clip"])
    assert float(expected.state) != pytest.approx(log(0.5))


def test_noise_never_makes_the_clip_zero_or_infinite():
    for extreme in (-1e30, 1e30):
        adaptive_clip = AdaptiveClip(Adapt(rate=50.0, start=1.0), 1.0, CPU)
        adaptive_clip.update(torch.tensor([0.0, extreme]))
        assert 0 < adaptive_clip.clip < float("inf")
        assert torch.isfinite(adaptive_clip.messages(torch.ones(1, 1))).all()


def test_invalid_combinations_are_refused():
    with pytest.raises(ValueError, match=r"adapt: must come with transforms.l2_clip"):
        change_plan(PLAN, transforms=Transforms())
    with pytest.raises(ValueError, match="adapt: must come without correlated noise"):
        change_plan(PLAN, mechanism=StochasticRounding(levels=2), noise=2.0, min_separation=2, sampling="fixed-order")
    with pytest.raises(ValueError, match=r"adapt.share = 1: must be above 0 and below 1"):
        Adapt(share=1)
    values = PLAN.to_dict()
    assert values["adapt"]["quantile"] == 0.5
    assert Plan.from_dict(values) == PLAN
    assert change_plan(PLAN, adapt=None).to_dict()["adapt"] is None
    with pytest.raises(ValueError, match=r"adapt.quantil"):
        Plan.from_dict({"adapt": {"quantil": 0.3}})
