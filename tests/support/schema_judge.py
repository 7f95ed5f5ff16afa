"""An independent judge of answers: jsonschema for schemas, the standard library for formats.

Numbers are read exactly (Decimal); of members with one name the last counts, as in JSON readers
everywhere; formats are checked by code written here from their RFCs.
"""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import json
import re
import unicodedata
from functools import cache
from typing import Any
from uuid import UUID

import jsonschema
from jsonschema import validators

decimal.getcontext().prec = 2000
decimal.getcontext().Emax = decimal.MAX_EMAX
decimal.getcontext().Emin = decimal.MIN_EMIN
MAX_EXPONENT = 900
_DRAFT = jsonschema.Draft202012Validator


def _is_integer(checker: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, decimal.Decimal) and value % 1 == 0)


def _is_number(checker: Any, value: Any) -> bool:
    return isinstance(value, int | decimal.Decimal) and not isinstance(value, bool)


FORMATS = jsonschema.FormatChecker(formats=())
_BLANKS = "\\t-\\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_NO_BLANKS = (
    "\\0-\\x08\x0e-\x1f!-\x9f\xa1-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e"
    "\u2060-\u2fff\u3001-\ufefe\uff00-\U0010ffff"
)


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Any:
    """ECMA-262 means ASCII digits and words, its own white space, and knows Unicode categories."""
    if isinstance(value, str) and not re.search(_python(pattern), value, re.ASCII):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


def _python(pattern: str) -> str:
    """Return a pattern whose categories (within sets only) and white space are written as runs."""
    named = re.sub(r"\\p\{(\w+)\}", lambda found: _category(found[1]), pattern)
    is_set, made = False, ""
    for part in re.findall(r"\\.|.", named, re.DOTALL):
        is_set = part == "[" or (is_set and part != "]")
        runs = {r"\s": _BLANKS, r"\S": _NO_BLANKS}.get(part)
        made += part if runs is None else runs if is_set else f"[{runs}]"
    return made


@cache
def _category(name: str) -> str:
    letters = (chr(code) for code in range(128, 0x110000))
    found = [c for c in letters if unicodedata.category(c).startswith(name)]
    ascii_ones = [chr(c) for c in range(128) if unicodedata.category(chr(c)).startswith(name)]
    return "".join(map(re.escape, ascii_ones)) + "".join(found)


def validator_of(schema: Any) -> Any:
    """Return the validator of a schema's draft: as `$schema` says, or as it is spelled."""
    text = json.dumps(schema)
    fallback: Any = _DRAFT
    if re.search(r'"exclusiveM(ax|in)imum": (true|false)', text):
        fallback = jsonschema.Draft4Validator
    elif '"items": [' in text or '"dependencies"' in text:
        fallback = jsonschema.Draft7Validator
    found = validators.validator_for(schema, default=fallback)
    types = found.TYPE_CHECKER.redefine_many({"integer": _is_integer, "number": _is_number})
    changed: dict[str, Any] = {"pattern": _pattern}
    return validators.extend(found, changed, type_checker=types, format_checker=FORMATS)


class Unjudged(ValueError):
    """A number so large or small that it is not worked with here."""


def _number(text: str) -> decimal.Decimal:
    try:
        value = decimal.Decimal(text)
    except decimal.InvalidOperation as error:
        raise Unjudged(text) from error
    if value and abs(value.adjusted()) > MAX_EXPONENT:
        raise Unjudged(text)
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def exact(text: str) -> Any:
    """Return JSON with exact numbers. Raises: ValueError"""
    return json.loads(text, parse_float=_number, parse_constant=_refuse)


class Judge:
    """Judges answers to one schema. `blanks` is the most white space allowed in a row."""

    def __init__(self, schema: Any, blanks: int = 8) -> None:
        made = validator_of(schema)
        self._validator = made(exact(json.dumps(schema)), format_checker=FORMATS)
        self._blanks = blanks

    def fault(self, text: bytes) -> str | None:
        """Return why a text is no answer that meets the schema, or None."""
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            return f"not UTF-8: {error}"
        try:
            value = exact(decoded)
        except Unjudged:
            return None
        except ValueError as error:
            return f"{type(error).__name__}: {error}"
        if found := _long_blank(decoded, self._blanks):
            return f"{found} blanks in a row"
        return self.fault_of(value)

    def fault_of(self, value: Any) -> str | None:
        """Return why a value does not meet the schema, or None."""
        fault = next(iter(self._validator.iter_errors(value)), None)
        return None if fault is None else str(fault.message)[:300]


