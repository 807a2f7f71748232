"""What mkdocs needs for this repository: links that leave docs/, and docstrings whose examples are doctests.

A file of ``results/`` that a page links to is copied into the site. Any other link out of ``docs/`` (to the source,
say) leads somewhere in the repository only, and becomes text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)\)")
DOCTEST = re.compile(r"(?:^>>> .*\n?)(?:^(?!\s*$).*\n?)*", flags=re.MULTILINE)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page that leave docs/."""
    root, folder = Path(config.docs_dir).parent, posixpath.dirname(page.file.src_uri)

    def rewritten(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path = posixpath.normpath(posixpath.join("docs", folder, target))  # from the repository's root
        if path.startswith("docs/"):
            return match[0]
        if path.startswith("results/"):
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(root / path)))
            return f"{mark}[{text}]({posixpath.relpath(path, folder or '.')})"
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return LINK.sub(rewritten, markdown)


class Doctests(griffe.Extension):
    """Show the examples of a docstring as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Put fences around them."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", obj.docstring.value)
