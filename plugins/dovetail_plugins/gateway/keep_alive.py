"""Ollama's keep_alive: how long a model stays loaded after a request; 0 unloads it.

Source: Ollama's API reference: a number of seconds, or a duration of Go's such as "1h30m"; negative
is for ever.
"""

from __future__ import annotations

import math
import re
from typing import Any

from dovetail.errors import RequestError

PATHS = ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings")
"""The paths whose bodies have the field."""
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def keep_alive_s(value: Any) -> float | None:
    """Return seconds, `inf` for ever; None: the request does not say. Raises: RequestError"""
    if value is None or value == "":
        return None
    seconds = float(value) if isinstance(value, int | float) else _of_text(value)
    if seconds is None or isinstance(value, bool) or math.isnan(seconds):
        raise RequestError(
            "must be a number of seconds or a duration such as 5m.", where="keep_alive"
        )
    return math.inf if seconds < 0 else seconds


def _of_text(text: Any) -> float | None:
    if not isinstance(text, str):
        return None
    digits = text.removeprefix("-").removeprefix("+")
    sign = -1.0 if text.startswith("-") else 1.0
    if re.fullmatch(r"\d+(\.\d*)?|\.\d+", digits):
        return sign * float(digits)
    if not digits or _PART.sub("", digits):
        return None
    return sign * sum(float(n) * _SECONDS[unit] for n, unit in _PART.findall(digits))
