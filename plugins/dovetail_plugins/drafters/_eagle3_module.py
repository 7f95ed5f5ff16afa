"""The layer of EAGLE 3's checkpoints: over a token's vector and several inner states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec
import torch
from torch import nn

from dovetail.interfaces.drafter import DraftContext
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.attention.latent import LatentAttention, LatentConfig, latent_rope
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings
from dovetail.layers.decoder import FUSED, DecoderAttention, DecoderConfig, GatedMLP
from dovetail.layers.linear import QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.norm import RMSNorm
from dovetail.layers.repeated import of_tensors
from dovetail_plugins.drafters._draft_vocabulary import DraftVocabulary
from dovetail_plugins.drafters._eagle_module import family_of

_WIDE = tuple(f"{name}_proj.weight" for name in "qkv")
RANK = "kv_lora_rank"
"""The key of a config.json whose layer attends to latents."""


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

    def attend_both(
        self, vectors: torch.Tensor, x: torch.Tensor, rope: Rope, residual: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: vectors, x, residual [T, E] -> [T, E]"""
        proj = self.qkv_proj
        first = self.vectors["qkv_proj"](vectors)
        q, k, v = self.rotate(proj.method.apply_add(proj, x, proj.bias, first), rope)
        return self.o_proj(self.attn(q, k, v), residual)


class Eagle3Latents(LatentAttention):
    """Latent attention whose queries and latents are made of a vector and a state, concatenated."""

    def __init__(self, context: BuildContext, name: str, config: LatentConfig) -> None:
        model = context.model
        wide = msgspec.structs.replace(model, hidden_size=2 * model.hidden_size)
        super().__init__(replace(context, model=wide), name, config)
        width, bias = model.num_heads * config.value_size, config.has_bias
        out = f"{name}.o_proj"
        self.o_proj = RowParallelLinear(context, out, width, model.hidden_size, bias=bias)

    def attend_both(
        self, vectors: torch.Tensor, x: torch.Tensor, rope: Rope, residual: torch.Tensor
    ) -> torch.Tensor:
        """Shapes: vectors, x, residual [T, E] -> [T, E]"""
        both = of_tensors(lambda a, b: (torch.cat([a, b], dim=-1),), vectors, x)[0]
        return self(both, rope, residual)


def attention_of(
    context: BuildContext, name: str, config: DecoderConfig
) -> Eagle3Attention | Eagle3Latents:
    """Return the attention of a head's layer, as its config.json has it."""
    if context.model.hf_config.get(RANK) is None:
        return Eagle3Attention(context, name, config)
    from dovetail_plugins.models.deepseek import latent_config

    return Eagle3Latents(context, name, latent_config(context))


class Eagle3Layer(nn.Module):
    """One layer over a token's vector and the previous state, each normed first. If config.json has
    `norm_before_residual`, what it computes is added to the normed state."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        size, eps = context.model.hidden_size, config.norm_eps
        self.adds_to_normed = bool(context.model.hf_config.get("norm_before_residual"))
        self.self_attn = attention_of(context, f"{name}.self_attn", config)
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
        residual = x if self.adds_to_normed else states
        x = self.self_attn.attend_both(self.input_layernorm(vectors), x, rope, residual)
        return self.mlp(self.post_attention_layernorm(x), x)


class InnerStates(nn.Module):
    """fc over the model's inner states, after a norm of all (`norm_before_fc` in config.json) or of
    each (`fc_norm`), if there is one."""

    def __init__(self, context: DraftContext, count: int, eps: float) -> None:
        super().__init__()
        build, size = context.build, context.target.spec.hidden_size
        config = build.model.hf_config
        nested = config.get("eagle_config") or {}
        self._size = size
        self.input_norm: RMSNorm | None = None
        if config.get("norm_before_fc") or nested.get("norm_before_fc"):
            self.input_norm = RMSNorm(build, count * size, eps=eps)
        self.fc_norm = nn.ModuleList()
        if config.get("fc_norm"):
            self.fc_norm.extend(RMSNorm(build, size, eps=eps) for _ in range(count))
        self.fc = ReplicatedLinear(build, "fc", count * size, build.model.hidden_size)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Shapes: states [T, layers * E] -> [T, E]"""
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm:
            each = states.split(self._size, dim=-1)
            normed = [norm(one) for norm, one in zip(self.fc_norm, each, strict=True)]
            states = torch.cat(normed, dim=-1)
        return self.fc(states)


class Eagle3Module(nn.Module):
    """fc over `count` of the model's states, a layer, and a head with its own vocabulary. With
    `norm_output` in config.json the next token continues the normed state."""

    def __init__(self, context: DraftContext, count: int) -> None:
        super().__init__()
        build = context.build
        size, config = build.model.hidden_size, build.model.hf_config
        _, decoder = family_of(context)
        self.inner = InnerStates(context, count, decoder.norm_eps)
        self.midlayer = Eagle3Layer(build, "midlayer", decoder)
        self.norm = decoder.norm(build, size, eps=decoder.norm_eps)
        self.norms_states = bool(config.get("norm_output"))
        self.vocabulary = DraftVocabulary(build.model, build.device)
        self.lm_head = LogitsHead(build, "lm_head", self.vocabulary.num_rows, size)
        self.has_latents = config.get(RANK) is not None
        turned = config.get("qk_rope_head_dim") if self.has_latents else None
        rope = rope_settings(build) if turned is None else latent_rope(build, int(turned))
        self.rotary = Rotary(rope, build.device)

    def weight_map(self) -> WeightMap:
        """Return the names: the checkpoint's own, with q, k, v and gate, up fused."""
        ignored = ("embed_tokens.", "rotary_emb.inv_freq", "t2d")
        inner = ((name, f"inner.{name}") for name in ("fc.", "input_norm.", "fc_norm."))
        prefixes = (("model.", ""), ("layers.0.", "midlayer."), *inner)
        fused = {k: v for k, v in FUSED.items() if not self.has_latents or v[0] == "gate_up_proj"}
        return WeightMap(prefixes=prefixes, fused=fused, ignored=ignored)

    def read(self, found: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, with the weights of q, k and v cut into halves. Raises: ConfigError

        Mutates: self, which learns the tokens of its rows
        """
        for name, tensor in self.vocabulary.read(found):
            path, _, leaf = name.rpartition("self_attn.")
            if path and leaf in _WIDE and not self.has_latents:
                half = tensor.shape[-1] // 2
                yield f"{path}self_attn.vectors.{leaf}", tensor[:, :half].contiguous()
                yield name, tensor[:, half:].contiguous()
            else:
                yield name, tensor

    def forward(
        self, vectors: torch.Tensor, positions: torch.Tensor, states: torch.Tensor, depth: int
    ) -> torch.Tensor:
        """Shapes: vectors [T, E], positions [T], states [T, 3 E], or [T, E] of drafts -> [T, E]"""
        x = self.inner(states) if depth == 0 else states
        x = self.midlayer(vectors, x, self.rotary(positions))
        return self.norm(x) if self.norms_states else x

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits over the model's vocabulary. Shapes: [S, E] -> [S, V]"""
        found = self.lm_head(states if self.norms_states else self.norm(states))
        return self.vocabulary.of_all(found)
