"""The documentation as a site: it builds without a warning, and nothing comes from elsewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("material", reason="the site is built where the extra `docs` is installed")

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"


@pytest.fixture(scope="module")
def hooks() -> Any:
    spec = importlib.util.spec_from_file_location("docs_site_hooks", CONFIG.with_name("hooks.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_every_page(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", CONFIG, "-d", tmp_path]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(words, capture_output=True, text=True, env=variables)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs).with_suffix("")) for path in docs.rglob("*.md")}
    made = {str(path.relative_to(tmp_path).with_suffix("")) for path in tmp_path.rglob("*.html")}
    assert made == pages | {"404"}
    start = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert re.search(r'href="?how_to/install\.html', start)


def test_a_page_may_load_nothing_from_elsewhere(hooks: Any) -> None:
    class Page:
        class file:  # as MkDocs spells it
            src_uri = "index.md"

    fine = '<a href="https://a.example/">a</a><link rel="canonical" href="https://b.example/">'
    assert hooks.on_post_page(fine, Page) == fine
    for html in (
        '<script src="https://a.example/x.js"></script>',
        "<img alt=x src=//a.example/x.png>",
        '<link rel="stylesheet" href="https://a.example/x.css">',
        '<link href="https://a.example/f.woff" rel="preload">',
    ):
        with pytest.raises(hooks.PluginError, match=r"a\.example"):
            hooks.on_post_page(html, Page)


def test_links_out_of_the_pages_lead_into_the_repository(hooks: Any) -> None:
    class Page:
        class file:
            src_uri = "how_to/install.md"

    text = "[a](many_devices.md#x) [b](../../README.md#use-it) [c](../../core) [d](absent.py)"
    a, b, c, d = re.findall(r"\(([^)]*)\)", hooks.on_page_markdown(text, Page))
    assert (a, d) == ("many_devices.md#x", "absent.py")
    assert re.fullmatch(r"https://\S+/blob/main/README\.md#use-it", b)
    assert re.fullmatch(r"https://\S+/tree/main/core", c)
