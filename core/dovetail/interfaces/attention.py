"""AttentionBackend: attention of one step's queries over a paged KV cache.

Shape letters: T tokens of the step, R rows, H query heads, K kv heads, D head size, N blocks,
P tokens per block. Imports torch for type checking only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import torch

SCALED_KV_DTYPES = ("float8_e4m3fn", "float8_e5m2")
"""Types of caches that hold keys and values divided by a scale (see AttentionSpec)."""
NAMES = {
    "window": "sliding windows",
    "chunk": "chunks of keys",
    "soft_cap": "soft caps on scores",
    "sinks": "attention sinks",
    "lse": "log-sum-exps of scores, which a KV cache that is divided over ranks needs,",
    "non_causal": "rows whose tokens see all others",
    "cross": "queries that see keys of another sequence",
    "position_bias": "biases by relative position",
    "latent": "latents (multi-head latent attention)",
    "indexed": "tokens picked by an indexer (sparse attention over latents)",
    "alibi": "ALiBi biases",
    "shared": "layers that read what another layer has written",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionQuery:
    """The requirements on a backend. With `uses_latent`, `head_size` is the size of a latent.
    `second_head_size`: the size of heads in some other layers, if it differs (0: it does not)."""

    device: str
    dtype: str
    kv_dtype: str
    head_size: int
    block_tokens: int
    uses_window: bool = False
    uses_chunk: bool = False
    uses_soft_cap: bool = False
    uses_sinks: bool = False
    uses_alibi: bool = False
    uses_lse: bool = False
    uses_position_bias: bool = False
    uses_latent: bool = False
    uses_index: bool = False
    uses_cross: bool = False
    uses_shared: bool = False
    is_causal: bool = True
    second_head_size: int = 0

    @property
    def head_sizes(self) -> tuple[int, ...]:
        """Return the distinct head sizes."""
        second = self.second_head_size
        return (self.head_size, second) if second else (self.head_size,)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """One attention layer. `scale` multiplies q.k. `window_tokens` w lets a query at position p see
    keys at p - w + 1 .. p. `chunk_tokens` c, in a causal layer without a window, lets it see keys
    at p // c * c .. p; only backends that claim chunk get it. `soft_cap` c turns scores s into c *
    tanh(s / c) before the softmax. `is_causal` False lets every query see all keys of its row, with
    a window those at p - w + 1 .. p + w - 1. `alibi_slopes`, one per head, lower the score of a key
    at j by slope * |j - p| before a soft cap; only backends that claim alibi get them. A cache of
    8-bit floats holds keys divided by `k_scale` and values by `v_scale`, clamped to its range; for
    other caches both scales are 1."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    window_tokens: int | None = None
    chunk_tokens: int | None = None
    soft_cap: float | None = None
    is_causal: bool = True
    alibi_slopes: tuple[float, ...] | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSpec:
    """One layer of multi-head latent attention (DeepSeek-V2, 2024), with queries absorbed: one
    cached latent per token for all heads. All of it is the key; its first `latent_size` numbers are
    the value, the `rope_size` others carry the position. `scale` multiplies q.latent; attention is
    causal."""

    num_heads: int
    latent_size: int
    rope_size: int
    scale: float

    @property
    def size(self) -> int:
        """Return how many numbers are cached per token."""
        return self.latent_size + self.rope_size


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """One indexer (DeepSeek-V3.2, 2025). Among the tokens up to its own, a query selects the
    `num_picked` with the highest scores, sum over heads of weight * relu(q.key); ties go to the
    earliest token. One index key of `head_size` numbers per token is cached for all heads."""

    num_heads: int
    head_size: int
    num_picked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLayout:
    """The memory layout of one step, for one KV group. Index tensors are on the compute device.

    Shapes: query_start [R + 1] int32, seq_lens [R] int32 (cached tokens plus this step's),
    block_table [R, B] int32 (unused entries are 0), slots [T] int64 (block * P + offset, the
    destination of each token's key and value). `query_start_host` and `seq_lens_host` are host
    lists. Rows are in order; row r's tokens are query_start[r] : query_start[r + 1]. Rows may share
    blocks, even blocks written in this step: all tokens are written before any is read. (The drafts
    of a request are rows of one token each. Not for states: there `row_block_tokens`, [R] int32, is
    how many tokens the blocks of each row hold, if not all hold `block_tokens`.)
    """

    query_start: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    query_start_host: list[int]
    seq_lens_host: list[int]
    block_tokens: int
    max_query_tokens: int
    max_seq_tokens: int
    row_block_tokens: torch.Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Return R."""
        return len(self.seq_lens_host)


# One of these is made for each layer and step: a struct takes 0.2 us, a frozen dataclass 2 us.


class AttentionCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One layer's attention in one step. `prepared` is what the backend's `prepare` returned.

    Shapes: q [T, H, D], k and v [T, K, D] (None for `forward_shared`), cache as `kv_shape`,
    sinks [H], bias [H, 2 M - 1] float32 (for `forward_biased`)
    """

    spec: AttentionSpec
    q: torch.Tensor
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    cache: torch.Tensor
    prepared: Any
    sinks: torch.Tensor | None = None
    bias: torch.Tensor | None = None


class LatentCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One layer's attention to latents in one step. L + R is `spec.size`. Each block of the cache
    is contiguous; the cache need not be.

    Shapes: q [T, H, L + R], latent [T, L + R], cache [N, P, L + R], picks as `pick` returns them
    (for `forward_picked`), sinks [H]
    """

    spec: LatentSpec
    q: torch.Tensor
    latent: torch.Tensor
    cache: torch.Tensor
    prepared: Any
    picks: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


class IndexCall(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One indexer's scores in one step; this step's keys are already in the cache.

    Shapes: q [T, H, D], weights [T, H] float32, keys [N, P, D]
    """

    spec: IndexSpec
    q: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor
    prepared: Any


class AttentionBackend(Plugin):
    """One object per runner; stateless between steps. `why_not` takes an AttentionQuery.

    `kv_axes` are the axes of a block's bytes, outermost first: "kind" (keys, then values), "cell"
    (`cell_tokens` consecutive tokens) and "head"; everything inside these is contiguous. Blocks are
    split along them when engines with other block sizes or other ranks exchange them, unless
    `kv_axes_of` says that they are exchanged whole.
    """

    interface_version: ClassVar[int] = 2
    kv_axes: ClassVar[tuple[str, ...]] = ("kind", "cell", "head")
    cell_tokens: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "window": "sliding-window attention",
        "chunk": "chunked attention: a query sees what is before it in its own chunk of keys",
        "soft_cap": "tanh soft cap on scores",
        "sinks": "one extra learned logit per head in the softmax denominator",
        "lse": "tells the log-sum-exp of each query's scores, over keys that are all in the cache",
        "non_causal": "encoder attention without a causal mask",
        "cross": "attention to what another sequence has cached: a row's queries see all keys",
        "position_bias": "a number per head and relative position is added to each score",
        "latent": "one latent per token that is key and value of all heads",
        "indexed": "picks the latents that an indexer scores highest, and attends to them alone",
        "alibi": "ALiBi: a head's slope times the distance is subtracted from each score",
        "shared": "attends to what another layer has written, and writes nothing",
        "bf16_products": "may round queries and softmax weights to bfloat16 with an 8-bit float "
        "cache",
        "graphs": "with one token per row, reads only sizes and maxima on the host, so that steps "
        "can be captured",
    }

    def __init__(self, options: Any) -> None:
        self.options = options

    @classmethod
    def kv_axes_of(cls, kv_dtype: str) -> tuple[str, ...]:
        """Return the axes of blocks of this type; none if such blocks cannot be split. A backend
        with a `kv_shape` of its own must declare its axes."""
        says_axes = "kv_axes" in vars(cls) or "kv_shape" not in vars(cls)
        return cls.kv_axes if says_axes else ()

    @classmethod
    def lacks(cls, query: AttentionQuery) -> list[str]:
        """Return the features of a query that are missing in the capabilities, as reasons for
        `why_not`."""
        used = {
            "window": query.uses_window,
            "chunk": query.uses_chunk,
            "soft_cap": query.uses_soft_cap,
            "sinks": query.uses_sinks,
            "lse": query.uses_lse,
            "non_causal": not query.is_causal,
            "cross": query.uses_cross,
            "position_bias": query.uses_position_bias,
            "latent": query.uses_latent,
            "indexed": query.uses_index,
            "alibi": query.uses_alibi,
            "shared": query.uses_shared,
        }
        lacking = (
            word for word, is_used in used.items() if is_used and word not in cls.capabilities
        )
        reasons = [f"{NAMES[word]} are not supported" for word in lacking]
        if query.uses_latent and query.uses_lse:
            reasons.append("latents are not divided over ranks: each has those of all heads")
        if query.uses_shared and query.uses_lse:
            reasons.append("what layers share is not divided over ranks")
        return reasons

    def kv_shape(
        self, num_blocks: int, block_tokens: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return the shape of one layer's cache tensor. The first or second axis is the block;
        these two axes may have any stride, but a block is contiguous.

        Default: [2, N, P, K, D], keys and values. For integers, `head_size` includes the
        bytes of scales and steps (`KVLayer.stored_size`).
        """
        return (2, num_blocks, block_tokens, num_kv_heads, head_size)

    @abstractmethod
    def prepare(self, layout: BatchLayout) -> Any:
        """Return a layout prepared for `forward`. Called once per step and KV group."""

    @abstractmethod
    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, then attend.

        Shapes: -> [T, H, D]. Mutates: cache (the slots of this step's tokens only)
        """

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v into the cache, then attend; also return the log-sum-exps of the scores.

        A row's queries see the keys in its blocks. As usual they are the last `query_start[r + 1] -
        query_start[r]` of its `seq_lens[r]` positions; but k and v go only to `slots` and need not
        belong to these positions. There are no sinks. Called only on backends that claim lse.

        Shapes: -> [T, H, D], [T, H] float32
        Mutates: cache (the slots of this step's tokens only)
        """
        raise NotImplementedError(f"{type(self).__name__} does not tell log-sum-exps")

    def forward_biased(self, call: AttentionCall) -> torch.Tensor:
        """Like `forward`, with a bias added to each score: for a query at position p and a key at
        j, scale * q.k + bias[head, M - 1 + j - p], then capped as usual. `bias` is contiguous, M >
        any |j - p|; there are no sinks. Called only on backends that claim position_bias.

        Shapes: -> [T, H, D]. Mutates: cache (the slots of this step's tokens only)
        """
        raise NotImplementedError(f"{type(self).__name__} adds no biases to scores")

    def forward_cross(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, then let each of a row's queries see all of the row's
        `seq_lens[r]` keys. The keys come from another sequence than the queries. k and v go to
        `slots`, of equal number and often none; a row may have more queries than keys. `spec` is
        not causal and has no window; there are no sinks. Called only on backends that claim cross.

        Shapes: k and v [W, K, D], slots [W] -> [T, H, D]
        Mutates: cache (the slots of k and v only)
        """
        raise NotImplementedError(f"{type(self).__name__} does not attend to another sequence")

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Write the latents into the cache, then attend: softmax(scale q.latent) times the first L
        numbers of the latents. Called only on backends that claim latent.

        Shapes: -> [T, H, L]. Mutates: cache (the slots of this step's tokens only)
        """
        raise NotImplementedError(f"{type(self).__name__} has no attention over latents")

    def pick(self, call: IndexCall) -> torch.Tensor:
        """Return the positions that an indexer selects for each query, in ascending order: for a
        query at position p exactly min(p + 1, K) of them, then -1. The selection depends only on
        the row, not on the batch. Called only on backends that claim indexed.

        Shapes: K `spec.num_picked` -> [T, K] int32
        """
        raise NotImplementedError(f"{type(self).__name__} picks no tokens")

    def forward_picked(self, call: LatentCall) -> torch.Tensor:
        """Like `forward_latent`, but each query attends only to the positions selected for it.
        Called only on backends that claim indexed.

        Shapes: -> [T, H, L]. Mutates: cache (the slots of this step's tokens only)
        """
        raise NotImplementedError(f"{type(self).__name__} attends to no picked tokens")

    def forward_shared(self, call: AttentionCall) -> torch.Tensor:
        """Attend to what another layer has written into its cache, including this step's tokens;
        there are no k and v. Called only on backends that claim shared; the layout of `prepared`
        may have no slots.

        Shapes: -> [T, H, D]
        """
        raise NotImplementedError(f"{type(self).__name__} reads nothing that another layer wrote")

    def layout_of(self, prepared: Any) -> BatchLayout:
        """Return the layout that `prepared` was made from. Called only on backends that claim
        latent, by layers that handle long rows differently."""
        raise NotImplementedError(f"{type(self).__name__} has no attention over latents")
