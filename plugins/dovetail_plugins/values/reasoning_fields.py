"""The names under which chat answers carry thinking: the choices of --reasoning-field."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

BOTH = Value(summary="under both names", value="both")
REASONING = Value(summary="as reasoning alone", value="reasoning")
REASONING_CONTENT = Value(summary="as reasoning_content alone", value="reasoning_content")
