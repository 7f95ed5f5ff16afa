"""Base64 as clients send it: broken into lines, without padding. Here it is written as decoders
want it, without being decoded.

Source: the WHATWG's Infra standard, forgiving-base64 decode.
"""

from __future__ import annotations

_BLANKS = b"\t\n\f\r "


def plain_base64(text: str) -> bytes:
    """Return base64 without blanks and with its padding. Raises: UnicodeEncodeError for text beyond
    ASCII. Knows no alphabet: decoders find other characters."""
    found = text.encode("ascii").translate(None, _BLANKS)
    return found + b"=" * (-len(found) % 4) if len(found) % 4 != 1 else found
