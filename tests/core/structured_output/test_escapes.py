"""Escapes of ECMA-262 in regular expressions, held against Python's own expressions."""

from __future__ import annotations

import re

import pytest

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.structured_output.regex_reader import whole_text

TEXTS = ("A", "\u00e9", "\n", "\U0001f600", "\U0001f64f", "\U0001f650", "]", "a", "")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (r"\u{1F600}", "\U0001f600"),
        (r"\u{000041}", "A"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"[\u{1F600}-\u{1F64F}]", "[\U0001f600-\U0001f64f]"),
        (r"[\ud83d\ude00-\ud83d\ude4f]", "[\U0001f600-\U0001f64f]"),
        (r"[^\u{41}\u00e9]", "[^A\u00e9]"),
        ("[^]", r"[\s\S]"),
        ("[^]?", r"[\s\S]?"),
    ],
)
def test_escapes_mean_what_they_say(given: str, meant: str) -> None:
    ours, theirs = re.compile(whole_text(given)), re.compile(meant)
    for text in TEXTS:
        assert bool(ours.fullmatch(text)) == bool(theirs.fullmatch(text)), text


@pytest.mark.parametrize(
    "given", [r"\ud83d", r"\ude00", r"\u{D800}", r"\u{110000}", r"\u{}", r"\u12"]
)
def test_escapes_without_a_character_are_refused(given: str) -> None:
    with pytest.raises(InvalidConstraint, match="without a character"):
        whole_text(given)
