"""TailFree: drops the tail, which begins where the sorted probabilities stop curving.

Source: Phénix and Egan, "Tail free sampling", 2019, https://www.trentonbricken.com/Tail-Free-Sampling/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch


class TailFree(Sampler):
    """Keeps a token after as many as hold the share z of all absolute second differences."""

    info = Info(
        summary="drops the tail, by the second differences of the sorted probabilities",
        source="https://www.trentonbricken.com/Tail-Free-Sampling/",
    )
    stage = "before_top_p"
    settings = {
        "tfs_z": Setting(
            what="the share of the curvature that stays; 1: all tokens",
            default=1.0, low=0.0, high=1.0, others=("tfs",),
        )
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go."""
        return values["tfs_z"] < 1.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits without the tail. Shapes: [S, V] -> [S, V]"""
        import torch

        from dovetail_plugins.logits_processors.samplers._mass import Mass, cut, descending

        mass = Mass(logits)
        count = int((mass.weight > 0).sum(dim=1).max()) + 2
        weight = descending(mass.weight, min(count, logits.shape[1])).double()
        if logits.shape[1] < self.vocab_size:  # tokens that are out, and weigh nothing
            weight = torch.nn.functional.pad(weight, (0, count - weight.shape[1]))
        curve = weight.diff(dim=1).diff(dim=1).abs()
        bound = batch.column("tfs_z") * curve.sum(dim=1, keepdim=True)
        num_left = 1 + (curve.cumsum(dim=1) <= bound).sum(dim=1, keepdim=True)
        lowest = weight.gather(1, (num_left - 1).clamp(max=weight.shape[1] - 1))
        return cut(logits, mass.weight >= lowest.clamp(min=1).float(), batch)
