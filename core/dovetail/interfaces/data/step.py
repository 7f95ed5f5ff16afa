"""StepPlan and StepResult: the protocol between the engine and the runner.

The engine says which rows compute which tokens and where their KV blocks are; the runner returns
drawn tokens, or the pooled output of a whole prompt. Both are msgspec structs, so a worker may live
in another process or machine. A request has the same row number from admission until it finishes or
is preempted, and the runner stores the row's tokens, so a plan never carries a token that the
runner itself drew. The many parts of rows in every step hold only numbers and texts, never
references to each other, so the garbage collector can skip them (`gc=False`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.data.media import Encode, PartPlace
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail_kernels.integer_caches import stored_size

STATE_ALIGNMENT = 64
"""The parts of a state begin at multiples of this many bytes."""
NO_SLOT = -1
"""The slot of a row that uses no adapter."""


class NewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request gets a row: for the first time, or again after a preemption.

    `token_ids` is the prompt followed by all tokens drawn so far; the first `num_computed_tokens`
    are already in the KV cache (prefix hit). `blocks[g]` are the block ids in KV group g. With
    `pooling` nothing is drawn. The row uses the adapter in `adapter_slot` (NO_SLOT: none). `parts`
    are the places of media in its prompt.
    """

    row: int
    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    num_computed_tokens: int
    blocks: tuple[tuple[int, ...], ...]
    sampling: SamplingParams
    seed: int
    pooling: PoolingParams | None = None
    adapter_slot: int = NO_SLOT
    parts: tuple[PartPlace, ...] = ()


