"""CacheNews: what engines say of their prefix caches, brought to the router of this process.

A thread reads the feeds of all engines that have one; the thread that asks the router hands over
what has come, just before it asks.
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
"""How long the thread rests where nothing has come for a while and nobody has asked the router."""
MOST_WAITING = 100_000
"""So many batches wait for a request at most; then all that is known is dropped."""

_News = tuple[int, tuple[Event, ...] | None]


def feeds_of(spec: EventsSpec | None, num_engines: int) -> dict[int, EventFeed]:
    """Return the feeds of engines by their numbers, as far as their publisher has some. Raises:
    PluginError, ConfigError"""
    if spec is None or num_engines < 2:
        return {}
    publisher = registry.load_selection(spec.publisher)
    options = registry.options_for(publisher, spec.publisher.options)
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
        """Gather what comes. Mutates: self"""
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
        """Hand over what has come. Mutates: self, router"""
        self._is_asked.set()
        while self._waiting:
            router.learn(*self._waiting.popleft())

    def close(self) -> None:
        """Read no more. May be called twice."""
        self._is_over.set()
        self._is_asked.set()
        self._thread.join()
