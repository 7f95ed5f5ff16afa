"""Mtp: the multi-token-prediction layer that comes with a checkpoint.

It continues the hidden states, and the model's own head turns them into logits. If there are
several such layers, the first one drafts all tokens.
Formats: MiMo's checkpoints (model.mtp_layers.0...), GLM-4.5's and DeepSeek-V3's (the layer after
the last) and Qwen3-Next's (mtp...), with the model's own layer type.
Source: DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.plugin import Info
from dovetail_plugins.drafters._mtp_layouts import OWN, MtpLayout, layout_of

if TYPE_CHECKING:
    import torch
    from torch import nn


HALVES = tuple(f"{OWN[-1]}.{half}" for half in ("first", "second"))


class Mtp(WorkerDrafter):
    """Embedding and head are the model's own."""

    info = Info(
        summary="drafts with the layer for further tokens that the model's checkpoint has (MTP)",
        source="https://arxiv.org/abs/2412.19437",
    )
    capabilities = frozenset({"on_worker", "hidden_states", "own_weights"})
    example_settings = {"model_type": "mimo", "num_nextn_predict_layers": 1}

    @classmethod
    def settings(cls, raw: Mapping[str, Any], target: ModelSpec) -> dict[str, Any]:
        """Return the model's settings, with one layer. Raises: ConfigError if it has none"""
        layout = layout_of(raw)
        stored = _stored(raw.get("quantization_config"), layout, target.num_layers)
        # Without the parts of a model that takes media, which have the text model's fields again.
        own = {k: v for k, v in raw.items() if k in target.hf_config or not isinstance(v, Mapping)}
        return {**layout.settings_of(own), **stored}

    @classmethod
    def own_names(cls, name: str, target: ModelSpec) -> tuple[str, ...]:
        """Return the names of a tensor of the layer, two of the projection that is cut."""
        layout = layout_of(target.hf_config)
        own = layout.local(name, target.num_layers)
        if own is None:
            return ()
        for theirs, ours in layout.renames:
            own = own.replace(theirs, ours)
        leaf = own.removeprefix(OWN[-1])
        return (own,) if leaf == own else tuple(f"{half}{leaf}" for half in HALVES)

    @classmethod
    def num_cached_layers(cls, model: ModelSpec) -> int:
        """Return how many blocks of the layer attend."""
        return model.num_layers if model.cache is None else model.cache.num_attention_layers

    def __init__(self, options: Any, context: DraftContext) -> None:
        from dovetail_plugins.drafters._mtp_module import MtpModule

        self._target = context.target
        self._module = MtpModule(context, layout_of(context.target.spec.hf_config))

    def reads(self, name: str) -> bool:
        """Return whether a tensor is of the layer."""
        return self._module.reads(name)

    def module(self) -> nn.Module:
        """Return the layer."""
        return self._module

    def tensors(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Return the layer's tensors, with the joining projection cut in two."""
        return self._module.read(pair for pair in found if self.reads(pair[0]))

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
        """Return the model's logits. Shapes: [S, E] -> [S, V]"""
        return self._target.logits(self._module.normed(states))


def _stored(stored: Any, layout: MtpLayout, num_layers: int) -> dict[str, Any]:
    """Return how a GGUF file's matrices of the layer are stored, by the names in the drafter."""
    if not isinstance(stored, Mapping) or not isinstance(stored.get("types"), Mapping):
        return {}
    types: dict[str, str] = {}
    for name, kind in stored["types"].items():
        own = (layout.local(f"{name}.", num_layers) or "").removesuffix(".")
        halves = HALVES if own == OWN[-1] else ()
        types |= dict.fromkeys((own, *halves) if own else (), kind)
    return {"quantization_config": {**stored, "types": types}}
