"""Ragged clients, and the ways to partition examples among them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rqm.data.federated_data import Clients, by_class, dirichlet


def test_examples_are_grouped_by_id_and_keep_their_order():
    ids = np.array([5, 2, 5, 9, 2, 5])
    clients = Clients.group_by_id(np.arange(6), np.arange(6) * 10, ids)
    assert clients.sizes.tolist() == [2, 3, 1]
    assert [clients[i][0].tolist() for i in range(3)] == [[1, 4], [0, 2, 5], [3]]
    assert clients[1][1].tolist() == [0, 20, 50]
    assert clients[1][1].dtype == torch.int64
    with pytest.raises(IndexError, match=r"client = 3.*0\.\.2"):
        clients[3]


@pytest.mark.parametrize(
    ("inputs", "labels", "ids", "words"),
    [
        ([], [], [], "≥ 1"),
        (np.zeros(3), np.zeros(3), [1, 2], r"shape \(2,\): must be one id for each of the 3 examples"),
        (np.zeros(3), np.zeros(2), [1, 2], "must be equally many"),
    ],
)
def test_examples_without_an_id_are_refused(inputs, labels, ids, words):
    with pytest.raises(ValueError, match=words):
        Clients.group_by_id(inputs, labels, ids)


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="5 inputs and 4 labels"):
        Clients(torch.zeros(5), torch.zeros(4), np.array([0, 4]))
    for offsets in ([0], [1, 4], [0, 3], [0, 3, 2, 4]):
        with pytest.raises(ValueError, match="offsets"):
            Clients(torch.zeros(4), torch.zeros(4), np.array(offsets))


def test_clients_are_prepared_before_they_are_read():
    prepared = []
    clients = Clients(torch.arange(4), torch.zeros(4), np.array([0, 1, 1, 4]), prepared.append)
    clients[2]
    clients.merge(2)[0]
    users = clients.resample(3, examples=2, seed=0)  # the second client has no examples
    assert set(users[1][0].tolist()) <= {1, 2, 3}
    assert prepared == [2, 0, 1, 2]
    clients.to("cpu")
    assert prepared[4:] == [0, 1, 2]
    with pytest.raises(ValueError, match="cannot be resampled"):
        users.resample(3, examples=2, seed=0)


@given(
    labels=st.lists(st.integers(0, 5), min_size=12, max_size=200),
    clients=st.integers(1, 12),
    concentration=st.floats(0.01, 100),
)
def test_a_dirichlet_partition_gives_every_client_an_example(labels, clients, concentration):
    ids = dirichlet(labels, clients, concentration, seed=1)
    assert len(ids) == len(labels)
    assert set(ids.tolist()) == set(range(clients))
    assert (ids == dirichlet(labels, clients, concentration, seed=1)).all()


def test_a_small_concentration_gives_few_classes_and_a_large_one_the_mix():
    labels = np.repeat(np.arange(10), 500)
    small, large = (
        np.mean([len(np.unique(labels[ids == client])) for client in range(20)])
        for ids in (dirichlet(labels, 20, 0.05, 0), dirichlet(labels, 20, 100.0, 0))
    )
    assert small < 5
    assert large == 10


def test_shards_give_each_client_a_few_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    ids = by_class(labels, 50, 2, seed=3)
    assert np.bincount(ids).tolist() == [20] * 50
    assert max(len(np.unique(labels[ids == client])) for client in range(50)) <= 2
    with pytest.raises(ValueError, match="at most 1000"):
        by_class(labels, 600, 2, seed=0)
