"""Generated pages are up to date, and every path the map names exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_reference_is_current(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--out", tmp_path], check=True, cwd=ROOT
    )
    made = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert made
    for name, text in made.items():
        assert kept.get(name) == text, f"docs/reference/{name} is stale: run `make docs`"


def test_every_path_in_the_map_exists() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    paths = re.findall(r"`((?:core|plugins|kernels|contrib|tests|docs|examples)/[^`*{ ]+)`", text)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_relative_links_resolve() -> None:
    broken = []
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("contrib/*/*.md")]:
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in link and not (page.parent / link).exists():
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []
