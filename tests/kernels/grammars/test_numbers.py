"""Expressions for numbers within bounds, held against exact fractions."""

from __future__ import annotations

import random
import re
from decimal import Decimal
from fractions import Fraction

from dovetail_grammars.numbers import number_within
from dovetail_grammars.regex import Or, written
from support.samples import sample_of

BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
FIXED = (0, 0.1, 0.30000000000000004, 5e-324, 1e-7, -1e-7, 2**53 + 1, 1e20, 2**63)


def a_number(chance: random.Random) -> int | float:
    """Return a whole number, a decimal of few digits, one of many, or an odd one."""
    match chance.randrange(4):
        case 0:
            return chance.randint(-30, 30)
        case 1:
            return round(chance.uniform(-3, 3), chance.randint(0, 5))
        case 2:
            return chance.uniform(-2, 2)
    return chance.choice(FIXED)


def is_within(schema: dict[str, int | float], value: Fraction) -> bool:
    """Return whether a number is within the bounds of a schema."""
    low = all(value >= Fraction(str(schema[k])) for k in BOUNDS[:1] if k in schema)
    low &= all(value > Fraction(str(schema[k])) for k in BOUNDS[1:2] if k in schema)
    high = all(value <= Fraction(str(schema[k])) for k in BOUNDS[2:3] if k in schema)
    return low and high and all(value < Fraction(str(schema[k])) for k in BOUNDS[3:] if k in schema)


def texts_near(value: int | float) -> list[str]:
    """Return a number without exponent, with a zero, a digit more and a digit less."""
    text = format(Decimal(repr(value)), "f")
    more = [f"{text}0", f"{text}1", text[:-1].rstrip(".")] if "." in text else []
    return [t for t in [text, *more] if t not in ("", "-", "-0")]


def test_decimals_within_bounds_are_those_of_exact_fractions() -> None:
    chance, num_taken = random.Random(0), 0
    for _ in range(sample_of(1500, 400)):
        schema = {word: a_number(chance) for word in BOUNDS if chance.random() < 0.5}
        if not schema:
            continue
        node = number_within(schema, is_whole=False)
        found = re.compile(written(node)) if node != Or(()) else None
        values = [*schema.values(), *(a_number(chance) for _ in range(9))]
        for text in (text for value in values for text in texts_near(value)):
            is_taken = found is not None and found.fullmatch(text) is not None
            num_taken += is_taken
            is_right = is_within(schema, Fraction(text))
            assert is_right or not is_taken, (schema, text)
            is_short = len(text.partition(".")[2]) <= 15 and abs(Fraction(text)) < 10**17
            assert is_taken or not (is_right and is_short), (schema, text)
    assert num_taken > 1000
