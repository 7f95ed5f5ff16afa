"""TopA: drops tokens below a multiple of the square of the largest probability.

Source: "Top-a sampling", BlinkDL, https://github.com/BlinkDL/RWKV-LM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch


class TopA(Sampler):
    """Keeps tokens of probability >= top_a x (the largest probability)^2."""

    info = Info(
        summary="drops tokens below top_a times the square of the largest probability",
        source="https://github.com/BlinkDL/RWKV-LM",
    )
    stage = "before_top_p"
    settings = {
        "top_a": Setting(
            what="the factor of the largest probability's square below which tokens go; 0: none",
            default=0.0, low=0.0, high=1.0,
        )
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go."""
        return values["top_a"] > 0.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the tokens above the bound. Shapes: [S, V] -> [S, V]"""
        from dovetail_plugins.logits_processors.samplers._mass import UNIT, Mass, cut

        mass = Mass(logits)
        largest = UNIT / mass.total
        return cut(logits, mass.reaches(batch.column("top_a") * largest.square()), batch)