class AdapterMove(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Put the adapter of this key, which every rank has read, into a slot."""

    slot: int
    key: str


class RowStep(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False
):
    """One row's part in a step.

    Computes the tokens at positions `start .. start + num_tokens - 1`. If `samples` is true, the
    last of them is the row's last known token, and one token is drawn after it, or the row's prompt
    is pooled. `new_blocks[g]` are appended to the row's block list of KV group g before the step.
    `drafts` are guesses of what follows the row's last known token. They are computed too, as the
    last of the `num_tokens`. A token is drawn after the last known one; while it equals the draft
    at its place, another is drawn after that draft. `samples` is then true, `start` is the position
    of the last known token, and what was computed for rejected drafts is discarded. `num_drafts` is
    how many drafts of what follows the drawn token the worker should make; the row's blocks have
    room for that many tokens after the step's.
    """

    row: int
    start: int
    num_tokens: int
    samples: bool
    new_blocks: tuple[tuple[int, ...], ...]
    drafts: tuple[int, ...] = ()
    num_drafts: int = 0


class BlockOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Transfers of blocks to and from a store (see interfaces.kv_connector).

    `saved` are pairs (block, key): the block's content in every KV tensor is written to the store.
    `loaded` are pairs (number, block): what was loaded under this number is copied to the block.
    Then the loads that begin with the numbers `released` are discarded, and the keys `dropped` are
    deleted.
    """

    saved: tuple[tuple[int, bytes], ...] = ()
    loaded: tuple[tuple[int, int], ...] = ()
    released: tuple[int, ...] = ()
    dropped: tuple[bytes, ...] = ()


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. In order, the runner copies `swapped_out` and `swapped_in`, executes
    `block_orders`, frees `freed_rows`, fills `new_rows`, discards `dropped_adapters` (keys), fills
    slots by `adapters`, discards `dropped_encodings` (keys), encodes `encode`, and runs `rows`.

    `swapped_out` are pairs (block, host block) and `swapped_in` pairs (host block, block): the
    content of the first, in every KV tensor, is copied to the second. `extra` is plain data from a
    scheduler to a worker that knows it; all others ignore it.
    """

    step_id: int
    rows: tuple[RowStep, ...]
    new_rows: tuple[NewRow, ...] = ()
    freed_rows: tuple[int, ...] = ()
    swapped_out: tuple[tuple[int, int], ...] = ()
    swapped_in: tuple[tuple[int, int], ...] = ()
    dropped_adapters: tuple[str, ...] = ()
    adapters: tuple[AdapterMove, ...] = ()
    block_orders: BlockOrders | None = None
    dropped_encodings: tuple[str, ...] = ()
    encode: tuple[Encode, ...] = ()
    extra: dict[str, Any] = {}

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens computed in this step by all rows."""
        return sum(r.num_tokens for r in self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs at one position: the token itself with its rank (1 = most likely), and the top n."""

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of a pooled prompt: float32 numbers in native byte order, of this shape."""

    shape: tuple[int, ...]
    data: bytes


class RowResult(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False
):
    """The result of one row of the plan. Exactly one RowResult per RowStep, in the same order.

    `token_ids` holds the drawn tokens: none while a prompt is still being computed, one, or with
    drafts one more than were accepted. Then follow tokens that needed no draw because the row's
    constraint leaves no choice; the next step computes them. `fault` says why this row's request
    must end with an error; the rest of the result is then ignored. `fault_status` is its HTTP
    status: below 500 if the request itself is at fault. `prompt_logprobs` covers the prompt
    positions whose next token became known in this step. `pooled` replaces a drawn token if a
    prompt is pooled. `drafts` are the worker's guesses of what follows the last drawn token, at
    most as many as the step wanted; `has_unlikely_drafts`: it made some but dropped all as too
    unlikely to verify.
    """

    row: int
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    fault: str | None = None
    fault_status: int = 500
    pooled: Pooled | None = None
    drafts: tuple[int, ...] = ()
    has_unlikely_drafts: bool = False


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one StepPlan. Times in seconds, measured where the model runs: `forward_s` and
    `sample_s` of its work, `idle_s` between the end of the previous step and the start of this one.
    `is_divided`: the model ran on two halves of the step. `extra` is plain data from a worker to a
    scheduler that knows it."""

    step_id: int
    rows: tuple[RowResult, ...]
    forward_s: float = 0.0
    sample_s: float = 0.0
    idle_s: float = 0.0
    is_divided: bool = False
    extra: dict[str, Any] = {}


class KVLayer(msgspec.Struct, frozen=True, kw_only=True, tag="keys_and_values"):
    """The keys and values of one attention layer. `window_tokens` None: all tokens from the start.

    If `context_size` ranks divide each request's cache, each rank caches one of that many tokens.
    `is_draft`: a layer of the drafter on the worker (see KVLayout.draft).
    """

    name: str
    num_kv_heads: int
    head_size: int
    dtype: str
    window_tokens: int | None = None
    context_size: int = 1
    is_draft: bool = False

    @property
    def stored_size(self) -> int:
        """Return the elements of a token's key in one kv head; its value has the same number.

        Includes the scales of integers, and the steps of 4-bit numbers.
        """
        return stored_size(self.dtype, self.head_size)

    def bytes_per_token(self, dtype_bytes: int) -> int:
        """Return the bytes of one token, keys and values, on the rank that caches it."""
        return 2 * self.num_kv_heads * self.stored_size * dtype_bytes

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes of a block of `block_tokens` tokens on each rank that caches some of
        them."""
        return block_tokens // self.context_size * self.bytes_per_token(dtype_bytes)


class LatentLayer(msgspec.Struct, frozen=True, kw_only=True, tag="latents"):
    """The latents of one layer of multi-head latent attention: `size` numbers per token, from which
    its keys and values are made (DeepSeek-V2, 2024). Every rank caches all of them.

    With an indexer (DeepSeek-V3.2, 2025) an index key of `index_size` numbers per token is cached
    too (0: none). A block holds the latents of its tokens, followed by their index keys.
    `window_tokens` None: the whole row is cached.
    """

    name: str
    size: int
    dtype: str
    index_size: int = 0
    is_draft: bool = False
    window_tokens: int | None = None

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes of a block of `block_tokens` tokens."""
        return block_tokens * (self.size + self.index_size) * dtype_bytes


class EntryPart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One layer's entries: a name, the numbers of an entry, and how many tokens it covers."""

    name: str
    size: int
    tokens: int


class EntryLayer(msgspec.Struct, frozen=True, kw_only=True, tag="entries"):
    """Entries that several layers make of every few tokens (compressed attention, DeepSeek-V4,
    2026), or latents of several layers, one per token. A block holds the entries of its tokens,
    part by part. Every rank caches all of them. `window_tokens` None: the whole row is cached.
    """

    name: str
    parts: tuple[EntryPart, ...]
    dtype: str
    window_tokens: int | None = None
    is_draft: ClassVar[bool] = False

    @property
    def unit_tokens(self) -> int:
        """Return the fewest tokens that are whole entries in all parts; blocks are multiples."""
        return math.lcm(*(part.tokens for part in self.parts))

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes of a block of `block_tokens` tokens."""
        return sum(block_tokens // one.tokens * one.size for one in self.parts) * dtype_bytes


class StatePart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One tensor of a row's state: its name in the layer, its shape and its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class StateLayer(msgspec.Struct, frozen=True, kw_only=True, tag="states"):
    """The state of one recurrent layer: of fixed size, for any number of tokens.

    A block holds the state after its last computed token. The next token needs only that state,
    which is why a state has a window of two tokens: the next one and the one before.
    """

    name: str
    parts: tuple[StatePart, ...]
    is_draft: ClassVar[bool] = False
    window_tokens: ClassVar[int] = 2

    def part_starts(self, dtype_bytes: Mapping[str, int]) -> list[int]:
        """Return the offsets in a block at which the parts begin, and the end of the last one."""
        starts = [0]
        for part in self.parts:
            size = math.prod(part.shape) * dtype_bytes[part.dtype]
            starts.append(starts[-1] + -(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT)
        return starts

    def num_bytes(self, dtype_bytes: Mapping[str, int]) -> int:
        """Return the bytes of a state."""
        return self.part_starts(dtype_bytes)[-1]


class CrossLayer(msgspec.Struct, frozen=True, kw_only=True, tag="cross"):
    """The keys and values that a decoder's layer makes from an encoder's output, at most `max_rows`
    rows: written in a row's first step, read in all steps, never extended."""

    name: str
    num_kv_heads: int
    head_size: int
    dtype: str
    max_rows: int
    is_draft: ClassVar[bool] = False
    window_tokens: ClassVar[None] = None

    @property
    def as_tokens(self) -> KVLayer:
        """Return a layer that caches the same for the same number of tokens."""
        return KVLayer(
            name=self.name,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
        )

    @property
    def stored_size(self) -> int:
        """Return the elements of a row's key in one kv head; its value has the same number."""
        return self.as_tokens.stored_size

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes of a block of `block_tokens` rows."""
        return self.as_tokens.block_bytes(block_tokens, dtype_bytes)


def tokens_beside_states(state_bytes: int, token_bytes: int, block_tokens: int) -> int:
    """Return the tokens of a block, a multiple of `block_tokens`, so that one layer's cache of them
    takes at least as much as the largest state of another layer."""
    return max(1, -(-state_bytes // (token_bytes * block_tokens))) * block_tokens


CachedLayer = KVLayer | LatentLayer | EntryLayer | StateLayer | CrossLayer
"""What one layer caches of previous tokens, or of an encoder's output."""


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table because they cache the same tokens.

    All groups have at most `KVLayout.num_tensors` layers; layer i of every group is in tensor i, so
    one block id names one piece of memory, whichever group owns it. Blocks of a group with
    `cross_rows` hold the rows of a request's encodings, at most that many: all are allocated with
    its first block and none is added.
    """

    layers: tuple[str, ...]
    window_tokens: int | None = None
    cross_rows: int = 0


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache of one rank: `num_tensors` tensors of `num_blocks` blocks each.

    A block holds `block_tokens` tokens of a request. A rank stores `block_bytes` of it in each
    tensor: all, or its part if ranks divide a request's cache (KVLayer.context_size).
    `num_host_blocks` of host memory hold the cache of preempted requests. `num_draft_blocks` follow
    the other blocks: they hold states after drafts, for the duration of a step. `draft` are the
    layers of a worker drafter: one group with its own tensors, which have as many blocks as these.
    A token's keys are there under its block id in the first group here, so all that applies to that
    group's blocks applies to them.
    """

    groups: tuple[KVGroup, ...]
    num_tensors: int
    num_blocks: int
    block_tokens: int
    block_bytes: int
    num_host_blocks: int = 0
    num_draft_blocks: int = 0
    draft: KVLayout | None = None

    @property
    def all_bytes(self) -> int:
        """Return the bytes of a block in all tensors together, including the drafter's."""
        own = self.num_tensors * self.block_bytes
        return own if self.draft is None else own + self.draft.all_bytes
