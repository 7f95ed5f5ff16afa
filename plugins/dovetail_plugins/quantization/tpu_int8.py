"""tpu_int8: the name of int8 while loading on TPUs. dovetail has no TPU kernels: the arithmetic is
that of the method int8 on the device at hand, 8-bit weights per output, activations as its
option says. A checkpoint may name it in its config; its weights are in full precision all the same.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.quantization.int8 import Int8


class TpuInt8(Int8):
    """int8 by another name."""

    info = Info(summary="int8 while loading, on a CPU or GPU (dovetail does not run on TPUs)")
    stored_as = ("tpu_int8",)
