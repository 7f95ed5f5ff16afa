r"""The sets of \p{...} in regular expressions: general categories, and a few properties.

Scripts are not known here: Python's tables do not have them. Source: Unicode Standard Annex 44
(general categories); ECMA-262, 22.2.2.10 (names).
"""

from __future__ import annotations

import sys
import unicodedata
from functools import lru_cache

_LONG = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "Format": "Cf",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
_FIXED = {
    "Any": ((0, sys.maxunicode),),
    "ASCII": ((0, 127),),
    "White_Space": (
        *((9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680)),
        *((0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
    ),
}


def named_set(name: str) -> tuple[tuple[int, int], ...] | None:
    """Return the code points of a property, first and last of each run; None if it is unknown."""
    key, equals, value = name.partition("=")
    if equals and key not in ("General_Category", "gc"):
        return None
    word = value if equals else name
    if word in _FIXED:
        return _FIXED[word]
    return _runs().get(_LONG.get(word, word))


@lru_cache(maxsize=1)
def _runs() -> dict[str, tuple[tuple[int, int], ...]]:
    """Return category -> its runs, those of one letter and of two. Takes half a second, once."""
    made: dict[str, list[tuple[int, int]]] = {}
    first, known = 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        category = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if category == known:
            continue
        groups = {known, known[0]} | ({"LC"} if known in ("Lu", "Ll", "Lt") else set())
        for group in groups - {"Cs"}:
            made.setdefault(group, []).append((first, code - 1))
        first, known = code, category
    return {group: tuple(runs) for group, runs in made.items()}
