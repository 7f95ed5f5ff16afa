"""LogitSmoothing: the logits fall with the square, or cube, of their distance from the best.

Source: kalomaze, "Quadratic sampling" and its curve,
https://github.com/oobabooga/text-generation-webui/pull/5403 and pull/5551.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch


class LogitSmoothing(Sampler):
    """With factor f and curve c, d below the best becomes f (3 - c)/2 d^2 + f (c - 1)/2 d^3 below
    it."""

    info = Info(
        summary="logits fall with the square or cube of their distance from the best",
        source="https://github.com/oobabooga/text-generation-webui/pull/5403",
    )
    stage = "filter"
    rank = -1
    settings = {
        "smoothing_factor": Setting(
            what="how fast logits fall below the best one; 0: as they are",
            default=0.0, low=0.0, high=100.0,
        ),
        "smoothing_curve": Setting(
            what="1: by the square of the distance, 3: by its cube", default=1.0, low=1.0, high=10.0
        ),
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether logits change."""
        return values["smoothing_factor"] > 0.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the smoothed logits. Shapes: [S, V] -> [S, V]"""
        import torch

        best = logits.amax(dim=1, keepdim=True)
        down = best - logits
        factor, curve = batch.column("smoothing_factor"), batch.column("smoothing_curve")
        square = (factor * (3.0 - curve) / 2.0).float()
        cube = (factor * (curve - 1.0) / 2.0).float()
        fall = (square + cube * down).mul_(down).mul_(down)
        return torch.where(down < torch.inf, best - fall, -torch.inf)
