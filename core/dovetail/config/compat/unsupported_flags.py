"""Unsupported flags: each names the missing feature, so that none is silently ignored.

A flag is *supported* if it is a field of a section and has no row here, *deprecated* if it is a
field of `deprecated_flags.DeprecatedFlags`, and *unsupported* if it has a row here. An unsupported
flag accepts only values that request nothing: its default and those in its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import Flag
from dovetail.unsupported import remedy, sentence


@dataclass(frozen=True, slots=True)
class UnsupportedFlag:
    """A flag that waits for a feature. `passing` are accepted values besides the default."""

    feature: str
    passing: tuple[Any, ...] = ()

    @property
    def missing(self) -> str:
        """Return a sentence about the missing feature."""
        return sentence(self.feature)

    @property
    def fix(self) -> str:
        """Return what to do instead."""
        return remedy(self.feature, "leave the flag out")


UNSUPPORTED_FLAGS: dict[str, UnsupportedFlag] = {}
"""No flag of the reference is refused at present; one that is refused gets a row."""


def passes(flag: Flag, row: UnsupportedFlag, value: Any) -> bool:
    """Return whether a value requests nothing: null, empty, the default, or listed in the row."""
    asks_nothing = value is None or value == flag.default or value in ((), "", {})
    return asks_nothing or any(value == other for other in row.passing)
