"""The layers of EAGLE's checkpoints, made of the decoder that most families share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.drafter import DraftContext
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.decoder import FULL, FUSED, DecoderConfig, DecoderForCausalLM, DecoderLayer
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.rotary import Rotary, rope_settings

NOT_READ = ("embed_tokens.", "lm_head.", "rotary_emb.inv_freq")
"""What checkpoints may have, and the model beside them has too."""


class JoinedLinear(nn.Module):
    """One matrix over two vectors side by side, kept as two: first x F^T + second y S^T + bias."""

    def __init__(
        self, context: BuildContext, name: str, sizes: tuple[int, int], out: int, *, bias: bool
    ) -> None:
        super().__init__()
        self.first = ReplicatedLinear(context, f"{name}.first", sizes[0], out)
        self.second = ReplicatedLinear(context, f"{name}.second", sizes[1], out, bias=bias)
        self._cut = sizes[0]

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, I], y [T, J] -> [T, O]"""
        second = self.second
        return second.method.apply_add(second, y, second.bias, self.first(x))

    def cut(
        self, found: Iterable[tuple[str, torch.Tensor]], name: str
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Give tensors on, those of `name` as this layer's."""
        for path, tensor in found:
            if path.removeprefix("model.") == f"{name}.weight":
                yield f"{name}.first.weight", tensor[:, : self._cut].contiguous()
                yield f"{name}.second.weight", tensor[:, self._cut :].contiguous()
            elif path.removeprefix("model.") == f"{name}.bias":
                yield f"{name}.second.bias", tensor
            else:
                yield path, tensor


def family_of(context: DraftContext) -> tuple[type[DecoderForCausalLM], DecoderConfig]:
    """Return the class whose layers a head is made of, and how it differs. Raises: ConfigError"""
    selection, model = context.model_plugin, context.build.model
    found = registry.require_selection(selection) if selection is not None else None
    if found is None or not issubclass(found, DecoderForCausalLM):
        raise ConfigError(
            f"there are no layers of the family {model.architecture} to make a head of.",
            where="--speculative-config.model: the architectures of its config.json",
            fix="use a head of another family, such as Llama's.",
        )
    config = found.decoder_config(model)
    if set(config.layer_types) != {FULL}:
        raise ConfigError(
            "a head with a sliding window is not supported.",
            where="--speculative-config.model: its config.json",
            fix="use a head that attends to all tokens.",
        )
    return found, config


class EagleModule(nn.Module):
    """fc over [vector; state], then decoder layers, the first without its input norm."""

    def __init__(self, context: DraftContext) -> None:
        super().__init__()
        build, size = context.build, context.build.model.hidden_size
        family, config = family_of(context)
        has_bias = bool(build.model.hf_config.get("bias", False))
        self.fc = JoinedLinear(build, "fc", (size, size), size, bias=has_bias)
        layers = [
            family.layer_class(build, f"layers.{i}", config, i)
            for i in range(build.model.num_layers)
        ]
        layers[0].input_layernorm = nn.Identity()  # type: ignore[assignment]
        self.layers: list[DecoderLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.rotary = Rotary(rope_settings(build), build.device)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        return WeightMap(prefixes=(("model.", ""),), fused=FUSED, ignored=NOT_READ)

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: vectors, states [T, E], positions [T] -> [T, E]"""
        x = self.fc(vectors, states)
        ropes = {FULL: self.rotary(positions)}
        for layer in self.layers:
            x = layer(x, ropes)
        return x
