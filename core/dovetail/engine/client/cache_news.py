"""CacheNews: passes engines' prefix-cache events to the router of this process.

A thread reads the event feeds of all engines that have one. The thread that calls the router
delivers the collected events just before the call.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping

from dovetail import registry
from dovetail.interfaces.kv_event_publisher import Event, EventFeed, EventsSpec
from dovetail.interfaces.router import Router
from dovetail.observability.supervise import supervised_thread

READ_EVERY_S = 0.02
REST_S = 0.64
"""The maximum pause of the thread while no events come and the router is not called."""
MOST_WAITING = 100_000
"""The maximum number of undelivered batches; beyond that all cache knowledge is dropped."""

_News = tuple[int, tuple[Event, ...] | None]


def feeds_of(spec: EventsSpec | None, num_engines: int) -> dict[int, EventFeed]:
    """Return the engines' event feeds by engine number, as far as their publisher has feeds.
    Raises: PluginError, ConfigError"""
    if spec is None or num_engines < 2:
        return {}
    publisher = registry.admin.load_selection(spec.publisher)
    options = registry.admin.options_for(publisher, spec.publisher.options)
    found = ((number, publisher.feed(options, number)) for number in range(num_engines))
    return {number: feed for number, feed in found if feed is not None}


class CacheNews:
    """Reads feeds until it is closed."""

    def __init__(self, feeds: Mapping[int, EventFeed]) -> None:
        self._feeds = feeds
        self._waiting: deque[_News] = deque()
        self._is_over = threading.Event()
        self._is_asked = threading.Event()
        self._thread = supervised_thread(
            "kv-news", self._read, is_over=self._is_over, end=self._close_feeds
        )
        self._thread.start()

    def _read(self) -> None:
        """Collect events from the feeds. Mutates: self"""
        wait_s = READ_EVERY_S
        while not self._is_over.is_set():
            is_asked = self._is_asked.wait(wait_s)
            self._is_asked.clear()
            num_before = len(self._waiting)
            for number, feed in self._feeds.items():
                self._waiting.extend((number, events) for events in feed.read())
            has_come = len(self._waiting) > num_before
            wait_s = READ_EVERY_S if has_come or is_asked else min(2 * wait_s, REST_S)
            if len(self._waiting) > MOST_WAITING:
                self._waiting.clear()
                self._waiting.extend((number, None) for number in self._feeds)

    def _close_feeds(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def tell(self, router: Router) -> None:
        """Deliver the collected events. Mutates: self, router"""
        self._is_asked.set()
        while self._waiting:
            router.learn(*self._waiting.popleft())

    def close(self) -> None:
        """Stop reading. May be called twice."""
        self._is_over.set()
        self._is_asked.set()
        self._thread.join()
