"""keep_alive: for how long a model stays loaded after a request.

Format: seconds as a number, or a duration as Go writes it ("5m", "1h30m"); below 0: for ever.
Source: Ollama's FAQ and https://pkg.go.dev/time#ParseDuration
"""

from __future__ import annotations

import math
import re

from dovetail.errors import RequestError

UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(rf"([-+]?)(0|(?:{_PART.pattern})+)")


def seconds_of(value: float | str) -> float:
    """Return a duration in seconds; infinity if it is below 0. Raises: RequestError"""
    if isinstance(value, str):
        value = _parsed(value)
    return math.inf if value < 0 else float(value)


def _parsed(text: str) -> float:
    whole = _WHOLE.fullmatch(text.strip())
    if whole is None:
        raise RequestError(
            f'"{text[:64]}" is not a duration.',
            where="keep_alive",
            fix='write seconds as a number, or a text such as "5m" or "1h30m"; -1 is for ever.',
        )
    size = sum(float(number) * UNITS_S[unit] for number, unit in _PART.findall(whole[2]))
    return -size if whole[1] == "-" else size
