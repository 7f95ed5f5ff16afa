"""DraftModel: a smaller model with the same vocabulary predicts the next tokens.

Any checkpoint that dovetail serves, with its own quantization, next to the target model.
Source: Leviathan et al., "Fast inference from transformers via speculative decoding", 2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from dovetail import registry
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.model import Model
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch
    from torch import nn


class DraftModel(WorkerDrafter):
    """The model plugin of the draft checkpoint, decoded greedily."""

    info = Info(
        summary="drafts with a smaller model of the same vocabulary",
        source="https://arxiv.org/abs/2211.17192",
    )
    capabilities = frozenset({"on_worker", "whole_model"})

    def __init__(self, options: Any, context: DraftContext) -> None:
        assert context.model_plugin is not None, "core names the class of a whole model"
        plugin = registry.admin.require_selection(context.model_plugin)
        made_of = registry.admin.build_options(context.model_plugin)
        self._model: Model = plugin(made_of, context.build)

    def module(self) -> nn.Module:
        """Return the model."""
        return cast("nn.Module", self._model)

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the model's final hidden states. Shapes: token_ids, positions [T] -> [T, E]"""
        return self._model.forward(token_ids, positions)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the model's logits. Shapes: [S, E] -> [S, V]"""
        return self._model.logits(states)
