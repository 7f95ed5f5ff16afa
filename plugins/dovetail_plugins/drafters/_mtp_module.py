"""The layer for further tokens of MiMo's checkpoints, made of the model's own decoder layer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from dovetail.interfaces.drafter import DraftContext
from dovetail.interfaces.model import WeightMap
from dovetail.layers.decoder import FULL, FUSED
from dovetail.layers.rotary import Rotary, rope_settings
from dovetail_plugins.drafters._eagle_module import JoinedLinear, family_of

_NAME = re.compile(r"(?:model\.)?mtp_layers\.0\.(.+)")
_OWN = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
"""What the checkpoint has beside the parts of a decoder layer."""


class MtpModule(nn.Module):
    """input_proj over [norm(state); norm(vector)], a decoder layer, and a norm behind it."""

    def __init__(self, context: DraftContext) -> None:
        super().__init__()
        build, size = context.build, context.build.model.hidden_size
        family, config = family_of(context)
        self.token_layernorm = config.norm(build, size, eps=config.norm_eps)
        self.hidden_layernorm = config.norm(build, size, eps=config.norm_eps)
        self.input_proj = JoinedLinear(build, "input_proj", (size, size), size, bias=False)
        self.block = family.layer_class(build, "block", config, 0)
        self.final_layernorm = config.norm(build, size, eps=config.norm_eps)
        self.rotary = Rotary(rope_settings(build), build.device)

    def weight_map(self) -> WeightMap:
        """Return the names that `read` gives, with q, k, v and gate, up fused."""
        return WeightMap(fused=FUSED, ignored=("rotary_emb.inv_freq",))

    def read(self, found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Give the layer's tensors on, by their names here."""
        return self.input_proj.cut(_renamed(found), "input_proj")

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: vectors, states [T, E], positions [T] -> [T, E]"""
        x = self.input_proj(self.hidden_layernorm(states), self.token_layernorm(vectors))
        return self.final_layernorm(self.block(x, {FULL: self.rotary(positions)}))


def _renamed(found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, tensor in found:
        named = _NAME.fullmatch(path)
        name = path if named is None else named[1]
        yield (name if named is None or name.startswith(_OWN) else f"block.{name}"), tensor
