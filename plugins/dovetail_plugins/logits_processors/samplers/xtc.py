"""Xtc: now and then drops all likely tokens but the least likely of them.

Source: p-e-w, "Exclude Top Choices (XTC)", 2024,
https://github.com/oobabooga/text-generation-webui/pull/6335.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch

STREAM = np.uint64(0x587463)
"""Turns a row's seed into that of these decisions, which are independent of its draws."""


class Xtc(Sampler):
    """At a step that its random number picks, drops tokens that reach the threshold, except the
    least likely of them. The number depends on the row's seed and position alone."""

    info = Info(
        summary="now and then drops all likely tokens but the least likely of them",
        source="https://github.com/oobabooga/text-generation-webui/pull/6335",
    )
    stage = "before_draw"
    rank = -1
    settings = {
        "xtc_probability": Setting(
            what="how often the likely tokens go; 0: never", default=0.0, low=0.0, high=1.0
        ),
        "xtc_threshold": Setting(
            what="the probability from which a token is likely", default=0.1, low=0.0, high=1.0
        ),
    }

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether some tokens may go: above one half, no two are likely."""
        return values["xtc_probability"] > 0.0 and values["xtc_threshold"] <= 0.5

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits without likely tokens, in rows that are picked. Mutates: logits"""
        import torch

        picked = [i for i, is_picked in enumerate(_picks(batch)) if is_picked]
        if not picked:
            return logits
        own = Rows([batch.rows[i] for i in picked], batch.device)
        keep = [batch.min_keep[i] for i in picked] if batch.min_keep else [1] * len(picked)
        at = torch.tensor(picked, device=logits.device)
        logits[at] = _without_likely(logits[at], own, keep)
        return logits


def _picks(batch: Rows) -> list[bool]:
    from dovetail_kernels.sample.definition import uniforms

    mask = (1 << 64) - 1
    seeds = np.array([row.tokens.seed & mask for row in batch.rows], dtype=np.uint64) ^ STREAM
    positions = np.array([len(row.tokens.output_ids) for row in batch.rows])
    bounds = [row.values["xtc_probability"] for row in batch.rows]
    return (uniforms(seeds, positions) < bounds).tolist()


def _without_likely(logits: torch.Tensor, batch: Rows, min_keep: list[int]) -> torch.Tensor:
    """Return the logits without likely tokens, unless too few would be left. [S, V] -> [S, V]"""
    import torch

    from dovetail_plugins.logits_processors.samplers._mass import Mass, numbers

    mass = Mass(logits)
    is_likely = mass.reaches(batch.column("xtc_threshold")) & (logits > -torch.inf)
    lowest = torch.where(is_likely, mass.below, torch.inf).amin(dim=1, keepdim=True)
    is_left = mass.below <= lowest
    count = (is_left & (logits > -torch.inf)).sum(dim=1, keepdim=True)
    return torch.where(is_left | (count < numbers(min_keep, count)), logits, -torch.inf)
