"""Whose code runs the model: the choices of --model-impl.

`value` is "dovetail" or "transformers"; None takes dovetail's own model where there is one.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="dovetail's own model if there is one, else transformers'", value=None)
DOVETAIL = Value(summary="dovetail's own model, or an error", value="dovetail")
VLLM = Value(summary="the same as dovetail, for command lines of vLLM", value="dovetail")
TRANSFORMERS = Value(
    summary="the model class of transformers with dovetail's attention and linear layers",
    value="transformers",
)
