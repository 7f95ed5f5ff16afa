"""What a model of text is turned into: the choices of --convert. `value` is None: nothing."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="what the checkpoint is made for", value=None)
NONE = Value(summary="nothing, it generates text", value=None)
