"""Expressions for numbers within bounds: integer_range(3, 120), decimal_range(None, 2.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.regex import DIGITS, Cat, Chars, Many, Node, Or, literal

MAX_DIGITS = 40
"""Bounds with more digits are not supported."""
_ABOVE_ZERO = ((49, 57),)
MINUS, ZERO = literal("-"), literal("0")
_FRACTION = Cat((literal("."), Many(Chars(DIGITS), 1, 15)))
_EXPONENT = Cat((Chars(((69, 69), (101, 101))), Many(Chars(((43, 43), (45, 45))), 0, 1)))
INTEGER = Or((ZERO, Cat((Many(MINUS, 0, 1), Chars(_ABOVE_ZERO), Many(Chars(DIGITS), 0, 17)))))
_WHOLE = Or((ZERO, Cat((Chars(_ABOVE_ZERO), Many(Chars(DIGITS), 0, 17)))))
_POWER = Cat((_EXPONENT, Many(Chars(DIGITS), 1, 2)))
NUMBER = Cat((Many(MINUS, 0, 1), _WHOLE, Many(_FRACTION, 0, 1), Many(_POWER, 0, 1)))


def number_within(schema: Mapping[str, Any], *, is_whole: bool) -> Node:
    """Return the numbers within the bounds of a schema, Or(()) if there are none. Raises:
    InvalidConstraint"""
    low, high, opens = None, None, False
    for keyword, excludes in (("minimum", False), ("exclusiveMinimum", True)):
        if keyword in schema:
            bound = _fraction(schema[keyword])
            if low is None or bound > low or (bound == low and excludes):
                low, opens_low = bound, excludes
    for keyword, excludes in (("maximum", False), ("exclusiveMaximum", True)):
        if keyword in schema:
            bound = _fraction(schema[keyword])
            if high is None or bound < high or (bound == high and excludes):
                high, opens_high = bound, excludes
    if low is None and high is None:
        return INTEGER if is_whole else NUMBER
    opens = (low is not None and opens_low) or (high is not None and opens_high)
    if is_whole:
        first = None if low is None else -((-low) // 1) + (opens_low and low == low // 1)
        last = None if high is None else high // 1 - (opens_high and high == high // 1)
        return integer_range(first, last) or Or(())
    return decimal_range(low, high, opens=opens) or Or(())


def _fraction(value: int | float) -> Fraction:
    found = Fraction(str(value))
    if len(str(int(found))) > MAX_DIGITS:
        raise InvalidConstraint("a bound has too many digits")
    return found


def integer_range(low: int | None, high: int | None) -> Node | None:
    """Return integers from `low` to `high`, None for none; bounds None are open."""
    if low is None and high is None:
        return INTEGER
    parts: list[Node | None] = []
    if high is None or high >= 0:
        parts.append(_natural(max(low or 0, 0), high))
    if low is None or low < 0:
        least = 1 if high is None else max(1, -high)
        digits = _natural(least, None if low is None else -low)
        parts.append(digits and Cat((MINUS, digits)))
    return _either(parts)


def decimal_range(low: Fraction | None, high: Fraction | None, *, opens: bool) -> Node | None:
    """Return integers and decimals from `low` to `high`; with `opens` the bounds are not in.

    Decimals whose whole part is that of a bound are left out. None: there is nothing.
    """
    first = None if low is None else math.floor(low) + 1 if opens else math.ceil(low)
    last = None if high is None else math.ceil(high) - 1 if opens else math.floor(high)
    parts = [integer_range(first, last)]
    if last is None or last > 0:
        whole = _natural(max(first or 0, 0), None if last is None else last - 1)
        parts.append(whole and Cat((whole, _FRACTION)))
    if first is None or first < 0:
        least = 0 if last is None else max(0, -last)
        whole = _natural(least, None if first is None else -first - 1)
        parts.append(whole and Cat((MINUS, whole, _FRACTION)))
    return _either(parts)


def _either(parts: list[Node | None]) -> Node | None:
    found = tuple(part for part in parts if part is not None)
    return Or(found) if found else None


def _natural(low: int, high: int | None) -> Node | None:
    """Return the decimal digits of every whole number from `low` >= 0 to `high`."""
    if high is None:
        # Up to the same number of digits by range, then anything longer, within what is exact.
        size = len(str(low))
        longer = Cat((Chars(_ABOVE_ZERO), Many(Chars(DIGITS), size, max(17, size))))
        digits = _natural(low, 10**size - 1)
        return Or((digits, longer)) if digits is not None else longer
    if low > high:
        return None
    parts: list[Node] = []
    for size in range(len(str(low)), len(str(high)) + 1):
        first = max(low, 10 ** (size - 1) if size > 1 else 0)
        parts += _same_size(str(first), str(min(high, 10**size - 1)))
    return Or(tuple(parts))


def _same_size(low: str, high: str) -> list[Node]:
    """Return alternatives for the numbers between two of equally many digits."""
    if not low:
        return [Cat(())]
    rest = len(low) - 1
    if low[0] == high[0]:
        head = literal(low[0])
        return [Cat((head, tail)) for tail in _same_size(low[1:], high[1:])]
    first, last = int(low[0]), int(high[0])
    parts: list[Node] = []
    if low[1:].strip("0"):
        parts += [Cat((literal(low[0]), tail)) for tail in _same_size(low[1:], "9" * rest)]
        first += 1
    ends: list[Node] = []
    if high[1:].strip("9"):
        ends = [Cat((literal(high[0]), tail)) for tail in _same_size("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        digits = Chars(((48 + first, 48 + last),))
        parts.append(Cat((digits, Many(Chars(DIGITS), rest, rest))) if rest else digits)
    return parts + ends
