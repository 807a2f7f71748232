"""The explorer: one self-contained page that shows what a mechanism does and what it leaks, as its parameters move.

The page computes laws, variances and the privacy of few clients by itself (``law.js``). What takes longer is looked up
in ``grid.json``, which was computed with ``rqm.renyi``.
"""

from importlib import resources


def build() -> str:
    """Return the page as one string of HTML: style, scripts and precomputed values inside.

    >>> build().startswith("<!doctype html>")
    True
    """
    page = _part("page.html")
    for slot, name in (("style", "style.css"), ("law", "law.js"), ("page", "page.js"), ("grid", "grid.json")):
        page = page.replace(f"/*{{{slot}}}*/", _part(name).strip())
    return page


def _part(name: str) -> str:
    return resources.files(__name__).joinpath(name).read_text(encoding="utf-8")
