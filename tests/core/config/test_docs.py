"""The flags page has one entry per flag."""

from __future__ import annotations

from dovetail.config.docs import flags_page
from dovetail.config.engine import flags


def test_every_flag_has_an_entry() -> None:
    headings = [line for line in flags_page().splitlines() if line.startswith("### ")]
    assert len(headings) == len(flags())
    for flag in flags().values():
        assert any(flag.spelling in heading for heading in headings)
