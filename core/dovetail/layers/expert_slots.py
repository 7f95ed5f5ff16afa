"""ExpertSlots: which experts lie where, over all ranks that hold whole experts.

A slot is the place of one expert's matrices on a rank. There may be more slots than experts: then
some experts have copies, which take turns by a token's place in the step.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.parallel.experts import Held, placed_experts
from dovetail.parallel.groups import Group

TURNS = 12
"""Tokens after which copies of an expert take the same turns again: 1, 2, 3, 4, 6 and 12 copies get
equal shares, others nearly."""


class ExpertSlots(nn.Module):
    """`held[rank][slot]` is an expert; `counts` are how often each expert was picked so far.

    Shapes: table [X] or, where there may be copies, [X, TURNS] int64; counts [X] int64
    """

    table: torch.Tensor
    counts: torch.Tensor | None

    def __init__(self, context: BuildContext, num_experts: int, group: Group) -> None:
        super().__init__()
        balance = context.expert_balance
        extra = balance.num_redundant if balance is not None else 0
        self.num_experts = num_experts
        self.group = group
        self.held = placed_experts(context.expert_placement, num_experts, extra, group)
        device = context.device
        shape = (num_experts, TURNS) if extra else (num_experts,)
        self.register_buffer(
            "table", torch.zeros(shape, dtype=torch.int64, device=device), persistent=False
        )
        counts = torch.zeros(num_experts, dtype=torch.int64, device=device)
        self.register_buffer("counts", None if balance is None else counts, persistent=False)
        self.assign(self.held)

    @property
    def own(self) -> tuple[int, ...]:
        """Return the experts in this rank's slots."""
        return self.held[self.group.rank]

    def assign(self, held: Held) -> None:
        """Say which experts the slots hold from now on. Mutates: self"""
        self.held = held
        places: list[list[int]] = [[] for _ in range(self.num_experts)]
        for rank, experts in enumerate(held):
            for slot, expert in enumerate(experts):
                places[expert].append(slot if rank == self.group.rank else -1)
        if self.table.dim() == 1:
            rows: list[int] | list[list[int]] = [slots[0] for slots in places]
        else:
            rows = [[slots[turn % len(slots)] for turn in range(TURNS)] for slots in places]
        self.table.copy_(torch.tensor(rows))

    def forward(self, experts: torch.Tensor) -> torch.Tensor:
        """Return this rank's slots of picked experts, -1 for those that others compute.

        Shapes: [T, A] int64 -> [T, A] int64. Mutates: counts
        """
        if self.counts is not None:
            picked = experts.flatten()
            self.counts.scatter_add_(0, picked, torch.ones_like(picked))
        if self.table.dim() == 1:
            return self.table[experts]
        turns = torch.arange(len(experts), device=experts.device) % TURNS
        return self.table[experts, turns.unsqueeze(1)]
