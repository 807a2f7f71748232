"""The explorer's page, opened in a real browser."""

import pytest

from rqm.report import explorer
from tests.browser import chromium


@pytest.fixture(scope="module")
def started():
    with chromium() as watched:
        yield watched


@pytest.fixture
def browser(started):
    yield started
    started.close_pages()
    started.assert_clean()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("explorer") / "explorer.html"
    path.write_text(explorer.build(), encoding="utf-8")
    return path.as_uri()
