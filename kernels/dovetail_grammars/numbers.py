"""Expressions for numbers within bounds: integer_range(3, 120), decimal_range(None, 2.5)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from dovetail_grammars.errors import InvalidConstraint
from dovetail_grammars.regex import DIGITS, Cat, Chars, Many, Node, Or, literal

MAX_DIGITS = 40
"""Bounds with more digits are not supported."""
MAX_PLACES = 15
"""The maximum number of decimal places, unless the bounds have more."""
_NIL = Fraction(0)
_ABOVE_ZERO = ((49, 57),)
MINUS, ZERO = literal("-"), literal("0")
_FRACTION = Cat((literal("."), Many(Chars(DIGITS), 1, MAX_PLACES)))
_EXPONENT = Cat((Chars(((69, 69), (101, 101))), Many(Chars(((43, 43), (45, 45))), 0, 1)))
INTEGER = Or((ZERO, Cat((Many(MINUS, 0, 1), Chars(_ABOVE_ZERO), Many(Chars(DIGITS), 0, 18)))))
_WHOLE = Or((ZERO, Cat((Chars(_ABOVE_ZERO), Many(Chars(DIGITS), 0, 18)))))
_POWER = Cat((_EXPONENT, Many(Chars(DIGITS), 1, 2)))
NUMBER = Cat((Many(MINUS, 0, 1), _WHOLE, Many(_FRACTION, 0, 1), Many(_POWER, 0, 1)))


def number_within(schema: Mapping[str, Any], *, is_whole: bool) -> Node:
    """Return the numbers within the bounds of a schema, Or(()) if there are none. Raises:
    InvalidConstraint"""
    low, high, opens_low, opens_high = None, None, False, False
    for keyword, excludes in (("minimum", False), ("exclusiveMinimum", True)):
        if keyword in schema:
            bound = _fraction(schema[keyword], 1)
            excludes &= bound == Fraction(str(schema[keyword]))  # a moved bound is allowed
            if low is None or bound > low or (bound == low and excludes):
                low, opens_low = bound, excludes
    for keyword, excludes in (("maximum", False), ("exclusiveMaximum", True)):
        if keyword in schema:
            bound = _fraction(schema[keyword], -1)
            excludes &= bound == Fraction(str(schema[keyword]))  # a moved bound is allowed
            if high is None or bound < high or (bound == high and excludes):
                high, opens_high = bound, excludes
    if low is None and high is None:
        return INTEGER if is_whole else NUMBER
    if is_whole:
        first = None if low is None else -((-low) // 1) + (opens_low and low == low // 1)
        last = None if high is None else high // 1 - (opens_high and high == high // 1)
        return integer_range(first, last) or Or(())
    found = decimal_range(low, high, opens_low=opens_low, opens_high=opens_high)
    return found or Or(())


def _fraction(value: int | float, sign: int) -> Fraction:
    """Return a bound, narrowed to MAX_DIGITS places. `sign`: 1 for a lower bound, else -1."""
    places = Fraction(str(value)) * 10**MAX_DIGITS
    found = Fraction(sign * math.ceil(sign * places), 10**MAX_DIGITS)
    if len(str(int(found))) > MAX_DIGITS:
        raise InvalidConstraint("a bound has too many digits")
    return found


def integer_range(low: int | None, high: int | None) -> Node | None:
    """Return the integers from `low` to `high`, None if there are none; a bound of None is open."""
    if low is None and high is None:
        return INTEGER
    parts: list[Node | None] = []
    if high is None or high >= 0:
        parts.append(_natural(max(low or 0, 0), high))
    if low is None or low < 0:
        lowest = 1 if high is None else max(1, -high)
        digits = _natural(lowest, None if low is None else -low)
        parts.append(digits and Cat((MINUS, digits)))
    return _either(parts)


def decimal_range(
    low: Fraction | None,
    high: Fraction | None,
    *,
    opens_low: bool = False,
    opens_high: bool = False,
) -> Node | None:
    """Return the integers and decimals from `low` to `high`; an open bound is excluded.

    None: there are none.
    """
    parts: list[Node | None] = []
    if high is None or high >= 0:
        opens = opens_low and low is not None and low >= 0
        parts.append(_positive(max(low or _NIL, _NIL), high, opens, opens_high))
    if low is None or low <= 0:
        opens = opens_high and high is not None and high <= 0
        lowest = _NIL if high is None else max(_NIL, -high)
        digits = _positive(lowest, None if low is None else -low, opens, opens_low)
        parts.append(digits and Cat((MINUS, digits)))
    return _either(parts)


def _positive(
    low: Fraction, high: Fraction | None, opens_low: bool, opens_high: bool
) -> Node | None:
    """Return the unsigned decimals from `low` >= 0 to `high`."""
    first, above = math.floor(low), _places(low)
    if high is None:
        more = _natural(first + 1, None)
        ends = [_decimal(first, above, None, opens_low, False)]
    else:
        last, below = math.floor(high), _places(high)
        if first == last:
            return _decimal(first, above, below, opens_low, opens_high)
        more = _natural(first + 1, last - 1)
        ends = [
            _decimal(first, above, None, opens_low, False) if first < last else None,
            _decimal(last, "", below, False, opens_high) if first < last else None,
        ]
    return _either([*ends, more and Cat((more, Many(_FRACTION, 0, 1)))])


def _decimal(
    whole: int, low: str, high: str | None, opens_low: bool, opens_high: bool
) -> Node | None:
    """Return the decimals with this whole part and places from `low` to `high`."""
    room = max(MAX_PLACES, len(low), len(high or ""))
    is_end, digits = _digits(low, high, opens_low, opens_high, room)
    places = digits and Cat((literal("."), digits))
    parts: list[Node | None] = [Cat(()) if is_end else None, places]
    found = _either(parts)
    return found and Cat((literal(str(whole)), found))


def _digits(
    low: str, high: str | None, opens_low: bool, opens_high: bool, room: int
) -> tuple[bool, Node | None]:
    """Return whether a number may end here, and the digits (at most `room`) that may follow.

    `low` and `high` are the remaining places of the bounds, as far as they were followed.
    """
    is_end = not (low or opens_low) and (high != "" or not opens_high)
    if room == 0:
        return is_end, None
    if high == "":
        return is_end, Many(ZERO, 1, room) if is_end else None
    if high is None and is_end:
        return is_end, Many(Chars(DIGITS), 1, room)
    low_digit, high_digit = int(low[:1] or 0), 9 if high is None else int(high[:1])
    parts: list[Node | None] = []
    for digit in sorted({low_digit, *(() if high is None else (high_digit,))}):
        if low_digit <= digit <= high_digit:
            is_low, is_high = digit == low_digit, high is not None and digit == high_digit
            ends, more = _digits(
                low[1:] if is_low else "",
                high[1:] if is_high and high is not None else None,
                opens_low and is_low,
                opens_high and is_high,
                room - 1,
            )
            head = literal(str(digit))
            parts += [head if ends else None, more and Cat((head, more))]
    first, last = low_digit + 1, high_digit if high is None else high_digit - 1
    if first <= last:
        between = Chars(((48 + first, 48 + last),))
        parts.append(Cat((between, Many(Chars(DIGITS), 0, room - 1))))
    return is_end, _either(parts)


def _places(value: Fraction) -> str:
    """Return the digits after the decimal point."""
    digits = str((value % 1) * 10**MAX_DIGITS // 1)
    return digits.zfill(MAX_DIGITS).rstrip("0")


def _either(parts: list[Node | None]) -> Node | None:
    found = tuple(part for part in parts if part is not None)
    return Or(found) if found else None


def _natural(low: int, high: int | None) -> Node | None:
    """Return the decimal digits of every whole number from `low` >= 0 to `high`."""
    if high is None:
        # Up to the same number of digits by range, then anything longer, within exact numbers.
        size = len(str(low))
        longer = Cat((Chars(_ABOVE_ZERO), Many(Chars(DIGITS), size, max(18, size))))
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
    """Return alternatives for the numbers between two with the same number of digits."""
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
