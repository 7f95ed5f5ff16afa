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
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import (
    FULL,
    FUSED,
    DecoderAttention,
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    GatedMLP,
)
from dovetail.layers.linear import QKVParallelLinear, ReplicatedLinear
from dovetail.layers.logits import LogitsHead

NOT_READ, HEAD = ("embed_tokens.", "rotary_emb.inv_freq"), "lm_head."
"""Tensors that checkpoints may have but the target model provides."""
OWN_HEAD = "has_own_head"
"""The key of an EAGLE checkpoint's config.json that says that its head is not the model's."""
_WIDE = tuple(f"{name}_proj.weight" for name in "qkv")


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


class Eagle3Attention(DecoderAttention):
    """Attention whose queries, keys and values are made of a vector and a state, concatenated."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__(context, name, config, 0)
        model = context.model
        of_vectors = QKVParallelLinear(
            context,
            f"{name}.vectors.qkv_proj",
            model.hidden_size,
            num_heads=model.num_heads,
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
        )
        self.vectors = nn.ModuleDict({"qkv_proj": of_vectors})

    def attend(
        self, vectors: torch.Tensor, x: torch.Tensor, rope: Rope, residual: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: vectors, x, residual [T, E] -> [T, E]"""
        proj = self.qkv_proj
        first = self.vectors["qkv_proj"](vectors)
        q, k, v = self.rotate(proj.method.apply_add(proj, x, proj.bias, first), rope)
        return self.o_proj(self.attn(q, k, v), residual)


class Eagle3Layer(nn.Module):
    """One layer over a token's vector and the previous state, each normed first."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        size, eps = context.model.hidden_size, config.norm_eps
        self.self_attn = Eagle3Attention(context, f"{name}.self_attn", config)
        inner = int(context.model.hf_config["intermediate_size"])
        self.mlp = GatedMLP(
            context, f"{name}.mlp", inner=inner, act=config.hidden_act, bias=config.has_mlp_bias
        )
        self.input_layernorm = config.norm(context, size, eps=eps)
        self.hidden_norm = config.norm(context, size, eps=eps)
        self.post_attention_layernorm = config.norm(context, size, eps=eps)

    def forward(self, vectors: torch.Tensor, states: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Shapes: vectors, states [T, E] -> [T, E]"""
        x = self.hidden_norm(states)
        x = self.self_attn.attend(self.input_layernorm(vectors), x, rope, states)
        return self.mlp(self.post_attention_layernorm(x), x)


class Eagle3Module(nn.Module):
    """fc over three of the model's states, a layer, and a head with its own vocabulary.

    `token_ids` maps the head's rows to the model's tokens (None: the same vocabulary).
    Shapes: token_ids [V of the head] int64
    """

    def __init__(self, context: DraftContext) -> None:
        super().__init__()
        build = context.build
        size, config = build.model.hidden_size, build.model.hf_config
        _, decoder = family_of(context)
        self.fc = ReplicatedLinear(build, "fc", 3 * context.target.spec.hidden_size, size)
        self.midlayer = Eagle3Layer(build, "midlayer", decoder)
        self.norm = decoder.norm(build, size, eps=decoder.norm_eps)
        self.vocab_size = build.model.vocab_size
        self.num_rows = int(config.get("draft_vocab_size") or self.vocab_size)
        self.lm_head = LogitsHead(build, "lm_head", self.num_rows, size)
        self.rotary = Rotary(rope_settings(build), build.device)
        self.token_ids: torch.Tensor | None = None

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        ignored = ("embed_tokens.", "rotary_emb.inv_freq", "t2d")
        prefixes = (("model.", ""), ("layers.0.", "midlayer."))
        return WeightMap(prefixes=prefixes, fused=FUSED, ignored=ignored)

    def read(self, found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, with the weights of q, k and v cut into halves. Raises: ConfigError

        Mutates: self, which learns the tokens of its rows
        """
        shifts = None
        for name, tensor in found:
            path, _, leaf = name.rpartition("self_attn.")
            if name.removeprefix("model.") == "d2t":
                shifts = tensor
            elif path and leaf in _WIDE:
                half = tensor.shape[-1] // 2
                yield f"{path}self_attn.vectors.{leaf}", tensor[:, :half].contiguous()
                yield name, tensor[:, half:].contiguous()
            else:
                yield name, tensor
        self.token_ids = self._tokens_of(shifts)

    def _tokens_of(self, shifts: torch.Tensor | None) -> torch.Tensor | None:
        """Return the token id of each row of the head. Shapes: shifts [rows]"""
        if shifts is None and self.num_rows == self.vocab_size:
            return None
        fault = "has no d2t, which says what its rows stand for"
        if shifts is not None:
            device = self.norm.weight.device
            tokens = torch.arange(len(shifts)) + shifts.cpu().long()
            is_known = bool(((tokens >= 0) & (tokens < self.vocab_size)).all())
            if is_known and len(tokens) == self.num_rows:
                return tokens.to(device)
            fault = f"has a d2t that does not fit {self.num_rows} of {self.vocab_size} tokens"
        raise ConfigError(
            f"the head of a smaller vocabulary {fault}.",
            where="--speculative-config.model",
            fix="check that config.json and the weight files belong to each other.",
        )

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, depth: int
    ) -> torch.Tensor:
        """Shapes: vectors [T, E], positions [T], states [T, 3 E], or [T, E] of drafts -> [T, E]"""
        x = self.fc(states) if depth == 0 else states
        return self.midlayer(vectors, x, self.rotary(positions))

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits over the model's vocabulary. Shapes: [S, E] -> [S, V]"""
        found = self.lm_head(self.norm(states))
        if self.token_ids is None:
            return found
        every = found.new_full((len(found), self.vocab_size), -torch.inf)
        return every.index_copy_(1, self.token_ids, found)
