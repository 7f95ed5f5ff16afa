"""Severities of dovetail's own log: the choices of --log-level.

`value` is the name of Python's logging level.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

DEBUG = Value(summary="everything", value="DEBUG")
INFO = Value(summary="single events, and regular statistics", value="INFO")
WARNING = Value(summary="problems that need attention", value="WARNING")
ERROR = Value(summary="failures", value="ERROR")
CRITICAL = Value(summary="failures that end the process", value="CRITICAL")
