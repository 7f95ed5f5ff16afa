"""StepPooler: the tokens that end the steps of a text, which process reward models judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.pooler import Pooler

if TYPE_CHECKING:
    import torch


class StepPooler(Pooler):
    """The tokens that end steps: those with the id `step_token_id`, or all if it is not set."""

    info = Info(
        summary="the tokens that end the steps of a text (step_tag_id)",
        source="https://arxiv.org/abs/2305.20050",
    )
    capabilities = frozenset({"per_token"})

    def pool(self, hidden: torch.Tensor, token_ids: Sequence[int]) -> torch.Tensor:
        """Return the states of the step ends. Shapes: hidden [n, E] -> [m, E]"""
        mark = self.spec.step_token_id
        if mark is None:
            return hidden
        return hidden[[i for i, token_id in enumerate(token_ids) if token_id == mark]]
