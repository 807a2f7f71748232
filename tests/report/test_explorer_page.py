"""The explorer in a browser: what it shows, how it moves, where it fits."""

import json
from math import inf
from pathlib import Path

import numpy as np
import pytest

from rqm import PBM, RQM, StochasticRounding, renyi
from rqm.related.randomized_response import RandomizedResponse
from tests.browser import until

ROOT = Path(__file__).parents[2]
KINDS = {one.kind: one for one in (RQM, PBM, StochasticRounding, RandomizedResponse)}
GRID = json.loads((ROOT / "src/rqm/report/explorer/grid.json").read_text())

# -- without a browser ----------------------------------------------------------------------------

PLOTS = ("law", "orders", "clients", "variance", "families")


def settle(page):
    until(page, "document.body.dataset.busy === 'false'")


def pictures(page):
    return {name: page.inner_html(f"#plot-{name} svg") for name in PLOTS}


def readings(page):
    """Everything that the page shows as text, and the controls."""
    values = "[...document.querySelectorAll('#sliders .control:not([hidden]) input')].map((one) => one.value)"
    return [page.inner_text("#numbers-card"), page.input_value("#mechanism"), page.evaluate(values)]


def number(page, what):
    return float(page.get_attribute(f"#{what}", "data-value").replace("Infinity", "inf"))


def test_page_opens_with_the_papers_setting_precomputed(browser, address):
    page = browser.open(address)
    settle(page)
    entry = GRID["settings"][0]["bounds"]["40"][1]
    assert [number(page, "lower"), number(page, "upper")] == entry[:2]
    assert "precomputed at RQM m=16, Δ=1, q=0.42, n=40, α=2" in page.inner_text("#upper-by")
    assert "per coordinate, one round, one client replaced" in page.inner_text("#unit")
    assert [page.inner_text("#lower"), page.inner_text("#upper")] == ["0.5027", "0.5248"]
    assert number(page, "row-theorem td") == pytest.approx(RQM().theorem_bound)
    assert all("path" in picture or "rect" in picture for picture in pictures(page).values())
    browser.assert_clean()


@pytest.mark.slow
def test_off_the_grid_says_so(browser, address):
    page = browser.open(f"{address}#levels=10&margin=0.9&keep=0.5&n=25&alpha=3")
    settle(page)
    assert "found by a search" in page.inner_text("#lower-by")
    assert "more clients never leak more" in page.inner_text("#upper-by")
    assert "the current setting is not on the grid" in page.inner_text("#row-nearest")
    assert "precomputed at RQM m=16, Δ=1, q=0.55, n=20, α=4" in page.inner_text("#row-nearest")
    bound = renyi(RQM(margin=0.9, levels=10, keep=0.5), 3, 25)
    assert number(page, "lower") <= bound.upper
    assert number(page, "upper") >= bound.lower
    local = renyi(RQM(margin=0.9, levels=10, keep=0.5), 3)
    assert number(page, "row-local td") == pytest.approx(local.upper, rel=1e-9)


@pytest.mark.slow
def test_works_without_a_worker(browser, address):
    link = f"{address}#levels=5&n=6&alpha=3"
    pages = [browser.open(link), browser.open(link, script="delete window.Worker")]
    for page in pages:
        settle(page)
    assert readings(pages[0]) == readings(pages[1])
    assert pictures(pages[0]) == pictures(pages[1])


@pytest.mark.slow
def test_keyboard_moves_plots_and_numbers(browser, address):
    page = browser.open(f"{address}#n=1&levels=6")
    settle(page)
    for name, changed in (
        ("keep", PLOTS),
        ("n", ("orders", "families")),
        ("alpha", ("clients", "families")),
        ("x", ("law",)),
    ):
        before, told = pictures(page), readings(page)
        page.focus(f"#{name}")
        page.keyboard.press("ArrowRight")
        settle(page)
        after = pictures(page)
        assert all(before[plot] != after[plot] for plot in changed), name
        assert readings(page) != told
    assert number(page, "lower") == pytest.approx(renyi(RQM(levels=6, keep=0.43), 2.2, 2).lower, rel=1e-9)


@pytest.mark.slow
def test_a_move_is_drawn_within_a_frame_or_three(browser, address):
    page = browser.open(f"{address}#n=1")
    settle(page)
    spent = page.evaluate("""async () => {
      const times = [], ask = requestAnimationFrame, keep = document.getElementById('keep');
      const note = (start) => times.push(performance.now() - start);
      const timed = (draw) => (t) => { const start = performance.now(); draw(t); note(start); };
      window.requestAnimationFrame = (draw) => ask(timed(draw));
      for (let k = 0; k < 15; k++) {
        keep.value = 0.3 + k / 100;
        keep.dispatchEvent(new Event('input'));
        await new Promise((done) => ask(() => setTimeout(done, 0)));
      }
      return times;
    }""")
    assert min(spent) < 50  # the fastest: other tests share the machine


