"""The command line as its users meet it."""

import io
import json
import re
import sys
from math import inf

import pytest
import typer

from rqm.__main__ import main as begin
from rqm.cli import app
from rqm.cli.errors import told
from rqm.cli.words import say, speak_plainly
from tests.cli.test_cases import PLAN
from tests.commands import process, rqm


def test_privacy_json_contract():
    result = rqm("privacy", "--margin", "1.0", "--keep", "0.42", "--levels", "16", "--alpha", "10", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["mechanism"] == {"mechanism": "rqm", "clip": 1.0, "margin": 1.0, "levels": 16, "keep": 0.42}
    assert (facts["alpha"], facts["clients"], facts["neighboring"]) == (10, 1, "replace-one")
    assert facts["lower"] == facts["upper"] == pytest.approx(5.36840, abs=5.1e-6)
    assert abs(facts["worst"]["x"]) == pytest.approx(0.9333, abs=1e-4)
    assert facts["theorem_bound"] == pytest.approx(9.01247, abs=1e-5)
    assert facts["variance_max"] == pytest.approx(0.2435, abs=1e-4)
    assert facts["bits"] == 4
    assert facts["certified"] is True


def test_privacy_of_a_sum_in_words_and_as_json():
    asked = ("privacy", "--mechanism", "pbm", "--theta", "0.25", "--clients", "40", "--alpha", "2")
    facts = json.loads(rqm(*asked, "--json").stdout)
    assert facts["upper"] == pytest.approx(0.51753, abs=5.1e-6)
    assert sum(group["clients"] for group in facts["worst"]["others"]) == 39
    assert "theorem_bound" not in facts
    words = rqm(*asked).stdout
    assert "0.517531" in words
    assert "certified for all inputs" in words
    assert "Per coordinate" in words


def test_the_papers_assignment_is_not_called_a_guarantee():
    asked = ("privacy", "--clients", "40", "--others", "random", "--seed", "3")
    assert "not a guarantee" in rqm(*asked).stdout
    facts = json.loads(rqm(*asked, "--json").stdout)
    assert facts["certified"] is False


def test_infinity_goes_in_and_out():
    facts = json.loads(rqm("privacy", "--alpha", "inf", "--json").stdout)
    assert facts["alpha"] == "inf"
    facts = json.loads(rqm("privacy", "--mechanism", "rounding", "--levels", "4", "--json").stdout)
    assert facts["lower"] == facts["upper"] == "inf"


def test_one_keep_for_each_level():
    facts = json.loads(rqm("privacy", "--levels", "4", "--keep", "0.25,0.5", "--json").stdout)
    assert facts["mechanism"]["keep"] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--levels", "1"), "--levels 1: must be a whole number from 2 to 1024"),
        (("--keep", "1.5"), "--keep 1.5: must be strictly between 0 and 1"),
        (("--keep", "0"), "--keep 0.0: must be strictly between 0 and 1"),
        (("--keep", "a,b"), "--keep a,b: must be a number"),
        (("--margin", "0"), "--margin 0.0: must be a positive finite number"),
        (("--margin", "nan"), "--margin nan: must be a positive finite number"),
        (("--mechanism", "pbm", "--theta", "0.5"), "--theta 0.5: must be strictly between 0 and 1/2"),
        (("--alpha", "0.5"), "--alpha 0.5: must be at least 1"),
        (("--alpha", "1e308"), "--alpha 1e+308: must be at least 1 (the KL divergence) and at most 1e12, or inf"),
        (("--alpha", "1e308", "--clients", "3"), "--alpha 1e+308"),
        (("--alpha", "nan"), "--alpha nan: must be"),
        (("--mechanism", "skellam", "--scale", "1e308"), "--scale 1e+308: must be from 1e-100 to 1e+6"),
        (("--clients", "9" * 5000), "--clients"),
        (("--clients", "0"), "--clients 0: must be a whole number ≥ 1"),
        (("--levels", "many"), "'--levels': 'many' is not a valid int"),
        (("--mechanism", "gauss"), "--mechanism gauss: must be one of rqm, pbm"),
        (("--theta", "0.2"), "--theta 0.2: must not be given with --mechanism rqm"),
        (("--colour", "red"), "--colour"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_two(args, words):
    result = rqm("privacy", *args)
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_figures_by_name(tmp_path):
    result = rqm("figures", "laws", "--out", str(tmp_path / "deep" / "folder"))
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "deep" / "folder").iterdir()) == ["laws.csv", "laws.png"]
    assert result.stdout.split() == [str(tmp_path / "deep" / "folder" / name) for name in ("laws.png", "laws.csv")]


