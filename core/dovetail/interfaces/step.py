"""StepPlan and StepResult: the only words that the engine and the runner share.

The engine says which rows compute which tokens and where their KV blocks lie; the runner answers
with drawn tokens, or with what became of a whole prompt. Both are msgspec structs, so a worker may
live in another process or machine. A row is permanent: a request keeps its number from admission
until it leaves or is preempted, and the runner keeps the row's tokens, so a plan never has to carry
a token that the runner itself drew. Parts of rows hold numbers and texts alone, never themselves:
the garbage collector need not look at them (`gc=False`), of which there are many in every step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.media import Encode, PartPlace
from dovetail.interfaces.pooling_params import PoolingParams
from dovetail.interfaces.sampling_params import SamplingParams

INT8_SCALE_BYTES = 4
STATE_ALIGNMENT = 64
"""The parts of a state begin at multiples of so many bytes."""
NO_SLOT = -1
"""The slot of a row that uses no adapter."""


class NewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request takes a row: for the first time, or again after a preemption.

    `token_ids` is the prompt followed by all tokens drawn so far; `num_computed_tokens` of them
    are already in the KV cache (prefix hit). `blocks[g]` are the block ids in KV group g. With
    `pooling` nothing is drawn. The row uses the adapter in `adapter_slot` (NO_SLOT: none). `parts`
    are the places of what stands in its prompt beside tokens.
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
    """The adapter of this key, which every rank has read, goes into a slot."""

    slot: int
    key: str


class RowStep(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False
):
    """One row's part in a step.

    Computes the tokens at positions `start .. start + num_tokens - 1`. When `samples` is true the
    last of them is the row's last known token, and one token is drawn after it, or the row's prompt
    is pooled. `new_blocks[g]` are appended to the row's block list of KV group g before the step.
    `drafts` are guesses of what follows the row's last known token. They are computed too, the last
    ones of `num_tokens`; a token is drawn after the last known one, and as long as it equals the
    draft in its place, another after that draft. Then `samples` is true, `start` is the position of
    the last known token, and what was computed at drafts that did not come true is void.
    `num_drafts` is how many guesses of what follows the draw are wanted of the worker; the row's
    blocks have room for as many tokens behind those of the step.
    """

    row: int
    start: int
    num_tokens: int
    samples: bool
    new_blocks: tuple[tuple[int, ...], ...]
    drafts: tuple[int, ...] = ()
    num_drafts: int = 0


class BlockOrders(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What becomes of blocks beside the device (see interfaces.kv_connector).

    `saved` are pairs (block, key): what the block holds in every KV tensor goes to the store.
    `loaded` are pairs (number, block): what was brought under this number is copied to the block.
    Then the loads that begin with the numbers `released` are forgotten, and the keys `dropped`.
    """

    saved: tuple[tuple[int, bytes], ...] = ()
    loaded: tuple[tuple[int, int], ...] = ()
    released: tuple[int, ...] = ()
    dropped: tuple[bytes, ...] = ()


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step. The runner first copies `swapped_out`, then `swapped_in`, follows `block_orders`,
    then frees `freed_rows`, then fills `new_rows`, then forgets `dropped_adapters` (keys) and fills
    slots by `adapters`, then forgets `dropped_encodings` (keys) and makes those in `encode`, then
    runs `rows`.

    `swapped_out` are pairs (block, host block) and `swapped_in` pairs (host block, block): all that
    the first of a pair holds, in every KV tensor, is copied to the second. `extra` is plain data
    from a scheduler to a worker that knows it; all others pass it by.
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
        """Return the tokens computed in this step, all rows together."""
        return sum(r.num_tokens for r in self.rows)


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs at one position: the token itself with its rank (1 = most likely), and the top n."""

    token_id: int
    logprob: float
    rank: int
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Pooled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to a pooled prompt: float32 numbers in this machine's byte order, of this
    shape."""

    shape: tuple[int, ...]
    data: bytes


