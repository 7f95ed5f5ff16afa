"""How safetensors files are read: the choices of --safetensors-load-strategy."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

LAZY = Value(summary="files are mapped and read as tensors are asked for", value="lazy")
