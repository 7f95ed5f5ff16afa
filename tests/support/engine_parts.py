"""The parts of a running engine, for tests that look into one."""

from __future__ import annotations

from typing import Any, TypeVar

from dovetail.engine.parts.part import EnginePart

Part = TypeVar("Part", bound=EnginePart)


def part_of(core: Any, kind: type[Part]) -> Part:
    """Return the engine core's part of this class. Raises: ValueError if it is not switched on"""
    (found,) = (part for part in core._parts if isinstance(part, kind))
    return found
