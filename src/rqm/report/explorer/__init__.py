"""The explorer: one self-contained page that shows what a mechanism does and what it leaks, as its parameters move.

The page computes by itself: the noise that a user's (ε, δ) takes (``user.js``); laws, variances and the privacy of few
clients (``law.js``). What takes longer is looked up in ``grid.json``, which was computed with ``rqm.renyi``.
"""

from importlib import resources

PARTS = {
    "style": "style.css",
    "law": "law.js",
    "user": "user.js",
    "user-page": "user-page.js",
    "page": "page.js",
    "grid": "grid.json",
}
"""What is put into the page, by its place there."""


def build() -> str:
    """Return the page as one string of HTML: style, scripts and precomputed values inside.

    >>> build().startswith("<!doctype html>")
    True
    """
    page = _part("page.html")
    for slot, name in PARTS.items():
        page = page.replace(f"/*{{{slot}}}*/", _part(name).strip())
    return page


def _part(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
