r"""The sets of \p{...} in regular expressions: categories, scripts and the properties of ECMA-262.

Uses Unicode's tables in the library `regex`, since Python's own have no scripts and no properties.
Names with different meanings across dialects (`\p{IsGreek}`, `\p{Alnum}`) are not supported.
Source: ECMA-262, 22.2.2.10 (names); Unicode Standard Annex 44 (properties).
"""

from __future__ import annotations

import sys
from functools import lru_cache

import numpy as np
import regex

from dovetail_grammars.keywords import words

_KEYS = words("General_Category gc Script sc Script_Extensions scx")
_PROPERTIES = words(
    "ASCII ASCII_Hex_Digit AHex Alphabetic Alpha Any Assigned Bidi_Control Bidi_C Bidi_Mirrored "
    "Bidi_M Case_Ignorable CI Cased Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM "
    "Changes_When_Lowercased CWL Changes_When_Titlecased CWT Changes_When_Uppercased CWU Dash "
    "Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji Emoji_Component EComp "
    "Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation EPres Extended_Pictographic "
    "ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext Hex_Digit Hex "
    "IDS_Binary_Operator IDSB IDS_Trinary_Operator IDST ID_Continue IDC ID_Start IDS Ideographic "
    "Ideo Join_Control Join_C Logical_Order_Exception LOE Lowercase Lower Math "
    "Noncharacter_Code_Point NChar Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS "
    "Quotation_Mark QMark Radical Regional_Indicator RI Sentence_Terminal STerm Soft_Dotted SD "
    "Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase Upper Variation_Selector VS "
    "White_Space space XID_Continue XIDC XID_Start XIDS"
)


@lru_cache(maxsize=64)
def named_set(name: str) -> tuple[tuple[int, int], ...] | None:
    """Return the code points of a property, first and last of each run; None if it is unknown."""
    for query in _questions(name):
        try:
            found = regex.compile(rf"\p{{{query}}}+").finditer(_every_character())
        except regex.error:
            continue
        return tuple((run.start(), run.end() - 1) for run in found)
    return None


def _questions(name: str) -> tuple[str, ...]:
    """Return the possible full names. ECMA-262 has no bare script names, but others do."""
    key, equals, value = name.partition("=")
    if not (value if equals else key).replace("_", "").isalnum() or not name.isascii():
        return ()
    if equals:
        return (name,) if key in _KEYS else ()
    return (name,) if name in _PROPERTIES else (f"gc={name}", f"sc={name}")


@lru_cache(maxsize=1)
def _every_character() -> str:
    """Return a text of all characters, each at its own code point, with private ones in place of
    surrogates. Takes milliseconds, which matters: every compiled constraint may need it again."""
    codes = np.arange(sys.maxunicode + 1, dtype="<u4")
    codes[0xD800:0xE000] = 0xE000
    return codes.tobytes().decode("utf-32-le")
