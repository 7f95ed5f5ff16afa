"""Random models that transformers does not have, made of its Llama: with DeepSeekMoE's experts, and
with Nemotron's blocks, which differ. They are formulas to compare with, and save the names that
published checkpoints have.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRMSNorm

from dovetail_testing.tiny.families import COMMON
from dovetail_testing.tiny.models import randomize, write_tiny_tokenizer

EXPERTS: dict[str, Any] = {
    "model_type": "deepseek",
    "architectures": ["DeepseekForCausalLM"],
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
}


def llama(**fields: Any) -> Any:
    """Return a small Llama."""
    config = LlamaConfig(**{**COMMON, **fields})
    config._attn_implementation = "eager"
    return LlamaForCausalLM(config).eval()


def mlp(config: LlamaConfig, inner: int) -> LlamaMLP:
    """Return an MLP of another size than the config's."""
    return LlamaMLP(LlamaConfig(**{**config.to_dict(), "intermediate_size": inner}))


class Mixture(nn.Module):
    """The likeliest experts of a token, weighed by how likely they are, and shared ones."""

    def __init__(self, config: LlamaConfig, settings: dict[str, Any]) -> None:
        super().__init__()
        count, inner = settings["n_routed_experts"], settings["moe_intermediate_size"]
        self.settings = settings
        self.gate = nn.Linear(config.hidden_size, count, bias=False)
        self.experts = nn.ModuleList(mlp(config, inner) for _ in range(count))
        self.shared_experts = mlp(config, inner * settings["n_shared_experts"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        likely = self.gate(x).softmax(-1)
        best = likely.topk(self.settings["num_experts_per_tok"], -1)
        weights = best.values
        if self.settings["norm_topk_prob"]:
            weights = weights / weights.sum(-1, keepdim=True)
        shares = torch.zeros_like(likely).scatter(-1, best.indices, weights)
        parts = [expert(x) * shares[..., i, None] for i, expert in enumerate(self.experts)]
        return sum(parts) + self.shared_experts(x)


class Unlike(nn.Module):
    """A block that has some of: attention, a matrix in its place, an MLP."""

    def __init__(self, config: LlamaConfig, layer: int, block: dict[str, Any]) -> None:
        super().__init__()
        attention, feed = block["attention"], block["ffn"]
        self.attends, self.feeds = not attention["no_op"], not feed["no_op"]
        self.is_whole = attention["replace_with_linear"]
        if self.attends:
            self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.self_attn = self._attention(config, layer, attention)
        if self.feeds:
            self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
            self.mlp = mlp(config, feed["inner"])

    def _attention(self, config: LlamaConfig, layer: int, attention: dict[str, Any]) -> nn.Module:
        if self.is_whole:
            matrix = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
            return nn.ModuleDict({"linear_attn": matrix})
        heads = config.num_attention_heads // attention["n_heads_in_group"]
        own = LlamaConfig(**{**config.to_dict(), "num_key_value_heads": heads})
        own._attn_implementation = "eager"
        return LlamaAttention(own, layer)

    def forward(self, x: torch.Tensor, **given: Any) -> torch.Tensor:
        given = {name: given[name] for name in ("position_embeddings", "attention_mask")}
        if self.attends and self.is_whole:
            (matrix,) = self.self_attn.children()
            x = x + matrix(self.input_layernorm(x))
        elif self.attends:
            x = x + self.self_attn(self.input_layernorm(x), **given)[0]
        return x + self.mlp(self.post_attention_layernorm(x)) if self.feeds else x


def mixture(folder: Path, **settings: Any) -> Any:
    """Write a checkpoint of DeepSeekMoE; return the model."""
    settings = {**EXPERTS, "num_hidden_layers": 3, **settings}
    sizes = {name: value for name, value in settings.items() if name in COMMON}
    model = llama(**sizes)
    for layer in model.model.layers[settings["first_k_dense_replace"] :]:
        layer.mlp = Mixture(model.config, settings)
    return _written(folder, model, settings)


def block(heads: int | str, inner: int) -> dict[str, Any]:
    """Return a block: the heads of a group, "none" or "matrix"; the size of an MLP, 0: none."""
    group = heads if isinstance(heads, int) else None
    attention = {"n_heads_in_group": group, "no_op": heads == "none"}
    return {
        "attention": {**attention, "replace_with_linear": heads == "matrix"},
        "ffn": {"no_op": not inner, "inner": inner},
    }


BLOCKS = (block(2, 256), block("none", 512), block("matrix", 256), block(4, 0), block("none", 0),
          block(1, 512))  # fmt: skip
"""All kinds, one without any part."""


def uneven(
    folder: Path,
    *,
    blocks: Sequence[dict[str, Any]] = BLOCKS,
    own: dict[str, Any] | None = None,
    **sizes: int,
) -> Any:
    """Write a checkpoint of Nemotron NAS, or of `own` settings; return the model."""
    model = llama(num_hidden_layers=len(blocks), **sizes)
    kinds = enumerate(blocks)
    model.model.layers = nn.ModuleList(Unlike(model.config, i, kind) for i, kind in kinds)
    settings = {
        "model_type": "nemotron-nas",
        "architectures": ["DeciLMForCausalLM"],
        "block_configs": [_published(one, model.config.hidden_size) for one in blocks],
        "num_key_value_heads": None,
        "intermediate_size": None,
        **(own or {}),
    }
    return _written(folder, model, settings)


def _published(one: dict[str, Any], hidden: int) -> dict[str, Any]:
    """Return a block as config.json has it: with the multiplier that an MLP's size follows from."""
    inner = one["ffn"]["inner"]
    multiplier = inner * 3 / 2 / hidden if inner else None
    return {**one, "ffn": {"no_op": not inner, "ffn_mult": multiplier}}


def _written(folder: Path, model: Any, own: dict[str, Any]) -> Any:
    randomize(model, seed=len(own))
    folder.mkdir(parents=True)
    config = {**model.config.to_dict(), "dtype": "float32", **own}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: x.detach().clone() for name, x in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_tiny_tokenizer(folder)
    return model
