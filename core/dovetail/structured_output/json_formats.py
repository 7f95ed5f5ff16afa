"""The values of the schema keyword "format" that are enforced, each as a regular expression.

Every text that one matches is valid by the format's RFC; rare spellings that an expression cannot
tell from invalid ones (leap seconds, quoted mail addresses) are left out. Libraries have patterns
of their own; these replace them, so that a format means the same in every backend.
OpenAPI's formats of integers are bounds.
Source: RFC 3339 (times), 5321 (mail), 1123 (hosts), 4291 (IPv6), 3986 (URIs), 9562 (UUIDs); the
format registry of OpenAPI (integers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|"
    f"[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:Z|[+\-]{_CLOCK})"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_HEX = "[0-9a-fA-F]"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", f"(?:{_GROUP}:){{1,7}}:"]
    + [f"(?:{_GROUP}:){{1,{7 - n}}}(?::{_GROUP}){{1,{n}}}" for n in range(1, 7)]
    + [f":(?::{_GROUP}){{1,7}}", "::"]
)
_LABEL = "[a-zA-Z0-9]{1,30}(?:-[a-zA-Z0-9]{1,29})?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_ATOM = "[a-zA-Z0-9_+]{1,12}"
_MAIL = rf"{_ATOM}(?:[.\-]{_ATOM}){{0,3}}@{_HOST}"
_URI_CHAR = "(?:[a-zA-Z0-9._~!$&'()*+,;=:@\\-]|%[0-9a-fA-F]{2})"
_URI_REST = rf"(?:\?(?:{_URI_CHAR}|[/?])*)?(?:\#(?:{_URI_CHAR}|[/?])*)?"
_URI = (
    rf"(?:[a-z][a-z0-9+.\-]{{0,15}}://{_HOST}(?::[0-9]{{1,5}})?(?:/{_URI_CHAR}*)*"
    rf"|(?:mailto|urn|tel|news|about):{_URI_CHAR}+){_URI_REST}"
)
_NUMBER = "[0-9]{1,9}"
_SPAN = f"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"
_DAYS = f"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_SPAN})?|{_SPAN}|{_NUMBER}W)",
    "email": _MAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": f"(?:{_IPV6})",
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": _URI,
}
"""Name -> an expression that matches the whole text."""

BOUNDS: dict[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(10**18), 10**18),
}
"""Name -> the least and the highest integer. Of 64 bits those of 18 digits: bounds are exact there.
"""


def is_bound(node: Mapping[str, Any]) -> bool:
    """Return whether a node's format is one of integers, and it has no other numbers or texts."""
    kinds = node.get("type")
    is_whole = kinds == "integer" or (
        isinstance(kinds, list) and all(kind in ("integer", "null") for kind in kinds)
    )
    return is_whole and node.get("format") in BOUNDS


def bounded(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with bounds for its format, if that is one of integers."""
    if not is_bound(node):
        return dict(node)
    least, most = BOUNDS[node["format"]]
    rest = {keyword: value for keyword, value in node.items() if keyword != "format"}
    return rest | {
        "minimum": max(least, node.get("minimum", least)),
        "maximum": min(most, node.get("maximum", most)),
    }
