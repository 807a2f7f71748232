"""What mkdocs needs for this repository: links that leave docs/, notebooks, search from a file, doctests as code.

A file of ``results/`` that a page links to is copied into the site. Any other link out of ``docs/`` (to the source,
say) leads somewhere in the repository only, and becomes text. A notebook is shown as a page, with its outputs.
"""

import json
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


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for every notebook."""
    for path in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=of_notebook(path)))
    return files


def of_notebook(path: Path) -> str:
    """A notebook as Markdown: its text, its code, and what that printed when it was last run."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            said = output.get("text") or output["data"].get("text/plain", [])
            picture = output.get("data", {}).get("image/png")
            words = output.get("data", {}).get("text/alt", ["A figure"])
            parts.append(
                f"![{''.join(words)}](data:image/png;base64,{picture})" if picture else _printed("".join(said))
            )
        if cell["cell_type"] == "markdown" and len(parts) == 1:
            parts.append(f"*This page is a notebook: [{path.name}]({path.name}).*")
    return "\n\n".join(parts) + "\n"


def _printed(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def on_page_content(html: str, **_: Any) -> str:
    """Corners of tables are no headings of anything."""
    return re.sub(r"<th([^>]*)></th>", r"<td\1></td>", html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search for those who hear it."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the search index once more, as a script: a page that is opened from the disk can load no other."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    path.with_suffix(".js").write_text(f"var __index = {path.read_text()}")


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
