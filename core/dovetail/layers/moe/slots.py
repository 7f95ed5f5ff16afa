"""ExpertSlots: the placement of experts over all ranks that hold whole experts.

A slot is the place of one expert's matrices on a rank. There may be more slots than experts: then
some experts have copies, used in turn according to a token's place in the step. Ranks in the same
place of several engines are a column, within which tokens are exchanged. The ranks of one engine
have the same tokens and are in different columns.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.parallel.engines import exchange
from dovetail.parallel.experts import Held, placed_experts
from dovetail.parallel.groups import data_group, expert_group

TURNS = 12
"""The turns of an expert's copies repeat after this many tokens: 1, 2, 3, 4, 6 and 12 copies get
equal shares, other numbers nearly."""


class ExpertSlots(nn.Module):
    """`held[rank][slot]` is an expert; `counts` are how often this rank's tokens picked each.

    Shapes: table [X] or, if there may be copies, [X, TURNS] int64; counts [X] int64
    """

    table: torch.Tensor
    counts: torch.Tensor | None

    def __init__(self, context: BuildContext, num_experts: int) -> None:
        super().__init__()
        balance = context.expert_balance
        extra = balance.num_redundant if balance is not None else 0
        self.num_experts = num_experts
        self.group = expert_group(context.rank)
        self.column = data_group(context.rank)
        self.exchange = exchange()
        self.held = placed_experts(context.expert_placement, num_experts, extra, self.group)
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

    def assign(self, placement: Held) -> None:
        """Set which experts the slots hold from now on. Mutates: self"""
        self.held = placement
        places: list[list[int]] = [[] for _ in range(self.num_experts)]
        width = len(placement) // self.column.size  # ranks per engine
        for rank, experts in enumerate(placement):
            engine, number = divmod(rank, width)
            is_near = number == self.group.rank % width
            for slot, expert in enumerate(experts):
                places[expert].append(engine * len(experts) + slot if is_near else -1)
        if self.table.dim() == 1:
            rows: list[int] | list[list[int]] = [slots[0] for slots in places]
        else:
            rows = [[slots[turn % len(slots)] for turn in range(TURNS)] for slots in places]
        self.table.copy_(torch.tensor(rows))

    def forward(self, experts: torch.Tensor) -> torch.Tensor:
        """Return the places of picked experts in the column (see All2All.exchange); in a column of
        one rank these are its slots. Experts of other columns get -1.

        Shapes: [T, A] int64 -> [T, A] int64. Mutates: counts
        """
        if self.counts is not None:
            picked = experts.flatten()
            self.counts.scatter_add_(0, picked, torch.ones_like(picked))
        if self.table.dim() == 1:
            return self.table[experts]
        turns = torch.arange(len(experts), device=experts.device) % TURNS
        return self.table[experts, turns.unsqueeze(1)]
