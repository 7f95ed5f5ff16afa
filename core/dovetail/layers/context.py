"""ForwardContext: what attention layers read of the running step, not passed through models.

One slot per thread, so that several runners may live in one process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.model import RowView


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdapters:
    """Which adapter slot each token of a step uses, -1: none. `is_low_rank`: none of those in use
    does more than add low-rank products to linear layers. `positions` are the tokens' places in
    their rows, for adapters with vectors before a prompt (None: those are not computed now, or no
    adapter in use has any). Shapes: slots [T] int32, positions [T]"""

    slots: torch.Tensor
    is_low_rank: bool = True
    positions: torch.Tensor | None = None


LayerCache = torch.Tensor | dict[str, torch.Tensor]
"""The cache of a layer: of keys and values in the backend's shape, of latents [N, P, size], of a
state one tensor for each part [N, ...]. The first axis of N blocks may have any stride."""


@dataclass(slots=True, kw_only=True)
class ForwardContext:
    """One step as the layers see it.

    `prepared` maps a layer's name to what `backend.prepare` returned for its KV group, of a layer
    with a state to the group's RowStates, `caches` to its cache. `rows` is in the order of the
    batch. `second_text` marks the tokens of the second of two texts, where a prompt has two (None:
    no prompt has). `once` is what a layer found out about the step that is the same for others,
    under its own key.

    Shapes: second_text [T] int64, 0 or 1
    """

    backend: AttentionBackend
    prepared: Mapping[str, Any]
    caches: Mapping[str, LayerCache]
    rows: Sequence[RowView] = ()
    second_text: torch.Tensor | None = None
    once: dict[Any, Any] = field(default_factory=dict)


class _Slot(threading.local):
    current: ForwardContext | None = None
    adapters: StepAdapters | None = None


_slot = _Slot()


def forward_context() -> ForwardContext:
    """Return the context of the step that runs in this thread."""
    assert _slot.current is not None, "a model's forward ran outside use_context"
    return _slot.current


def step_adapters() -> StepAdapters | None:
    """Return which adapters the tokens use that this thread computes, None where none does."""
    return _slot.adapters


@contextmanager
def use_adapters(adapters: StepAdapters | None) -> Iterator[None]:
    """Have layers apply adapters inside a with block; what was before returns after it."""
    previous = _slot.adapters
    _slot.adapters = adapters
    try:
        yield
    finally:
        _slot.adapters = previous


@contextmanager
def use_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` the current one inside a with block; the previous one returns after it."""
    previous = _slot.current
    _slot.current = context
    try:
        yield context
    finally:
        _slot.current = previous
