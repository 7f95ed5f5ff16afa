"""Null: events are gathered and go nowhere."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.kv_event_publisher import EventBatch, KVEventPublisher
from dovetail.interfaces.plugin import Info


class NullPublisher(KVEventPublisher):
    """Drops every batch."""

    info = Info(summary="drops all events")

    def __init__(self, options: Any, engine: int) -> None:
        self.options = options

    def publish(self, batch: EventBatch) -> None:
        """Drop a batch."""
