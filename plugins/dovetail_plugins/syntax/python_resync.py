"""Finds the next Python call after a broken one.

Brackets are counted and strings skipped, so a call inside another call or a string is never taken
for the next. A result stays true for every longer text.
"""

from __future__ import annotations

import re

from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail.json_text import skip_blanks
from dovetail_plugins.syntax.literals import CLOSING, PYTHON, CutLiteral

HEAD = re.compile(r"([A-Za-z_][\w.\-]*)[ \t]*\(")
PART_OF_HEAD = re.compile(r"[A-Za-z_][\w.\-]*[ \t]*")
RESYNC_CHARS = 8192
"""How many characters after a fault are searched for the next call."""
_STOPS = re.compile(r"[\"'()\[\]{},;\n]")
_OF_WORD = re.compile(r"\w*\Z")
_NEXT = re.compile(rf"\s*(?:\]|,\s*{HEAD.pattern})")
_PART_OF_NEXT = re.compile(rf"\s*(?:,\s*(?:{PART_OF_HEAD.pattern})?)?")
_PREFIXES = ("", "r", "R", "u", "U", "b", "B", "f", "F")


def next_call(text: str, begin: int, fault: int, *, is_list: bool, is_first: bool) -> int | None:
    """Return where reading resumes after the broken call that begins at `begin`: at the next call,
    or at the list's closing bracket; None while neither is seen.

    Raises: MalformedToolCall if there is none; immediately if the first call of a list is followed
    by other text.
    """
    open_ones: list[str] = []
    at = begin
    while (found := _STOPS.search(text, at, fault + RESYNC_CHARS)) is not None:
        letter, at = found[0], found.end()
        if letter in "\"'":
            behind = _behind_string(text, found.start())
            if behind is None:
                return None
            at = behind
        elif letter in CLOSING:
            open_ones.append(CLOSING[letter])
        elif letter in open_ones:
            while open_ones.pop() != letter:
                pass
            if is_list and is_first and not open_ones and not _may_end(text, at):
                raise MalformedToolCall("other text follows the first call")
        elif letter == "]" and is_list:
            if _PART_OF_NEXT.fullmatch(text, at):
                return None
            if _NEXT.match(text, at) is None:
                return found.start()
            open_ones = []
        elif _divides(text, found.start(), open_ones, is_list=is_list):
            place = at if letter == "\n" else skip_blanks(text, at)
            if HEAD.match(text, place):
                return place
            if place >= len(text) or PART_OF_HEAD.fullmatch(text, place):
                return None
    if len(text) >= fault + RESYNC_CHARS:
        raise MalformedToolCall("no call follows the broken one")
    return None


def _behind_string(text: str, at: int) -> int | None:
    """Return the position after the string whose quote is here, or after a quote that opens none;
    None while its end is not sure."""
    word = _OF_WORD.search(text, max(0, at - 2), at)
    if word is None or word[0] not in _PREFIXES:
        return at + 1
    try:
        behind = PYTHON.string(text, at)[1]
    except (UnfinishedToolCall, CutLiteral):
        return None
    return None if skip_blanks(text, behind) >= len(text) else behind


def _may_end(text: str, at: int) -> bool:
    """Return whether a list may continue or end after a call that ends here."""
    rest = text[at : at + 64].lstrip(" \t\r\n)}")
    return rest[:1] in ("", ",", "]")


def _divides(text: str, at: int, open_ones: list[str], *, is_list: bool) -> bool:
    """Return whether a comma, semicolon or line end may separate two calls here."""
    if is_list or text[at] != "\n":
        return not open_ones and (text[at] == "," if is_list else text[at] in ",;")
    before = text[:at].rstrip()[-1:]
    return not open_ones or before not in ("(", "[", "{", ",", "=", ":")
