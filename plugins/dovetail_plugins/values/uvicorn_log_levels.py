"""Severities of the HTTP server's log: the choices of --uvicorn-log-level.

`value` is the word uvicorn takes.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

TRACE = Value(summary="every ASGI message", value="trace")
DEBUG = Value(summary="everything but single messages", value="debug")
INFO = Value(summary="start, stop and requests", value="info")
WARNING = Value(summary="what someone should look at", value="warning")
ERROR = Value(summary="what failed", value="error")
CRITICAL = Value(summary="what ends the server", value="critical")
