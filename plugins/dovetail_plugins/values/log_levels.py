"""Severities of dovetail's own log: the choices of --log-level.

`value` is the name of Python's logging level.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

DEBUG = Value(summary="everything", value="DEBUG")
INFO = Value(summary="what happens once, and regular statistics", value="INFO")
WARNING = Value(summary="what someone should look at", value="WARNING")
ERROR = Value(summary="what failed", value="ERROR")
CRITICAL = Value(summary="what ends the process", value="CRITICAL")
