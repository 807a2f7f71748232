"""Flower's accountant for discrete events: the same ε as ours, in its shape."""

import json

import pytest

pytest.importorskip("flwr")
from flwr.serverapp import NeighboringRelation, PrivacyAccountant, PrivacyConfig, SamplingMethod

from rqm import RQM, Participation, StochasticRounding, ThreatModel
from rqm.accounting.guarantee import guarantee
from rqm.accounting.release import Release
from rqm.flower.privacy_accountant import DiscreteAccountant, DiscreteEvent
from rqm.mechanisms.noiseless import Noiseless

MECH, DIM = StochasticRounding(4 / 2**7, 40.0, 2), 2**14
EVENT = DiscreteEvent(MECH, 100, DIM, 1.0, 100, 10_000)
ALONE = PrivacyConfig(1e-5, 10_000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.NO_AMPLIFICATION)
SAMPLED = PrivacyConfig(1e-5, 10_000, NeighboringRelation.REPLACE_ONE, SamplingMethod.WITHOUT_REPLACEMENT)


@pytest.mark.parametrize(
    ("config", "adversary", "neighboring"), [(ALONE, "server", "zero-out"), (SAMPLED, "outsider", "replace-one")]
)
def test_the_same_epsilon_as_a_plans(config, adversary, neighboring):
    accountant: PrivacyAccountant = DiscreteAccountant(config)
    accountant.compose(EVENT, 3)
    accountant.compose(EVENT)
    client, threat_model = Participation(100, 4, 10_000, "uniform"), ThreatModel(adversary, neighboring)
    ours = guarantee(Release(MECH, DIM, 1.0), client, threat_model, 1e-5)
    assert accountant.get_epsilon(1e-5) == pytest.approx(ours.epsilon, rel=1e-9)
    spent = accountant.get_privacy_spent()
    assert (spent.epsilon, spent.delta, spent.num_releases) == (accountant.get_epsilon(1e-5), 1e-5, 4)
    assert accountant.get_delta(spent.epsilon) == pytest.approx(1e-5, rel=0.05)


def test_limits_and_state():
    accountant = DiscreteAccountant(ALONE)
    assert accountant.get_epsilon(1e-5) == accountant.get_delta(1.0) == accountant.num_releases == 0
    accountant.compose(EVENT, 2)
    now = accountant.get_epsilon(1e-5)
    assert accountant.would_exceed(EVENT, now)
    assert not accountant.would_exceed(EVENT, 2 * now)
    assert accountant.num_releases == 2  # asking costs nothing
    again = DiscreteAccountant(ALONE)
    again.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    assert again.get_epsilon(1e-5) == now
    with pytest.raises(ValueError, match="max_epsilon = None"):
        accountant.would_exceed(EVENT)
    with pytest.raises(ValueError, match="format = None"):
        again.load_state_dict({})


def test_what_is_refused():
    poisson = PrivacyConfig(1e-5, 10_000, NeighboringRelation.ADD_OR_REMOVE_ONE, SamplingMethod.POISSON)
    with pytest.raises(ValueError, match="sampling_method = poisson"):
        DiscreteAccountant(poisson)
    with pytest.raises(TypeError, match="sends integers"):
        DiscreteEvent(Noiseless(clip=1.0), 100, DIM, 1.0, 100, 10_000)
    with pytest.raises(ValueError, match="honest_clients = 101"):
        DiscreteEvent(MECH, 101, DIM, 1.0, 100, 10_000)
    accountant = DiscreteAccountant(ALONE)
    with pytest.raises(ValueError, match="population_size = 500"):
        accountant.compose(DiscreteEvent(MECH, 100, DIM, 1.0, 100, 500))
    with pytest.raises(ValueError, match="has levels inside its clip"):
        accountant.compose(DiscreteEvent(RQM(clip=4 / 2**7, margin=1.0), 100, DIM, 1.0, 100, 10_000))
    with pytest.raises(ValueError, match="honest_clients = 80: must be given as honest_fraction"):
        DiscreteAccountant(SAMPLED).compose(DiscreteEvent(MECH, 80, DIM, 1.0, 100, 10_000))
    with pytest.raises(ValueError, match="count = 0"):
        accountant.compose(EVENT, 0)
    assert accountant.num_releases == 0
