"""JsonFormatter: a line of the log as one JSON object, for programs that collect logs."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from dovetail.observability.caller import CALLER


class JsonFormatter(logging.Formatter):
    """`time` is UTC to the millisecond. `request_id` is that of the HTTP request during which the
    line was written, or that the caller gave as `extra`; lines of no request lack it."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self._prefix = prefix.strip()

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        caller = CALLER.get()
        found: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": getattr(record, "request_id", caller.request_id if caller else ""),
            "process": record.process,
            "prefix": self._prefix,
            "exception": self.formatException(record.exc_info) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in found.items() if value != ""})
