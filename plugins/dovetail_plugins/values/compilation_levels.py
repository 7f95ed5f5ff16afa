"""How far steps are made fast: the levels of --compilation-config (-O).

`value` is a set of words: "fused", operators joined into one kernel where the device has it;
"captured", steps kept and run again as one where the device can; "compiled", the model's pass
through torch.compile where that is faster.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

LEVEL_0 = Value(summary="torch's operators, one by one", value=frozenset())
LEVEL_1 = Value(summary="fused operators, one by one", value=frozenset({"fused"}))
LEVEL_2 = Value(
    summary="captured steps (CUDA graphs), or recorded ones on a CPU",
    value=frozenset({"fused", "captured"}),
)
LEVEL_3 = Value(
    summary="as 2, with torch.compile for the parts between attention where that is faster",
    value=frozenset({"fused", "captured", "compiled"}),
)
