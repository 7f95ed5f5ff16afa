"""Which rank holds which experts: the choices of --expert-placement-strategy."""

from __future__ import annotations


def linear(num_experts: int, num_ranks: int) -> list[range]:
    """Return consecutive experts for each rank."""
    each = num_experts // num_ranks
    return [range(rank * each, (rank + 1) * each) for rank in range(num_ranks)]


def round_robin(num_experts: int, num_ranks: int) -> list[range]:
    """Return every num_ranks-th expert for each rank."""
    return [range(rank, num_experts, num_ranks) for rank in range(num_ranks)]
