"""Eagle: one decoder layer that continues the model's hidden states.

The layer reads a token's vector and the previous hidden state, and predicts the next hidden state;
logits come from the model's own head, or from one trained with the layer. Format: the checkpoints
of SafeAILab/EAGLE, versions 1 and 2 (fc.weight, layers.0...).
Source: Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters import _settings

if TYPE_CHECKING:
    import torch
    from torch import nn


class Eagle(WorkerDrafter):
    """The embedding is always the model's own, and the head too, unless the checkpoint's
    config.json says that it has its own (`has_own_head`)."""

    info = Info(
        summary="drafts with a layer that continues the model's hidden states (EAGLE 1 and 2)",
        source="https://arxiv.org/abs/2401.15077",
    )
    capabilities = frozenset({"on_worker", "hidden_states"})

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings with the class of the family whose layers these are."""
        return _settings.of_family(raw, target)

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._eagle_module import EagleModule

        self._target = context.target
        self._module = EagleModule(context)

    def module(self) -> nn.Module:
        """Return the layers and the projection that joins vector and state."""
        return self._module

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the tensors with fc cut into its two halves."""
        return self._module.fc.cut(found, "fc")

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the predicted hidden states. Shapes: [T], [T], [T, E] -> [T, E]"""
        assert states is not None, "it continues hidden states"
        return self._module(self._target.embed(token_ids), positions, states)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return logits by the model's head, or its own. Shapes: [S, E] -> [S, V]"""
        own = self._module.lm_head
        return self._target.logits(states) if own is None else own(states)
