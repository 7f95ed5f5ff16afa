"""The names under which chat answers carry thinking: the choices of --reasoning-field.

`value` is a tuple of those names.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

BOTH = Value(summary="both names", value=("reasoning", "reasoning_content"))
REASONING = Value(summary="reasoning only", value=("reasoning",))
REASONING_CONTENT = Value(summary="reasoning_content only", value=("reasoning_content",))
