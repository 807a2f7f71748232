"""The documentation's site in a browser: search from a file, code that wraps, and pages that everybody can read.

``axe`` (from axe-playwright-python) looks at every page, in light and in dark colours; without it those tests skip.
"""

import importlib.util
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import chromium, until
from tests.commands import process
from tests.test_documents import DOCS, ENVIRONMENT, ROOT

SOME = ("index", "explorer", "reference/verify", "notebooks/one-number")
LOOK = """async () => (await axe.run(document, { resultTypes: ['violations'] })).violations
  .flatMap((one) => one.nodes.map((node) => `${one.id}: ${node.html.slice(0, 150)}`))"""


class Html(HTMLParser):
    """What a page of the site loads, links to, and can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.links, self.ids = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.update(filter(None, (found.get("id"), found.get("name") if tag == "a" else None)))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        elif tag == "link" and found.get("href") and found.get("rel") != "canonical":
            self.loads.append(found["href"])
        elif found.get("src"):
            self.loads.append(found["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for needed in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(needed, reason="the site needs pip install 'rqm[docs]'")
    place = tmp_path_factory.mktemp("site")
    done = process("-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", place, cwd=ROOT, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def browser():
    with chromium() as watched:
        yield watched


@pytest.fixture(scope="module")
def axe():
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.skip("needs axe-playwright-python (pip install 'rqm[dev]')")
    return (Path(found.origin).parent / "axe.min.js").read_text()


def complaints(browser, axe, page, scheme):
    opened = browser.open(page.as_uri(), color_scheme=scheme, viewport={"width": 1280, "height": 900})
    opened.evaluate(axe)
    found = opened.evaluate(LOOK)
    opened.context.close()
    return found


def test_it_is_whole_and_loads_nothing_from_elsewhere(site):
    pages = {path: Html(path.read_text()) for path in site.rglob("*.html")}
    assert len(pages) > len(DOCS)
    for path, page in pages.items():
        for target in (*page.loads, *page.links):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                assert parts.scheme == "data" or target not in page.loads, f"{path.name} loads {target}"
                continue
            if path.name == "404.html":
                continue  # its links begin at the root of whatever serves it
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert there.is_file(), f"{path.relative_to(site)} leads to {target}"
            if parts.fragment and there in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[there].ids, f"{path.relative_to(site)} leads to {target}"


def test_search_answers_from_a_file(site, browser):
    browser.errors.clear()  # axe reads style sheets again, which a file may not
    page = browser.open((site / "tutorials" / "private-mean.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.type("noise that cancels", delay=5)
    until(page, "document.querySelectorAll('.md-search-result__link').length > 3")
    links = page.evaluate("[...document.querySelectorAll('.md-search-result__link')].map((one) => one.href)")
    assert any("/cancel.html" in link for link in links)
    assert all(link.startswith(site.as_uri()) for link in links)
    page.keyboard.press("Control+a")
    page.keyboard.type("zzzzqqq", delay=5)
    until(page, "document.querySelector('.md-search-result__meta').textContent.includes('No matching')")
    browser.assert_clean()


def test_code_wraps_on_a_phone(site, browser):
    for name in ("cli", "quickstart", "how-to/choose-epsilon"):
        page = browser.open((site / f"{name}.html").as_uri(), viewport={"width": 390, "height": 844})
        wide = (
            "[...document.querySelectorAll('pre > code')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
        )
        assert page.evaluate(wide) == 0, name
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        page.context.close()


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_nothing_on_pages_of_every_kind(site, browser, axe, scheme):
    for name in SOME:
        assert complaints(browser, axe, site / f"{name}.html", scheme) == [], name


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_any_page(site, browser, axe, scheme):
    pages = [path for path in sorted(site.rglob("*.html")) if path.name != "404.html"]
    assert len(pages) > 60
    found = {path.name: told for path in pages if (told := complaints(browser, axe, path, scheme))}
    assert found == {}


def test_axe_would_complain(browser, axe, tmp_path):
    bad = (
        "<html lang=en><title>x</title><main><h1>x</h1><p style='color:#999;background:#aaa'>grey</p><img src='data:,'>"
    )
    (tmp_path / "bad.html").write_text(bad)
    told = " ".join(complaints(browser, axe, tmp_path / "bad.html", "light"))
    assert "color-contrast" in told
    assert "image-alt" in told
