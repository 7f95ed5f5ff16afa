"""How the rotary embedding is stretched: rope_type in --rope-scaling and in checkpoints.

`value` is the name of the rule in `dovetail.layers.rotary`.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

DEFAULT = Value(summary="no scaling", value="default")
LINEAR = Value(summary="positions divided by factor", value="linear")
DYNAMIC = Value(summary="the base grows with the served length (NTK)", value="dynamic")
YARN = Value(summary="low frequencies divided by factor, high ones kept", value="yarn")
LONGROPE = Value(
    summary="one factor per frequency, for short and for long contexts", value="longrope"
)
LLAMA3 = Value(summary="the same as yarn, with the two bounds of Llama 3", value="llama3")
