"""Every link between the repository's pages leads somewhere, to the heading too.

Headings become anchors by the rule of the viewers of repositories, which the site follows too
(`make docs-site` checks its own links once more).
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(
        page
        for folder in ("docs", "contrib", "examples", "benchmarks", "tests")
        for page in (ROOT / folder).rglob("*.md")
        if not {".venv", "node_modules"} & set(page.parts)
    ),
]
LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2`*~* *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?:.+?)\1")


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings; one that comes again gets a number."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(FENCED.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links_of(text: str) -> list[str]:
    """Return the targets of a page's links, those within code left out."""
    return LINK.findall(CODE.sub("", FENCED.sub("", text)))


@cache
def anchors_in(page: Path) -> set[str]:
    return anchors_of(page.read_text(encoding="utf-8"))


def fault_of(page: Path, link: str) -> str | None:
    """Return why a link leads nowhere, or None."""
    if re.match(r"[a-z]+:", link):
        return None
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return "there is no such file"
    if anchor and target.suffix == ".md" and anchor not in anchors_in(target):
        return f"there is no heading {anchor!r}"
    return None


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 60
    found = {
        f"{page.relative_to(ROOT)}: {link}": fault_of(page, link)
        for page in PAGES
        for link in links_of(page.read_text(encoding="utf-8"))
    }
    assert len(found) > 100
    assert {link: fault for link, fault in found.items() if fault} == {}


@pytest.mark.parametrize(
    ("link", "is_right"),
    [
        ("other.md", True),
        ("other.md#the-flag---port", True),
        ("other.md#twice-1", True),
        ("#here", True),
        ("https://example.org/nothing", True),
        ("absent.md", False),
        ("other.md#the-flag", False),
        ("other.md#twice-2", False),
        ("other.md#in-code", False),
    ],
)
def test_the_check_sees_what_is_wrong(tmp_path: Path, link: str, is_right: bool) -> None:
    (tmp_path / "page.md").write_text("# Here\n")
    (tmp_path / "other.md").write_text(
        "## The flag `--port`\n\n## Twice\n\n## Twice\n\n```\n# In code\n```\n"
    )
    assert (fault_of(tmp_path / "page.md", link) is None) == is_right


def test_links_in_code_are_not_links() -> None:
    text = '[a](b.md) `[c](d.md)`\n\n```\n[e](f.md)\n```\n\n[g](h.md#i "title")\n'
    assert links_of(text) == ["b.md", "h.md#i"]
