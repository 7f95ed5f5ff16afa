"""The attention backend: the requested one, or the first that fits the model."""

from __future__ import annotations

from dovetail import registry
from dovetail.config.checkpoint.context_length import chunk_tokens, window_tokens
from dovetail.config.checkpoint.model_facts import (
    facts_of,
    has_position_bias,
    media_see_all,
    uses_alibi,
)
from dovetail.config.config import Config
from dovetail.config.rules import selections
from dovetail.config.rules.machine.device import block_tokens
from dovetail.config.sections.model import ModelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionQuery
from dovetail.interfaces.data.spec import ModelSpec, Selection
from dovetail.interfaces.platform import Platform

DTYPE = "--override-attention-dtype"


def attention_dtype(model_config: ModelConfig, model: ModelSpec) -> str:
    """Return the dtype of the attention computation, "" for the model's.

    Raises: ConfigError for a model in which not all rows use an attention backend.
    """
    name = model_config.override_attention_dtype
    dtype: str = (registry.admin.value_of("dtype", name, where=DTYPE) or "") if name else ""
    if dtype and model.cache is not None and model.cache.latent_size:
        raise ConfigError(
            "long rows of latents are attended in the model's type alone.",
            where=DTYPE,
            fix="leave the flag out.",
        )
    return dtype


def select_attention(
    config: Config, model: ModelSpec, kv_dtype: str, platform: Platform
) -> Selection:
    """Return the attention backend for the model's layers. Raises: PluginError"""
    facts, ranks = model.hf_config, config.parallel.decode_context_parallel_size
    cache = model.cache
    latent = 0 if cache is None else cache.latent_size
    second = None if cache is None else cache.second_heads
    query = AttentionQuery(
        device=platform.device_type,
        dtype=attention_dtype(config.model, model) or model.dtype,
        kv_dtype=kv_dtype,
        head_size=latent or model.head_size,
        block_tokens=block_tokens(config.cache, platform),
        uses_window=window_tokens(facts) is not None,
        uses_chunk=chunk_tokens(facts) is not None,
        uses_soft_cap=bool(facts.get("attn_logit_softcapping")),
        uses_sinks=facts_of(facts).has_sinks,
        uses_alibi=uses_alibi(facts),
        uses_lse=ranks > 1 or media_see_all(model.whole_config),
        uses_position_bias=has_position_bias(facts),
        uses_latent=latent > 0,
        uses_index=cache is not None and cache.index_size > 0,
        uses_cross=model.encoder is not None,
        uses_shared=cache is not None and cache.has_shared,
        is_causal=model.is_causal,
        second_head_size=0 if second is None else second[1],
    )
    spec = config.attention.attention_backend
    if not config.is_given("attention_backend"):
        spec = platform.defaults().attention or spec
    options = config.plugin.options_of("attention_backend")
    return selections.select(
        "attention_backend", spec, query=query, options=options, where="--attention-backend"
    )
