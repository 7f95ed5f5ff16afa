"""Regular expressions in one meaning for every backend: \\d, \\w and \\s are ASCII.

Libraries differ (some take every Unicode digit for \\d), so the classes are written out.
"""

from __future__ import annotations

_OUTSIDE = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[a-zA-Z0-9_]",
    "W": "[^a-zA-Z0-9_]",
    "s": r"[ \t\n\r\f\v]",
    "S": r"[^ \t\n\r\f\v]",
}
_INSIDE = {"d": "0-9", "w": "a-zA-Z0-9_", "s": r" \t\n\r\f\v"}


def ascii_classes(regex: str) -> str:
    """Return the expression with its character classes written out.

    A negated class inside brackets stays as it is: it has no plain spelling there.
    """
    out: list[str] = []
    is_inside = False
    at = 0
    while at < len(regex):
        character = regex[at]
        if character == "\\" and at + 1 < len(regex):
            letter = regex[at + 1]
            table = _INSIDE if is_inside else _OUTSIDE
            out.append(table.get(letter, character + letter))
            at += 2
            continue
        if character == "[" and not is_inside:
            is_inside = True
        elif character == "]" and is_inside and regex[at - 1] not in "[^":
            is_inside = False
        out.append(character)
        at += 1
    return "".join(out)
