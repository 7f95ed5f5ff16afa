"""Eagle3: a layer over three of the model's inner states, with its own head.

Besides a token's vector the layer reads fc's projection of the inputs of three model layers, and
after the first guess its own last state. Its head may cover only a part of the vocabulary.
Formats: the checkpoints of SafeAILab/EAGLE, version 3 (fc, midlayer, norm, lm_head, d2t, t2d), and
those of vllm-project/speculators, whose config.json says which norms there are; layers are Llama's,
or of latents as DeepSeek's.
Source: Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2025.
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


LAYERS = "eagle_aux_hidden_state_layer_ids"


class Eagle3(WorkerDrafter):
    """The embedding is always the model's own."""

    info = Info(
        summary="drafts with a layer over three of the model's inner states (EAGLE 3)",
        source="https://arxiv.org/abs/2503.01840",
    )
    capabilities = frozenset({"on_worker", "hidden_states", "by_depth"})

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings with the class of the family whose layer this is. Raises:
        ConfigError"""
        return _settings.of_family(raw, target)

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._eagle3_module import Eagle3Module

        self._target = context.target
        self._config = context.build.model.hf_config
        self._module = Eagle3Module(context, len(self.inner_layers()))

    def module(self) -> nn.Module:
        """Return fc, the layer and the head."""
        return self._module

    def inner_layers(self) -> tuple[int, ...]:
        """Return the layers that the checkpoint names, or those that the published heads read."""
        nested = self._config.get("eagle_config") or {}
        named = nested.get(LAYERS) or self._config.get(LAYERS)
        if named:
            return tuple(int(number) for number in named)
        count = self._target.spec.num_layers
        return 2, count // 2, count - 3

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterable[tuple[str, torch.Tensor]]:
        """Return the tensors with q, k and v cut into their halves."""
        return self._module.read(found)

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the layer's states. Shapes: [T], [T], [T, 3 E or E] -> [T, E]"""
        assert states is not None, "it continues hidden states"
        return self._module(self._target.embed(token_ids), positions, states, depth)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the head's logits over the model's vocabulary. Shapes: [S, E] -> [S, V]"""
        return self._module.logits(states)
