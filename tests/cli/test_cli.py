"""What the commands print, and what they do with a bad environment."""

import io
import re
import sys
from math import inf

import pytest

from rqm.cli import bench
from rqm.cli.errors import describe
from rqm.cli.formatting import adapt_to_terminal, say
from tests.cli.test_cases import PLAN
from tests.commands import rqm, rqm_json

ACCOUNT_KEYS = {
    *("epsilon", "delta", "mu", "neighboring", "unit", "adversary", "assumptions", "max_participations", "certified"),
    *("rounds", "clients", "population", "dim", "per_coordinate", "noise_std_over_gaussian", "bits_per_coordinate"),
    *("bits_under_secagg", "wire_bits_per_parameter", "correlated_noise_ratio", "accountant"),
}
VARIANTS = """
data = "emnist-byclass-test"
model = "paper-cnn"
clients = 100
rounds = 10
max_participations = 1
population = 5000
transforms = { l2_clip = 1.0, rotate = true }
[[variants]]
name = "1 bit"
mechanism = { mechanism = "rounding", clip = 0.00390625, levels = 2, margin = 30.0 }
[[variants]]
name = "float"
mechanism = { mechanism = "noiseless", clip = 1.0 }
"""


def test_benchmarks_are_in_a_clone_only(monkeypatch, tmp_path):
    facts = rqm_json("bench", "divergence", "--out", tmp_path / "out")
    assert (facts["name"], bool(facts["machine"])) == ("divergence", True)
    assert all(ratio > 0 for ratio in facts["ratios"].values())
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    done = rqm("bench", "encode")
    assert done.returncode == 2
    assert done.stderr == "rqm: benchmarks come with the source; run it in a clone of the repository (make setup)\n"


def test_account_states_what_a_run_guarantees(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(VARIANTS)
    runs = {run["name"]: run for run in rqm_json("account", plan)["runs"]}
    assert list(runs) == ["1 bit", "float"]
    facts = runs["1 bit"]
    assert facts.keys() >= ACCOUNT_KEYS
    expected = {
        **{"max_participations": 1, "rounds": 10, "clients": 100, "population": 5000, "delta": 1e-5},
        **{"adversary": "server", "neighboring": "replace-one", "unit": "user"},
    }
    assert {key: facts[key] for key in expected} == expected
    assert [assumption["assumption"] for assumption in facts["assumptions"]] == [
        *("SecureSum", "HonestClients", "MaxParticipations", "NothingElseReleased")
    ]
    assert 0 < facts["epsilon"] < 20
    assert runs["float"]["epsilon"] is None
    text = rqm("account", plan, "--honest-clients", "80", "--neighboring", "zero-out").stdout
    parts = (
        "at least 80 of the 100 clients of every round are honest",
        "user-level (zero-out)",
        "no noise, no privacy",
    )
    assert all(part in text for part in parts)
    text = rqm("account", plan, "--set", "max_participations=10", "--set", "transforms.l2_clip=50.0").stdout
    assert "no meaningful protection" in text


def test_account_answers_for_the_adversary_of_the_plan():
    for name, adversary in (("user-level-outsider", "outsider"), ("user-level-server", "server")):
        private = [run for run in rqm_json("account", name)["runs"] if run["epsilon"] is not None]
        assert len(private) >= 3
        assert {run["adversary"] for run in private} == {adversary}, name


@pytest.mark.parametrize("name", ["demo", "user-level", "user-level-outsider", "user-level-server", "silos", "audit"])
def test_no_shipped_plan_exceeds_the_epsilon_that_it_is_named_for(name):
    for run in rqm_json("account", name)["runs"]:
        in_name = re.search(r"ε=([\d.]+)", run["name"])
        limit = float(in_name[1]) if in_name else 8 if name == "demo" else inf
        assert run["epsilon"] is None or run["epsilon"] <= limit, run["name"]


def test_several_runs_together_are_composed(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    combined, single = rqm_json("account", plan, plan), rqm_json("account", plan)
    assert combined["name"] == "all runs together"
    assert [run["epsilon"] for run in combined["runs"]] == [single["epsilon"]] * 2
    assert combined["mu"] == pytest.approx(single["mu"] * 2**0.5)
    assert combined.keys() >= ACCOUNT_KEYS
    assert "all runs together: ε = " in rqm("account", plan, plan).stdout


@pytest.mark.slow
def test_advice_in_json_and_as_text():
    facts = rqm_json("advise", "--clients", "1", "--dim", "1", "--epsilon", "5.4699", "--levels", "16")
    assert facts["request"]["epsilon"] == 5.4699
    best = facts["candidates"][0]
    assert best.keys() >= {
        *("mechanism", "epsilon", "mse", "bits_per_coordinate", "bits_under_secagg"),
        *("wire_bits_per_parameter", "reason"),
    }
    assert best["mse"] <= 0.0480
    assert best["epsilon"] <= 5.4699
    request = ("--clients", "200", "--dim", "4096", "--epsilon", "4", "--honest-clients", "160", "--population", "9999")
    text = rqm("advise", *request).stdout
    assert all(part in text for part in ("1 bit", "Certified for every user"))
    request = ("--clients", "100", "--dim", "4096", "--epsilon", "4", "--rounds", "12", "--min-separation", "4")
    text = rqm("advise", *request).stdout
    assert all(part in text for part in ("correlated noise", "noise of models", "'noise': "))


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("ascii", "D_2 <= 3, epsilon of 2^20 (theta = 10^-5), ?"),
        ("latin-1", "D_2 <= 3, epsilon of 2²0 (theta = 10^-5), ?"),
        ("utf-8", "D_2 ≤ 3, ε of 2²⁰ (θ = 10⁻⁵), 字"),
    ],
)
def test_signs_that_a_terminal_cannot_show_are_replaced(encoding, shown, monkeypatch):
    stream = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(stream, encoding=encoding))
    adapt_to_terminal()
    say("D_2 ≤ 3, ε of 2²⁰ (θ = 10⁻⁵), 字")
    sys.stdout.flush()
    assert stream.getvalue().decode(encoding) == shown + "\n"


@pytest.mark.parametrize("columns", ["0", "", "1", "wide"])
def test_a_width_that_no_terminal_has_hides_nothing(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "proven, for one coordinate in one round" in rqm("privacy").stdout


def test_a_full_disk_is_described_without_a_number():
    assert describe(OSError(28, "No space left on device")) == ("writing: no space left on device", 1)
