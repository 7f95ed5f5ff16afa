"""Flags that do not apply to pooling models: those about sampling, drafts, or a cache they lack."""

from __future__ import annotations

import logging

from dovetail.config.config import Config, flags
from dovetail.config.rules.parallel.context_parallel import FLAG, context_size
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec

log = logging.getLogger(__name__)

_ABOUT_DRAWS = (
    "structured_outputs_config",
    "logits_processors",
    "max_logprobs",
    "logprobs_mode",
)


def check_pooled_flags(config: Config, model: ModelSpec) -> None:
    """Log flags without effect, because nothing is sampled. Raises: ConfigError for a drafter, and
    for dividing a cache that does not exist"""
    for name in _ABOUT_DRAWS:
        flag = flags()[name]
        if config.is_given(name) and config.value(name) != flag.default:
            log.warning("%s has no effect: the model draws no tokens", flag.spelling)
    if config.speculative.speculative_config:
        raise ConfigError(
            "the model draws no tokens, so there is nothing to draft.",
            where="--speculative-config",
            fix="leave it out, or use --runner generate with a model that generates.",
        )
    if not model.is_causal and context_size(config.parallel) > 1:
        raise ConfigError(
            "the model keeps nothing of a prompt, so there is no cache to divide.",
            where=FLAG,
            fix="leave it out.",
        )
