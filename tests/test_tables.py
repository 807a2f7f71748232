"""The tables of the pages: what results say, of rates chosen alike; and a command for every system of the paper."""

import json
import shlex
import tomllib

import pytest
import typer

from rqm import account
from rqm.cli import app
from rqm.config.experiments import find
from rqm.config.sweep import Sweep
from tests.commands import rqm
from tools import claims
from tools.related import rows
from tools.systems import EPSILON, EXPERIMENT, variants_of, written
from tools.tables import PAGES, TABLES, results
from tools.tables import written as page_of
from tools.tuning import GRID, SEEDS, TUNING, chosen, rate_of

KEYS = {  # what the paper's introduction and its related work name, by its bibliography
    "youn2023rqm", "zhu2019deep", "agarwal2018cpsgd", "kairouz2021distributed", "agarwal2021skellam",
    "bonawitz2017practical", "bell2020secure", "chen2022poisson", "alistarh2017qsgd", "reisizadeh2020fedpaq",
    "haddadpour2021federated", "youn2022accelerated", "mcmahan2017learning", "geyer2017differentially",
    "mcmahan2017communication", "chaudhuri2022privacy", "li2019privacy", "gandikota2021vqsgd", "erlingsson2014rappor",
}  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_what_the_results_say(page):
    text = page.read_text()
    assert page_of(text) == text, "python -m tools.tables"


def test_every_table_has_its_place():
    shown = "".join(page.read_text() for page in PAGES)
    assert all(shown.count(f"<!-- table: {name} -->") == 1 for name in TABLES)


def test_a_changed_result_is_noticed(monkeypatch):
    found = results("systems")
    found["one bit"]["ends"][0][1] -= 0.01
    monkeypatch.setattr("tools.tables.results", lambda name: found if name == "systems" else results(name))
    text = PAGES[0].read_text()
    assert page_of(text) != text


@pytest.mark.parametrize(
    ("experiment", "file"),
    [("systems", "systems"), ("local-steps", "methods-free"), ("local-steps-private", "methods-private")],
)
def test_rates_were_chosen_alike_and_are_those_of_the_experiment(experiment, file):
    found, plans = results(file), Sweep.from_toml(find(experiment)).variants
    assert list(found) == list(plans)
    assert not set(TUNING) & set(SEEDS)
    grid = {f"{rate_of(step):g}" for step in GRID}
    for name, one in found.items():
        tried = {float(rate): score for rate, score in one["tried"].items()}
        assert grid <= one["tried"].keys(), name
        assert one["rate"] == plans[name].server.rate, name
        assert tried[one["rate"]] == max(tried.values()), name
        assert min(tried) < one["rate"] < max(tried), f"{name}: the best rate lies at an end of the grid"
        assert len(one["ends"]) == len(SEEDS), name
        if "convexity" in one:
            assert one["convexity"] == plans[name].client.convexity or plans[name].client.work != "fedaq"


def test_all_systems_have_one_epsilon_and_some_one_bits():
    found = results("systems")
    for name, one in found.items():
        assert one["epsilon"] is None or 0.98 * EPSILON <= one["epsilon"] <= EPSILON, name
        assert ("as many" not in name) or one["bits"] <= found["one bit"]["bits"], name
    plan = Sweep.from_toml(find("systems"), first=True).variants["one bit"]
    assert account(plan).epsilon == pytest.approx(found["one bit"]["epsilon"], rel=1e-6)
    private = results("methods-private")
    assert all(0.98 * 8 <= one["epsilon"] <= 8 for one in private.values())
    assert private["FedAQ, as many bits"]["bits"] == pytest.approx(private["FedPAQ"]["bits"])


def test_the_experiment_is_what_the_tool_writes():
    text = find(EXPERIMENT).read_text()
    rates = {name: one["rate"] for name, one in results("systems").items()}
    assert written(variants_of(tomllib.loads(text)), rates) == text


def test_a_grid_is_widened_until_the_best_is_inside():
    seen = []

    def score(rate, seed):
        seen.append(seed)
        return -abs(rate - 30)

    rate, tried = chosen(score)
    assert rate == 32
    assert max(map(float, tried)) == 100
    assert set(seen) == set(TUNING)
    assert chosen(lambda rate, seed: float("nan") if rate > 0.5 else rate)[0] == 0.32


def test_every_system_of_the_paper_has_a_row():
    assert {row.key for row in rows()} == KEYS
    assert len(rows()) == len(KEYS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.key)
def test_its_command_is_known(row):
    """All options are there, with values of their kind; nothing is run."""
    command = typer.main.get_command(app)
    words = shlex.split(row.command)[1:]
    while hasattr(command, "commands"):
        command, words = command.get_command(None, words[0]), words[1:]
    command.make_context("rqm", words)
    with pytest.raises(Exception, match="No such option"):
        command.make_context("rqm", [*words, "--nothing-of-the-kind"])


@pytest.mark.slow
@pytest.mark.parametrize("row", rows(), ids=lambda row: row.key)
def test_its_command_runs(row, tmp_path):
    done = rqm(*shlex.split(row.command)[1:], folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_a_claim_holds_fails_or_is_open_by_what_is_attained_and_certified():
    pbm = {"attained": [0.5], "certified": [0.52]}
    said = {(0.3, 0.5): "less", (0.53, 0.6): "more", (0.5, 0.51): "open", (0.52, 0.52): "open"}
    for (low, high), word in said.items():
        assert claims.verdict({"attained": [low], "certified": [high]}, pbm, 0) == word


def test_claims_of_one_client_are_what_the_file_has():
    found = results("claims")
    assert len(found["claims"]) == 18
    for one in found["claims"][:3]:
        again = claims.claim((one["theta"], one["margin"], one["keep"], 1))
        assert again["rqm"]["certified"] == pytest.approx(one["rqm"]["certified"], rel=1e-9)
        assert again["variance"]["equal"] == pytest.approx(again["variance"]["rqm"], rel=1e-12)
    for one in found["claims"]:
        assert all(low <= high for low, high in zip(one["rqm"]["attained"], one["rqm"]["certified"], strict=True))
    for one in found["theorem"]:
        assert one["at_ends"] <= one["exact"] <= one["bound"]


def test_results_are_whole():
    for name in ("systems", "methods-free", "methods-private", "claims"):
        assert "NaN" not in json.dumps(results(name))
