"""The flags page has one entry per flag."""

from __future__ import annotations

from dovetail.config.compat.deprecated_flags import deprecated_flags
from dovetail.config.config import flags
from dovetail.config.report.docs import flags_page


def test_every_flag_has_an_entry() -> None:
    headings = [line for line in flags_page().splitlines() if line.startswith("### ")]
    every = [*flags().values(), *deprecated_flags().values()]
    assert len(headings) == len(every)
    for flag in every:
        assert any(flag.spelling in heading for heading in headings)
