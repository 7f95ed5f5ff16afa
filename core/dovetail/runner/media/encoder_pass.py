"""EncoderPass: an encoder's pass over one input, spread over several steps.

The encoder's code (a transformers model's, for instance) is one uninterrupted call. So it runs in a
thread of its own, which pauses before one of the encoder's blocks until the next step resumes it.
Only one of the two threads computes at a time, so the calls, their order and the resulting bits are
those of an undivided pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn


class PassEnded(BaseException):
    """Ends an abandoned pass inside an encoder. Not an Exception, so that the encoder's own code
    does not catch it."""


class _Slot(threading.local):
    running: EncoderPass | None = None


_slot = _Slot()


class EncoderPass:
    """One pass. `make` returns the vectors; `queue` makes a thread queue device work after this
    thread's (`DeviceCalls.queue`). Shapes: make() [rows, E]"""

    def __init__(
        self, make: Callable[[], torch.Tensor], queue: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        self.num_begun = 0
        self._make = make
        self._queue = queue
        self._until: int | None = 0
        self._turn, self._told = threading.Semaphore(0), threading.Semaphore(0)
        self._is_dropped = False
        self._made: torch.Tensor | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="dovetail-encoder", daemon=True)

    def advance(self, num_blocks: int | None) -> None:
        """Compute until `num_blocks` of the encoder's blocks have been computed since the pass
        began; None: to the end. Mutates: self"""
        if self._made is not None or self._error is not None:
            return
        self._until = num_blocks
        if self._thread.ident is None:
            self._thread.start()
        self._turn.release()
        self._told.acquire()

    def result(self) -> torch.Tensor:
        """Return the vectors of a finished pass. Raises: what the encoder raised. Shapes: [rows,
        E]"""
        if self._error is not None:
            raise self._error
        assert self._made is not None, "the pass is not over"
        return self._made

    def drop(self) -> None:
        """Abort the pass at its pause; no vectors are made. Mutates: self"""
        if self._thread.is_alive():
            self._is_dropped = True
            self._turn.release()
            self._thread.join()

    def _run(self) -> None:
        self._turn.acquire()
        _slot.running = self
        try:
            with self._queue(), torch.inference_mode():
                self._made = self._make()
        except BaseException as error:  # raised again in `result`
            self._error = error
        self._told.release()

    def _pause(self) -> None:
        """Wait before a block that this step does not compute. Raises: PassEnded"""
        while self._until is not None and self.num_begun >= self._until:
            self._told.release()
            self._turn.acquire()
            if self._is_dropped:
                raise PassEnded
        self.num_begun += 1


def pause_before(blocks: Sequence[nn.Module]) -> None:
    """Make a divided pass pause before these blocks of an encoder. Mutates: blocks"""
    for block in blocks:
        block.register_forward_pre_hook(_pause)


def _pause(block: nn.Module, given: Any) -> None:
    if _slot.running is not None:
        _slot.running._pause()
