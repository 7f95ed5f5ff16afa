"""ZmqPublisher: batches of events over a ZeroMQ PUB socket, and again over a ROUTER socket.

A batch is a message of three frames: the topic, its number (8 bytes, big-endian) and the batch in
msgpack. A subscriber that missed some sends the number of the first (8 bytes) to the replay socket
and gets every later batch that is still buffered: an empty frame, the number, the batch; the last
message has the number -1 (8 bytes of ones) and an empty batch. Source: vLLM's KV cache events.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dovetail.errors import ConfigError
from dovetail.interfaces.kv_event_publisher import EventBatch, EventFeed, KVEventPublisher
from dovetail.interfaces.plugin import Info
from dovetail.observability.supervise import supervised_thread
from dovetail_plugins.kv_event_publishers._zmq_feed import ZmqFeed

log = logging.getLogger(__name__)

END = (-1).to_bytes(8, "big", signed=True)
POLL_MS = 50
CLOSE_WAIT_S = 2.0
LINGER_MS = 1000
OF_THIS_MACHINE = "tcp://127.0.0.1:5557"
"""Default endpoint, which is bound; a given endpoint that names a host is connected to."""
HERE = ("", "127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ZmqOptions:
    """Where events go. Later engines add their number to a TCP port, and `_dpNUMBER` to any other
    address."""

    endpoint: str = field(
        default="",
        metadata={
            "help": "ZeroMQ address of the PUB socket, such as tcp://*:5557 for every interface; "
            f"without one {OF_THIS_MACHINE}, which this machine alone reaches"
        },
    )
    replay_endpoint: str | None = field(
        default=None, metadata={"help": "ZeroMQ address of the ROUTER socket for what was missed"}
    )
    buffer_steps: int = field(
        default=10_000, metadata={"help": "batches kept for who asks again", "ge": 0}
    )
    hwm: int = field(
        default=100_000,
        metadata={"help": "batches that wait for a slow listener; it loses later ones", "ge": 1},
    )
    max_queue_size: int = field(
        default=100_000,
        metadata={"help": "batches that wait to be sent; later ones are lost", "ge": 1},
    )
    topic: str = field(default="", metadata={"help": "first frame, by which listeners choose"})


class ZmqPublisher(KVEventPublisher):
    """Encodes and sends in a thread next to the engine's."""

    info = Info(
        summary="ZeroMQ: PUB for events, ROUTER for those missed",
        source="https://docs.vllm.ai/en/latest/examples/features/kv_events/",
    )
    Options = ZmqOptions

    @classmethod
    def sample_options(cls, folder: str) -> dict[str, object]:
        """Return addresses within the folder."""
        return {
            "endpoint": f"ipc://{folder}/events",
            "replay_endpoint": f"ipc://{folder}/replay",
        }

    @classmethod
    def feed(cls, options: ZmqOptions, engine: int, host: str = "") -> EventFeed | None:
        """Return a subscriber, None if the engine does not bind the address."""
        endpoint = address_of(options.endpoint or OF_THIS_MACHINE, engine)
        is_met = host in HERE if not options.endpoint else _is_opened_here(endpoint)
        if not is_met or endpoint.startswith("inproc://"):
            return None
        replay = options.replay_endpoint
        return ZmqFeed(
            _as_met(endpoint, host),
            _as_met(address_of(replay, engine), host) if replay else None,
            options.topic.encode(),
        )

    def __init__(self, options: ZmqOptions, engine: int) -> None:
        import zmq

        self._encoder = msgspec.msgpack.Encoder()
        self._topic = options.topic.encode()
        self._queue: queue.Queue[tuple[int, EventBatch] | None] = queue.Queue(
            options.max_queue_size
        )
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=options.buffer_steps)
        self._num_made = 0
        self._num_lost = 0
        self._context = zmq.Context()
        self._events = self._bound(zmq.PUB, options.endpoint, engine, "endpoint", options.hwm)
        self._replay: Any = None
        if options.replay_endpoint:
            # Room for all buffered batches and the end: a ROUTER silently drops what does not fit.
            room = max(options.hwm, options.buffer_steps + 1)
            self._replay = self._bound(
                zmq.ROUTER, options.replay_endpoint, engine, "replay_endpoint", room
            )
        self._is_over = threading.Event()
        self._is_cut = threading.Event()
        self._thread = supervised_thread("kv-events", self._serve, is_over=self._is_cut)
        self._thread.start()

    def _bound(self, sort: int, address: str, engine: int, name: str, room: int) -> Any:
        """Return a socket whose queue has `room` messages per listener. Raises: ConfigError"""
        import zmq

        socket = self._context.socket(sort)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.SNDHWM, room)
        own = address_of(address or OF_THIS_MACHINE, engine)
        try:
            # An address with a wildcard, or of a local-only protocol, is bound by this side.
            if address and name == "endpoint" and not _is_opened_here(own):
                socket.connect(own)
            else:
                socket.bind(own)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(
                f"{own} cannot be opened: {error.strerror}.",
                where=f"--kv-events-config.{name}",
                fix="name an address that is free.",
            ) from error
        return socket

    def publish(self, batch: EventBatch) -> None:
        """Hand a batch to the sending thread. If the queue is full, the batch is lost: listeners
        see a gap in the numbers."""
        number = self._num_made
        self._num_made += 1
        try:
            self._queue.put_nowait((number, batch))
        except queue.Full:
            if not self._num_lost:
                log.warning("KV cache events are made faster than they can be sent; some are lost")
            self._num_lost += 1

    def _serve(self) -> None:
        """Send batches and answer replay requests until stopped."""
        wait_s = None if self._replay is None else POLL_MS / 1000
        while not self._is_cut.is_set():
            self._answer_replays()
            try:
                item = self._queue.get(timeout=wait_s)
            except queue.Empty:
                continue
            if item is None:
                return
            number, batch = item
            payload = self._encoder.encode(batch)
            self._kept.append((number, payload))
            self._events.send_multipart((self._topic, number.to_bytes(8, "big"), payload))

    def _answer_replays(self) -> None:
        import zmq

        while self._replay is not None and self._replay.poll(0, zmq.POLLIN):
            sender, *_, message = self._replay.recv_multipart()
            if len(message) != 8:
                log.warning("a replay of KV cache events was asked for without a number")
                continue
            first = int.from_bytes(message, "big")
            for number, payload in self._kept:
                if number >= first:
                    self._replay.send_multipart((sender, b"", number.to_bytes(8, "big"), payload))
            self._replay.send_multipart((sender, b"", END, b""))

    def close(self) -> None:
        """Send the rest, within a time limit. May be called twice."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=CLOSE_WAIT_S)
        self._thread.join(CLOSE_WAIT_S)
        if num_left := sum(item is not None for item in tuple(self._queue.queue)):
            log.warning("%d batches of KV cache events are not sent: the engine ends", num_left)
        self._is_cut.set()
        self._thread.join(CLOSE_WAIT_S)
        if not self._thread.is_alive():
            self._context.destroy(linger=LINGER_MS)


def address_of(address: str, engine: int) -> str:
    """Return the address of the engine of a number."""
    if not engine:
        return address
    if not address.startswith("tcp://"):
        return f"{address}_dp{engine}"
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + engine}"


def _is_opened_here(address: str) -> bool:
    """Return whether a publisher binds an address, so that others connect to it."""
    return "*" in address or "::" in address or address.startswith(("ipc://", "inproc://"))


def _as_met(address: str, host: str) -> str:
    """Return the address at which clients reach a wildcard bind on a machine ("": this one)."""
    named = f"[{host}]" if ":" in host else host
    return address.replace("*", named or "127.0.0.1").replace("[::]", named or "[::1]")
