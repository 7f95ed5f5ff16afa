"""Severities of the HTTP server's log: the choices of --uvicorn-log-level.

`value` is the word uvicorn takes.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

TRACE = Value(summary="every ASGI message", value="trace")
DEBUG = Value(summary="everything but ASGI messages", value="debug")
INFO = Value(summary="start, stop and requests", value="info")
WARNING = Value(summary="problems that need attention", value="warning")
ERROR = Value(summary="failures", value="error")
CRITICAL = Value(summary="failures that end the server", value="critical")
