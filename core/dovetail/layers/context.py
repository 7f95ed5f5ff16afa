"""ForwardContext: what attention layers read of the running step, not passed through models.

One slot per thread, so that several runners may live in one process.
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
    """Which adapter slot each token of a step uses, -1: none. `is_low_rank`: none of those in use
    does more than add low-rank products to linear layers. `positions` are the tokens' places in
    their rows, for adapters with vectors before a prompt (None: those are not computed now, or no
    adapter in use has any). `rope_tables` are the numbers of the tokens' rope scalings, 0: the
    model's own (None: all have that). `num_added` is how many tokens the adapter in use adds that
    adds most. Shapes: slots [T] int32, positions, rope_tables [T] int64"""

    slots: torch.Tensor
    is_low_rank: bool = True
    positions: torch.Tensor | None = None
    rope_tables: torch.Tensor | None = None
    num_added: int = 0


class CrossWatch(Protocol):
    """Sees how layers attend to encodings."""

    def see(self, name: str, scale: float, q: torch.Tensor, k: torch.Tensor) -> None:
        """Take a layer's queries, and the keys of the encodings that begin with the step.
        Shapes: q [T, H, D], k [W, H, D]"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMedia:
    """What stands in a step beside tokens: vectors for the tokens in `places`, and the positions of
    all tokens in each of three directions, of a model that asks for such. `encodings` are what
    rows that begin with the step attend to from now on, one after another. `spans` are pairs (first
    token of the step, number) of consecutive tokens that may see each other: the places of one
    image or sound, or a prompt. `watch` is shown how the layers attend to encodings, where a
    request asks.

    Shapes: places [M] int64, vectors [M, E or more], positions [3, T] int64, encodings [W, E]
    """

    places: torch.Tensor
    vectors: torch.Tensor
    positions: torch.Tensor | None = None
    encodings: torch.Tensor | None = None
    spans: tuple[tuple[int, int], ...] = ()
    watch: CrossWatch | None = None


LayerCache = torch.Tensor | dict[str, torch.Tensor]
"""The cache of a layer: of keys and values in the backend's shape, of latents [N, P, size], of
latents with index keys both by their names, of a state one tensor for each part [N, ...]. The first
axis of N blocks may have any stride."""
LATENTS, INDEX_KEYS = "latents", "index_keys"
"""The parts of a cache of latents with index keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTokens:
    """The tokens of a step after which something is drawn, each its row's last one, and what the
    backend prepared for them alone, by the name of a layer with a cache. There may be none.

    Shapes: tokens [S] int64, their places among all tokens of the step
    """

    tokens: torch.Tensor
    prepared: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class ForwardContext:
    """One step as the layers see it.

    `prepared` maps a layer's name to what `backend.prepare` returned for its KV group, of a layer
    with a state to the group's RowStates, `caches` to its cache. `rows` is in the order of the
    batch. `second_text` marks the tokens of the second of two texts, where a prompt has two (None:
    no prompt has). `drawn`: no others need pass the layers that read another layer's cache
    (None: all pass them). `once` is what a layer found out about the step that is the same for
    others, under its own key. `first_token` is the place in the step of the first token that is
    computed: not 0 in the second half of a divided step. `inner` takes the states within the model
    that a drafter reads, by layer, in place of where they go in a whole step (None: they go there).

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


def keep_inner(kept: dict[int, torch.Tensor | None], number: int, x: torch.Tensor) -> None:
    """Keep the states before a layer: in `kept`, or where a half of a step has them go.
    Shapes: x [T, E]. Mutates: kept, or the context"""
    own = forward_context().inner
    (kept if own is None else own)[number] = unchanged(x)


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


def step_media() -> StepMedia | None:
    """Return what stands beside tokens in what this thread computes, None where nothing does."""
    return _slot.media


@contextmanager
def use_media(media: StepMedia | None) -> Iterator[None]:
    """Have a model see media inside a with block; what was before returns after it."""
    previous = _slot.media
    _slot.media = media
    try:
        yield
    finally:
        _slot.media = previous


@contextmanager
def use_context(context: ForwardContext) -> Iterator[ForwardContext]:
    """Make `context` the current one inside a with block; the previous one returns after it."""
    previous = _slot.current
    _slot.current = context
    try:
        yield context
    finally:
        _slot.current = previous
