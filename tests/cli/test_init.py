"""``rqm init``: a file to start from, never over another."""

from rqm.plan.policy import NodeGuard, Policy
from tests.commands import rqm


def test_a_policy_to_start_from(tmp_path):
    path = tmp_path / "mine" / "policy.toml"
    assert str(path) in rqm("init", "--policy", tmp_path / "mine").stdout
    assert Policy.from_toml(path).participations == 10
    path.write_text("mine")
    again = rqm("init", "--policy", tmp_path / "mine")
    assert (again.returncode, "is there already" in again.stderr) == (2, True)
    assert path.read_text() == "mine"
    nothing = rqm("init", tmp_path / "mine")
    assert (nothing.returncode, "--policy" in nothing.stderr) == (2, True)


def test_a_policy_that_trusts_the_server(tmp_path):
    assert rqm("init", "--policy", "--trust-server", tmp_path).returncode == 0
    assert NodeGuard.of({"rqm-policy": str(tmp_path / "policy.toml")}) is None
