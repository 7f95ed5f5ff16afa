"""A Go template's text, cut into plain text and the tokens of its actions.

Source: https://pkg.go.dev/text/template, "Text and spaces" and "Arguments".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

OPEN, CLOSE = "{{", "}}"
SPACE = " \t\r\n"
_BLANKS = re.compile(f"[{SPACE}]*")
_TOKEN = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\\n])*")|(?P<raw>`[^`]*`)|(?P<char>'(?:\\[^\n]+?|[^'\\\n])')
    |(?P<number>[+-]?(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+))(?!\w)
    |(?P<field>\.[^\W\d]\w*)|(?P<dot>\.)|(?P<variable>\$\w*)|(?P<word>[^\W\d]\w*)
    |(?P<declare>:=)|(?P<assign>=)|(?P<pipe>\|)|(?P<left>\()|(?P<right>\))|(?P<comma>,)""",
    re.VERBOSE,
)
_COMMENT = re.compile(rf"/\*.*?\*/(?:[{SPACE}]+(?P<trims>-))?{CLOSE}", re.DOTALL)


class GoTemplateError(ValueError):
    """A template that cannot be parsed, or that fails while it runs."""


@dataclass(frozen=True, slots=True)
class Token:
    """One word of an action. `is_joined`: no blank is before it."""

    kind: str
    text: str
    is_joined: bool = False


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """The tokens between two delimiters, and the line at which they begin."""

    tokens: tuple[Token, ...]
    line: int


def pieces(source: str) -> Iterator[str | ActionTokens]:
    """Yield a template's texts and actions in order; comments and trimmed blanks are left out.

    Raises: GoTemplateError
    """
    at, line, trims = 0, 1, False
    while True:
        start = source.find(OPEN, at)
        text = source[at:] if start < 0 else source[at:start]
        line += text.count("\n")
        trims_left = start >= 0 and _has_marker(source, start + len(OPEN))
        if trims:
            text = text.lstrip(SPACE)
        if trims_left:
            text = text.rstrip(SPACE)
        if text:
            yield text
        if start < 0:
            return
        begin = start + len(OPEN) + (2 if trims_left else 0)
        tokens, at, trims = _action(source, begin, line)
        if tokens is not None:
            yield ActionTokens(tokens, line)
        line += source.count("\n", start, at)


def _has_marker(source: str, at: int) -> bool:
    return source[at : at + 1] == "-" and source[at + 1 : at + 2] in tuple(SPACE)


def _action(source: str, at: int, line: int) -> tuple[tuple[Token, ...] | None, int, bool]:
    """Return an action's tokens (None: a comment), its end, and whether it trims what follows."""
    skipped = _blanks_end(source, at)
    if source.startswith("/*", at) or source.startswith("/*", skipped):
        comment = _COMMENT.match(source, skipped)
        if comment is None:
            raise GoTemplateError(f"line {line}: a comment ends with */{CLOSE}")
        return None, comment.end(), comment["trims"] is not None
    tokens: list[Token] = []
    while True:
        after = _blanks_end(source, at)
        if after > at and source.startswith("-" + CLOSE, after):
            return tuple(tokens), after + 1 + len(CLOSE), True
        if source.startswith(CLOSE, after):
            return tuple(tokens), after + len(CLOSE), False
        match = _TOKEN.match(source, after)
        if match is None:
            rest = source[after : after + 20].split("\n")[0]
            what = f"unexpected {rest!r}" if rest else f"an action without {CLOSE}"
            raise GoTemplateError(f"line {line}: {what}")
        tokens.append(Token(str(match.lastgroup), match[0], is_joined=after == at))
        at = match.end()


def _blanks_end(source: str, at: int) -> int:
    match = _BLANKS.match(source, at)
    return match.end() if match else at
