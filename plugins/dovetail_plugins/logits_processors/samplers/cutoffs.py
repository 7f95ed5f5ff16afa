"""EpsilonCutoff and EtaCutoff: drop tokens below a probability, which may depend on the entropy.

Source: Hewitt et al., "Truncation sampling as language model desmoothing", 2022. The unit of the
fields, 1/10,000, is that of text-generation-webui.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch

SOURCE = "https://arxiv.org/abs/2210.15191"
UNITS = 1e-4


class EpsilonCutoff(Sampler):
    """Keeps tokens of probability >= epsilon, and the most likely one."""

    info = Info(summary="drops tokens below a probability", source=SOURCE)
    stage = "before_top_p"
    settings = {
        "epsilon_cutoff": Setting(
            what="the probability below which tokens go, in units of 1/10,000; 0: none",
            default=0.0, low=0.0, high=9999.0,
        )
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go."""
        return values["epsilon_cutoff"] > 0.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the tokens above the bound. Shapes: [S, V] -> [S, V]"""
        from dovetail_plugins.logits_processors.samplers._mass import Mass, cut

        return cut(logits, Mass(logits).reaches(batch.column("epsilon_cutoff") * UNITS), batch)


class EtaCutoff(Sampler):
    """Keeps tokens of probability >= min(epsilon, sqrt(epsilon) e^-entropy), and the most likely
    one."""

    info = Info(summary="drops tokens below a probability that falls with entropy", source=SOURCE)
    stage = "before_top_p"
    settings = {
        "eta_cutoff": Setting(
            what="as epsilon_cutoff, lowered where the entropy is high, in units of 1/10,000; "
            "0: none",
            default=0.0, low=0.0, high=9999.0,
        )
    }  # fmt: skip

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go."""
        return values["eta_cutoff"] > 0.0

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the tokens above the bound. Shapes: [S, V] -> [S, V]"""
        from dovetail_plugins.logits_processors.samplers._mass import Mass, cut
        from dovetail_plugins.logits_processors.samplers._sampler import column

        mass = Mass(logits)
        epsilon = batch.column("eta_cutoff") * UNITS
        share = epsilon.minimum(epsilon.sqrt() * (-column(mass.entropy, batch.device)).exp())
        return cut(logits, mass.reaches(share), batch)
