"""Assistant: a small model that attends to the model's own keys and values (Gemma 4's).

It reads the newest token's vector and the state before it, and caches nothing: its layers have
queries alone, and look at what the model's last layers of either kind cached. All tokens of a draft
are computed at one position.
Format: the checkpoints of Google's gemma-4-*-assistant (model_type gemma4_assistant), as
transformers has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch
    from torch import nn

TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
KEPT = ("backbone_hidden_size", "use_ordered_embeddings", "num_centroids")
PICKED = "centroid_intermediate_top_k"


class Assistant(WorkerDrafter):
    """The token table that it reads is the model's; the one that it guesses by is its own."""

    info = Info(
        summary="drafts with a small model that attends to the model's keys and values (Gemma 4)",
        source="https://ai.google.dev/gemma/docs/core",
    )
    capabilities = frozenset({"on_worker", "hidden_states", "model_cache"})
    example_settings = {"model_type": TYPES[0], "text_config": {"model_type": "gemma4_text"}}

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the settings of its text model, none of whose layers has a cache. Raises:
        ConfigError for a checkpoint of another sort, or made for another model"""
        text = raw.get("text_config")
        if raw.get("model_type") not in TYPES or not isinstance(text, Mapping):
            raise ConfigError(
                f"a checkpoint of the model type {raw.get('model_type')} is not an assistant.",
                where="--speculative-config.model: its config.json",
                fix=f"use one of the type {TYPES[0]}.",
            )
        own = {key: raw[key] for key in (*KEPT, PICKED) if key in raw}
        return {
            "architectures": ["Gemma4ForCausalLM"],
            "text_config": {**own, "num_kv_shared_layers": 0},
        }

    @classmethod
    def num_cached_layers(cls, model: ModelSpec) -> int:
        """Return 0: it caches nothing."""
        return 0

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._assistant_module import AssistantModule

        self._target = context.target
        self._module = AssistantModule(context)

    def module(self) -> nn.Module:
        """Return the layers, the projections and the head."""
        return self._module

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the tensors, with the first projection cut in two."""
        return self._module.pre_projection.cut(found, "pre_projection")

    def advance(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        states: torch.Tensor | None,
        depth: int,
    ) -> torch.Tensor:
        """Return the predicted states of the model, and its own behind them. Shapes: [T], [T],
        [T, E or E + own size] -> [T, E + own size]"""
        assert states is not None, "it continues hidden states"
        return self._module(self._target.embed(token_ids), positions, states)

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return its own head's logits. Shapes: [S, E + own size] -> [S, V]"""
        return self._module.logits(states)
