"""A real browser for tests of pages: Chromium through Playwright, watched for errors and for any use of a network."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LOCAL = ("file:", "data:", "blob:", "about:")


@dataclass
class Watched:
    """Open pages of one browser, and what went wrong in any of them."""

    browser: Any
    errors: list[str] = field(default_factory=list)  # console errors and uncaught exceptions
    requests: list[str] = field(default_factory=list)  # addresses outside the page

    def open(self, address: str, script: str = "", **context: Any) -> Any:
        """Open an address in a fresh context (``viewport``, ``color_scheme``, … as Playwright names them).

        ``script`` runs before the page's own.
        """
        page = self.browser.new_context(**context).new_page()
        page.add_init_script(script)
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request.url))
        page.on("websocket", lambda socket: self.requests.append(socket.url))
        page.goto(address)
        return page

    def close_pages(self) -> None:
        """Close all pages, so that nothing in them goes on running."""
        for context in self.browser.contexts:
            context.close()

    def _note(self, address: str) -> None:
        if not address.startswith(LOCAL):
            self.requests.append(address)

    def assert_clean(self) -> None:
        """Fail if a page logged an error, threw, or asked for anything outside of itself."""
        assert not self.errors, self.errors
        assert not self.requests, self.requests


def until(page: Any, expression: str, seconds: float = 30) -> None:
    """Wait until a JavaScript expression is true. Unlike Playwright's own it needs no ``eval`` in the page."""
    for _ in range(int(50 * seconds)):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"not within {seconds} s: {expression}")


@contextmanager
def chromium() -> Iterator[Watched]:
    """Start the system's Chromium, without a window; skip the test, saying why, where there is none.

    One for a module is enough: ``with chromium() as watched: yield watched``, and ``close_pages`` after each test.
    """
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"browser tests need Chromium: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, headless=True, args=["--no-sandbox"])
        try:
            yield Watched(browser)
        finally:
            browser.close()
