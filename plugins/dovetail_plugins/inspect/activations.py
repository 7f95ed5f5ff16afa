"""A description of the activation type that a layer uses in products on this machine.

The rule is `layers.rounding.taken`; the descriptions say what kernels make of it. Imports no torch.
"""

from __future__ import annotations

from dovetail.interfaces.data.headers import StorageEstimate
from dovetail_kernels.cpu.recipe import BFLOAT16_ISAS
from dovetail_plugins.inspect.how import How
from dovetail_plugins.layers.stored.rounding import BFLOAT16, FLOAT, FLOAT8, INT8, TOKEN, taken

INT8_GROUP = 32
"""The inputs that share a scale when activations become int8 on a CPU; fewer if the weight's own
groups are smaller."""
WORDS_ISA = "avx2"
"""The instruction set that multiplies 16-bit integers by 8-bit weights as fast as bytes."""
NOT_TOLD = "not known from the method"


def of_layer(estimate: StorageEstimate | None, matrix_dtype: str, how: How) -> str:
    """Return the description for a layer's product. `estimate` is the method's estimate; None: a
    matrix in full precision."""
    takes = (
        (BFLOAT16 if matrix_dtype == BFLOAT16 else FLOAT) if estimate is None else estimate.takes
    )
    if not takes:
        return NOT_TOLD
    isas = BFLOAT16_ISAS if estimate is None else BFLOAT16_ISAS[:1]
    is_bfloat16 = how.model.weight_dtype == BFLOAT16 and how.isa in isas
    becomes = taken(takes, how.asked, is_cpu=how.is_cpu, is_bfloat16=is_bfloat16)
    return {
        TOKEN: "int8, a scale a token (the checkpoint's own)",
        INT8: int8_words(how),
        FLOAT8: f"8-bit floats, a scale a token; {how.model.dtype} before capability 8.9",
        BFLOAT16: BFLOAT16,
        FLOAT: how.model.dtype,
    }[becomes]


def int8_words(how: How) -> str:
    """Return the description of int8 activations that are not required by the checkpoint."""
    if how.is_cpu:
        more = "; 16-bit integers with 8-bit weights" if how.isa == WORDS_ISA else ""
        return f"int8 in groups of {INT8_GROUP} inputs{more}"
    return "int8, a scale a token (as asked for)"
