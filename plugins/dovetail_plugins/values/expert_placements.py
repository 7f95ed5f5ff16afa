"""Which rank holds which experts: the choices of --expert-placement-strategy.

`value` is the "module:function" of an ExpertPlacement (`dovetail.interfaces.expert_placement`).
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Value


def linear(num_experts: int, num_ranks: int) -> list[range]:
    """Return consecutive experts for each rank."""
    each = num_experts // num_ranks
    return [range(rank * each, (rank + 1) * each) for rank in range(num_ranks)]


def round_robin(num_experts: int, num_ranks: int) -> list[range]:
    """Return every num_ranks-th expert for each rank."""
    return [range(rank, num_experts, num_ranks) for rank in range(num_ranks)]


LINEAR = Value(summary="consecutive experts on each rank", value=f"{__name__}:linear")
ROUND_ROBIN = Value(
    summary="experts dealt out to the ranks in turn, so that neighbors are on different ranks",
    value=f"{__name__}:round_robin",
)
