"""Normalizes base64 as clients send it, with line breaks or without padding, for strict decoders,
without decoding it.

Source: the WHATWG's Infra standard, forgiving-base64 decode.
"""

from __future__ import annotations

_BLANKS = b"\t\n\f\r "


def plain_base64(text: str) -> bytes:
    """Return base64 without whitespace and with padding. Raises: UnicodeEncodeError for non-ASCII
    text. Does not check the alphabet: decoders reject other characters."""
    found = text.encode("ascii").translate(None, _BLANKS)
    return found + b"=" * (-len(found) % 4) if len(found) % 4 != 1 else found
