"""The noise of a chain of rounds: what one round adds, the next one cancels, once or never."""

from dataclasses import dataclass

import pytest
import torch

from rqm import CorrelatedNoise
from rqm.correlated.simulated_chain import CorrelatedChain, IndependentChain

LENGTH = 6
NOISE = CorrelatedNoise(5.0)


@dataclass
class Cohort:
    survivors: list[int]
    settling: list[int]


def chain(noise=NOISE, **options):
    return CorrelatedChain(noise, torch.zeros(LENGTH, dtype=torch.int32), seed=3, **options)


def totals(state, cohorts):
    """The noise in the sum of each round."""
    sums = torch.zeros((len(cohorts), LENGTH), dtype=torch.int32)
    for round_index, cohort in enumerate(cohorts):
        state.apply(sums[round_index], round_index, cohort.survivors, cohort.settling)
    return sums


def noise_of(state, round_index, clients, part="added"):
    return sum((getattr(state.state_of(round_index, client), part) for client in clients), torch.tensor(0))


def test_independent_noise_adds_nothing():
    assert not totals(IndependentChain(), [Cohort([4, 7], []), Cohort([1], [4, 7])]).any()


def test_users_cancel_all_but_the_residual_noise_one_round_later():
    noise = CorrelatedNoise(5.0, 2.0, 4)
    sums = totals(chain(noise), [Cohort([8, 2, 5], []), Cohort([1, 9], [8, 2, 5])])
    state = chain(noise)
    assert torch.equal(sums[0], noise_of(state, 0, range(3)))
    assert torch.equal(sums[1], noise_of(state, 1, range(2)) - noise_of(state, 0, range(3), "canceled"))
    residual = noise_of(state, 0, range(3)) - noise_of(state, 0, range(3), "canceled")
    assert residual.any()
    assert residual.abs().max() < noise_of(state, 0, range(3)).abs().max()


def test_silos_cancel_their_own_noise_if_they_are_there():
    sums = totals(chain(silos=3), [Cohort([0, 1, 2], []), Cohort([0, 2], [0, 2]), Cohort([1, 2], [2])])
    state = chain(silos=3)
    assert torch.equal(sums[1], noise_of(state, 1, [0, 2]) - noise_of(state, 0, [0, 2]))
    assert torch.equal(sums[2], noise_of(state, 2, [1, 2]) - noise_of(state, 1, [2]))


@pytest.mark.parametrize("silos", [None, 3])
def test_messages_add_up_to_the_noise_of_their_sum(silos):
    """With the real protocol users also settle by second messages."""
    cohort, settling = Cohort([0, 2], [0, 2]), [0, 2]
    expected = totals(chain(silos=silos), [Cohort([0, 2], []), cohort])[1]
    state, total = chain(silos=silos), torch.zeros(LENGTH, dtype=torch.int32)
    for position in range(2):
        state.apply_to_message(total, 1, position, cohort)
    if silos is None:
        total -= noise_of(state, 0, range(len(settling)), "canceled")
    assert torch.equal(total, expected)


def test_a_chain_that_restarts_cancels_nothing_of_the_discarded_round():
    state = chain(is_secure=True)
    totals(state, [Cohort([1, 2], [])])
    assert state.secret(1).shape == (1, LENGTH)
    state.restart()
    assert state.secret(1) is None


def test_secure_noise_is_canceled_once_and_only_if_it_was_kept():
    first, second = chain(is_secure=True), chain(is_secure=True)
    added = totals(first, [Cohort([1], [])])[0]
    noise = first.secret(1)
    second.restore(1, noise)
    total = torch.zeros(LENGTH, dtype=torch.int32)
    second.apply(total, 1, [], [1])
    assert torch.equal(total, -added)
    assert second.secret(1) is None
    other = torch.zeros(LENGTH, dtype=torch.int32)
    chain(is_secure=True).apply(other, 1, [], [1])
    assert not other.any()


def test_seeded_noise_needs_no_secret_and_is_drawn_again():
    state = chain()
    totals(state, [Cohort([1], [])])
    assert state.secret(1) is None
    total = torch.zeros(LENGTH, dtype=torch.int32)
    chain().apply(total, 1, [], [1])
    assert torch.equal(total, -noise_of(state, 0, [0], "canceled"))


def test_noise_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"has shape \(2, 6\): must be \(1, 6\)"):
        chain().restore(1, torch.zeros((2, LENGTH), dtype=torch.int32))
