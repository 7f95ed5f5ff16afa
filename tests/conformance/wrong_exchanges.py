"""Exchanges between engines that break one promise each."""

from __future__ import annotations

import torch

from dovetail.interfaces.all2all import Compute
from dovetail_plugins.all2all.all_to_all import AllToAll
from dovetail_plugins.all2all.allgather_reducescatter import AllGatherReduceScatter


class SelfishExchange(AllToAll):
    """Computes what is here, and sends nothing."""

    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        """Return the sums over this rank's experts alone."""
        is_own = (places >= 0) & (places // num_slots == self._group.rank)
        return compute(x, weights, torch.where(is_own, places % num_slots, -1))


class EvenExchange(AllGatherReduceScatter):
    """Takes all ranks to have as many tokens as the first."""

    def begin_step(self, num_tokens: int) -> None:
        """Ask the first rank alone."""
        own = torch.tensor([num_tokens])
        self._largest = int(self._group.all_gather(own)[0])


class WideningExchange(AllToAll):
    """Returns sums in 32 bits."""

    def exchange(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        places: torch.Tensor,
        num_slots: int,
        compute: Compute,
    ) -> torch.Tensor:
        """Return wider numbers than it was given."""
        return super().exchange(x, weights, places, num_slots, compute).float()
