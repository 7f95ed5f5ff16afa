"""ZmqFeed: the events of one engine without a gap, read from its ZeroMQ sockets.

Batches have numbers. Missed batches are requested from the replay socket. If they are gone, or a
number comes back with other content (a restarted engine), everything known is void. It only ever
waits for answers from the replay socket.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import msgspec

from dovetail.interfaces.kv_event_publisher import Event, EventBatch, EventFeed

log = logging.getLogger(__name__)

REPLAY_LIMIT_MS = 2000
END = (-1).to_bytes(8, "big", signed=True)
_BATCH = msgspec.msgpack.Decoder(EventBatch)

News = list[tuple[Event, ...] | None]


class ZmqFeed(EventFeed):
    """A subscriber to one endpoint, with another endpoint for replays of missed batches."""

    def __init__(self, endpoint: str, replay: str | None, topic: bytes) -> None:
        import zmq

        self._context = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.setsockopt(zmq.LINGER, 0)
        self._events.setsockopt(zmq.RCVHWM, 0)
        self._events.setsockopt(zmq.SUBSCRIBE, topic)
        self._events.connect(endpoint)
        self._replay_at = replay
        self._next = 0
        self._replayed: dict[int, bytes] = {}

    def read(self) -> News:
        """Return the events of all batches that have come. Mutates: self"""
        import zmq

        news: News = []
        while True:
            try:
                frames = self._events.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return news
            if len(frames) == 3 and len(frames[1]) == 8:
                self._take(int.from_bytes(frames[1], "big"), frames[2], news)

    def _take(self, number: int, payload: bytes, news: News) -> None:
        """Take in a batch that has come live. Mutates: self, news"""
        if number < self._next:
            if self._replayed.pop(number, None) == payload:
                return  # once more
            news.append(None)
            self._next = 0
            self._replayed.clear()
        if number > self._next:
            self._catch_up(number, news)
        if number == self._next:
            self._replayed.clear()
            self._add(payload, news)

    def _catch_up(self, until: int, news: News) -> None:
        """Request the batches from the next one on; unavailable ones make a gap. Mutates: self,
        news"""
        for number, payload in self._ask_replay(self._next):
            if number > self._next:
                news.append(None)
                self._next = number
            if number == self._next:
                self._replayed[number] = payload
                self._add(payload, news)
        if self._next < until:
            news.append(None)
            self._next = until

    def _add(self, payload: bytes, news: News) -> None:
        self._next += 1
        try:
            news.append(_BATCH.decode(payload).events)
        except msgspec.MsgspecError as error:
            log.warning("a batch of KV cache events was not understood: %s", error)
            news.append(None)

    def _ask_replay(self, first: int) -> list[tuple[int, bytes]]:
        """Return what the engine still has from a number on; nothing if it does not answer."""
        import zmq

        if self._replay_at is None:
            return []
        found: list[tuple[int, bytes]] = []
        with contextlib.closing(self._context.socket(zmq.DEALER)) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(self._replay_at)
            socket.send_multipart((b"", first.to_bytes(8, "big")))
            while socket.poll(REPLAY_LIMIT_MS):
                _, number, payload = _three(socket.recv_multipart())
                if number == END:
                    return found
                found.append((int.from_bytes(number, "big"), payload))
        return found

    def close(self) -> None:
        """Read no more."""
        self._context.destroy(linger=0)


def _three(frames: list[Any]) -> tuple[bytes, bytes, bytes]:
    """Return an answer's frames; one that has others ends the answer."""
    return (frames[0], frames[1], frames[2]) if len(frames) == 3 else (b"", END, b"")
