"""The supported values of the schema keyword "format", each as a regular expression.

Every text that one matches is valid by the format's RFC. Rare spellings are left out: leap seconds,
years before 1000, quoted mail addresses, two hyphens in a row in hosts, Unicode in host names
except lower-case letters of Western Europe, and unusual regular expressions. Hosts and mail
addresses of full length take several expressions that must all match (`LONG`). If those cannot be
combined, local parts have at most 32 letters, labels 31, and there are few labels. Libraries have
their own patterns; these replace them, so that a format means the same in every backend. OpenAPI's
integer formats are bounds. Source: RFC 3339 (times), 5321 (mail), 1123 (hosts), 4291 (IPv6), 3986
(URIs), 9562 (UUIDs); the format registry of OpenAPI (integers); 3987 (IRIs), 6570 (templates), 6901
(JSON Pointers).
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
    + [
        f":(?::{_GROUP}){{1,7}}",
        "::",
        f"(?:{_GROUP}:){{6}}{_IPV4}",
        f"::(?:{_GROUP}:){{0,4}}{_IPV4}",
    ]
)
_ALNUM = "[a-zA-Z0-9]"
# Host names have at most 253 characters: few long labels, or several short ones. Libraries take
# seconds for expressions that can count the same letters in several ways; these have one way.
_LABEL = f"{_ALNUM}(?:-?{_ALNUM}){{0,30}}"
_SHORT = f"{_ALNUM}(?:-?{_ALNUM}){{0,15}}"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL}){{0,3}}|{_SHORT}(?:\.{_SHORT}){{4,6}})"
_MAIL_LABEL = f"{_ALNUM}(?:-?{_ALNUM}){{0,22}}"
_MAIL_HOST = rf"{_MAIL_LABEL}(?:\.{_MAIL_LABEL}){{0,3}}"


def _mailbox(letters: str) -> str:
    """Return mailboxes with these letters in the local part: at most 32, and dots."""
    atom = f"[{letters}!#$%&'*+/=?^_`{{|}}~\\-]"
    return rf"{atom}(?:\.?{atom}){{0,31}}@{_MAIL_HOST}"


_BEYOND_ASCII = "\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
_LATIN = "a-z0-9\u00e0-\u00f6\u00f8-\u00ff"


def _addresses(letters: str) -> tuple[str, str]:
    """Return addresses with these letters: absolute ones, and references."""
    free = f"{letters}0-9._~!$&'()*+,;=\\-"
    escape = "%[0-9a-fA-F]{2}"
    part = f"(?:[{free}:@]|{escape})"
    host = rf"(?:[{letters}0-9](?:[{letters}0-9._\-]*[{letters}0-9])?|\[(?:{_IPV6})\])"
    authority = rf"(?:(?:[{free}:]|{escape})*@)?{host}(?::[0-9]{{1,5}})?"
    path = f"(?:/{part}*)*"
    rest = rf"(?:\?(?:{part}|[/?])*)?(?:\#(?:{part}|[/?])*)?"
    scheme = r"[a-zA-Z0-9+.\-]{0,30}:"
    # By its grammar alone, "http:x" is an address, so such schemes require a host here.
    whole = (
        f"(?:[a-zA-Z]{scheme}//{authority}{path}|[fF][iI][lL][eE]://(?:/{part}*)+"
        f"|[a-gi-zA-GI-Z]{scheme}{part}(?:{part}|/)*)"
    )
    relative = f"(?://{authority}{path}|/(?:{part}+{path})?|(?:[{free}@]|{escape})+{path})?"
    return f"{whole}{rest}", f"(?:{whole}|{relative}){rest}"


_URI, _URI_REFERENCE = _addresses("a-zA-Z")
_IRI, _IRI_REFERENCE = _addresses(f"a-zA-Z{_BEYOND_ASCII}")
_VARIABLE = r"[A-Za-z0-9_](?:\.?[A-Za-z0-9_])*(?::[1-9][0-9]{0,3}|\*)?"
_TEMPLATE = (
    r"(?:[!#$&()*+,\-./0-9:;=?@A-Z\[\]_a-z~]|%[0-9a-fA-F]{2}"
    rf"|\{{[+\#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)
_STEPS = "(?:/(?:[^/~]|~[01])*)*"
_PIECE = (
    r"(?:[a-zA-Z0-9 _,:;@#&=!<>~\"'%/]|\\[dDwWsS.\\()\[\]{}*+?|^$]|\.|"
    r"\[\^?(?:a-z|A-Z|0-9|[a-zA-Z0-9_ .,:;@#]|\\[dws])+\])(?:[*+?]|\{[1-9]\})?"
)
_GROUPED = rf"(?:{_PIECE}|\((?:\?:)?(?:{_PIECE})+(?:\|(?:{_PIECE})+)*\)[*+?]?)"
_NUMBER = "[0-9]{1,9}"
_SPAN = f"T(?:{_NUMBER}H(?:{_NUMBER}M(?:{_NUMBER}S)?)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"
_DAYS = f"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"

FORMATS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_SPAN})?|{_SPAN}|{_NUMBER}W)",
    "email": _mailbox("a-zA-Z0-9"),
    "idn-email": _mailbox("a-zA-Z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u4e00-\u9fff"),
    "hostname": _HOST,
    "idn-hostname": rf"(?:{_HOST}|[{_LATIN}]{{1,20}}(?:\.[{_LATIN}]{{1,20}}){{0,4}})",
    "ipv4": _IPV4,
    "ipv6": f"(?:{_IPV6})",
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": _TEMPLATE,
    "json-pointer": _STEPS,
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,8}})(?:#|{_STEPS})",
    "regex": rf"\^?{_GROUPED}*(?:\|{_GROUPED}+)*\$?",
}
"""Name -> an expression that matches the whole text."""

_LABELS = f"{_ALNUM}+(?:-{_ALNUM}+)*"
_HOSTS = rf"{_LABELS}(?:\.{_LABELS})*"


def _long_mailbox(letters: str) -> tuple[str, ...]:
    atom = f"[{letters}!#$%&'*+/=?^_`{{|}}~\\-]+"
    lengths = r"[^@]{1,64}@[^@.]{1,63}(?:\.[^@.]{1,63})*"
    return rf"{atom}(?:\.{atom})*@{_HOSTS}", lengths, r"[\s\S]{3,254}"


LONG: dict[str, tuple[str, ...]] = {
    "email": _long_mailbox("a-zA-Z0-9"),
    "idn-email": _long_mailbox("a-zA-Z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u4e00-\u9fff"),
    "hostname": (_HOSTS, r"[^.]{1,63}(?:\.[^.]{1,63})*", r"[\s\S]{1,253}"),
}
"""Name -> expressions for texts of full length that must all match the whole text: its characters,
the length of its parts, and its total length."""

BOUNDS: dict[str, tuple[int, int]] = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
"""Name -> the lowest and the highest integer."""


def is_bound(node: Mapping[str, Any]) -> bool:
    """Return whether a node has an integer format, and allows only integers (and null)."""
    kinds = node.get("type")
    is_whole = kinds == "integer" or (
        isinstance(kinds, list) and all(kind in ("integer", "null") for kind in kinds)
    )
    return is_whole and node.get("format") in BOUNDS


def bounded(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node with bounds for its format, if it is an integer format."""
    if not is_bound(node):
        return dict(node)
    minimum, maximum = BOUNDS[node["format"]]
    rest = {keyword: value for keyword, value in node.items() if keyword != "format"}
    return rest | {
        "minimum": max(minimum, node.get("minimum", minimum)),
        "maximum": min(maximum, node.get("maximum", maximum)),
    }
