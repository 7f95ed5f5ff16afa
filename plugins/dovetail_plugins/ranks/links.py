"""WiredLinks: an executor's connections to its ranks (`ranks.executor.RankLinks`).

Each rank has two: one for orders and answers, and a side connection, which a thread here listens
to. The end of that second connection is how a rank's end is known, whatever ended it.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from functools import partial

import msgspec

from dovetail.observability.supervise import supervised_thread
from dovetail_plugins.ranks.connection import SocketConnection
from dovetail_plugins.ranks.executor import Loss, RankObserver
from dovetail_plugins.ranks.messages import Aside, EndReport, ItemPrepared
from dovetail_plugins.ranks.wire import Wire, Wires

OTHERS_WAIT_S = 0.1
"""How long the reports of other ranks are waited for once one has ended."""


class WiredLinks(ABC):
    """Two connections to each rank, by its number. A subclass knows what runs at the other ends."""

    def __init__(self, orders: Wires, asides: Sequence[socket.socket]) -> None:
        self._orders = orders
        self._aside_sockets = list(asides)
        self._asides = [Wire(SocketConnection(one)) for one in asides]
        self._watcher: threading.Thread | None = None
        self._is_ending = False

    @abstractmethod
    def _how_it_ended(self, number: int) -> str:
        """Return how a rank whose connection has ended came to its end, as a sentence."""

    @abstractmethod
    def _end_ranks(self, grace_s: float) -> None:
        """See all ranks end, by force after `grace_s`. May be called twice."""

    def send(self, payload: bytes) -> None:
        """Send an order to every rank. Raises: OSError, EOFError when one is gone"""
        self._orders.send(payload)

    def send_to(self, numbers: Collection[int], payload: bytes) -> None:
        """Send an order to some ranks. Raises: OSError, EOFError when one is gone"""
        self._orders.send_to(numbers, payload)

    def receive(self, number: int) -> bytes:
        """Wait for one rank's next answer. Raises: OSError, EOFError when a rank is gone"""
        return self._orders.receive(number)

    def receive_any(self, numbers: Collection[int], deadline_s: float | None) -> int | None:
        """Wait for any answer (see RankLinks)."""
        return self._orders.receive_any(numbers, deadline_s)

    def tell(self, payload: bytes) -> None:
        """Send something aside to every rank. Raises: OSError when one is gone"""
        for wire in self._asides:
            wire.send(payload)

    def watch(self, observer: RankObserver) -> None:
        """Report from now on messages on the side connection, and which ranks end."""
        watcher = supervised_thread("ranks-watcher", partial(self._watch, observer))
        watcher.start()
        self._watcher = watcher

    def _watch(self, observer: RankObserver) -> None:
        """Listen until a rank ends."""
        decoder = msgspec.msgpack.Decoder(Aside)
        losses: dict[int, Loss] = {}
        deadline_s: float | None = None
        with selectors.DefaultSelector() as selector:
            for number, connected in enumerate(self._aside_sockets):
                selector.register(connected, selectors.EVENT_READ, number)
            while selector.get_map():
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    break
                for key, _ in selector.select(left_s):
                    wire = self._asides[key.data]
                    try:
                        wire.read()
                    except (EOFError, OSError):
                        selector.unregister(key.fileobj)
                        losses.setdefault(key.data, self._silent_loss(key.data))
                    while (payload := wire.take()) is not None:
                        message = decoder.decode(payload)
                        if isinstance(message, ItemPrepared):
                            observer.on_prepared(key.data, message)
                        else:
                            losses[key.data] = _reported_loss(key.data, message)
                if self._is_ending:
                    return
                if losses and deadline_s is None:
                    deadline_s = time.monotonic() + OTHERS_WAIT_S
        observer.on_losses(list(losses.values()))

    def _silent_loss(self, number: int) -> Loss:
        now_s = time.monotonic()
        reason = "" if self._is_ending else self._how_it_ended(number)
        return Loss(number=number, when_s=now_s, reason=reason, is_silent=True)

    def shut_down(self) -> None:
        """Make waiting calls end with an error; any thread may call this."""
        self._orders.shut_down()

    def end(self, grace_s: float) -> None:
        """End all ranks, by force after `grace_s`. May be called twice."""
        self._is_ending = True
        self._orders.shut_down()
        for wire in self._asides:  # which wakes the watcher
            wire.shut_down()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        self._end_ranks(grace_s)
        for wire in self._asides:
            wire.close()
        self._orders.close()


def _reported_loss(number: int, words: EndReport) -> Loss:
    return Loss(number=number, when_s=words.when_s, reason=words.reason, is_silent=False)
