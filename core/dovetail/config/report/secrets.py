"""Secrets: values that must never be printed, recognized by their names.

Used wherever settings or the environment are shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
_NAME = re.compile(
    r"key(?!s?_?(name|path|file))|token(?!iz)|secret|passw|passphrase|credential|auth(?!or)|cookie"
    r"|headers?$",
    re.IGNORECASE,
)
_PAIR = re.compile(r'("(?:[^"\\]|\\.)*"\s*:\s*)"(?:[^"\\]|\\.)*"')
_LOGIN = re.compile(r"(\w+://)[^/\s@]+@")


def is_secret_name(name: str) -> bool:
    """Return whether a variable or key of this name may hold a secret: API_KEY, HF_TOKEN, ..."""
    return _NAME.search(name) is not None


def masked(value: Any) -> Any:
    """Return a value with its secrets masked: entries with such names, and logins in URLs."""
    if isinstance(value, Mapping):
        return {
            key: MASK
            if isinstance(inner, str) and inner and is_secret_name(str(key))
            else masked(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(inner) for inner in value]
    return masked_text(value) if isinstance(value, str) else value


def masked_text(text: str) -> str:
    """Return text with the logins of URLs, and JSON entries with a secret name, masked."""
    return _PAIR.sub(_masked_pair, _LOGIN.sub(rf"\1{MASK}@", text))


def masked_variable(name: str, text: str, *, is_secret: bool | None = None) -> str:
    """Return a variable's text ready to print. `is_secret` None: its name decides."""
    hides = is_secret_name(name) if is_secret is None else is_secret
    return MASK if hides else masked_text(text)


def _masked_pair(match: re.Match[str]) -> str:
    return f'{match[1]}"{MASK}"' if is_secret_name(match[1]) else match[0]
