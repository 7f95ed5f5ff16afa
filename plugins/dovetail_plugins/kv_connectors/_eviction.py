"""The eviction that a connector's options name."""

from __future__ import annotations

from dovetail import registry
from dovetail.interfaces.kv_eviction import KVEviction

KIND = "kv_eviction"
WHERE = "--kv-transfer-config.kv_connector_extra_config.eviction"


def eviction_of(name: str, limit: int) -> KVEviction:
    """Return a new eviction policy for at most `limit` blocks. Raises: PluginError"""
    plugin = registry.load(KIND, name, where=WHERE)
    policy: KVEviction = plugin(registry.admin.options_for(plugin, {}), limit)
    return policy
