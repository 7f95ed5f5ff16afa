"""Log lines: plain, one line each, on standard error. Knows no handlers of other libraries.

Modules log to loggers below "dovetail"; this file only sets their handler and level.
"""

from __future__ import annotations

import logging
import sys
import time

FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"


class _LineFormatter(logging.Formatter):
    """UTC times to the millisecond; a message never spans lines, save for a traceback."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        record.message = record.getMessage()
        text = super().format(record)
        if record.exc_info:
            return text
        return text.replace("\r", "\\r").replace("\n", "\\n")


def setup(level: str) -> None:
    """Send the log of dovetail to standard error at this level. May be called again.

    Mutates: the logger "dovetail"
    """
    logger = logging.getLogger("dovetail")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(FORMAT))
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False


def shortened(text: str, max_chars: int | None) -> str:
    """Return text cut to --max-log-len, saying how much was left out."""
    if max_chars is None or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]}... ({len(text) - max_chars} more)"


def setup_uvicorn(level: str) -> None:
    """Send uvicorn's lines to the same place in the same form. Mutates: uvicorn's loggers"""
    handlers = logging.getLogger("dovetail").handlers
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers = list(handlers) if name == "uvicorn" else []
        logger.setLevel({"trace": "DEBUG"}.get(level.lower(), level.upper()))
        logger.propagate = name != "uvicorn"
