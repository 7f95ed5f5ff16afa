"""Sizes of steps for what matters more: the choices of --performance-mode.

`value` is (factor of the default of --max-num-batched-tokens, factor of that of --max-num-seqs).
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

BALANCED = Value(summary="the usual sizes", value=(1, 1))
INTERACTIVITY = Value(
    summary="short steps: half as many tokens each, so that tokens come more evenly",
    value=(0.5, 1),
)
THROUGHPUT = Value(summary="long steps: twice as many tokens and requests each", value=(2, 2))
