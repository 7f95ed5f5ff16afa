"""What a model of text is turned into: the choices of --convert. `value` is None: nothing."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="chosen by the checkpoint", value=None)
NONE = Value(summary="no conversion: a generative model", value=None)
