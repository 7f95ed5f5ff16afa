"""ConstraintProcessor: the logits processor that limits each constrained row to the tokens that its
constraint allows.

A row's matcher follows the sampled tokens. Masks are filled in a separate thread during the forward
pass, so a mask costs nothing as long as it takes less time than the pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.structured_output import Matcher
from dovetail.structured_output.cache import CachedConstraint, ConstraintCache
from dovetail.structured_output.trigger import BLANKS
from dovetail_grammars.early_close import WINDOW_TOKENS, EarlyClose
from dovetail_kernels.sample.seen import on_device
from dovetail_kernels.token_mask import OP

if TYPE_CHECKING:
    import torch

ALL = np.uint32(0xFFFFFFFF)
MIN_THREAD_S = 1e-4
"""If filling the masks of a step takes longer, it is done during the forward pass."""


@cache
def _forbidding(device_type: str, dtype: torch.dtype) -> Callable[..., None]:
    """Return the kernel that applies bit masks to logits on this device."""
    return OP.pick(device_type, dtype)


class ConstraintViolation(Exception):
    """A row sampled a token that its constraint forbids: a fault of the backend."""


class _Row:
    """The state of one answer: waiting for a trigger, or within a constraint.

    `mask` has the tokens allowed after the first `filled_tokens` tokens, unless there is a `fault`.
    """

    def __init__(
        self, tokens: RowTokens, cached: CachedConstraint, cache: ConstraintCache, vocab_size: int
    ) -> None:
        vocabulary = cache.vocabulary
        self._early_close = cache.early_close if cached.closes else None
        self._ways_to_end: dict[int, list[int]] = {}
        self.output_ids = tokens.output_ids
        self.may_force = _may_force(tokens.params)
        self.max_tokens = tokens.params.max_tokens
        self.num_seen = 0
        self.mask = np.zeros(vocabulary.mask_words, dtype=np.uint32)
        self.filled_tokens = -1
        self.fault: Exception | None = None
        self._cached = cached
        self._vocabulary = vocabulary
        self._tail = b""
        self._reasoning_markers = cached.reasoning_markers
        self._is_reasoning = cached.starts_in_reasoning
        self._head: bytes | None = b"" if self._reasoning_markers else None
        self._eos_ids = frozenset(vocabulary.eos_ids)
        self._own_ends = frozenset(tokens.params.eos_token_ids) - self._eos_ids
        self._own_in_table = [i for i in self._own_ends if i < vocab_size]
        self._matcher: Matcher | None = None if cached.triggers else cached.constraints[0].matcher()

    @property
    def is_constrained(self) -> bool:
        """Return whether a constraint applies to the next token; otherwise text is free."""
        return self._matcher is not None

    def advance(self) -> int:
        """Advance over newly sampled tokens; return how many. Raises: ConstraintViolation

        Mutates: self
        """
        known = len(self.output_ids)
        if known > self.num_seen:
            for token_id in self.output_ids[self.num_seen : known]:
                self._take(int(token_id))
                self.num_seen += 1
        return known

    def _take(self, token_id: int) -> None:
        if token_id in self._own_ends:
            return  # the matcher ignores it, like an end token of the vocabulary
        if self._matcher is None:
            self._look_for_trigger(token_id)
            return
        if token_id in self._eos_ids:
            return  # the request ends here, or ignores end tokens
        if not self._matcher.accept(token_id):
            raise ConstraintViolation(f"token {token_id} is not allowed by the constraint")
        if self._cached.repeats and self._matcher.is_complete():
            self._matcher, self._tail = None, b""
            self._head = b"" if self._reasoning_markers else None

    def _look_for_trigger(self, token_id: int) -> None:
        triggers = self._cached.triggers
        written = triggers[0].bytes_of(token_id)
        if self._is_reasoning:
            self._reason(written)
            return
        self._tail += written
        if self._head is not None:
            self._look_for_reasoning(written)
        if self._is_reasoning:
            return
        for trigger, constraint in zip(triggers, self._cached.constraints, strict=True):
            if trigger.is_in(self._tail):
                self._matcher, self._tail = constraint.matcher(), b""
                return
        self._tail = max((trigger.kept(self._tail) for trigger in triggers), key=len)

    def _reason(self, written: bytes) -> None:
        """Process a token of the reasoning; its end is followed by text, or by more reasoning."""
        end = self._reasoning_markers[1]
        self._tail += written
        if end not in self._tail:
            self._tail = self._tail[-len(end) :]
            return
        self._is_reasoning, self._head = False, b""
        self._tail = self._tail.partition(end)[2]
        self._look_for_reasoning(self._tail)

    def _look_for_reasoning(self, written: bytes) -> None:
        """Process text preceded only by white space: it may start the reasoning."""
        assert self._head is not None
        self._head = (self._head + written).lstrip(BLANKS)
        start = self._reasoning_markers[0]
        if self._head.startswith(start):
            self._is_reasoning, self._tail = True, self._head[len(start) :]
        elif not start.startswith(self._head):
            self._head = None

    def fill(self) -> None:
        """Advance over the newly sampled tokens and fill the mask of the next one. Mutates: self

        Errors of a backend are stored and raised in `apply`, so that they end only this row.
        """
        self.fault = None
        try:
            self.filled_tokens = self.advance()
            self._fill()
        except Exception as error:
            self.fail(error)

    def fail(self, fault: Exception) -> None:
        """Store a fault instead of a mask. Mutates: self"""
        self.fault, self.filled_tokens = fault, len(self.output_ids)

    def is_stale(self) -> bool:
        """Return whether tokens were sampled since the mask was filled."""
        return self.filled_tokens != len(self.output_ids)

    def _fill(self) -> None:
        mask = self.mask
        if self._matcher is not None:
            mask[:] = 0
            self._matcher.fill(mask)
            if self._early_close is not None:
                self._close(self._early_close, self._matcher, mask)
            self._allow_own_ends(mask)
            return
        mask[:] = ALL
        for trigger in () if self._is_reasoning else self._cached.triggers:
            over = trigger.forbidden(self._tail)
            np.bitwise_and.at(mask, over // 32, ~(np.uint32(1) << (over % 32).astype(np.uint32)))

    def _close(self, early_close: EarlyClose, matcher: Matcher, mask: np.ndarray) -> None:
        """Near max_tokens, allow only tokens that let the answer end in time. Mutates: mask"""
        left = (self.max_tokens or 0) - len(self.output_ids)
        if left > WINDOW_TOKENS:
            return
        early_close.keep_closable(matcher, mask, left, self._ways_to_end)

    def _allow_own_ends(self, mask: np.ndarray) -> None:
        """Allow the request's own end tokens if the text may end here, and only then."""
        can_end = self._can_end()
        for token_id in self._own_in_table:
            bit = np.uint32(1) << np.uint32(token_id % 32)
            mask[token_id // 32] &= ~bit
            mask[token_id // 32] |= can_end * bit

    def _can_end(self) -> bool:
        return any(self.mask[i // 32] >> np.uint32(i % 32) & 1 for i in self._eos_ids)

    def own_ends(self) -> frozenset[int]:
        """Return the end tokens of the row's adapter, if the text may end here."""
        return self._own_ends if self._can_end() else frozenset()

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, including the end. Mutates: self"""
        known = self.advance()
        if self._matcher is None or not self.may_force:
            return ()
        if self._matcher.is_complete() and not self._cached.repeats:
            token_ids: Sequence[int] = self._vocabulary.eos_ids[:1]
        else:
            token_ids = self._matcher.forced()
        return token_ids[: max(0, (self.max_tokens or 0) - known)] if token_ids else ()


def _may_force(params: SamplingParams) -> bool:
    """Return whether a token without an alternative may skip sampling: no other option of the
    request affects the choice, and its logprob is not requested."""
    other_options = (
        params.allowed_token_ids,
        params.bad_words_token_ids,
        params.logit_bias,
        params.logits_processors,
        params.extra_args,
        params.min_tokens,
        params.ignore_eos,
        params.thinking,
    )
    return not any(other_options) and params.logprobs is None


class ConstraintProcessor(LogitsProcessor):
    """All constrained rows of a runner."""

    stage = "allow"

    def __init__(self, cache: ConstraintCache, vocab_size: int) -> None:
        super().__init__(None, vocab_size)
        self._cache = cache
        self._rows: dict[int, _Row] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dovetail-masks")
        self._pending: Future[None] | None = None
        self._fill_s = 0.0

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether a request has a constraint."""
        return params.constraint is not None

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row, advancing over the tokens that it already has. Mutates: self"""
        assert tokens.params.constraint is not None
        cached = self._cache.prepare(tokens.params.constraint)
        self._rows[tokens.row] = _Row(tokens, cached, self._cache, self.vocab_size)

    def remove_row(self, row: int) -> None:
        """Forget a row. Mutates: self"""
        self._wait()
        self._rows.pop(row, None)

    def begin(self, rows: Sequence[int]) -> None:
        """Start to fill the masks of the constrained rows. Mutates: self"""
        constrained = [self._rows[row] for row in rows if row in self._rows]
        # A thread hand-off costs more than a short fill, so `apply` does those.
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
        """Return, by row, the tokens that must come next because the constraint leaves no choice.

        Rows whose backend fails are left out; the fault is raised with their next mask.
        Mutates: self
        """
        self._wait()
        forced_ids = {}
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
                    forced_ids[row] = token_ids
        return forced_ids

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Mask the tokens that constraints forbid. Raises: the error of a backend for a row

        Shapes: logits [S, V]
        Mutates: logits
        """
        self._wait()
        states = [self._rows[row] for _, row in rows]
        self._fill_all([state for state in states if state.is_stale()])
        for state in states:
            if state.fault is not None:
                raise state.fault
        filled = np.stack([state.mask for state in states])
        if logits.shape[1] > self.vocab_size:
            filled = self._widened(filled, logits.shape[1], states)
        masks = on_device(filled.view(np.int32), logits.device)
        indices = on_device(np.array([index for index, _ in rows]), logits.device)
        forbid = _forbidding(logits.device.type, logits.dtype)
        forbid(logits, masks, indices)

    def _widened(self, masks: np.ndarray, width: int, states: Sequence[_Row]) -> np.ndarray:
        """Return masks widened for tokens that adapters add. Constraints do not know these tokens,
        so they are forbidden, except end tokens. Shapes: masks [S, W of V] -> [S, W of width]"""
        wide = np.zeros((len(masks), -(-width // 32)), dtype=np.uint32)
        wide[:, : masks.shape[1]] = masks
        word, bit = divmod(self.vocab_size, 32)
        wide[:, word] &= np.uint32((1 << bit) - 1)
        wide[:, word + 1 :] = 0
        for mask, state in zip(wide, states, strict=True):
            for token_id in state.own_ends():
                mask[token_id // 32] |= np.uint32(1 << token_id % 32)
        return wide
