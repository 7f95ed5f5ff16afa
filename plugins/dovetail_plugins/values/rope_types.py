"""How the rotary embedding is stretched: rope_type in --rope-scaling and in checkpoints.

`value` is the name of the rule in `dovetail.layers.rotary`.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

DEFAULT = Value(summary="not at all", value="default")
LINEAR = Value(summary="positions divided by factor", value="linear")
DYNAMIC = Value(summary="the base grows with the served length (NTK)", value="dynamic")
YARN = Value(summary="slow frequencies divided by factor, fast ones kept", value="yarn")
LONGROPE = Value(summary="every frequency has factors of its own", value="longrope")
LLAMA3 = Value(summary="as yarn, with Llama 3's two bounds", value="llama3")
