"""`rqm.train`: models, losses and data of the caller, the guarantee, and refusals."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from html import escape

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import rqm
from rqm.config.account import account_ledger
from rqm.config.plan import ClientWork
from rqm.data.federated_data import as_federated_data
from rqm.ledger.ledger import LEDGER, read
from rqm.simulation import checkpoint
from rqm.simulation.defaults import TrainingRequest, plan_for
from rqm.simulation.loop import RunState
from rqm.verify import verify
from tests.simulation.small import federation, model


def people(count=60, seed=0):
    """Three classes, and everybody with another number of examples."""
    rng = np.random.default_rng(seed)
    centres = np.array([[2.0, 0.0], [-1.0, 2.0], [-1.0, -2.0]])
    users = []
    for _ in range(count):
        y = rng.integers(0, 3, size=rng.integers(1, 12))
        users.append((centres[y] + rng.normal(size=(len(y), 2)), y))
    return users


def held_out(count=400):
    x, y = (np.concatenate(arrays) for arrays in zip(*people(count, seed=9), strict=True))
    return x, y


FEW = {"epsilon": 8, "rounds": 12, "clients": 20, "rate": 1.0, "progress": False}


@pytest.fixture(scope="module")
def trained():
    return rqm.train(model(), people(), test=held_out(), **FEW)


def test_train_learns_with_a_certified_guarantee(trained):
    assert trained.evaluation["accuracy"] > 0.75
    assert trained.evaluation["released"]
    assert 7.5 < trained.guarantee.epsilon <= 8
    assert trained.guarantee.certified
    assert len(trained.history) == 12
    assert all("clients_loss_not_released" in line and "clients_loss" not in line for line in trained.history)
    assert trained.model(torch.tensor([[2.0, 0.0]])).argmax() == 0
    assert not trained.model.training


def test_the_sentence_has_every_condition(trained):
    sentence, details = str(trained.guarantee), trained.guarantee.details
    assert "\n" not in sentence
    assert sentence.count(". ") == 0
    for words in (
        "Certified for every user",
        "the server",
        "another user's data in their place",
        f"ε = {details.epsilon:.4g}",
        "δ = 1e-05",
        "all 20 clients of every round are honest",
        f"a user takes part in at most {details.participations} of the 12 rounds",
        "in this process, which has seen their data",
    ):
        assert words in sentence
    assert "imulat" not in sentence
    assert escape(sentence) in trained.guarantee._repr_html_()


def test_the_given_model_does_not_change():
    net = model()
    original = [p.clone() for p in net.parameters()]
    rqm.train(net, people(), **FEW | {"rounds": 2})
    assert all(torch.equal(*pair) for pair in zip(original, net.parameters(), strict=True))


@pytest.mark.slow
def test_secure_runs_differ_and_seeded_ones_do_not():
    runs = [rqm.train(model(), people(), **FEW, seed=seed) for seed in (None, None, 3, 3)]
    weights = [torch.cat([p.detach().flatten() for p in result.model.parameters()]) for result in runs]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[2], weights[3])
    for result in runs[2:]:
        assert result.guarantee.simulated
        assert not result.guarantee.certified
        assert str(result.guarantee).startswith("A simulation (anyone can repeat the noise of seed 3")


def test_the_ledger_says_whether_randomness_was_seeded(tmp_path):
    result = rqm.train(model(), people(), **FEW, out=tmp_path / "secure")
    header, charges, *_ = read(tmp_path / "secure" / LEDGER)
    assert "seeded" not in header
    assert charges == dict.fromkeys(range(12), 1)
    assert account_ledger(tmp_path / "secure")[0].epsilon == result.guarantee.epsilon
    assert not verify(tmp_path / "secure").wrong
    rqm.train(model(), people(), **FEW, out=tmp_path / "seeded", seed=0)
    assert read(tmp_path / "seeded" / LEDGER)[0]["seeded"]
    with pytest.raises(ValueError, match="seeded words"):
        account_ledger(tmp_path / "seeded")
    with pytest.raises(ValueError, match="ledger"):
        rqm.train(model(), people(), **FEW, out=tmp_path / "secure", seed=rqm.Plan.of_run(tmp_path / "secure").seed)


def test_data_can_have_three_forms():
    users = people()
    x, y = (np.concatenate(arrays) for arrays in zip(*users, strict=True))
    ids = np.repeat(np.arange(60), [len(labels) for _, labels in users])
    sets = [torch.utils.data.TensorDataset(torch.tensor(a).float(), torch.tensor(b)) for a, b in users]
    datasets = [as_federated_data(users), as_federated_data((x, y), ids), as_federated_data(sets)]
    for dataset in datasets:
        assert (dataset.train.offsets == datasets[0].train.offsets).all()
        assert torch.equal(dataset.train.inputs, datasets[0].train.inputs)
        assert torch.equal(dataset.train.labels, datasets[0].train.labels)
    shuffled = np.random.default_rng(0).permutation(len(y))
    again = as_federated_data((x[shuffled], y[shuffled]), ids[shuffled])
    assert (again.train.sizes == datasets[0].train.sizes).all()
    assert again.train[7][1].sort().values.tolist() == sorted(users[7][1].tolist())


@pytest.mark.slow
def test_federated_data_are_accepted():
    result = rqm.train(model(), federation(clients=20), epsilon=50, rounds=3, clients=10, progress=False)
    assert result.plan.data == "blobs"
    assert result.evaluation


def test_a_regression():
    rng, truth = np.random.default_rng(0), np.array([[1.0], [-2.0]])
    users = [(x, x @ truth) for x in rng.normal(size=(60, 5, 2))]
    test = (x := rng.normal(size=(50, 2)), x @ truth)
    result = rqm.train(nn.Linear(2, 1), users, loss=nn.MSELoss(), test=test, **FEW | {"rate": 0.3})
    test_losses = [line["loss"] for line in result.history if "loss" in line]
    assert test_losses[-1] < 0.5 * test_losses[0]
    assert "accuracy" not in result.evaluation


class Words(nn.Module):
    """The next word from the last."""

    def __init__(self):
        super().__init__()
        self.inside = nn.Embedding(12, 6)
        self.out = nn.Linear(6, 12)

    def forward(self, words):
        return self.out(self.inside(words))


@pytest.mark.slow
def test_a_language_model():
    users = [(w[:, :-1], w[:, 1:]) for w in (np.arange(8) + np.arange(60)[:, None, None] + [[0], [3]]) % 12]
    loss = lambda scores, words: functional.cross_entropy(scores.transpose(1, 2), words)  # noqa: E731
    result = rqm.train(Words(), users, loss=loss, test=users[0], **FEW | {"rounds": 40, "epsilon": 60})
    assert result.evaluation["accuracy"] > 0.3  # of twelve words


@pytest.mark.slow
def test_local_steps_and_no_noise():
    result = rqm.train(model(), people(), local=ClientWork("local", 2, 4, 0.1), test=held_out(), **FEW)
    assert result.evaluation["accuracy"] > 0.6
    free = rqm.train(model(), people(), test=held_out(), **FEW | {"epsilon": float("inf")})
    assert str(free.guarantee).startswith("Not private")
    assert free.guarantee.epsilon == float("inf")


REFUSED = {
    "batch normalisation": (nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), {}, "1.running_mean"),
    "another loss's labels": (nn.Linear(2, 3), {"loss": functional.mse_loss}, "model: fails on inputs"),
    "nothing to train": (nn.Identity(), {}, "no parameters to train"),
    "half precision": (nn.Linear(2, 3).half(), {}, "torch.float16"),
    "too many clients": (nn.Linear(2, 3), {"clients": 61}, "clients = 61: must be at most 60"),
    "an odd ε": (nn.Linear(2, 3), {"epsilon": -1}, "epsilon = -1"),
    "noise that cannot cancel": (nn.Linear(2, 3), {"clients": 60, "noise": "correlated"}, "noise = 'correlated'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_errors_have_one_line(name, tmp_path):
    net, change, words = REFUSED[name]
    with pytest.raises((ValueError, TypeError)) as error:
        rqm.train(net, people(), **FEW | change, out=tmp_path / "run")
    assert words in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (3, {}, "data is a int"),
        ((np.ones((3, 2)), [0, 1, 0]), {}, "with users="),
        ((np.ones((3, 2)), [0, 1, 0]), {"users": [0, 1]}, "one id for each of the 3 examples"),
        ([(np.ones((3, 2)), [0, 1])], {}, "must be equally many"),
        ([(np.ones((3, 2)), [0, 1, 0]), (np.ones((3, 4)), [0, 1, 0])], {}, "data[1]: its inputs are of shape (4,)"),
        ([(np.ones((3, 2)), [0, 1, 0]), (np.ones((0, 2)), np.ones(0, int))], {}, "data[1]: has no examples"),
        ([(np.ones((3, 2), np.uint8), [0, 1, 0])], {}, "is of bytes"),
        (["abc"], {}, "data[0] is a str"),
    ],
)
def test_data_that_cannot_be_used_are_named(data, options, words):
    with pytest.raises((ValueError, TypeError)) as error:
        as_federated_data(data, **options)
    assert words in str(error.value)


def test_a_sparse_embedding_is_refused():
    net = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Flatten())
    users = [(np.full((2, 1), i % 5), np.full(2, i % 3)) for i in range(20)]
    with pytest.raises(ValueError, match="sparse gradients"):
        rqm.train(net, users, epsilon=3, progress=False)


# -- public rules ---------------------------------------------------------------------------------


@pytest.mark.parametrize("users", [50, 150, 900, 5000, 10**6])
@pytest.mark.slow
def test_default_plans_keep_their_participation_limit(users):
    """Whatever the number of users, the plan is one that can be carried out, and keeps ε."""
    plan = plan_for(TrainingRequest(4.0, rounds=30, noise="independent"), users, 200, seed=0)
    assert plan.participation.clients == {50: 50, 150: 100, 900: 100, 5000: 500, 10**6: 1000}[users]
    assert rqm.account(plan).epsilon <= 4
    assert plan.delta == min(1e-5, 1 / users)
    if users <= 5000:
        net = nn.Linear(1, 100)
        data = as_federated_data((np.ones((users, 1)), np.zeros(users, int)), np.arange(users))
        state = RunState(plan, data, net)
        taken = np.bincount(np.concatenate([state.cohorts.clients(round_index) for round_index in range(30)]))
        assert taken.max() <= rqm.account(plan).participations


def test_noise_is_correlated_where_that_leaves_less():
    request = TrainingRequest(3.0, rounds=40, clients=100)
    small, large = (plan_for(request, 1000, dim, seed=0) for dim in (10, 20_000))
    assert small.noise is None
    assert large.noise is not None
    assert rqm.account(large).correlated_noise_ratio < 0.7
    assert plan_for(replace(request, noise="independent"), 1000, 20_000, seed=0).noise is None


def test_default_plans_do_not_depend_on_examples():
    """The same plan whatever the examples are, but for their number of users."""
    plans = [rqm.train(model(), people(seed=seed), **FEW | {"rounds": 2}, seed=0).plan for seed in (0, 1)]
    assert plans[0] == plans[1]


# -- noise that cancels, stopped and resumed ------------------------------------------------------

CANCEL = {"epsilon": 8, "rounds": 9, "clients": 20, "rate": 1e-9, "noise": "correlated", "progress": False}


def stopped(tmp_path, last_round):
    def watch(outcome):
        if outcome.round == last_round:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rqm.train(model(), people(), **CANCEL | {"progress": watch}, out=tmp_path)


def test_secret_noise_is_readable_by_its_owner_alone_until_the_end(tmp_path):
    folder = tmp_path / "run"
    stopped(folder, 5)  # in round 5, of which the checkpoint is not written yet
    secret = folder / checkpoint.CLIENTS.format(4)
    assert secret.stat().st_mode & 0o077 == 0
    result = rqm.train(model(), people(), **CANCEL, out=folder)
    assert not list(folder.glob(checkpoint.CLIENTS.format("*")))
    spent = read(folder / LEDGER)[1]
    assert spent == {**dict.fromkeys(range(9), 1), 4: 2}
    assert result.guarantee.epsilon > 8  # truthfully
    assert "counts 1 round done again after an interruption, where 8 was asked for" in str(result.guarantee)


@pytest.fixture
def saved(tmp_path):
    """A run with secure correlated noise after four rounds, and the restored one."""
    request = TrainingRequest(8.0, rounds=9, clients=20, noise="correlated", rate=1e-9)
    plan = plan_for(request, 60, 51, seed=0, device="cpu")
    first, second = (RunState(plan, as_federated_data(people()), model(), is_secure=True) for _ in range(2))
    for _ in range(4):
        first.step()
    (tmp_path / "metrics.jsonl").write_text("")
    checkpoint.save(first, tmp_path, 0)
    checkpoint.restore(second, tmp_path)
    return first, second


def test_the_restored_noise_is_that_of_the_last_round(saved):
    noise, restored = (state.secure_sum.chain.secret(4) for state in saved)
    assert torch.equal(noise, restored)
    assert noise.abs().max() > 0


@pytest.mark.parametrize("was_charged", [False, True])
def test_a_round_that_has_begun_before_cancels_no_noise(was_charged, saved):
    """A server that has seen the sum in which noise was canceled would see it a second time."""
    _, state = saved
    chain, cohort = state.secure_sum.chain, state.cohorts.draw(4)
    canceled = chain.secret(4)[0]
    if was_charged:
        chain.restart()
    total = state.secure_sum.reveal(state.updates, cohort).total
    coins = (total - chain.secret(5)[0] + (0 if was_charged else canceled)) % state.mean.modulus
    assert 0 <= coins.min() <= coins.max() <= 20


def test_a_damaged_file_of_the_clients_is_named(saved, tmp_path):
    path = tmp_path / checkpoint.CLIENTS.format(4)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="delete it, and its noise stays in the model"):
        checkpoint.restore(saved[1], tmp_path)


def test_secure_randomness_needs_integer_messages():
    plan = replace(plan_for(TrainingRequest(8.0, rounds=3), 60, 51, seed=0), mechanism=rqm.Gaussian(1.0))
    with pytest.raises(ValueError, match="must be one that sends integers, or give a seed"):
        RunState(plan, as_federated_data(people()), model(), is_secure=True)


def test_save(trained, tmp_path):
    folder = trained.save(tmp_path / "kept")
    net = model()
    net.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), trained.model.parameters(), strict=True))
    assert json.loads((folder / "guarantee.json").read_text())["sentence"] == str(trained.guarantee)
    assert account_ledger(folder)[0].epsilon == trained.guarantee.epsilon
    with pytest.raises(FileExistsError):
        trained.save(folder)


# -- a process that is killed ---------------------------------------------------------------------


def killed_and_resumed(folder, seed):
    """Kill the process in the middle of its fourth round, after the sum was used; then let another go on."""
    command = [sys.executable, "-m", "tests.simulation.killed", str(folder), seed]
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "slow"], **pipe) as first:
        assert first.stdout.readline() == "HERE\n"
        first.kill()
    assert first.returncode == -signal.SIGKILL
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 4
    done = subprocess.run([*command, "fast"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "weights.pt"), done.stdout


@pytest.mark.slow
def test_killed_and_resumed_it_ends_with_the_same_weights_and_every_round_is_charged(tmp_path):
    weights, sentence = killed_and_resumed(tmp_path / "killed", "3")
    whole = rqm.train(
        model(), federation(clients=20), epsilon=30, rounds=8, clients=5, rate=0.5, seed=3, progress=False
    )
    assert torch.equal(weights, torch.cat([p.detach().flatten() for p in whole.model.parameters()]))
    assert read(tmp_path / "killed" / LEDGER)[1] == {**dict.fromkeys(range(8), 1), 3: 2}
    assert sentence.startswith("A simulation")


@pytest.mark.slow  # the same with secure words, whose rounds cannot be drawn again
def test_killed_and_resumed_with_secure_randomness_every_round_is_charged(tmp_path):
    _, sentence = killed_and_resumed(tmp_path / "killed", "none")
    assert read(tmp_path / "killed" / LEDGER)[1] == {**dict.fromkeys(range(8), 1), 3: 2}
    assert "1 round done again" in sentence
    assert not verify(tmp_path / "killed").wrong
