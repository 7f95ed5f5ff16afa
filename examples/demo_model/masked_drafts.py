"""DSpark for the demo model: a drafter that guesses all places of a draft in one pass."""

from __future__ import annotations

from pathlib import Path

import torch
from drafts import Drafter, Texts, write
from torch import nn
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RotaryEmbedding,
    rotate_half,
)

BLOCK, NUM_LAYERS, RANK = 8, 2, 32
OUTPUTS = (1, 3)
"""The layers whose outputs it reads."""
MASK = 0
"""The token of places to guess: it stands in no text."""
ANCHORS = 24
"""Tokens of a text that blocks begin with."""


class DSpark(Drafter):
    """Layers of the model's own sort, which begin as its last ones. Known tokens are keys and
    values made of inner states; a block is a token and masks, which see them and each other."""

    def __init__(self, target: Qwen3ForCausalLM) -> None:
        super().__init__(target)
        of = {**target.config.to_dict(), "num_hidden_layers": NUM_LAYERS}
        self.config = Qwen3Config(**{**of, "layer_types": ["full_attention"] * NUM_LAYERS})
        size, eps = self.config.hidden_size, self.config.rms_norm_eps
        self.fc = nn.Linear(len(OUTPUTS) * size, size, bias=False)
        self.fc.weight.data.copy_(torch.eye(size).repeat(1, len(OUTPUTS)) / len(OUTPUTS))
        self.hidden_norm, self.norm = nn.RMSNorm(size, eps=eps), nn.RMSNorm(size, eps=eps)
        self.norm.weight.data.copy_(target.model.norm.weight)
        self.layers = nn.ModuleList(Qwen3DecoderLayer(self.config, i) for i in range(NUM_LAYERS))
        for own, last in zip(self.layers, target.model.layers[-NUM_LAYERS:], strict=True):
            own.load_state_dict(last.state_dict())
        self.rotary = Qwen3RotaryEmbedding(self.config)
        self.markov_w1 = nn.Embedding(self.config.vocab_size, RANK)
        self.markov_w2 = nn.Linear(RANK, self.config.vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.1)
        nn.init.zeros_(self.markov_w2.weight)

    def loss(self, texts: Texts) -> torch.Tensor:
        """Guess what follows some tokens of each answer, those near the token counting more."""
        anchors, is_there = self.anchors(texts.answers)
        places = anchors[:, :, None] + torch.arange(BLOCK)
        is_meant = is_there[:, :, None] & (places < texts.tokens.shape[1])
        places = places.clamp(max=texts.tokens.shape[1] - 1).flatten(1)
        before = texts.tokens.gather(1, places)
        goes_on = texts.answers.gather(1, places).view(is_meant.shape).cumprod(-1).bool()
        is_meant = (is_meant & goes_on).flatten(1)
        numbers = torch.full(texts.answers.shape, -1)
        numbers[texts.answers] = torch.arange(len(texts.chances))
        wanted = texts.chances[numbers.gather(1, places)[is_meant]]
        states = self.states(texts, anchors, before, places)[is_meant]
        logits = functional.linear(states, self.table)
        logits = logits + self.markov_w2(self.markov_w1(before[is_meant]))
        losses = -(wanted * functional.log_softmax(logits, dim=-1)).sum(-1)
        weights = (0.8 ** torch.arange(BLOCK)).repeat(len(places), ANCHORS)[is_meant]
        return (losses * weights).sum() / weights.sum()

    def anchors(self, answers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens of each answer that blocks begin with, and which of them there are.
        Shapes: answers [B, T] -> [B, A], [B, A]"""
        chances = functional.pad(answers * torch.rand(answers.shape), (0, ANCHORS))
        found = chances.topk(ANCHORS, dim=1)
        return found.indices.clamp(max=answers.shape[1] - 1), found.values > 0

    def states(
        self, texts: Texts, anchors: torch.Tensor, before: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Return the states of blocks, row by row one behind the other. Shapes: anchors [B, A],
        before, places [B, A D] -> [B, A D, E]"""
        context = self.hidden_norm(self.fc(torch.cat([texts.inner[i] for i in OUTPUTS], dim=-1)))
        known = torch.arange(context.shape[1]).expand(len(context), -1)
        is_first = torch.arange(before.shape[1]) % BLOCK == 0
        x = functional.embedding(torch.where(is_first, before, MASK), self.table)
        block = torch.arange(before.shape[1]) // BLOCK
        sees = known[:, None] < anchors.repeat_interleave(BLOCK, 1)[:, :, None]
        own = (block[:, None] == block).expand(len(context), -1, -1)
        sees = torch.cat([sees, own], dim=2)[:, None]
        for layer in self.layers:
            attn, normed = layer.self_attn, layer.input_layernorm(x)
            q = self.turned(attn.q_norm(self.heads(attn.q_proj, normed)), places)
            k, v = (
                torch.cat([self.heads(proj, context), self.heads(proj, normed)], dim=1)
                for proj in (attn.k_proj, attn.v_proj)
            )
            k = self.turned(attn.k_norm(k), torch.cat([known, places], dim=1))
            found = functional.scaled_dot_product_attention(
                q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), sees, enable_gqa=True
            )
            x = x + attn.o_proj(found.transpose(1, 2).flatten(-2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.norm(x)

    def heads(self, proj: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., E] -> [..., H, D]"""
        return proj(x).unflatten(-1, (-1, self.config.head_dim))

    def turned(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return heads rotated by their places. Shapes: x [N, T, H, D], places [N, T]"""
        cos, sin = (one[:, :, None] for one in self.rotary(x, places))
        return x * cos + rotate_half(x) * sin

    def save(self, folder: Path) -> None:
        """Write the layout of deepseek-ai."""
        tensors = {f"layers.{name}": one for name, one in self.layers.named_parameters()}
        tensors |= {
            "fc.weight": self.fc.weight,
            "hidden_norm.weight": self.hidden_norm.weight,
            "norm.weight": self.norm.weight,
            "markov_head.markov_w1.weight": self.markov_w1.weight,
            "markov_head.markov_w2.weight": self.markov_w2.weight,
        }
        config = {
            **self.config.to_diff_dict(),
            "architectures": ["Qwen3DSparkModel"],
            "block_size": BLOCK,
            "mask_token_id": MASK,
            "target_layer_ids": list(OUTPUTS),
            "markov_rank": RANK,
            "markov_head_type": "vanilla",
        }
        write(folder, config, tensors)
