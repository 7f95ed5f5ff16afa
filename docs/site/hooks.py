"""What `make docs-site` adds to MkDocs: the order of pages, links into the repository, one check.

A page links to source files by their paths, which is right where the repository is read; in the
site such a link goes to the file in the repository. `repo_url` is not set, since the theme would
then ask the repository's host for numbers whenever a page is read.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SECTIONS = {
    "Tutorials": "tutorials",
    "How to": "how_to",
    "Explanation": "explanation",
    "Reference": "reference",
    "Decisions": "decisions",
}
LOADED = re.compile(
    r"<(?:script|img|iframe|source|audio|video)\b[^>]*?\bsrc=[\"']?((?:https?:)?//[^\"'\s>]+)"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|preconnect|preload|icon))"
    r"[^>]*?\bhref=[\"']?((?:https?:)?//[^\"'\s>]+)"
)
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)((?:#[^)\s]*)?)\)")


def on_config(config: Any) -> Any:
    """Put the pages into sections: the single ones first, then one section for each folder."""
    single = sorted(path.name for path in DOCS.glob("*.md") if path.name != "index.md")
    folders = [{title: _pages(folder)} for title, folder in SECTIONS.items()]
    config.nav = ["index.md", *folders, {"About": single}]
    return config


def _pages(folder: str) -> list[str]:
    return sorted(str(path.relative_to(DOCS)) for path in (DOCS / folder).glob("*.md"))


def _repository() -> str:
    """Return the address of the repository, from the project's own metadata."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["urls"]["Documentation"]).partition("/tree/")[0]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return a page whose links to what is not a page lead into the repository."""
    folder = (DOCS / page.file.src_uri).parent
    return LINK.sub(lambda link: _outward(link, folder), markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Return the page as it is. Raises: PluginError for one that loads anything from elsewhere"""
    found = LOADED.search(output)
    if found:
        what = found[1] or found[2]
        raise PluginError(f"{page.file.src_uri} loads {what} when it is read.")
    return output


def _outward(link: re.Match[str], folder: Path) -> str:
    """Return a link as it is, or to the repository where its target is no part of the site."""
    target = (folder / link[1]).resolve()
    is_part = target.is_relative_to(DOCS) and target.suffix in (".md", ".json", ".png")
    if is_part or not target.exists() or not target.is_relative_to(ROOT):
        return link[0]  # MkDocs complains of what does not exist
    kind = "tree" if target.is_dir() else "blob"
    return f"]({_repository()}/{kind}/main/{target.relative_to(ROOT)}{link[2]})"
