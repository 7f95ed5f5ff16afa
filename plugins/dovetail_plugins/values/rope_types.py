"""How the rotary embedding is stretched: rope_type in --rope-scaling and in checkpoints.

`value` is the "module:function" of the rule: it takes RopeSettings and returns Frequencies (see
`dovetail.layers.rotary`).
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

_RULES = "dovetail.layers.rotary"

DEFAULT = Value(summary="no scaling", value=f"{_RULES}:default")
LINEAR = Value(summary="positions divided by factor", value=f"{_RULES}:linear")
DYNAMIC = Value(summary="the base grows with the served length (NTK)", value=f"{_RULES}:dynamic")
YARN = Value(summary="low frequencies divided by factor, high ones kept", value=f"{_RULES}:yarn")
LONGROPE = Value(
    summary="one factor per frequency, for short and for long contexts", value=f"{_RULES}:longrope"
)
LLAMA3 = Value(summary="the same as yarn, with the two bounds of Llama 3", value=f"{_RULES}:llama3")
