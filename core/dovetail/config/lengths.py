"""The context length: what a checkpoint can do, and what was asked for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dovetail.config.model_facts import facts_of
from dovetail.errors import ConfigError
from dovetail.interfaces.spec import ModelSpec

log = logging.getLogger(__name__)

_LENGTH_IS_STATED = ("default", "llama3", "longrope", "su", "mrope")
"""RoPE kinds that leave max_position_embeddings as the usable length."""


def checkpoint_tokens(model: ModelSpec) -> int:
    """Return the longest context the checkpoint was made for, RoPE scaling included."""
    config = model.hf_config
    rope = rope_scaling(config)
    kind = str(rope.get("rope_type", rope.get("type", "default")))
    factor = rope.get("factor")
    if kind in _LENGTH_IS_STATED or facts_of(config).length_is_scaled:
        return model.max_position_tokens
    if not isinstance(factor, int | float) or factor <= 1:
        return model.max_position_tokens
    base = model.max_position_tokens
    if kind == "yarn":
        base = int(rope.get("original_max_position_embeddings", base))
    return int(base * factor)


def rope_scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE settings that stretch the context, or nothing.

    Older files say rope_scaling, newer ones rope_parameters, which may be one object per
    attention type; full attention decides how far the model can look.
    """
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if isinstance(value, Mapping) and isinstance(value.get("full_attention"), Mapping):
            value = value["full_attention"]
        if isinstance(value, Mapping):
            return value
    return {}


def model_tokens(asked: int | None, model: ModelSpec, *, may_exceed: bool = False) -> int:
    """Return the context length to serve. Raises: ConfigError when more than the checkpoint's,
    unless it `may_exceed` that."""
    longest = checkpoint_tokens(model)
    if asked is None:
        log.info("max_model_len auto: %d tokens, the checkpoint's maximum.", longest)
        return longest
    if asked > longest and may_exceed and facts_of(model.hf_config).positions == "learned":
        raise ConfigError(
            f"the model has learned embeddings for only {longest} positions.",
            where="--allow-long-max-model-len",
            fix=f"give --max-model-len at most {longest}.",
        )
    if asked > longest and may_exceed:
        log.warning(
            "%d tokens are more than the %d that the model was trained for.", asked, longest
        )
    elif asked > longest:
        raise ConfigError(
            f"{asked} tokens is more than the checkpoint's {longest}.",
            where="--max-model-len",
            fix=f"give at most {longest}, or scale the rotary embedding with "
            '--hf-overrides.rope_scaling \'{"rope_type": "yarn", "factor": 4.0, ...}\', or go '
            "beyond it at your own risk with --allow-long-max-model-len.",
        )
    return asked
