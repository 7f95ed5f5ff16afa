"""The context length: the checkpoint's maximum, its sliding window, and the length requested.

With --disable-sliding-window every layer uses full attention, and the context is at most the
window. Up to that length a window hides nothing, so the answers stay the same. Only the KV cache
changes: all layers then form one KV group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.config.checkpoint.rope import FULL, TRAINED, rope_of, rule_name
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec

log = logging.getLogger(__name__)
NO_WINDOW = "--disable-sliding-window"

_LENGTH_IS_STATED = ("default", "llama3", "longrope")
"""RoPE types for which max_position_embeddings already is the usable length."""


def checkpoint_tokens(model: ModelSpec) -> int:
    """Return the longest context that the checkpoint was made for, RoPE scaling included."""
    config = model.hf_config
    rope = rope_of(config, FULL)
    kind = rule_name(rope)
    factor = rope.get("factor")
    if kind in _LENGTH_IS_STATED or facts_of(config).length_is_scaled:
        return model.max_position_tokens
    if not isinstance(factor, int | float) or factor <= 1:
        return model.max_position_tokens
    base = model.max_position_tokens
    if kind == "yarn":
        base = int(config.get(TRAINED) or rope.get(TRAINED) or base)
    return int(base * factor)


def model_tokens(requested: int | None, model: ModelSpec, *, may_exceed: bool = False) -> int:
    """Return the context length to serve. Raises: ConfigError if it exceeds the checkpoint's,
    unless `may_exceed` is set or the model has no positional encoding."""
    longest = checkpoint_tokens(model)
    if requested is None:
        log.info("max_model_len auto: %d tokens, the checkpoint's maximum.", longest)
        return longest
    if requested > longest and facts_of(model.hf_config).positions == "none":
        log.info(
            "%d tokens: the model has no positions, and config.json says %d.", requested, longest
        )
        return requested
    if requested > longest and may_exceed and facts_of(model.hf_config).positions == "learned":
        raise ConfigError(
            f"the model has learned embeddings for only {longest} positions.",
            where="--allow-long-max-model-len",
            fix=f"give --max-model-len at most {longest}.",
        )
    if requested > longest and may_exceed:
        log.warning(
            "%d tokens are more than the %d that the model was trained for.", requested, longest
        )
    elif requested > longest:
        raise ConfigError(
            f"{requested} tokens is more than the checkpoint's {longest}.",
            where="--max-model-len",
            fix=f"give at most {longest}, or scale the rotary embedding with "
            '--hf-overrides.rope_scaling \'{"rope_type": "yarn", "factor": 4.0, ...}\', or go '
            "beyond it at your own risk with --allow-long-max-model-len.",
        )
    return requested


def window_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the sliding window, counting the query's own key, or None if the model does not use
    one."""
    window = config.get("sliding_window")
    if config.get("use_sliding_window") is False or not isinstance(window, int) or window < 1:
        return None
    return window // 2 + 1 if facts_of(config).window_has_two_sides else window


def chunk_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the chunk length of chunked attention, None if the model has none."""
    chunk = config.get("attention_chunk_size")
    kinds = config.get("layer_types")
    is_used = not isinstance(kinds, list) or "chunked_attention" in kinds
    return chunk if isinstance(chunk, int) and chunk > 0 and is_used else None


def within_window(
    requested: int | None, length: int, model: ModelSpec, because: str = NO_WINDOW
) -> int:
    """Return the context length to serve, at most the window, `because` of a flag or a model.

    Raises: ConfigError if more was `requested`.
    """
    window = window_tokens(model.hf_config)
    if window is None:
        log.info("%s changes nothing: the model has no sliding window.", because)
        return length
    if requested is not None and requested > window:
        raise ConfigError(
            f"{because} limits the context to the window, {window} tokens; "
            f"{requested} were requested.",
            where="--max-model-len",
            fix=f"give at most {window}, or leave {because} out.",
        )
    if length > window:
        log.info(
            "max_model_len auto: %d tokens, the window that is the limit with %s.",
            window,
            because,
        )
    return min(length, window)


def without_window(model: ModelSpec) -> ModelSpec:
    """Return the model's facts without a window in any layer; its layer types stay."""
    changes = {"sliding_window": None, "use_sliding_window": False}
    config = {key: changes.get(key, value) for key, value in model.hf_config.items()}
    return msgspec.structs.replace(model, hf_config={**config, "sliding_window": None})
