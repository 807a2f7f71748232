"""Runs on a GPU against runs on the CPU: the same numbers without noise, the same distribution with it."""

import numpy as np
import pytest
import torch

from rqm import PBM, RQM, Noiseless, StochasticRounding
from rqm.config.plan import ClientWork, ServerStep, Transforms
from rqm.mechanisms.gaussian import Gaussian
from rqm.simulation.cuda_graphs import CudaGradients
from rqm.simulation.loop import RunState
from tests.plans import change_plan, make_plan
from tests.simulation.small import collected, pictures

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
PLAN = make_plan(
    data="noise",
    model="paper-cnn",
    clients=5,
    rounds=4,
    device="cuda",
    mechanism=Noiseless(clip=1e-3),
    server=ServerStep(rate=0.5),
)


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch):
    """Torch's own switch: by default its convolutions round to TF32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize("work", [ClientWork(), ClientWork("local", epochs=1, batch=2)], ids=["gradient", "local"])
@pytest.mark.parametrize("model", ["paper-cnn", "small-cnn", "linear"])
def test_runs_without_noise_equal_those_of_the_cpu(model, work):
    data, plan = pictures(), change_plan(PLAN, model=model, client=work)
    on_cpu, on_gpu = RunState(change_plan(plan, device="cpu"), data), RunState(plan, data)
    initial = on_cpu.values.clone()
    for _ in range(plan.participation.rounds):
        cpu_result, gpu_result = on_cpu.step(), on_gpu.step()
        assert cpu_result.clients_loss == pytest.approx(gpu_result.clients_loss, rel=1e-4)
    change = (on_cpu.values - initial).norm()
    assert (on_cpu.values - on_gpu.values.cpu()).norm() < 1e-4 * change
    assert isinstance(on_gpu.updates.groups, CudaGradients) != (work.work == "local")


@pytest.mark.parametrize("mech", [RQM(clip=1e-3), PBM(clip=1e-3), StochasticRounding(clip=1e-3, levels=4)], ids=repr)
def test_the_decoded_mean_is_unbiased(mech):
    data = pictures()
    quiet, noisy = (RunState(change_plan(PLAN, mechanism=m), data) for m in (Noiseless(clip=1e-3), mech))
    truth = quiet.plan.mechanism.decode(collected(quiet, [0, 1, 4], 0)[0], 3)
    draws = torch.stack([mech.decode(collected(noisy, [0, 1, 4], round_index)[0], 3) for round_index in range(200)])
    error = max(mech.variance(np.linspace(-1e-3, 1e-3, 99))) ** 0.5 / (3 * len(draws)) ** 0.5  # at most
    scores = (draws.mean(0) - truth) / error
    assert scores.abs().max() < 6.5  # a million coordinates
    assert scores.mean().abs() < 0.01


def test_finished_trainers_free_their_memory():
    allocated = []
    for _ in range(5):
        trainer = RunState(PLAN, pictures(each=60))
        trainer.step()
        during = torch.cuda.memory_allocated()
        del trainer
        allocated.append(torch.cuda.memory_allocated())
    assert during > allocated[-1] + 20_000_000
    assert allocated[-1] < allocated[1] + 2_000_000  # the first may leave what the libraries keep for good


@pytest.mark.parametrize("seed", range(12))
def test_no_seed_falls_back_to_one_client_after_another(seed, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert RunState(change_plan(PLAN, seed=seed), pictures(each=200)).updates.groups is not None
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.parametrize("mech", [StochasticRounding(clip=2e-4, levels=2, margin=20.0), Gaussian(1.0)], ids=repr)
def test_rotated_runs_have_the_mean_of_the_cpu(mech):
    data, plan = pictures(), change_plan(PLAN, mechanism=mech, transforms=Transforms(l2_clip=0.05, rotate=True))
    quiet = change_plan(plan, mechanism=Noiseless(clip=1.0))
    on_cpu, on_gpu = RunState(change_plan(quiet, device="cpu"), data), RunState(quiet, data)
    cpu_result, gpu_result = collected(on_cpu, [0, 1, 4], 0)[0], collected(on_gpu, [0, 1, 4], 0)[0].cpu()
    assert (cpu_result - gpu_result).norm() < 1e-4 * cpu_result.norm()
    noisy = RunState(plan, data)
    draws = torch.stack([mech.decode(collected(noisy, [0, 1, 4], 0)[0], 3).cpu() for _ in range(1)])
    spread = (draws[0] - cpu_result / 3).std()
    expected = 0.05 / 3 if isinstance(mech, Gaussian) else 2e-4 * 21 / 3**0.5
    assert spread == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("mech", [StochasticRounding(clip=4e-3, levels=2, margin=5.0), Gaussian(1.0)], ids=repr)
def test_chosen_coordinates_are_those_of_the_cpu(mech):
    subset = Transforms(l2_clip=0.05, rotate=True, coordinates=5000)
    data, plan = pictures(), change_plan(PLAN, mechanism=mech, transforms=subset, min_survivors=3)
    quiet = change_plan(plan, mechanism=Noiseless(clip=1.0))
    on_cpu, on_gpu = RunState(change_plan(quiet, device="cpu"), data), RunState(quiet, data)
    cpu_result, gpu_result = collected(on_cpu, [0, 1, 4], 0)[0], collected(on_gpu, [0, 1, 4], 0)[0].cpu()
    assert cpu_result.shape == (5000,)
    assert (cpu_result - gpu_result).norm() < 1e-4 * cpu_result.norm()
    decoded = [
        on_cpu.mean.decode(cpu_result.double(), 3, round_index=0),
        on_gpu.mean.decode(gpu_result.cuda().double(), 3, round_index=0),
    ]
    assert (decoded[0] - decoded[1].cpu()).norm() < 1e-4 * decoded[0].norm()
    noisy = RunState(plan, data)
    spread = (mech.decode(collected(noisy, [0, 1, 4], 0)[0], 3).cpu() - cpu_result / 3).std()
    expected = noisy.mean.l2_bound / 3 if isinstance(mech, Gaussian) else 4e-3 * 6 / 3**0.5
    assert spread == pytest.approx(expected, rel=0.05)


def test_a_run_repeats_itself_and_a_broken_client_sends_zero():
    data, plan = pictures(), change_plan(PLAN, mechanism=RQM(clip=1e-3))
    runs = [RunState(plan, data) for _ in range(2)]
    for trainer in runs:
        for _ in range(3):
            trainer.step()
    assert (runs[0].values == runs[1].values).all()
    quiet = RunState(PLAN, data)
    quiet.values[0] = torch.nan  # every gradient is broken now
    total, losses = collected(quiet, [0, 1], 0)
    assert (total == 0).all()
    assert torch.isnan(losses).all()
