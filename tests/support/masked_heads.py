"""Tiny checkpoints of heads that guess all places in one pass, and what they guess, by torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from support.draft_heads import (
    HEAD_SIZE,
    HEADS,
    KV_HEADS,
    LLAMA,
    SIZE,
    VOCAB,
    Head,
    Target,
    Weights,
    argmax,
    drawn,
    feed,
    layer_weights,
    rms,
    rotated,
    write,
)

MASK, RANK, WINDOW = 7, 6, 5
OUTPUTS = (0, 2)
"""The layers whose outputs are read."""


def weights(g: torch.Generator, num_layers: int) -> Weights:
    w = {"fc.weight": drawn(g, SIZE, len(OUTPUTS) * SIZE)}
    for i in range(num_layers):
        name = f"layers.{i}"
        w |= layer_weights(g, name)
        w[f"{name}.input_layernorm.weight"] = 1 + drawn(g, SIZE)
        for norm in "qk":
            w[f"{name}.self_attn.{norm}_norm.weight"] = 1 + drawn(g, HEAD_SIZE)
    for norm in ("hidden_norm", "norm"):
        w[f"{norm}.weight"] = 1 + drawn(g, SIZE)
    return w


def heads_of(w: Weights, name: str, leaf: str, x: torch.Tensor) -> torch.Tensor:
    """Return projected heads, normed but not rotated. Shapes: [T, E] -> [T, H, D]"""
    heads = (x @ w[f"{name}.self_attn.{leaf}_proj.weight"].T).unflatten(-1, (-1, HEAD_SIZE))
    return heads if leaf == "v" else rms(heads, w[f"{name}.self_attn.{leaf}_norm.weight"])


def layer(
    w: Weights, name: str, context: torch.Tensor, x: torch.Tensor, *, slides: bool
) -> torch.Tensor:
    """Return a layer's states of a block; its keys are the context's and the block's. Shapes:
    context [C, E], x [B, E] -> [B, E]"""
    normed = rms(x, w[f"{name}.input_layernorm.weight"])
    both = torch.cat([context, normed])
    q = rotated(torch.cat([context.new_zeros(len(context), HEADS, HEAD_SIZE),
                           heads_of(w, name, "q", normed)]))[len(context):]  # fmt: skip
    k, v = rotated(heads_of(w, name, "k", both)), heads_of(w, name, "v", both)
    k, v = (one.repeat_interleave(HEADS // KV_HEADS, dim=1) for one in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_SIZE**0.5
    if slides:
        at = torch.arange(len(context), len(both))[:, None] - torch.arange(len(both))
        scores = scores.masked_fill((at < 0) | (at >= WINDOW), -torch.inf)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(-2)
    return feed(w, name, x + out @ w[f"{name}.self_attn.o_proj.weight"].T)


def dflash(folder: Path, *, slides: bool = False) -> Head:
    """Return a head of z-lab's: masks alone guess; `slides`: its first layer has a window, in
    which a token sees those before it."""
    g = torch.Generator().manual_seed(11)
    w = weights(g, 2)
    config: dict[str, Any] = {
        **LLAMA,
        "model_type": "qwen3",
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "head_dim": HEAD_SIZE,
        "block_size": 8,
        "num_target_layers": 5,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": list(OUTPUTS)},
    }
    if slides:
        kinds = ["sliding_attention", "full_attention"]
        config |= {"layer_types": kinds, "sliding_window": WINDOW, "use_sliding_window": True}

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        x = block(w, target, token_ids, 1 + wanted, slides=slides)
        return [argmax(target.logits(one)) for one in x[1:]]

    return Head(method="dflash:DFlash", folder=write(folder, config, w), guess=guess)


def block(
    w: Weights, target: Target, token_ids: list[int], size: int, *, slides: bool = False
) -> torch.Tensor:
    """Return the states of a block after all tokens but the last. Shapes: -> [size, E]"""
    inner = torch.cat([target.states(token_ids)[i + 1] for i in OUTPUTS], -1)[:-1]
    context = rms(inner @ w["fc.weight"].T, w["hidden_norm.weight"])
    x = target.embed([token_ids[-1]] + [MASK] * (size - 1))
    for i in range(sum(name.endswith("o_proj.weight") for name in w)):
        x = layer(w, f"layers.{i}", context, x, slides=slides and i == 0)
    return rms(x, w["norm.weight"])


def dspark(folder: Path, *, gated: bool = False) -> Head:
    """Return a head as vllm-project/speculators publishes it: its head has half the vocabulary, the
    last token's own state guesses too, and each guess depends on the one before."""
    g, count = torch.Generator().manual_seed(12), VOCAB // 2
    w = weights(g, 1)
    tokens = torch.randperm(VOCAB, generator=g)[:count].sort()[0]
    w["d2t"], w["t2d"] = tokens - torch.arange(count), torch.isin(torch.arange(VOCAB), tokens)
    w["lm_head.weight"] = drawn(g, count, SIZE)
    w["embed_tokens.weight"] = torch.zeros(VOCAB, SIZE)
    w["markov_head.markov_w1.weight"] = drawn(g, VOCAB, RANK)
    w["markov_head.markov_w2.weight"] = drawn(g, count, RANK) * 3
    w["confidence_head.proj.weight"] = drawn(g, 1, SIZE + RANK)
    w["confidence_head.proj.bias"] = drawn(g, 1)
    if gated:
        w["markov_head.gate_proj.weight"] = drawn(g, RANK, SIZE + RANK)
        w["markov_head.gate_proj.bias"] = drawn(g, RANK)
    layers = {**LLAMA, "model_type": "qwen3", "head_dim": HEAD_SIZE}
    config = {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "transformer_layer_config": layers,
        "aux_hidden_state_layer_ids": [i + 1 for i in OUTPUTS],
        "block_size": 7,
        "mask_token_id": MASK,
        "draft_vocab_size": count,
        "markov_rank": RANK,
        "markov_head_type": "gated" if gated else "vanilla",
    }

    def guess(target: Target, token_ids: list[int], wanted: int) -> list[int]:
        drafts: list[int] = []
        for x in block(w, target, token_ids, wanted):
            e = w["markov_head.markov_w1.weight"][[*token_ids, *drafts][-1]]
            if gated:
                gate = torch.cat([x, e]) @ w["markov_head.gate_proj.weight"].T
                e = e * F.sigmoid(gate + w["markov_head.gate_proj.bias"])
            logits = w["lm_head.weight"] @ x + w["markov_head.markov_w2.weight"] @ e
            drafts.append(int(tokens[argmax(logits)]))
        return drafts

    return Head(method="dflash:DFlash", folder=write(folder, config, w), guess=guess)
