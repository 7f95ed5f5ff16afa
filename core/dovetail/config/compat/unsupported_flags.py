"""The unsupported flags: each names the feature it waits for, so that none is silently ignored.

A flag is *supported* when it is a field of a section and has no row here, *deprecated* when it is a
field of `deprecated_flags.DeprecatedFlags`, and *unsupported* when it has a row here: then only the
values that ask for nothing pass, its default and those a row names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dovetail.config.sections.field import Flag
from dovetail.unsupported import remedy, sentence


@dataclass(frozen=True, slots=True)
class UnsupportedFlag:
    """A flag that waits for a feature. `passing` are values that pass beside the default."""

    feature: str
    passing: tuple[Any, ...] = ()

    @property
    def missing(self) -> str:
        """Return the sentence that says what is missing."""
        return sentence(self.feature)

    @property
    def fix(self) -> str:
        """Return what to do instead."""
        return remedy(self.feature, "leave the flag out")


UNSUPPORTED_FLAGS: dict[str, UnsupportedFlag] = {}
"""None of the reference's flags is refused now; one of a newer reference that is gets a row."""


def passes(flag: Flag, row: UnsupportedFlag, value: Any) -> bool:
    """Return whether a value asks for nothing: null, nothing at all, the default, or as named."""
    asks_nothing = value is None or value == flag.default or value in ((), "", {})
    return asks_nothing or any(value == other for other in row.passing)
