"""XmlTags: the tags with which a family writes calls with a tag per parameter, as patterns."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import cache

from dovetail.interfaces.data.text import Markers

MAX_KEY_CHARS = 256
NAME = "NAME"
TYPE = "TYPE"
HEAD, CALL, LINE = "HEAD", "CALL", "LINE"
NAME_PATTERN = re.compile(r"[^\s<>{}\"'=,]{1,128}")
_LINE_END = re.compile(r"\n[ \t]*\Z")
_NAME_FIRST = re.compile(rf"(?:{NAME_PATTERN.pattern})?+\s*+(?:<|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlTags:
    """The tags of a call: `before` `head` (`key` value `value_end`)* `tail` `after`.

    NAME is the placeholder for the function's or parameter's name; a blank matches any blanks or
    none. `before` and `after` may be missing. `tail` empty: the region's end is the call's.
    `is_wrapped`: a line end on either side of a value is not the value's. `gap` is written between
    the tags. `region` are the tags around a call that has a separate region. TYPE, in a parameter's
    tag, is the placeholder for the type of the value: `text_type` for a string, else `other_type`,
    or the JSON type if that is empty. `wrapper` are texts around a value that may hold any tag.
    `is_special`: the tags hold special tokens, so in a value they are never its text.
    `has_entities`: names are written with XML's entities.
    """

    head: str
    key: str
    value_end: str
    tail: str = ""
    before: str = ""
    after: str = ""
    is_wrapped: bool = False
    gap: str = "\n"
    region: Markers | None = None
    text_type: str = ""
    other_type: str = ""
    wrapper: tuple[str, str] = ("", "")
    is_special: bool = False
    has_entities: bool = False

    def can_begin(self, text: str) -> bool:
        """Return whether a call may begin so, by the first word of its tags."""
        if self.head.startswith(NAME):
            return _NAME_FIRST.match(text) is not None
        words = [tag.partition(NAME)[0].split()[0] for tag in (self.before, self.head) if tag]
        return any(text.startswith(word) or word.startswith(text) for word in words)

    def value(self, text: str) -> str:
        """Return a value without the line ends, and the texts around it, that are not its own."""
        start, end = self.wrapper
        if start and text.strip().startswith(start):
            return text.strip().removeprefix(start).removesuffix(end)
        return text.removeprefix("\n").removesuffix("\n") if self.is_wrapped else text

    def named(self, written: str) -> str:
        """Return the name that is written so."""
        return html.unescape(written) if self.has_entities else written

    @property
    def has_pair(self) -> bool:
        """Return whether a parameter's name has its own tag (plain text is not a tag)."""
        return self.key.count(">") > 1

    @property
    def ends(self) -> tuple[str, ...]:
        """Return the texts with which a call is over."""
        return tuple(tag for tag in (self.tail, self.region.end if self.region else "") if tag)

    def held(self, text: str) -> str:
        """Return the part of a growing value that no tag, and no line end before one, can take."""
        if self.wrapper[0] and text.lstrip()[:1] in ("", self.wrapper[0][0]):
            return ""
        text = text[: min((at for end in self.ends if (at := text.find(end)) >= 0), default=None)]
        key = self.key.partition(NAME)[0].split()[0]
        begun = text.rfind(key, max(0, len(text) - MAX_KEY_CHARS))
        if begun >= 0 and pattern(self.key).match(text, begun) is None:
            text = text[:begun]
        text = text[: len(text) - _num_begun(text, (self.value_end, *self.ends, key))]
        return self.value(_LINE_END.sub("", text))


def _num_begun(text: str, tags: tuple[str, ...]) -> int:
    """Return how many characters at the end of a text may be the beginning of a tag."""
    max_length = min(len(text), max(map(len, tags)) - 1)
    sizes = range(max_length, 0, -1)
    return next((n for n in sizes if any(tag.startswith(text[-n:]) for tag in tags)), 0)


@cache
def inner(tags: XmlTags) -> re.Pattern[str]:
    """Return the pattern that matches, in a value, the tag of a parameter; or the end of the call,
    the beginning of another one, CALL, and its first parameter."""
    line, key = rf"(?P<{LINE}>\n[ \t]*)?", worded(tags.key, typed=False)
    tail = "".join(rf"\s*(?:{re.escape(tag)})?" for tag in (tags.tail, tags.after) if tag)
    region = tags.region
    if region is not None:
        tail += rf"\s*(?:{re.escape(region.end)}\s*{re.escape(region.start)})?"
    before = rf"(?:{re.escape(tags.before)}\s*)?" if tags.before else ""
    head = worded(tags.head, HEAD, typed=False)
    ends = "|".join(map(re.escape, tags.ends))
    call = rf"(?:(?={ends}){tail}\s*(?P<{CALL}>{before}{head})\s*)?"
    return re.compile(line + call + key)


@cache
def closers(tag: str) -> re.Pattern[str]:
    """Return the pattern of a closing tag, none, or the same one several times."""
    return re.compile(rf"(?:{re.escape(tag)}(?:\s*{re.escape(tag)})*)?")


@cache
def pattern(tag: str, before: str = "", after: str = "") -> re.Pattern[str]:
    """Return the pattern of a tag: blanks before it, NAME a name, a blank any blanks or none."""
    optional_before = rf"(?:{re.escape(before)}\s*)?" if before else ""
    optional_after = rf"(?:\s*{re.escape(after)})?" if after else ""
    return re.compile(r"\s*" + optional_before + worded(tag) + optional_after)


def worded(tag: str, group: str = NAME, *, typed: bool = True) -> str:
    """Return a pattern for the words of a tag, NAME being this group, TYPE one if `typed`."""
    words = r"\s*".join(re.escape(word) for word in tag.split())
    words = words.replace(TYPE, rf"(?P<{TYPE}>[^\"]{{0,32}})" if typed else r"[^\"]{0,32}")
    return words.replace(NAME, rf"(?P<{group}>{NAME_PATTERN.pattern})")
