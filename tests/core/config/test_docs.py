"""docs/reference/flags.md is what the dataclasses say."""

from __future__ import annotations

from pathlib import Path

from dovetail.config.docs import flags_page, main
from dovetail.config.engine import flags

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "flags.md"


def test_every_flag_has_an_entry() -> None:
    headings = [line for line in flags_page().splitlines() if line.startswith("### ")]
    assert len(headings) == len(flags())
    for flag in flags().values():
        assert any(flag.spelling in heading for heading in headings)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == flags_page()
    assert main(["--check"]) == 0
