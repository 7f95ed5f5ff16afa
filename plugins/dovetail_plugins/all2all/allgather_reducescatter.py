"""AllGatherReduceScatter: every rank gets all tokens, and each its own part of the sums back.

The traffic does not depend on the routing, and grows with the ranks; with few calls it is better
for a handful of tokens or ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.interfaces.all2all import All2All, Compute
from dovetail.interfaces.communicator import Communicator
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch


class AllGatherReduceScatter(All2All):
    """Gathers tokens, padded to the longest rank's number; scatters sums."""

    info = Info(
        summary="gathers all tokens on every rank, scatters the sums",
        requires=("torch",),
        devices=("cpu", "cuda"),
    )

    def __init__(self, options: Any, group: Communicator) -> None:
        self.options = options
        self._group = group
        self._largest = 0

    def begin_step(self, num_tokens: int) -> None:
        """Agree on the most tokens of any rank."""
        import torch

        own = torch.tensor([num_tokens], device=self._group.device)
        self._largest = int(self._group.all_gather(own).max())

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

        if not self._largest:
            return x
        group = self._group
        weights, places = _padded(weights, self._largest), _padded(places, self._largest, -1)
        picks = torch.cat((weights.view(torch.int32), places.to(torch.int32)), 1)
        tokens = group.all_gather(_padded(x, self._largest)).flatten(0, 1)
        bits, found = group.all_gather(picks).flatten(0, 1).chunk(2, 1)
        is_own = (found >= 0) & (found // num_slots == group.rank)
        slots = torch.where(is_own, found % num_slots, -1).long()
        sums = compute(tokens, bits.contiguous().view(torch.float32), slots)
        return group.reduce_scatter(sums)[: len(x)]


def _padded(x: torch.Tensor, num_rows: int, value: int = 0) -> torch.Tensor:
    """Return x padded with rows of one value. Shapes: [T, ..] -> [num_rows, ..]"""
    if len(x) == num_rows:
        return x.contiguous()
    out = x.new_full((num_rows, *x.shape[1:]), value)
    out[: len(x)] = x
    return out
