"""Errors for schemas, expressions and grammars that the library cannot handle."""

from __future__ import annotations

from dataclasses import dataclass


class InvalidConstraint(ValueError):
    """A constraint cannot be compiled. `pointer` is the JSON Pointer of the faulty part."""

    def __init__(self, what: str, pointer: str = "") -> None:
        super().__init__(what)
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class UnsupportedPart:
    """A part of a constraint that a backend does not enforce, and its JSON Pointer."""

    pointer: str
    what: str