def test_unknown_figures_and_benchmarks_are_named():
    for command in ("figures", "bench"):
        result = rqm(command, "nope")
        assert result.returncode == 2
        assert "nope" in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_an_unwritable_folder_is_an_error_without_a_traceback(tmp_path):
    (tmp_path / "file").write_text("in the way")
    result = rqm("figures", "laws", "--out", str(tmp_path / "file"))
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert (tmp_path / "file").read_text() == "in the way"


def test_benchmarks_are_found_in_a_clone_only(monkeypatch, tmp_path):
    from rqm.cli import bench

    monkeypatch.setattr(bench, "ROOT", tmp_path)
    done = rqm("bench", "encode")
    assert done.returncode == 2
    assert done.stderr == "rqm: benchmarks come with the source; run it in a clone of the repository (make setup)\n"


def test_bench_json_contract():
    facts = json.loads(rqm("bench", "divergence", "--json").stdout)
    assert facts["name"] == "divergence"
    assert facts["machine"]
    assert all(ratio > 0 for ratio in facts["ratios"].values())


def test_help_and_version_answer_without_the_heavy_parts():
    assert rqm("--version").stdout.startswith("rqm ")
    for args in ((), ("privacy",), ("figures",), ("bench",)):
        result = rqm(*args, "--help")
        assert result.returncode == 0
        assert "rqm" in result.stdout
    probe = (
        "import sys, rqm.cli; print([m for m in ('numba', 'scipy', 'matplotlib', 'torch', 'flwr') if m in sys.modules])"
    )
    loaded = process("-c", probe).stdout
    assert loaded.strip() == "[]"


ACCOUNT_KEYS = {
    *("epsilon", "delta", "mu", "neighboring", "unit", "adversary", "assumptions", "max_participations", "certified"),
    *("rounds", "clients", "population", "dim", "per_coordinate", "noise_std_over_gaussian", "bits_per_coordinate"),
    *("bits_under_secagg", "wire_bits_per_parameter", "correlated_noise_ratio", "accountant"),
}


