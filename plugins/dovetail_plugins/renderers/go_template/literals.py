"""Constants in Go's syntax. Source: the Go language specification, literals."""

from __future__ import annotations

import re
from typing import Any

from dovetail_plugins.renderers.go_template.lexing import GoTemplateError, Token

_ESCAPE = re.compile(
    r"\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([0-7]{3})|(.))", re.DOTALL
)
_PLAIN = dict(zip("abfnrtv\\'\"", "\a\b\f\n\r\t\v\\'\"", strict=True))


def value_of(token: Token) -> Any:
    """Return the value of a constant's token: str, int or float. Raises: GoTemplateError"""
    match token.kind:
        case "string":
            return _unescaped(token.text[1:-1])
        case "raw":
            return token.text[1:-1].replace("\r", "")
        case "char":
            character = _unescaped(token.text[1:-1])
            if len(character) != 1:
                raise GoTemplateError(f"{token.text} is not one character")
            return ord(character)
        case _:
            return _number(token.text)


def _number(text: str) -> int | float:
    digits = text.lstrip("+-")
    try:
        if digits[:2].lower() not in ("0x", "0b", "0o") and re.search("[.eE]", digits):
            return float(text)
        is_octal = digits[0] == "0" and digits.isdecimal()
        return int(text, 8 if is_octal else 0)
    except ValueError:
        raise GoTemplateError(f"{text} is not a number") from None


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(match: re.Match[str]) -> str:
    *hexadecimal, octal, plain = match.groups()
    code = next((int(digits, 16) for digits in hexadecimal if digits), None)
    if octal:
        code = int(octal, 8)
    if code is not None and code <= 0x10FFFF:
        return chr(code)
    if plain not in _PLAIN:
        raise GoTemplateError(f"{match[0]} is not an escape of Go")
    return _PLAIN[plain]
