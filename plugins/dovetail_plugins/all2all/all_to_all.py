"""AllToAll: a token travels once to each rank that holds some of its experts, and its sums back.

The traffic shrinks with the ranks' tokens, and with picks on the same ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.interfaces.all2all import All2All, Compute
from dovetail.interfaces.communicator import Communicator
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch


class AllToAll(All2All):
    """Sends each token only to the ranks of its experts."""

    info = Info(
        summary="sends each token to the ranks of its experts, and the sums back",
        requires=("torch",),
        devices=("cpu", "cuda"),
    )

    def __init__(self, options: Any, group: Communicator) -> None:
        self.options = options
        self._group = group

    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        """Return the weighted sums of this rank's tokens. Shapes: as All2All.exchange"""
        import torch

        group = self._group
        holders = torch.where(places >= 0, places // num_slots, -1)
        ranks = torch.arange(group.size, device=x.device)
        wanted = (holders.unsqueeze(0) == ranks.view(-1, 1, 1)).any(2)
        counts: list[list[int]] = group.all_gather(wanted.sum(1)).tolist()
        rank, token = wanted.nonzero(as_tuple=True)  # those for rank 0 first
        is_there = holders[token] == rank.unsqueeze(1)
        slots = torch.where(is_there, places[token] % num_slots, -1).to(torch.int32)
        picks = torch.cat((weights[token].view(torch.int32), slots), 1)
        tokens = group.all_to_all_rows(x[token], counts)
        bits, found = group.all_to_all_rows(picks, counts).chunk(2, 1)
        sums = compute(tokens, bits.contiguous().view(torch.float32), found.long())
        returned = [list(column) for column in zip(*counts, strict=True)]
        back = group.all_to_all_rows(sums, returned)
        return torch.zeros_like(x).index_add_(0, token, back)
