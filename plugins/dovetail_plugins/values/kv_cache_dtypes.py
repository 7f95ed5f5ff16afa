"""Number types of the KV cache: the choices of --kv-cache-dtype.

`value` is torch's name of the type; None takes the type the model computes in.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

AUTO = Value(summary="the data type of the weights", value=None)
FLOAT32 = Value(summary="32 bits", value="float32")
FLOAT16 = Value(summary="16 bits: 5 exponent, 10 mantissa", value="float16")
BFLOAT16 = Value(summary="16 bits: 8 exponent, 7 mantissa", value="bfloat16")
INT8 = Value(summary="8 bits, a scale per token and kv head (native_cpu, triton)", value="int8")
FP8 = Value(summary="the same as fp8_e4m3", value="float8_e4m3fn")
FP8_E4M3 = Value(
    summary="8 bits: 4 exponent, 3 mantissa, up to 448; a scale per layer for keys and for values",
    value="float8_e4m3fn",
)
FP8_E5M2 = Value(
    summary="8 bits: 5 exponent, 2 mantissa, up to 57344; the same scales", value="float8_e5m2"
)
