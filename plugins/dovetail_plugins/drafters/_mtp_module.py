"""The multi-token-prediction layer of a checkpoint, built from the model's own decoder layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import nn

from dovetail.interfaces.drafter import DraftContext
from dovetail.interfaces.model import WeightMap
from dovetail.layers.attention.rotary import Rotary, rope_settings
from dovetail.layers.decoder import FULL
from dovetail_plugins.drafters._eagle_module import JoinedLinear, family_of
from dovetail_plugins.drafters._mtp_layouts import MtpLayout
from dovetail_plugins.model_types.nemotron_h import EXPERTS, MLP


class MtpModule(nn.Module):
    """input_proj over norm(vector) and norm(state), then a decoder layer, which may have several
    blocks, and a norm."""

    def __init__(self, context: DraftContext, layout: MtpLayout) -> None:
        super().__init__()
        build, size = context.build, context.build.model.hidden_size
        family, config = family_of(context, kinds=frozenset({FULL, EXPERTS, MLP}))
        self.layout, self._num_layers = layout, context.target.spec.num_layers
        self.token_layernorm = config.norm(build, size, eps=config.norm_eps)
        self.hidden_layernorm = config.norm(build, size, eps=config.norm_eps)
        self.input_proj = JoinedLinear(build, "input_proj", (size, size), size, bias=False)
        layer_class = family.draft_layer_class or family.layer_class
        self.block = nn.ModuleList(
            layer_class(build, f"block.{i}", config, i) for i in range(build.model.num_layers)
        )
        self.final_layernorm = config.norm(build, size, eps=config.norm_eps)
        self.rotary: Rotary | None = None
        if layout.turned is not None:
            rope = rope_settings(build, theta=config.rope_theta, share=config.rotary_share)
            if layout.turned:
                rope = replace(rope, size=int(build.model.hf_config[layout.turned]))
            self.rotary = Rotary(rope, build.device)

    def weight_map(self) -> WeightMap:
        """Return the names that `read` gives, with q, k, v and gate, up fused."""
        layout = self.layout
        built = {name.rpartition(".")[2] for name, _ in self.named_modules()}
        absent = [f".{part}." for part in layout.optional if part not in built]
        return WeightMap(
            renames=layout.renames,
            fused=dict(layout.fused),
            ignored=("rotary_emb.inv_freq", *absent),
        )

    def reads(self, name: str) -> bool:
        """Return whether a tensor is of the layer."""
        return self.layout.local(name, self._num_layers) is not None

    def read(self, found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the layer's tensors on, by their names here."""
        return self.input_proj.cut(self._renamed(found), "input_proj")

    def _renamed(
        self, found: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        for path, tensor in found:
            yield self.layout.local(path, self._num_layers) or path, tensor

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """Return the states that the next tokens continue. Shapes: vectors, states [T, E],
        positions [T] -> [T, E]"""
        both = self.token_layernorm(vectors), self.hidden_layernorm(states)
        x = self.input_proj(*(reversed(both) if self.layout.is_state_first else both))
        ropes = {} if self.rotary is None else {FULL: self.rotary(positions)}
        for layer in self.block:
            x = layer(x, ropes)
        return self.final_layernorm(x) if self.layout.norms_states else x

    def normed(self, states: torch.Tensor) -> torch.Tensor:
        """Return the input of the model's head. Shapes: [S, E] -> [S, E]"""
        return states if self.layout.norms_states else self.final_layernorm(states)