class RowResult(
    msgspec.Struct, frozen=True, kw_only=True, array_like=True, omit_defaults=True, gc=False
):
    """The result of one row of the plan. Exactly one RowResult per RowStep, in the same order.

    `token_ids` holds the drawn tokens: none while a prompt is still being computed, one, or with
    drafts one more than came true; behind it tokens that needed no draw because the row's
    constraint leaves no choice, which are computed with the next step. `fault` says
    why this row's request must end with an error; then nothing else in the result counts.
    `fault_status` is the HTTP status it becomes: below 500 where the request itself is to blame.
    `prompt_logprobs` covers the prompt positions whose successor became known in this step.
    `pooled` is in place of a drawn token where a prompt is pooled. `drafts` are the worker's
    guesses of what follows the last token drawn, at most as many as the step wanted;
    `has_unlikely_drafts` says that it made some and left all out, as too unlikely to verify.
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
    """The answer to one StepPlan. Times in seconds, measured where the model runs: `forward_s` and
    `sample_s` of its work, `idle_s` between the end of the step before and the start of this one.
    `is_divided`: the model ran on two halves of the step. `extra` is plain data from a worker to a
    scheduler that knows it.
    """

    step_id: int
    rows: tuple[RowResult, ...]
    forward_s: float = 0.0
    sample_s: float = 0.0
    idle_s: float = 0.0
    is_divided: bool = False
    extra: dict[str, Any] = {}


class KVLayer(msgspec.Struct, frozen=True, kw_only=True, tag="keys_and_values"):
    """The keys and values of one attention layer. `window_tokens` None: all tokens from the start.

    With `context_size` ranks dividing each request's cache, a rank keeps one of so many tokens.
    `is_draft`: a layer of the drafter beside the model (see KVLayout.draft).
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
        """Return the elements that a token's key takes in one kv head, and its value as many.

        Integers mean nothing without a scale: a float32 lies beside each int8 key and value.
        """
        return self.head_size + (INT8_SCALE_BYTES if self.dtype == "int8" else 0)

    def bytes_per_token(self, dtype_bytes: int) -> int:
        """Return the bytes that one token takes on the rank that keeps it, keys and values."""
        return 2 * self.num_kv_heads * self.stored_size * dtype_bytes

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes that a block of so many tokens takes on each rank that keeps some."""
        return block_tokens // self.context_size * self.bytes_per_token(dtype_bytes)


class LatentLayer(msgspec.Struct, frozen=True, kw_only=True, tag="latents"):
    """The latents of one layer of multi-head latent attention: `size` numbers a token, from which
    its keys and values are made (DeepSeek-V2, 2024). Every rank keeps all of them.

    With an indexer (DeepSeek-V3.2, 2025) a token also keeps an index key of `index_size` numbers
    (0: none). A block holds the latents of its tokens, and behind them their index keys.
    """

    name: str
    size: int
    dtype: str
    index_size: int = 0
    is_draft: bool = False
    window_tokens: ClassVar[None] = None

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes that a block of so many tokens takes."""
        return block_tokens * (self.size + self.index_size) * dtype_bytes


class StatePart(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One tensor of a state, of one row: its name in the layer, and what it looks like."""

    name: str
    shape: tuple[int, ...]
    dtype: str


class StateLayer(msgspec.Struct, frozen=True, kw_only=True, tag="states"):
    """The state of one recurrent layer: of fixed size, whatever number of tokens made it.

    A block keeps the state after the last token of it that is computed. The next token needs that
    one alone, which is why a state has a window of two tokens: the next one and the one before.
    """

    name: str
    parts: tuple[StatePart, ...]
    is_draft: ClassVar[bool] = False
    window_tokens: ClassVar[int] = 2

    def part_starts(self, dtype_bytes: Mapping[str, int]) -> list[int]:
        """Return the byte of a block at which each part begins, and where the last one ends."""
        starts = [0]
        for part in self.parts:
            size = math.prod(part.shape) * dtype_bytes[part.dtype]
            starts.append(starts[-1] + -(-size // STATE_ALIGNMENT) * STATE_ALIGNMENT)
        return starts

    def num_bytes(self, dtype_bytes: Mapping[str, int]) -> int:
        """Return the bytes that a state takes."""
        return self.part_starts(dtype_bytes)[-1]


class CrossLayer(msgspec.Struct, frozen=True, kw_only=True, tag="cross"):
    """The keys and values that a decoder's layer makes of what an encoder read, of at most
    `max_rows` rows: written with a row's first step, read by all of them, never more."""

    name: str
    num_kv_heads: int
    head_size: int
    dtype: str
    max_rows: int
    is_draft: ClassVar[bool] = False
    window_tokens: ClassVar[None] = None

    @property
    def as_tokens(self) -> KVLayer:
        """Return the layer that would keep as much of as many tokens."""
        return KVLayer(
            name=self.name,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            dtype=self.dtype,
        )

    @property
    def stored_size(self) -> int:
        """Return the elements that a row's key takes in one kv head, and its value as many."""
        return self.as_tokens.stored_size

    def block_bytes(self, block_tokens: int, dtype_bytes: int) -> int:
        """Return the bytes that a block of so many rows takes."""
        return self.as_tokens.block_bytes(block_tokens, dtype_bytes)


def tokens_beside_states(state_bytes: int, token_bytes: int, block_tokens: int) -> int:
    """Return the tokens of a block, a multiple of `block_tokens`: so many that what a layer keeps
    of them takes as much as the largest state in another."""
    return max(1, -(-state_bytes // (token_bytes * block_tokens))) * block_tokens


CachedLayer = KVLayer | LatentLayer | StateLayer | CrossLayer
"""What one layer keeps of the tokens before, or of what an encoder read."""


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table because they keep the same tokens.

    All groups have at most `KVLayout.num_tensors` layers; layer i of every group lives in tensor i,
    so one block id names one piece of memory whichever group owns it. Blocks of a group with
    `cross_rows` hold the rows of a request's encodings, at most so many: all are taken with its
    first block and none is added.
    """

    layers: tuple[str, ...]
    window_tokens: int | None = None
    cross_rows: int = 0


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """The KV cache of one rank: `num_tensors` tensors of `num_blocks` blocks each.

    A block holds `block_tokens` tokens of a request, of which a rank keeps `block_bytes` in each
    tensor: all, or its part where ranks divide a request's cache (KVLayer.context_size).
    `num_host_blocks` of host memory take what preempted requests had cached. `num_draft_blocks`
    lie behind the others: states after drafts, for the length of a step.
    `draft` are the layers of a drafter on the worker: one group, whose tensors are their own and
    have as many blocks as these. A token's keys lie there under the block id that it has in the
    first group here, so all that holds of that group's blocks holds of them.
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
        """Return the bytes of a block in all tensors together, the drafter's among them."""
        own = self.num_tensors * self.block_bytes
        return own if self.draft is None else own + self.draft.all_bytes
