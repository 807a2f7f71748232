"""Ragged clients and the ways to deal out examples."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rqm.data.clients import Clients, by_class, dirichlet


def test_examples_are_grouped_by_id_and_keep_their_order():
    ids = np.array([5, 2, 5, 9, 2, 5])
    clients = Clients.by_id(np.arange(6), np.arange(6) * 10, ids)
    assert clients.sizes.tolist() == [2, 3, 1]
    assert [clients[i][0].tolist() for i in range(3)] == [[1, 4], [0, 2, 5], [3]]
    assert clients[1][1].tolist() == [0, 20, 50]
    assert clients[1][1].dtype == torch.int64
    with pytest.raises(IndexError, match=r"client = 3.*0\.\.2"):
        clients[3]


def test_parts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="5 inputs and 4 labels"):
        Clients(torch.zeros(5), torch.zeros(4), np.array([0, 4]))
    for offsets in ([0], [1, 4], [0, 3], [0, 3, 2, 4]):
        with pytest.raises(ValueError, match="offsets"):
            Clients(torch.zeros(4), torch.zeros(4), np.array(offsets))
    with pytest.raises(ValueError, match="ids"):
        Clients.by_id([], [], [])


def test_clients_are_made_when_they_are_asked_for():
    made = []
    clients = Clients(torch.zeros(4), torch.zeros(4), np.array([0, 1, 4]), made.append)
    clients[1]
    assert made == [1]
    clients.to("cpu")
    assert made == [1, 0, 1]


@given(
    labels=st.lists(st.integers(0, 5), min_size=12, max_size=200),
    clients=st.integers(1, 12),
    concentration=st.floats(0.01, 100),
)
def test_a_dirichlet_partition_gives_every_client_something(labels, clients, concentration):
    ids = dirichlet(labels, clients, concentration, seed=1)
    assert len(ids) == len(labels)
    assert set(ids.tolist()) == set(range(clients))
    assert (ids == dirichlet(labels, clients, concentration, seed=1)).all()


def test_a_small_concentration_gives_few_classes_and_a_large_one_the_mix():
    labels = np.repeat(np.arange(10), 500)
    few, mixed = (
        np.mean([len(np.unique(labels[ids == c])) for c in range(20)])
        for ids in (dirichlet(labels, 20, 0.05, 0), dirichlet(labels, 20, 100.0, 0))
    )
    assert few < 5
    assert mixed == 10


def test_shards_give_each_client_a_few_classes():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    ids = by_class(labels, 50, 2, seed=3)
    assert np.bincount(ids).tolist() == [20] * 50
    assert max(len(np.unique(labels[ids == c])) for c in range(50)) <= 2
    with pytest.raises(ValueError, match="at most 1000"):
        by_class(labels, 600, 2, seed=0)