def test_account_says_what_a_run_guarantees(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(
        """
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
    )
    done = rqm("account", str(plan), "--json")
    assert done.returncode == 0, done.stderr
    runs = {run["name"]: run for run in json.loads(done.stdout)["runs"]}
    assert list(runs) == ["1 bit", "float"]
    one = runs["1 bit"]
    assert one.keys() >= ACCOUNT_KEYS
    assert (one["max_participations"], one["rounds"], one["clients"], one["population"]) == (1, 10, 100, 5000)
    assert (one["adversary"], one["neighboring"], one["unit"]) == ("server", "replace-one", "user")
    assert [entry["assumption"] for entry in one["assumptions"]] == [
        *("SecureSum", "HonestClients", "MaxParticipations", "NothingElseReleased")
    ]
    assert 0 < one["epsilon"] < 20
    assert one["delta"] == 1e-5
    assert runs["float"]["epsilon"] is None
    said = rqm("account", str(plan), "--honest-clients", "80", "--neighboring", "zero-out")
    assert "at least 80 of the 100 clients of every round are honest" in said.stdout
    assert "user-level (zero-out)" in said.stdout
    assert "no noise, no privacy" in said.stdout
    bad = rqm("account", str(plan), "--delta", "2")
    assert bad.returncode == 2
    assert bad.stderr.startswith("rqm: --delta 2")
    useless = rqm("account", str(plan), "--set", "max_participations=10", "--set", "transforms.l2_clip=50.0")
    assert "no meaningful protection" in useless.stdout


@pytest.mark.slow
def test_advice_in_json_and_in_words():
    done = rqm("advise", "--clients", "1", "--dim", "1", "--epsilon", "5.4699", "--levels", "16", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["request"]["epsilon"] == 5.4699
    best = found["candidates"][0]
    assert {"mechanism", "epsilon", "mse", "bits_per_coordinate", "bits_under_secagg"} <= best.keys()
    assert {"wire_bits_per_parameter", "reason"} <= best.keys()
    assert best["mse"] <= 0.0480
    assert best["epsilon"] <= 5.4699
    words = rqm(
        *("advise", "--clients", "200", "--dim", "4096", "--epsilon", "4"),
        *("--honest-clients", "160", "--population", "9999"),
    )
    assert "1 bit" in words.stdout
    assert "Certified for every user" in words.stdout
    bad = rqm("advise", "--clients", "40", "--epsilon", "3", "--honest-clients", "1")
    assert bad.returncode == 2
    assert bad.stderr.count("\n") == 1


@pytest.mark.slow
def test_correlated_noise_is_among_the_advice():
    chain = rqm(
        *("advise", "--clients", "100", "--dim", "4096", "--epsilon", "4"), *("--rounds", "12", "--min-separation", "4")
    )
    assert "noise that cancels" in chain.stdout
    assert "noise of models" in chain.stdout
    assert "'noise': " in chain.stdout


def leaves(command, path=()):
    for name in command.commands:
        inner = command.get_command(None, name)
        yield from leaves(inner, (*path, name)) if hasattr(inner, "commands") else [((*path, name), inner)]


def test_every_command_teaches_by_an_example_of_itself():
    found = dict(leaves(typer.main.get_command(app)))
    assert {("report",), ("explore",), ("doctor",), ("audit", "mutants")} <= found.keys()
    for path, command in found.items():
        assert f"rqm {' '.join(path)}" in command.help, path


def test_colours_are_off_when_piped():
    done = rqm("doctor")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "encoder" in done.stdout


@pytest.mark.parametrize(
    ("encoding", "seen"),
    [
        ("ascii", "D_2 <= 3, epsilon of 2^20 (theta = 10^-5), ?"),
        ("latin-1", "D_2 <= 3, epsilon of 2²0 (theta = 10^-5), ?"),
        ("utf-8", "D_2 ≤ 3, ε of 2²⁰ (θ = 10⁻⁵), 字"),
    ],
)
def test_a_terminal_that_knows_few_signs_is_told_the_same_in_others(encoding, seen, monkeypatch):
    held = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(held, encoding=encoding))
    speak_plainly()
    say("D_2 ≤ 3, ε of 2²⁰ (θ = 10⁻⁵), 字")
    sys.stdout.flush()
    assert held.getvalue().decode(encoding) == seen + "\n"


@pytest.mark.parametrize("columns", ["0", "", "1", "wide"])
def test_a_width_that_no_terminal_has_hides_nothing(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    assert "proven, for one coordinate in one round" in rqm("privacy").stdout


def test_a_full_disk_is_said_without_a_number():
    assert (
        told(OSError(28, "No space left on device"), typer.main.get_command(app), [])[0]
        == "writing: no space left on device"
    )


def test_who_stops_a_command_is_told_so(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("rqm.cli.doctor.examine", stopped)
    done = rqm("doctor")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rqm: stopped by the user\n")
    monkeypatch.setattr("rqm.cli.main", stopped)  # while it is being loaded
    with pytest.raises(SystemExit) as end:
        begin()
    assert end.value.code == 130
    assert capsys.readouterr().err == "rqm: stopped by the user\n"


def test_advice_for_records_names_who_knows():
    said = rqm("advise", "--unit", "record", "--clients", "4", "--epsilon", "3")
    assert said.returncode == 2
    assert "unit record: must be user; for records of silos rqm.calibrate_records" in said.stderr


def test_account_answers_for_the_adversary_of_the_plan():
    for name, adversary in (("user-level-outsider", "outsider"), ("user-level-server", "server")):
        runs = json.loads(rqm("account", name, "--json").stdout)["runs"]
        private = [run for run in runs if run["epsilon"] is not None]
        assert len(private) >= 3
        assert {run["adversary"] for run in private} == {adversary}, name


@pytest.mark.parametrize("name", ["demo", "user-level", "user-level-outsider", "user-level-server", "silos", "audit"])
def test_no_shipped_plan_exceeds_the_epsilon_that_it_is_named_for(name):
    for run in json.loads(rqm("account", name, "--json").stdout)["runs"]:
        named = re.search(r"ε=([\d.]+)", run["name"])
        most = float(named[1]) if named else 8 if name == "demo" else inf
        assert run["epsilon"] is None or run["epsilon"] <= most, run["name"]


def test_several_runs_together_are_composed(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    together = json.loads(rqm("account", plan, plan, "--json").stdout)
    one = json.loads(rqm("account", plan, "--json").stdout)
    assert together["name"] == "all runs together"
    assert [run["epsilon"] for run in together["runs"]] == [one["epsilon"]] * 2
    assert together["mu"] == pytest.approx(one["mu"] * 2**0.5)
    assert together.keys() >= ACCOUNT_KEYS
    assert "all runs together: ε = " in rqm("account", plan, plan).stdout
