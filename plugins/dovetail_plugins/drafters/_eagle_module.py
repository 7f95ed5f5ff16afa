"""The layers of EAGLE's checkpoints, built from the decoder that most families share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from dovetail import registry
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.drafter import DraftContext
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.attention.rotary import Rotary, rope_settings
from dovetail.layers.decoder import (
    FULL,
    FUSED,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
)
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.logits import LogitsHead

NOT_READ, HEAD = ("embed_tokens.", "rotary_emb.inv_freq"), "lm_head."
"""Tensors that checkpoints may have but the target model provides."""
OWN_HEAD = "has_own_head"
"""The key of an EAGLE checkpoint's config.json that says that its head is not the model's."""


class JoinedLinear(nn.Module):
    """One matrix over two concatenated vectors, stored as two: first x F^T + second y S^T + b."""

    def __init__(
        self, context: BuildContext, name: str, sizes: tuple[int, int], out: int, *, bias: bool
    ) -> None:
        super().__init__()
        self.first = ReplicatedLinear(context, f"{name}.first", sizes[0], out)
        self.second = ReplicatedLinear(context, f"{name}.second", sizes[1], out, bias=bias)
        self._share = sizes[0] / sum(sizes)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, I], y [T, J] -> [T, O]"""
        second = self.second
        return second.method.apply_add(second, y, second.bias, self.first(x))

    def cut(
        self, found: Iterable[tuple[str, torch.Tensor]], name: str
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, with those of `name` renamed and cut for this layer: its numbers, or
        blocks of them."""
        for path, tensor in found:
            owner, _, leaf = path.removeprefix("model.").rpartition(".")
            if owner != name:
                yield path, tensor
            elif leaf == "bias":
                yield f"{name}.second.bias", tensor
            else:
                cut = int(tensor.shape[1] * self._share)
                yield f"{name}.first.{leaf}", tensor[:, :cut].contiguous()
                yield f"{name}.second.{leaf}", tensor[:, cut:].contiguous()


def family_of(
    context: DraftContext, *, kinds: frozenset[str] = frozenset({FULL})
) -> tuple[type[DecoderForCausalLM], DecoderConfig]:
    """Return the class that provides a head's layers, and how it differs. `kinds` are the sorts of
    layers that the head may have. Raises: ConfigError"""
    selection, model = context.model_plugin, context.build.model
    found = registry.admin.require_selection(selection) if selection is not None else None
    if found is not None and not issubclass(found, DecoderForCausalLM):
        found = _text_class(found, model)
    if found is None or not issubclass(found, DecoderForCausalLM):
        raise ConfigError(
            f"there are no layers of the family {model.architecture} to make a head of.",
            where="--speculative-config.model: the architectures of its config.json",
            fix="use a head of another family, such as Llama's.",
        )
    config = found.decoder_config(model)
    if not set(config.layer_types) <= kinds:
        raise ConfigError(
            "a head with a sliding window is not supported.",
            where="--speculative-config.model: its config.json",
            fix="use a head that attends to all tokens.",
        )
    return found, config


def _text_class(plugin: type[Any], model: ModelSpec) -> type[Any]:
    """Return the class of the text model within a model that takes media, else the class itself."""
    from dovetail_plugins.models._media import MediaModel

    return plugin.text_plugin(model) if issubclass(plugin, MediaModel) else plugin


class EagleModule(nn.Module):
    """fc over [vector; state], then decoder layers, the first without its input norm. `lm_head` is
    the checkpoint's own, None if the model's is used."""

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
        self.lm_head: LogitsHead | None = None
        if build.model.hf_config.get(OWN_HEAD):
            self.lm_head = LogitsHead(build, "lm_head", build.model.vocab_size, size)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        ignored = NOT_READ if self.lm_head is not None else (*NOT_READ, HEAD)
        return WeightMap(prefixes=(("model.", ""),), fused=FUSED, ignored=ignored)

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: vectors, states [T, E], positions [T] -> [T, E]"""
        x = self.fc(vectors, states)
        ropes = {FULL: self.rotary(positions)}
        for layer in self.layers:
            x = layer(x, ropes)
        return x
