"""ForwardContext: the running step's data for attention layers, not passed through models.

One per thread, so that several runners can share a process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from dovetail.interfaces.attention import AttentionBackend
from dovetail.interfaces.model import RowView
from dovetail.layers.residual import unchanged


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAdapters:
    """Each token's adapter slot in a step, -1: none. `is_low_rank`: the adapters in use only add
    low-rank products to linear layers. `positions` are the tokens' places in their rows, for
    adapters with prompt vectors (None: not computed now, or not used). `rope_tables` are the
    numbers of the tokens' rope scalings, 0: the model's own (None: all 0). `num_added` is the
    maximum number of tokens that an adapter in use adds. Shapes: slots [T] int32, positions,
    rope_tables [T] int64"""

    slots: torch.Tensor
    is_low_rank: bool = True
    positions: torch.Tensor | None = None
    rope_tables: torch.Tensor | None = None
    num_added: int = 0


class CrossWatch(Protocol):
    """Observes how layers attend to encodings."""

    def see(self, name: str, scale: float, q: torch.Tensor, k: torch.Tensor) -> None:
        """Receive a layer's queries, and the keys of the encodings written in this step.
        Shapes: q [T, H, D], k [W, H, D]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMedia:
    """A step's media: vectors for the tokens in `places`, and all tokens' positions in three
    dimensions, for models that need them. `encodings` are concatenated; rows that begin with the
    step attend to them from now on. `spans` are pairs (first token of the step, count) of
    consecutive tokens that may see each other: the places of one image or frame, or a prompt.
    `watch` observes how the layers attend to encodings, if a request needs that.

    Shapes: places [M] int64, vectors [M, E or more], positions [3, T] int64, encodings [W, E]
    """

    places: torch.Tensor
    vectors: torch.Tensor
    positions: torch.Tensor | None = None
    encodings: torch.Tensor | None = None
    spans: tuple[tuple[int, int], ...] = ()
    watch: CrossWatch | None = None


LayerCache = torch.Tensor | dict[str, torch.Tensor]
"""The cache of a layer: keys and values in the backend's shape; latents [N, P, size]; latents and
index keys, both by name; or one tensor per part of a state [N, ...]. The first axis of N blocks may
have any stride."""
LATENTS, INDEX_KEYS = "latents", "index_keys"
"""The parts of a cache of latents with index keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTokens:
    """The tokens of a step to sample after, each its row's last one, and what the backend prepared
    for only them, by the name of a caching layer. There may be none.

    Shapes: tokens [S] int64, their indices among all tokens of the step
    """

    tokens: torch.Tensor
    prepared: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class ForwardContext:
    """One step as the layers see it.

    `prepared` maps a layer's name to the result of `backend.prepare` for its KV group, or to the
    group's RowStates for a layer with a state; `caches` maps it to its cache. `rows` is in batch
    order. `second_text` marks the tokens of the second of two texts of a prompt (None: no prompt
    has two). `drawn`: only these tokens need to pass the layers that read another layer's cache
    (None: all). `once` caches facts about the step that several layers share, under their own keys.
    `first_token` is the first computed token's index in the step: not 0 in the second half of a
    divided step. `inner` receives the states that a drafter reads inside the model, by layer,
    instead of their usual destination (None: they go there).

    Shapes: second_text [T] int64, 0 or 1
    """

    backend: AttentionBackend
    prepared: Mapping[str, Any]
    caches: Mapping[str, LayerCache]
    rows: Sequence[RowView] = ()
    second_text: torch.Tensor | None = None
    drawn: DrawnTokens | None = None
    once: dict[Any, Any] = field(default_factory=dict)
    first_token: int = 0
    inner: dict[int, torch.Tensor] | None = None


class _Slot(threading.local):
    current: ForwardContext | None = None
    adapters: StepAdapters | None = None
    media: StepMedia | None = None


_slot = _Slot()


def forward_context() -> ForwardContext:
    """Return the context of the step that runs in this thread."""
    assert _slot.current is not None, "a model's forward ran outside use_context"
    return _slot.current


def keep_inner(states: dict[int, torch.Tensor | None], number: int, x: torch.Tensor) -> None:
    """Save the states before a layer: in `states`, or in a half step's own `inner`.
    Shapes: x [T, E]. Mutates: states, or the context"""
    own = forward_context().inner
    (states if own is None else own)[number] = unchanged(x)


def step_adapters() -> StepAdapters | None:
    """Return the adapters of the tokens that this thread computes, None if there are none."""
    return _slot.adapters


@contextmanager
def use_adapters(adapters: StepAdapters | None) -> Iterator[None]:
    """Make layers apply adapters inside a with block; then restore the previous ones."""
    previous = _slot.adapters
    _slot.adapters = adapters
    try:
        yield
    finally:
        _slot.adapters = previous


def step_media() -> StepMedia | None:
    """Return the media of this thread's step, None if it has only tokens."""
    return _slot.media


@contextmanager
def use_media(media: StepMedia | None) -> Iterator[None]:
    """Make a model see media inside a with block; then restore the previous ones."""
    previous = _slot.media
    _slot.media = media
    try:
        yield
    finally:
        _slot.media = previous


@contextmanager
def use_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` the current one inside a with block; then restore the previous one."""
    previous = _slot.current
    _slot.current = context
    try:
        yield context
    finally:
        _slot.current = previous
