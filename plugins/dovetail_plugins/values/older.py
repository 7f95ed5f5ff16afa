"""What is left of choices which earlier generations had. `value` is its name."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

RECOMPUTE = Value(summary="preempted requests are recomputed", value="recompute")
SWAP = Value(
    summary="the KV cache of preempted requests is swapped to host memory and back", value="swap"
)
REJECTION_SAMPLER = Value(summary="rejection sampling", value="rejection_sampler")
