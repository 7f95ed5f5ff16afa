"""--disable-sliding-window: every layer attends to everything, within the window's length.

Up to that length a window hides nothing, so the answers are the checkpoint's own; what changes is
the KV cache, which then is of one kind.
"""

from __future__ import annotations

import logging

import msgspec

from dovetail.config.cache_size import window_tokens
from dovetail.errors import ConfigError
from dovetail.interfaces.spec import ModelSpec

log = logging.getLogger(__name__)
WHERE = "--disable-sliding-window"


def within_window(asked: int | None, length: int, model: ModelSpec) -> int:
    """Return the context length to serve, at most the window.

    Raises: ConfigError when more was `asked` for.
    """
    window = window_tokens(model.hf_config)
    if window is None:
        log.info("%s changes nothing: the model has no sliding window.", WHERE)
        return length
    if asked is not None and asked > window:
        raise ConfigError(
            f"{WHERE} limits the context to the window, {window} tokens; {asked} were requested.",
            where="--max-model-len",
            fix=f"give at most {window}, or leave {WHERE} out.",
        )
    if length > window:
        log.info(
            "max_model_len auto: %d tokens, the window that is the limit with %s.", window, WHERE
        )
    return min(length, window)


def without_window(model: ModelSpec) -> ModelSpec:
    """Return the model's facts with no window in any layer; the kinds of its layers stay."""
    changes = {"sliding_window": None, "use_sliding_window": False}
    config = {key: changes.get(key, value) for key, value in model.hf_config.items()}
    return msgspec.structs.replace(model, hf_config={**config, "sliding_window": None})
