"""Escapes of ECMA-262 in regular expressions, held against Python's own expressions."""

from __future__ import annotations

import re
import unicodedata

import pytest

from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail_grammars.regex_reader import whole_text

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


def taken(pattern: str) -> set[str]:
    """Return the characters that an expression of one matches."""
    ours = re.compile(whole_text(pattern))
    characters = map(chr, (*range(0xD800), *range(0xE000, 0x20000)))
    return {letter for letter in characters if ours.fullmatch(letter)}


def test_white_space_is_that_of_ecma_262() -> None:
    blanks = {c for c in map(chr, range(0x10000)) if unicodedata.category(c) == "Zs"}
    blanks |= set("\t\n\v\f\r\ufeff\u2028\u2029")
    everything = taken(r"[\s\S]")
    assert taken(r"\s") == taken(r"[\s]") == taken(r"[^\S]") == blanks
    assert taken(r"\S") == taken(r"[^\s]") == everything - blanks
    assert taken(r"[^\S\n]") == blanks - {"\n"}
    assert taken(r"(?i)[\sx]") == blanks | set("xX")


@pytest.mark.parametrize(
    ("script", "word"), [("Greek", "GREEK"), ("Cyrl", "CYRILLIC"), ("Hiragana", "HIRAGANA")]
)
def test_scripts_are_those_of_the_names_of_letters(script: str, word: str) -> None:
    letters = {
        letter
        for letter in map(chr, range(128, 0x10000))
        if unicodedata.name(letter, "").startswith(f"{word} LETTER")
    }
    for key in ("Script", "sc", "Script_Extensions", "scx"):
        assert letters <= taken(rf"\p{{{key}={script}}}")
        assert not letters & taken(rf"\P{{{key}={script}}}")
    assert not set("abc") & taken(rf"[\p{{Script={script}}}0-9]")


def test_properties_of_emoji() -> None:
    assert taken(r"\p{Emoji_Modifier}") == set(map(chr, range(0x1F3FB, 0x1F400)))
    assert set("\U0001f600\u2764\u00a9") <= taken(r"\p{Extended_Pictographic}")
    assert {"\U0001f600", "\u2764", "7"} & taken(r"\p{Emoji_Presentation}") == {"\U0001f600"}
    assert set("7#*\u200d\ufe0f") <= taken(r"\p{Emoji_Component}")
    assert {"\U0001f600", "7", "a"} & taken(r"\p{Emoji}") == {"\U0001f600", "7"}


@pytest.mark.parametrize(
    "name", ["Script=Nobodys", "IsGreek", "InGreek", "Alnum", "RGI_Emoji", "Block=Greek", "L&", ""]
)
def test_properties_of_other_dialects_are_refused(name: str) -> None:
    with pytest.raises(InvalidConstraint, match="which is not known"):
        whole_text(rf"\p{{{name}}}")
