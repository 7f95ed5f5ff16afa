"""The layers of DFlash's and DSpark's checkpoints: Qwen 3's, whose keys and values of known tokens
are made of the model's inner states."""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.drafter import DraftContext
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import (
    FULL,
    FUSED,
    SLIDING,
    DecoderAttention,
    DecoderConfig,
    DecoderLayer,
)
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.logits import LogitsHead
from dovetail_plugins.drafters._draft_vocabulary import DraftVocabulary
from dovetail_plugins.drafters._eagle_module import family_of

KINDS = frozenset({FULL, SLIDING})
_BORROWED = ("embed_tokens.", "rotary_emb.", "verifier_lm_head.", "verifier_norm.", "t2d")
"""Tensors that checkpoints may have but the target model provides."""
_JUDGE = "confidence_head."
"""A head that predicts how many drafts are accepted; core learns that from what is accepted."""


class WritingAttention(DecoderAttention):
    """Attention that can also only write keys and values."""

    def write(self, x: torch.Tensor, rope: Rope) -> None:
        """Write the keys and values of known tokens; the layout lets them see next to nothing.
        Shapes: x [T, E]. Mutates: the cache"""
        self.attn(*self.rotate(self.qkv_proj(x), rope))


class DFlashLayer(DecoderLayer):
    """A layer with a WritingAttention."""

    self_attn: WritingAttention

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        return WritingAttention(context, name, config, layer)


class MarkovHead(nn.Module):
    """A bias on the logits from the token before: W2 (g * W1[token]), of a low rank. g is 1, or
    with `is_gated` the sigmoid of a linear map of the state and W1[token]."""

    def __init__(self, context: BuildContext, *, rank: int, num_rows: int, is_gated: bool) -> None:
        super().__init__()
        model, name = context.model, "markov_head"
        self.markov_w1 = VocabParallelEmbedding(context, model.vocab_size, rank)
        self.markov_w2 = LogitsHead(context, f"{name}.markov_w2", num_rows, rank)
        self.gate: ReplicatedLinear | None = None
        if is_gated:
            width = model.hidden_size + rank
            self.gate = ReplicatedLinear(context, f"{name}.gate", width, rank, bias=True)

    def forward(self, states: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Shapes: states [S, E], token_ids [S] -> [S, rows]"""
        before = self.markov_w1(token_ids)
        if self.gate is not None:
            before = before * self.gate(torch.cat([states, before], dim=-1)).sigmoid()
        return self.markov_w2(before)


class DFlashModule(nn.Module):
    """fc over `count` of the model's inner states and a norm, layers, a norm, and the head: the
    model's own, or one of a smaller vocabulary. DSpark adds a MarkovHead."""

    def __init__(self, context: DraftContext, count: int) -> None:
        super().__init__()
        build = context.build
        model, config = build.model, build.model.hf_config
        _, decoder = family_of(context, kinds=KINDS)
        size = model.hidden_size
        self.fc = ReplicatedLinear(build, "fc", count * context.target.spec.hidden_size, size)
        self.hidden_norm = decoder.norm(build, size, eps=decoder.norm_eps)
        layers = [DFlashLayer(build, f"layers.{i}", decoder, i) for i in range(model.num_layers)]
        self.layers: list[DFlashLayer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.norm = decoder.norm(build, size, eps=decoder.norm_eps)
        self.rotary = Rotary(rope_settings(build), build.device)
        self.vocabulary = DraftVocabulary(model, build.device)
        num_rows, rank = self.vocabulary.num_rows, int(config.get("markov_rank") or 0)
        self.lm_head: LogitsHead | None = None
        if num_rows != model.vocab_size:
            self.lm_head = LogitsHead(build, "lm_head", num_rows, size)
        self.markov_head: MarkovHead | None = None
        if rank:
            is_gated = config.get("markov_head_type") == "gated"
            self.markov_head = MarkovHead(build, rank=rank, num_rows=num_rows, is_gated=is_gated)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        ignored = _BORROWED if self.lm_head is not None else (*_BORROWED, "lm_head.")
        prefixes = (("model.", ""), ("markov_head.gate_proj.", "markov_head.gate."))
        return WeightMap(prefixes=prefixes, fused=FUSED, ignored=(*ignored, _JUDGE))

    def write(self, states: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Write the keys and values of known tokens; return what they are made of.

        Shapes: states [T, count * E], positions [T] -> [T, E]. Mutates: the cache
        """
        x, rope = self.hidden_norm(self.fc(states)), self.rotary(positions)
        for layer in self.layers:
            layer.self_attn.write(x, rope)
        return x

    def forward(self, vectors: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the states of masked blocks. Shapes: vectors [T, E], positions [T] -> [T, E].
        Mutates: the cache"""
        ropes = dict.fromkeys(KINDS, self.rotary(positions))
        x = vectors
        for layer in self.layers:
            x = layer(x, ropes)
        return self.norm(x)
