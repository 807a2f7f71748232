"""What a Flower app's configuration may say."""

import pytest

pytest.importorskip("flwr")

from rqm.flower.settings import Settings


def test_records_of_silos_are_refused_so_that_no_epsilon_is_stated_for_them():
    config = {"rqm.clients": 4, "rqm.delta": 1e-6, "rqm.mechanism.mechanism": "discrete-gaussian"}
    config |= {"rqm.transforms.l2_clip": 20.0, "rqm.transforms.rotate": True}
    assert Settings.from_run_config(config).plan.clients == 4
    with pytest.raises(ValueError, match=r"rqm\.records: must not be given"):
        Settings.from_run_config(config | {"rqm.records.clip": 1.0, "rqm.records.batch": 100})
