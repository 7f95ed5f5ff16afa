"""Kinds of device: the choices of --device.

`value` is torch's device type; None takes the best one present.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="a GPU if there is one, else the CPU", value=None)
CPU = Value(summary="the processor", value="cpu")
CUDA = Value(summary="an NVIDIA GPU", value="cuda")