def _long_blank(text: str, most: int) -> int:
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', '""', text, flags=re.DOTALL)
    runs = re.findall(r"[ \n\r\t]+", outside)
    longest = max(map(len, runs), default=0)
    return longest if longest > most else 0


def _format(name: str) -> Any:
    def register(check: Any) -> Any:
        @FORMATS.checks(name)
        def checked(value: Any) -> bool:
            if not isinstance(value, str):
                return True
            try:
                return bool(check(value))
            except ValueError:
                return False

        return check

    return register


@FORMATS.checks("int32")
def _int32(value: Any) -> bool:
    return not _is_number(None, value) or -(2**31) <= value < 2**31


@FORMATS.checks("int64")
def _int64(value: Any) -> bool:
    return not _is_number(None, value) or -(2**63) <= value < 2**63


@_format("date")
def _date(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text)) and bool(
        datetime.date.fromisoformat(text) if text[:4] != "0000" else _leap_year_zero(text)
    )


def _leap_year_zero(text: str) -> bool:
    return bool(datetime.date.fromisoformat("2000" + text[4:]))


@_format("time")
def _time(text: str) -> bool:
    """RFC 3339 full-time; a leap second needs 23:59 UTC."""
    found = re.fullmatch(
        r"([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([zZ]|[+-]([0-9]{2}):([0-9]{2}))", text
    )
    if not found:
        return False
    hour, minute, second = (int(found[i]) for i in (1, 2, 3))
    shift = 0
    if found[6]:
        if int(found[6]) > 23 or int(found[7]) > 59:
            return False
        shift = (int(found[6]) * 60 + int(found[7])) * (1 if found[5][0] == "+" else -1)
    if hour > 23 or minute > 59 or second > 60:
        return False
    return second < 60 or (hour * 60 + minute - shift) % 1440 == 1439


@_format("date-time")
def _date_time(text: str) -> bool:
    return len(text) > 10 and text[10] in "tT" and _date(text[:10]) and _time(text[11:])


@_format("duration")
def _duration(text: str) -> bool:
    """RFC 3339 appendix A."""
    time = r"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
    date = r"(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
    return bool(re.fullmatch(rf"P(?:{date}(?:{time})?|{time}|[0-9]+W)", text))


_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"


@_format("email")
def _email(text: str) -> bool:
    """RFC 5321 mailbox: dot-string or quoted local part, a domain or an address literal."""
    quoted = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
    found = re.fullmatch(rf"({_ATOM}(?:\.{_ATOM})*|{quoted})@(.+)", text)
    if not found:
        return False
    domain = found[2]
    if domain.startswith("[IPv6:"):
        return domain.endswith("]") and _ipv6(domain[6:-1])
    if domain.startswith("["):
        return domain.endswith("]") and _ipv4(domain[1:-1])
    return bool(re.fullmatch(rf"{_LABEL}(?:\.{_LABEL})*", domain))


@_format("hostname")
def _hostname(text: str) -> bool:
    return len(text) <= 253 and bool(re.fullmatch(rf"{_LABEL}(?:\.{_LABEL})*", text))


@_format("ipv4")
def _ipv4(text: str) -> bool:
    return bool(ipaddress.IPv4Address(text)) or text == "0.0.0.0"


@_format("ipv6")
def _ipv6(text: str) -> bool:
    return "%" not in text and ipaddress.IPv6Address(text) is not None


@_format("uuid")
def _uuid(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text)) and (
        UUID(text) is not None
    )


@_format("uri")
def _uri(text: str) -> bool:
    """RFC 3986: an absolute URI."""
    escape = "%[0-9A-Fa-f]{2}"
    inner = r"[A-Za-z0-9._~!$&'()*+,;=:@-]"
    pchar = rf"(?:{inner}|{escape})"
    user = rf"(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|{escape})*@)?"
    host = rf"(?:\[[^\]/?#@]*\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|{escape})*)"
    path = rf"(?://(?P<authority>{user}{host}(?::[0-9]*)?)(?:/{pchar}*)*"
    path += rf"|/(?:{pchar}+(?:/{pchar}*)*)?|{pchar}+(?:/{pchar}*)*|)"
    rest = rf"(?:\?(?:{pchar}|[/?])*)?(?:\#(?:{pchar}|[/?])*)?"
    found = re.fullmatch(rf"[A-Za-z][A-Za-z0-9+.-]*:{path}{rest}", text)
    if not found:
        return False
    bracket = re.search(r"\[([^\]]*)\]", found["authority"] or "")
    if not bracket:
        return True
    future = r"[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+"
    return bool(re.fullmatch(future, bracket[1])) or _ipv6(bracket[1])
