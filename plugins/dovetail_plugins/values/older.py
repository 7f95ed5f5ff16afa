"""What is left of choices which earlier generations had. `value` is its name."""

from __future__ import annotations

from dovetail.interfaces.plugin import Value

RECOMPUTE = Value(summary="a preempted request is computed again", value="recompute")
SWAP = Value(summary="a preempted request's cache goes to host memory and back", value="swap")
REJECTION_SAMPLER = Value(summary="rejection sampling", value="rejection_sampler")
