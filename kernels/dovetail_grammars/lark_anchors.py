"""check_anchors(text): refuses anchors within the regular expressions of a Lark grammar.

An expression in a grammar matches at the current position. Libraries silently drop an anchor there
or refuse it, each differently. Source: https://lark-parser.readthedocs.io/en/latest/grammar.html
"""

from __future__ import annotations

import re

from dovetail_grammars.errors import InvalidConstraint

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
    |(?P<text>"(?:[^"\\\n]|\\.)*")
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/)""",
    re.VERBOSE,
)
_PIECE = re.compile(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]|.", re.DOTALL)
_ANCHORS = frozenset(("^", "$", "\\A", "\\Z", "\\z", "\\b", "\\B"))


def check_anchors(text: str) -> None:
    """Raise InvalidConstraint if an expression of a grammar has an anchor."""
    for found in _TOKEN.finditer(text):
        expression = found["regex"]
        for piece in _PIECE.findall((expression or "")[1:-1]):
            if piece in _ANCHORS:
                line = text.count("\n", 0, found.start()) + 1
                raise InvalidConstraint(
                    f"the grammar's expression {expression[:80]} has the anchor {piece} (line "
                    f"{line}); an expression in a grammar matches where it stands, so leave it out"
                )
