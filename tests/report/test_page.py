"""Reports of real runs, read as text and in a browser."""

import json
import shutil
import tomllib
from html import unescape

import numpy as np
import pytest

from rqm import account
from rqm.cli.report import write
from rqm.config.experiments import find
from rqm.config.plan import PLAN as PLAN_FILE
from rqm.config.plan import Plan
from rqm.config.sweep import Sweep
from rqm.data import load
from rqm.report.page import build_page, group_runs, to_toml
from rqm.report.run_folder_reader import read_run, read_runs
from rqm.simulation import run_folder
from tests.browser import chromium
from tests.plans import change_plan

PLAN = change_plan(
    next(iter(Sweep.from_toml(find("audit"), first=True).variants.values())),
    clients=5,
    rounds=4,
    evaluate_every=2,
    max_participations=None,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A private run of four rounds, with a ledger."""
    path = tmp_path_factory.mktemp("runs") / "first"
    run_folder.carry_out(PLAN, load("glyphs"), path)
    return path


@pytest.fixture(scope="module")
def page(folder):
    return write([folder])


@pytest.fixture(scope="module")
def browser():
    with chromium() as watched:
        yield watched


def test_a_report_has_the_guarantee_its_assumptions_and_the_ledger(folder, page):
    text = page.read_text()
    summary = json.loads((folder / run_folder.SUMMARY).read_text())
    assert f"{summary['accuracy']:.2%}" in text
    guarantee = account(PLAN)
    assert f"ε = {guarantee.epsilon:.4g}, δ = 1e-05" in text.replace("\n", "")
    assert all(assumption.text("user") in unescape(text) for assumption in guarantee.assumptions)
    assert summary["ledger_head"] in text
    for words in ("replace-one", "all 5 clients of every round are honest", "certified", "not private", "Confusion"):
        assert words in text, words
    assert page.stat().st_size < 5e6


def test_the_plan_in_a_report_is_the_plan_of_the_run(folder, page):
    text = page.read_text()
    toml = text.split("<summary>first</summary><pre>")[1].split("</pre>")[0].replace("&quot;", '"')
    assert Plan.from_dict(tomllib.loads(toml)) == change_plan(PLAN, delta=1e-5)


def test_the_confusion_matrix_has_the_accuracy_on_its_diagonal(folder):
    confusion = np.array(read_run(folder).findings["model"]["confusion"])
    summary = json.loads((folder / run_folder.SUMMARY).read_text())
    assert np.diag(confusion).sum() / confusion.sum() == pytest.approx(summary["accuracy"], abs=1e-9)
    labels = load("glyphs").test_labels.numpy()
    assert (np.bincount(labels, minlength=62) == confusion.sum(axis=1)).all()


def test_metrics_have_the_seconds_of_each_part(folder):
    lines = read_run(folder).metrics
    for line in lines:
        assert {"gradients", "clip, rotate, encode", "server"} <= line["parts"].keys()
        assert 0 < sum(line["parts"].values()) <= line["seconds"] * 1.001


def test_a_report_loads_nothing_and_fits_a_phone(browser, page):
    for width in (1200, 390):
        for scheme in ("light", "dark"):
            opened = browser.open(page.as_uri(), viewport={"width": width, "height": 800}, color_scheme=scheme)
            assert opened.evaluate("document.documentElement.scrollWidth") <= width
            assert opened.evaluate("document.documentElement.dataset.theme") == scheme
            assert opened.locator("svg[role=img]").count() == 4  # trade-off curve, accuracy, loss, pmfs
            assert opened.locator(".samples img").count() >= 20
            assert opened.evaluate("[...document.images].every(i => i.complete && i.naturalWidth > 0)")
            opened.locator("header button").click()
            assert opened.evaluate("document.documentElement.dataset.theme") != scheme
    browser.assert_clean()
    browser.close_pages()


def test_several_runs_are_compared(folder, tmp_path, browser):
    noise_free = tmp_path / "sweep" / "noise-free" / "seed-0"
    plan = Sweep.from_toml(find("audit"), ["clients=5", "rounds=4", "evaluate_every=2"]).variants["noise-free"]
    run_folder.carry_out(plan, load("glyphs"), noise_free)
    text = build_page([folder, tmp_path / "sweep"])
    assert "Runs compared" in text
    assert "there is no differential privacy at all" in text
    (tmp_path / "both.html").write_text(text)
    opened = browser.open((tmp_path / "both.html").as_uri())
    assert opened.locator("svg[role=img]").count() == 3  # accuracy, loss, and the trade-off curve of the private run
    assert opened.locator("tr td:first-child").nth(1).inner_text() == "first"
    browser.assert_clean()
    browser.close_pages()


def test_runs_are_grouped_by_plan_not_by_name(folder, tmp_path):
    """Two folders of one name: the noise-free run must not borrow the other's ε."""
    private, noise_free = tmp_path / "a" / "0", tmp_path / "b" / "0"
    shutil.copytree(folder, private)
    shutil.copytree(folder, noise_free)
    plan = json.loads((noise_free / PLAN_FILE).read_text()) | {"mechanism": {"mechanism": "noiseless", "clip": 1.0}}
    (noise_free / PLAN_FILE).write_text(json.dumps(plan))
    text = build_page([private, noise_free])
    assert "<td>0</td>" in text
    assert "<td>0 (2)</td>" in text
    assert "there is no differential privacy at all" in text
    seeds = tmp_path / "seeds"
    for seed in (0, 1):
        shutil.copytree(folder, seeds / "v" / f"seed-{seed}")
        (seeds / "v" / f"seed-{seed}" / PLAN_FILE).write_text(json.dumps(PLAN.to_dict() | {"seed": seed}))
    assert {name: len(group) for name, group in group_runs(read_runs([seeds])).items()} == {"v": 2}


def test_an_unfinished_run_with_cut_off_metrics_is_reported(folder, tmp_path):
    copy = tmp_path / "cut"
    shutil.copytree(folder, copy)
    (copy / run_folder.SUMMARY).unlink()
    (copy / "checkpoint.safetensors").unlink()
    lines = (copy / run_folder.METRICS).read_text().splitlines()
    (copy / run_folder.METRICS).write_text("\n".join([*lines[:2], lines[2][:20]]))
    text = build_page([copy])
    assert "2 of 4, unfinished" in text
    assert "there is no checkpoint" in text


def test_names_in_a_plan_cannot_inject_markup(folder, tmp_path):
    copy = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(folder, copy)
    text = build_page([copy])
    assert "<img src=x" not in text


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"RUN_DIR = .*nothing: holds no run"):
        build_page([tmp_path / "nothing"])
    (tmp_path / PLAN_FILE).write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        read_runs([tmp_path])


def test_to_toml_is_read_back():
    values = {"a": 1, "b": 'x"y', "c": [0.5, 2], "none": None, "table": {"d": True, "e": None}}
    assert tomllib.loads(to_toml(values)) == {"a": 1, "b": 'x"y', "c": [0.5, 2], "table": {"d": True}}
