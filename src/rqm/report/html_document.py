"""Self-contained HTML documents in light and dark colors."""

from html import escape
from pathlib import Path

from rqm import __version__

_THEME_SCRIPT = """
const themeButton = document.getElementById('theme');
const setTheme = (isDark) => {
  document.documentElement.dataset.theme = isDark ? 'dark' : 'light';
  themeButton.textContent = isDark ? 'Light' : 'Dark';
};
setTheme(matchMedia('(prefers-color-scheme: dark)').matches);
themeButton.onclick = () => setTheme(document.documentElement.dataset.theme !== 'dark');
"""


def html_document(title: str, body: str, script: str = "") -> str:
    """Build an HTML document that loads nothing and sends nothing.

    Args:
        title: The title, as plain text.
        body: HTML below the title.
        script: JavaScript that runs when the document is loaded.

    Returns:
        The document.
    """
    style = Path(__file__).with_name("style.css").read_text("utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)} · rqm</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header><h1>{escape(title)}</h1><button type="button" id="theme">Dark</button></header>
<main>
{body}
</main>
<footer><small>Written by rqm {__version__}. This file loads nothing and sends nothing.</small></footer>
<script>{_THEME_SCRIPT}{script}</script>
</body>
</html>
"""


def html_section(title: str, *content: str, css_class: str = "") -> str:
    """A section of a document.

    Args:
        title: The heading, as plain text.
        content: HTML below the heading.
        css_class: Class of the element in style.css.

    Returns:
        HTML.
    """
    return f'<section class="{css_class}"><h2>{escape(title)}</h2>{"".join(content)}</section>'


def html_table(rows: list[tuple[str, str]]) -> str:
    """A table of names and values. Names are plain text, values are HTML."""
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{value}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>"
