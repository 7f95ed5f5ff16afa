"""The flags page has one entry per flag."""

from __future__ import annotations

from flag_pages import flags_page

from dovetail.config.compat.deprecated_flags import deprecated_flags
from dovetail.config.config import flags


def test_every_flag_has_an_entry() -> None:
    headings = [line for line in flags_page().splitlines() if line.startswith("### ")]
    every = [*flags().values(), *deprecated_flags().values()]
    assert len(headings) == len(every)
    for flag in every:
        assert any(flag.spelling in heading for heading in headings)
