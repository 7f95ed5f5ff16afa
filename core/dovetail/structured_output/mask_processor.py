"""ConstraintProcessor: the logits processor that leaves each constrained row the tokens its
constraint allows.

A row's matcher follows the tokens drawn. Masks are filled in a thread of their own while the
forward pass runs; what a mask costs is hidden as long as it takes less than the pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.structured_output import Matcher
from dovetail.sampling.seen import on_device
from dovetail.structured_output.cache import CachedConstraint, ConstraintCache
from dovetail.structured_output.early_close import WINDOW_TOKENS
from dovetail.structured_output.trigger import BLANKS
from dovetail_kernels.token_mask import OP

if TYPE_CHECKING:
    import torch

ALL = np.uint32(0xFFFFFFFF)
MIN_THREAD_S = 1e-4
"""Masks that take longer together are filled beside the forward pass."""


@cache
def _forbidding(device_type: str, dtype: torch.dtype) -> Callable[..., None]:
    """Return what applies masks of bits to logits there."""
    return OP.pick(device_type, dtype)


class ConstraintViolation(Exception):
    """A row drew a token that its constraint does not allow: a fault of the backend."""


class _Row:
    """Where one answer stands: waiting for a marker, or within a constraint.

    `mask` says what may follow the first `filled_tokens` tokens, unless `fault` was raised instead.
    """

    def __init__(self, tokens: RowTokens, loaded: CachedConstraint, table: ConstraintCache) -> None:
        vocabulary = table.vocabulary
        self._closing = table.closing
        self.output_ids = tokens.output_ids
        self.may_force = _may_force(tokens.params)
        self.max_tokens = tokens.params.max_tokens
        self.num_seen = 0
        self.mask = np.zeros(vocabulary.mask_words, dtype=np.uint32)
        self.filled_tokens = -1
        self.fault: Exception | None = None
        self._loaded = loaded
        self._vocabulary = vocabulary
        self._tail = b""
        self._thinking = tuple(text.encode() for text in loaded.compiled.reasoning_markers)
        self._is_thinking = loaded.compiled.starts_in_reasoning
        self._head: bytes | None = b"" if self._thinking else None
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._matcher: Matcher | None = None if loaded.markers else loaded.constraints[0].matcher()

    @property
    def is_held(self) -> bool:
        """Return whether the constraint holds here; else text is free."""
        return self._matcher is not None

    def advance(self) -> int:
        """Follow the tokens drawn since; return how many there are. Raises: ConstraintViolation

        Mutates: self
        """
        known = len(self.output_ids)
        if known > self.num_seen:
            for token_id in self.output_ids[self.num_seen : known]:
                self._take(int(token_id))
                self.num_seen += 1
        return known

    def _take(self, token_id: int) -> None:
        if self._matcher is None:
            self._look_for_marker(token_id)
            return
        if token_id in self._eos_ids:
            return  # the request ends here, or goes on by its own will
        if not self._matcher.accept(token_id):
            raise ConstraintViolation(f"token {token_id} is not allowed by the constraint")
        if self._loaded.compiled.triggers and self._matcher.is_complete():
            self._matcher, self._tail = None, b""
            self._head = b"" if self._thinking else None

    def _look_for_marker(self, token_id: int) -> None:
        markers = self._loaded.markers
        written = markers[0].bytes_of(token_id)
        if self._is_thinking:
            self._think(written)
            return
        self._tail += written
        if self._head is not None:
            self._look_for_thinking(written)
        if self._is_thinking:
            return
        for which, marker in enumerate(markers):
            if marker.is_in(self._tail):
                self._matcher, self._tail = self._loaded.constraints[which].matcher(), b""
                return
        self._tail = max((marker.kept(self._tail) for marker in markers), key=len)

    def _think(self, written: bytes) -> None:
        """Take a token of the thinking; behind its end words begin, or more thinking."""
        end = self._thinking[1]
        self._tail += written
        if end not in self._tail:
            self._tail = self._tail[-len(end) :]
            return
        self._is_thinking, self._head = False, b""
        self._tail = self._tail.partition(end)[2]
        self._look_for_thinking(self._tail)

    def _look_for_thinking(self, written: bytes) -> None:
        """Take text of which only blanks precede: it may open the thinking."""
        assert self._head is not None
        self._head = (self._head + written).lstrip(BLANKS)
        start = self._thinking[0]
        if self._head.startswith(start):
            self._is_thinking, self._tail = True, self._head[len(start) :]
        elif not start.startswith(self._head):
            self._head = None

    def fill(self) -> None:
        """Follow the tokens drawn since and make the mask of what may follow. Mutates: self

        What a backend raises is kept: it is told where the row is looked at, and costs the row.
        """
        self.fault = None
        try:
            self.filled_tokens = self.advance()
            self._fill()
        except Exception as error:
            self.fail(error)

    def fail(self, fault: Exception) -> None:
        """Let a fault stand in place of a mask. Mutates: self"""
        self.fault, self.filled_tokens = fault, len(self.output_ids)

    def is_stale(self) -> bool:
        """Return whether the mask is not that of the tokens there are."""
        return self.filled_tokens != len(self.output_ids)

    def _fill(self) -> None:
        mask = self.mask
        if self._matcher is not None:
            mask[:] = 0
            self._matcher.fill(mask)
            if self._loaded.compiled.closes:
                self._close(self._matcher, mask)
            return
        mask[:] = ALL
        for marker in () if self._is_thinking else self._loaded.markers:
            over = marker.forbidden(self._tail)
            np.bitwise_and.at(mask, over // 32, ~(np.uint32(1) << (over % 32).astype(np.uint32)))

    def _close(self, matcher: Matcher, mask: np.ndarray) -> None:
        """Leave only what lets the answer end in time, once its limit is near. Mutates: mask"""
        left = (self.max_tokens or 0) - len(self.output_ids)
        if left > WINDOW_TOKENS:
            return
        self._closing.keep_closable(matcher, mask, left)

    def forced(self) -> Sequence[int]:
        """Return tokens that must follow what was drawn, the end included. Mutates: self"""
        known = self.advance()
        if self._matcher is None or not self.may_force:
            return ()
        if self._matcher.is_complete() and not self._loaded.compiled.triggers:
            token_ids: Sequence[int] = self._vocabulary.eos_ids[:1]
        else:
            token_ids = self._matcher.forced()
        return token_ids[: max(0, (self.max_tokens or 0) - known)] if token_ids else ()


def _may_force(params: SamplingParams) -> bool:
    """Return whether a token without an alternative need not be drawn: nothing else has a say in
    it, and nobody wants its logprob."""
    with_a_say = (
        params.allowed_token_ids,
        params.bad_words_token_ids,
        params.logit_bias,
        params.logits_processors,
        params.min_tokens,
        params.ignore_eos,
        params.thinking,
    )
    return not any(with_a_say) and params.logprobs is None


class ConstraintProcessor(LogitsProcessor):
    """All constrained rows of a runner."""

    stage = "allow"

    def __init__(self, table: ConstraintCache, vocab_size: int) -> None:
        super().__init__(None, vocab_size)
        self._table = table
        self._rows: dict[int, _Row] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-masks")
        self._pending: Future[None] | None = None
        self._fill_s = 0.0

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether a request has a constraint."""
        return params.constraint is not None

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row; tokens that it has already are followed. Mutates: self"""
        assert tokens.params.constraint is not None
        loaded = self._table.prepare(tokens.params.constraint)
        self._rows[tokens.row] = _Row(tokens, loaded, self._table)

    def remove_row(self, row: int) -> None:
        """Forget a row. Mutates: self"""
        self._wait()
        self._rows.pop(row, None)

    def begin(self, rows: Sequence[int]) -> None:
        """Start to fill the masks of the constrained ones of these rows. Mutates: self"""
        constrained = [self._rows[row] for row in rows if row in self._rows]
        # Handing over to a thread costs more than short fills do: those are left to `apply`.
        if len(constrained) * self._fill_s > MIN_THREAD_S:
            self._wait()
            self._pending = self._thread.submit(self._fill_all, constrained)

    def _wait(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _fill_all(self, rows: Sequence[_Row]) -> None:
        begun_s = time.perf_counter()
        for row in rows:
            row.fill()
        if rows:
            last_s = (time.perf_counter() - begun_s) / len(rows)
            self._fill_s = max(last_s, 0.9 * self._fill_s)

    def forced(self, rows: Sequence[int]) -> dict[int, Sequence[int]]:
        """Return, by row, the tokens that its constraint leaves no choice about after those drawn.

        None where a backend fails: the row's next mask tells. Mutates: self
        """
        self._wait()
        found = {}
        for row in rows:
            state = self._rows.get(row)
            if state is None:
                continue
            try:
                token_ids = state.forced()
            except Exception as error:
                state.fail(error)
            else:
                if token_ids:
                    found[row] = token_ids
        return found

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Forbid what the rows' constraints do not allow. Raises: what a backend raised for a row

        Shapes: logits [S, V]
        Mutates: logits
        """
        self._wait()
        states = [self._rows[row] for _, row in rows]
        self._fill_all([state for state in states if state.is_stale()])
        for state in states:
            if state.fault is not None:
                raise state.fault
        masks = on_device(np.stack([state.mask for state in states]).view(np.int32), logits.device)
        indices = on_device(np.array([index for index, _ in rows]), logits.device)
        forbid = _forbidding(logits.device.type, logits.dtype)
        forbid(logits, masks, indices)
