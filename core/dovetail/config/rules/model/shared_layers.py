"""Layers that reuse another layer's KV cache: whether prompt tokens skip them."""

from __future__ import annotations

import logging

from dovetail import registry
from dovetail.config.sections.cache import CacheConfig
from dovetail.interfaces.data.spec import ModelSpec, Selection

log = logging.getLogger(__name__)

FLAG = "--kv-sharing-fast-prefill"
CAPABILITY = "leaves_out_tokens"


def leaves_out_tokens(cache: CacheConfig, model: ModelSpec, plugin: Selection) -> bool:
    """Return whether prompt tokens skip such layers, as the flag requests. If it has no effect, the
    reason is logged."""
    if not cache.kv_sharing_fast_prefill:
        return False
    if model.cache is None or not model.cache.has_shared:
        log.info("%s changes nothing: no layer reads another's KV cache.", FLAG)
        return False
    if CAPABILITY not in registry.admin.load_selection(plugin).capabilities:
        log.info("%s changes nothing: the model plugin %s computes all tokens.", FLAG, plugin.name)
        return False
    return True
