"""GPT-J and CodeGen: one norm for attention and MLP side by side, the first features of a head
rotated in interleaved pairs, biases in the MLP and the head.

CodeGen stores queries, values and keys in four consecutive blocks of heads. Sources: Wang and
Komatsuzaki 2021; Nijkamp et al. 2022.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.linear import FOUR_BLOCKS
from dovetail.layers.norm import LayerNorm
from dovetail_plugins.models._named import leaves, prefixes

PREFIXES = prefixes(
    ("wte.", "model.embed_tokens."), ("h.", "model.layers."), ("ln_f.", "model.norm.")
)
RENAMES = leaves(
    {
        "ln_1": "input_layernorm",
        "attn": "self_attn",
        "self_attn.out_proj": "self_attn.o_proj",
        "mlp.fc_in": "mlp.up_proj",
        "mlp.fc_out": "mlp.down_proj",
    }.items()
)
MASKS = (".attn.bias", ".attn.masked_bias", ".attn.causal_mask", ".attn.embed_positions")
"""Tables that older checkpoints hold."""
BLOCKS = 4


class GPTJForCausalLM(DecoderForCausalLM):
    """GPT-J with a head."""

    info = Info(summary="GPT-J", source="https://github.com/kingoflolz/mesh-transformer-jax")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config."""
        facts = model.hf_config
        rotated = facts.get("rotary_dim") or model.head_size
        return usual_config(
            model,
            norm=LayerNorm,
            norm_eps=float(facts["layer_norm_epsilon"]),
            hidden_act=str(facts["activation_function"]),
            has_head_bias=True,
            is_gated=False,
            inner_size=int(facts.get("n_inner") or 4 * model.hidden_size),
            has_mlp_bias=True,
            rotary_share=rotated / model.head_size,
            is_interleaved=True,
            parallel_norms=1,
        )

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), prefixes=PREFIXES, renames=RENAMES, ignored=MASKS)


class CodeGenForCausalLM(GPTJForCausalLM):
    """CodeGen with a head."""

    info = Info(summary="CodeGen", source="https://arxiv.org/abs/2203.13474")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config. Raises: ConfigError if heads are not in four blocks"""
        if model.num_heads % BLOCKS:
            raise ConfigError(
                f"CodeGen stores heads in {BLOCKS} blocks, which {model.num_heads} are not.",
                where="config.json: n_head",
                fix=f"use a checkpoint with a multiple of {BLOCKS} heads.",
            )
        return super().decoder_config(model)

    def weight_map(self) -> WeightMap:
        """Return the names."""
        return replace(super().weight_map(), fused={"qkv_proj": ("qkv_proj", FOUR_BLOCKS)})
