"""Number types of weights and activations: the choices of --dtype.

`value` is torch's name of the type; None leaves the choice to the checkpoint and the device.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(
    summary="the checkpoint's type, or float32 where the device is slow with that", value=None
)
HALF = Value(summary="another name for float16", value="float16")
FLOAT16 = Value(summary="16 bits: 5 exponent, 10 mantissa", value="float16")
BFLOAT16 = Value(summary="16 bits: 8 exponent, 7 mantissa", value="bfloat16")
FLOAT = Value(summary="another name for float32", value="float32")
FLOAT32 = Value(summary="32 bits", value="float32")