def test_each_mechanism_shows_its_own_controls(browser, address):
    page = browser.open(f"{address}#n=1")
    common = ["x", "n", "alpha"]
    for kind, own in (
        ("pbm", ["levels", "theta"]),
        ("rounding", ["levels", "margin"]),
        ("randomized-response", ["levels", "epsilon"]),
        ("rqm", ["levels", "margin", "keep"]),
    ):
        page.select_option("#mechanism", kind)
        shown = page.evaluate(
            "[...document.querySelectorAll('.control[data-name]:not([hidden])')].map((c) => c.dataset.name)"
        )
        assert shown == own + common
    page.fill("#levels-value", "5")
    page.press("#levels-value", "Enter")
    page.check("#each")
    page.focus("#keeps input")
    page.keyboard.press("ArrowUp")
    settle(page)
    mech = RQM(levels=5, keep=(0.43, 0.42, 0.43))
    assert number(page, "row-variance td") == pytest.approx(mech.variance_max, rel=1e-9)
    assert number(page, "row-pure td") == pytest.approx(renyi(mech, inf).upper, rel=1e-9)


def test_rounding_inside_the_clip_is_not_private(browser, address):
    page = browser.open(f"{address}#mechanism=rounding&levels=4&margin=1&n=3")
    settle(page)
    assert [number(page, "lower"), number(page, "upper")] == [inf, inf]
    assert "no privacy" in page.inner_text("#upper-by")
    assert "no privacy" in page.get_attribute("#plot-orders svg", "aria-label")


@pytest.mark.slow
def test_permalink_restores_everything(browser, address):
    page = browser.open(address, permissions=["clipboard-read", "clipboard-write"])
    page.click("text=PBM θ=.25")
    for name, text in (("levels", "4"), ("alpha", "inf")):
        page.fill(f"#{name}-value", text)
        page.press(f"#{name}-value", "Enter")
    page.focus("#x")
    page.keyboard.press("ArrowLeft")
    page.focus("#n")
    page.keyboard.press("PageDown")
    page.click("#copy")
    settle(page)
    link = page.url
    assert {"mechanism=pbm", "levels=4", "alpha=inf", "x=0.29"} <= set(link.partition("#")[2].split("&"))
    assert page.evaluate("navigator.clipboard.readText()") == link
    other = browser.open(link)
    settle(other)
    assert readings(other) == readings(page)
    assert pictures(other) == pictures(page)
    other.evaluate("location.hash = '#mechanism=rqm&levels=4&margin=2&keeps=0.3,0.6&n=1'")
    until(other, "document.getElementById('mechanism').value === 'rqm'")
    settle(other)
    assert number(other, "row-variance td") == pytest.approx(RQM(margin=2, levels=4, keep=(0.3, 0.6)).variance_max)
    other.click("#reset")
    settle(other)
    assert other.input_value("#keep-value") == "0.42"


@pytest.mark.parametrize(
    "broken",
    [
        "#%%%&&==&m",
        "#mechanism=__proto__&levels=abc&margin=-5&keep=&n=1e9&alpha=NaN",
        "#levels=2&keeps=,,,",
        "#mechanism=pbm&theta=7&levels=-3&n=0.2&alpha=0&x=99",
        "#mechanism=rounding&margin=0&levels=2&alpha=inf&n=1",
        "#keeps=<b>&x=<script>&n=1&levels=1000",
        "#mechanism=randomized-response&epsilon=1e-9&levels=32&n=1",
    ],
)
def test_a_broken_link_is_mended(browser, address, broken):
    page = browser.open(address + broken)
    until(page, "document.getElementById('lower').dataset.value !== undefined")
    values = page.evaluate("[...document.querySelectorAll('#sliders input.exact')].map((one) => one.value)")
    assert all(value == "∞" or np.isfinite(float(value)) for value in values)
    assert number(page, "lower") >= 0
    told = page.inner_text("#notice") if page.is_visible("#notice") else ""  # what was refused is named as it was given
    assert "NaN" not in page.inner_text("body").replace(told, "")
    browser.assert_clean()


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.mark.slow
def test_dark_by_preference_and_by_toggle(browser, address):
    light = browser.open(f"{address}#n=1", color_scheme="light")
    dark = browser.open(f"{address}#n=1", color_scheme="dark")
    assert background(light) != background(dark)
    light.click("#theme")
    assert background(light) == background(dark)
    assert light.get_attribute("#theme", "aria-pressed") == "true"
    light.emulate_media(color_scheme="dark")
    light.click("#theme")
    assert background(light) != background(dark)


def test_phone_needs_no_sideways_scrolling(browser, address):
    page = browser.open(
        f"{address}#levels=32&keeps={','.join(['0.5'] * 30)}&n=1", viewport={"width": 390, "height": 844}
    )
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    widths = page.evaluate("[...document.querySelectorAll('.card')].map((one) => one.getBoundingClientRect().right)")
    assert max(widths) <= 390


def test_pointing_reads_a_value(browser, address):
    page = browser.open(f"{address}#n=1")
    settle(page)
    for plot in PLOTS:
        page.hover(f"#plot-{plot}")
        assert page.inner_text(f"#plot-{plot} .tip").strip()
    page.hover("h1")
    assert page.is_hidden("#plot-families .tip")
    name = "(one) => one.labels?.length || one.ariaLabel || one.textContent.trim()"
    assert page.evaluate(f"[...document.querySelectorAll('input, select, button')].every({name})")
