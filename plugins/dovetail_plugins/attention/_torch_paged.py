"""Paged attention in torch operators: cache write, gather of a row's keys, masked attention.

Only slots of a row's own tokens are ever read, so other blocks' content (even NaN) is irrelevant.
Shape letters as in `interfaces.attention`; S gathered key positions, G query heads per kv head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from msgspec import structs

from dovetail.interfaces.attention import AttentionCall, AttentionSpec, BatchLayout
from dovetail_plugins.attention._alibi import added_to_scores

GATHER_BYTES = 8 << 20
"""Bytes of keys gathered per copy. Larger blocks of memory are returned to the system after each
use, and getting them back costs ten times the copy itself."""
MAX_SCORES = 1 << 24
"""Maximum number of scores in memory if they are computed explicitly (soft cap, sinks)."""
QUERY_CHUNK_TOKENS = 512
"""Number of queries per masked attention call; the mask takes this many bytes per key."""
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeChunk:
    """Rows of one token each, attended together. `tokens` None: all of the step's tokens.

    Shapes: slots [R * S] int64, distances [R, S] of keys before the query, mask [R, 1, 1, S] bool
    or None when all is visible
    """

    tokens: torch.Tensor | None
    slots: torch.Tensor
    distances: torch.Tensor
    mask: torch.Tensor | None
    num_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillRow:
    """One row of several tokens: first token of the step, first position, and their end."""

    row: int
    first_token: int
    start: int
    end: int


class PreparedGroup:
    """A step's layout, and values that the layers of one KV group compute from it only once."""

    def __init__(self, layout: BatchLayout) -> None:
        self.layout = layout
        starts = layout.query_start_host
        sizes = [b - a for a, b in pairwise(starts)]
        self.decode_rows = [row for row, size in enumerate(sizes) if size == 1]
        self.rows = [
            PrefillRow(
                row=row,
                first_token=starts[row],
                start=layout.seq_lens_host[row] - size,
                end=layout.seq_lens_host[row],
            )
            for row, size in enumerate(sizes)
            if size > 0
        ]
        self.prefills = [row for row in self.rows if sizes[row.row] > 1]
        self._chunks: dict[tuple[int | None, int | None, int], list[DecodeChunk]] = {}
        self._slots: dict[tuple[int, int], torch.Tensor] = {}

    def decode_chunks(self, spec: AttentionSpec, max_keys: int) -> list[DecodeChunk]:
        """Return the decode rows in chunks of at most max_keys gathered keys."""
        key = (spec.window_tokens, spec.chunk_tokens, max_keys)
        if key not in self._chunks:
            self._chunks[key] = _decode_chunks(self.layout, self.decode_rows, spec, max_keys)
        return self._chunks[key]

    def row_slots(self, row: int, start: int, end: int) -> torch.Tensor:
        """Return the slots of a row's positions start .. end - 1. Shapes: [end - start] int64"""
        key = (row, start)
        if key not in self._slots:
            layout = self.layout
            positions = torch.arange(start, end, device=layout.block_table.device)
            blocks = layout.block_table[row, positions // layout.block_tokens].long()
            self._slots[key] = blocks * layout.block_tokens + positions % layout.block_tokens
        return self._slots[key]


def forward(
    call: AttentionCall, lse: torch.Tensor | None = None, *, is_cross: bool = False
) -> torch.Tensor:
    """Write k and v, if there are any, then attend (see `AttentionBackend.forward`, with lse
    `forward_lse`, with bias `forward_biased`). `is_cross`: they are not the queries' own.

    Shapes: lse [T, H]. Mutates: cache, lse
    """
    spec, k, v = call.spec, call.k, call.v
    if (spec.k_scale, spec.v_scale) == (1.0, 1.0):
        return _forward(call, lse, is_cross=is_cross)
    # Scores over stored keys take the keys' scale; sums of stored values take the values'.
    inner = replace(spec, scale=spec.scale * spec.k_scale, k_scale=1.0, v_scale=1.0)
    if k is not None and v is not None:
        k, v = _quotients(k, spec.k_scale), _quotients(v, spec.v_scale)
    found = _forward(structs.replace(call, spec=inner, k=k, v=v), lse, is_cross=is_cross)
    return found.mul_(spec.v_scale)


def forward_lse(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `AttentionBackend.forward_lse`. Mutates: cache"""
    lse = torch.empty(call.q.shape[:2], device=call.q.device)
    return forward(call, lse), lse


def _quotients(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Return x / scale in float32. With a plain number, a GPU would multiply with 1 / scale."""
    return x.float() / torch.full((), scale, device=x.device)


def _forward(call: AttentionCall, lse: torch.Tensor | None, *, is_cross: bool) -> torch.Tensor:
    """Run `forward` for a cache without scales. Mutates: cache, lse"""
    spec, q, k, v, cache = call.spec, call.q, call.k, call.v, call.cache
    sinks, bias = call.sinks, call.bias
    prepared: PreparedGroup = call.prepared
    if k is not None and v is not None:
        write(cache, k, v, prepared.layout.slots)
    max_keys = max(1, GATHER_BYTES // (cache[0, 0, 0].numel() * cache.element_size()))
    gathers = bool(prepared.decode_rows) and bias is None
    chunks = prepared.decode_chunks(spec, max_keys) if gathers else []
    if len(chunks) == 1 and chunks[0].tokens is None:
        return decode(spec, q, cache, chunks[0], sinks, lse)
    out = torch.empty_like(q)
    for chunk in chunks:
        own_lse = None if lse is None else lse[chunk.tokens]
        out[chunk.tokens] = decode(spec, q[chunk.tokens], cache, chunk, sinks, own_lse)
        if lse is not None and own_lse is not None:
            lse[chunk.tokens] = own_lse
    for row in prepared.prefills if bias is None else prepared.rows:
        last = row.first_token + row.end - row.start
        part = slice(row.first_token, last)
        keys = None
        if lse is None and not is_cross and k is not None and v is not None:
            keys = k[part], v[part]
        own_lse = None if lse is None else lse[part]
        out[part] = prefill(spec, q[part], keys, cache, prepared, row, sinks, own_lse, bias)
    return out


def write(cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, where: torch.Tensor) -> None:
    """Store keys and values. Shapes: cache [2, N, P, K, D], k and v [T, K, D], where [T] slots

    Mutates: cache
    """
    if cache.dtype in FLOAT8:
        largest = torch.finfo(cache.dtype).max
        k, v = (x.clamp(-largest, largest).to(cache.dtype).view(torch.uint8) for x in (k, v))
        cache = cache.view(torch.uint8)
    place = where // cache.shape[2], where % cache.shape[2]
    cache[0].index_put_(place, k.to(cache.dtype))
    cache[1].index_put_(place, v.to(cache.dtype))


def read(
    cache: torch.Tensor, where: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the keys and values at some slots. Shapes: cache [2, N, P, K, D], where [S] ->
    [S, K, D] each"""
    place = where // cache.shape[2], where % cache.shape[2]
    if cache.dtype in FLOAT8:
        raw = cache.view(torch.uint8)
        k, v = (half[place].view(cache.dtype) for half in raw)
    else:
        k, v = (half[place] for half in cache)
    return k.to(dtype), v.to(dtype)


def decode(
    spec: AttentionSpec,
    q: torch.Tensor,
    cache: torch.Tensor,
    chunk: DecodeChunk,
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> torch.Tensor:
    """Attend rows of one token each.

    Shapes: q [R, H, D], cache [2, N, P, K, D], lse [R, H] -> [R, H, D]

    The G query heads of one kv head are treated as G queries: nothing is repeated. Mutates: lse
    """
    num_rows = len(q)
    k, v = read(cache, chunk.slots, q.dtype)
    k = k.view(num_rows, chunk.num_keys, *k.shape[1:]).transpose(1, 2)
    v = v.view(num_rows, chunk.num_keys, *v.shape[1:]).transpose(1, 2)
    grouped = q.reshape(num_rows, spec.num_kv_heads, -1, spec.head_size)
    if sinks is not None:
        sinks = sinks.view(1, spec.num_kv_heads, -1, 1)
    if lse is not None:
        lse = lse.view(num_rows, spec.num_kv_heads, -1)
    added = None
    if spec.alibi_slopes is not None:
        of_heads = added_to_scores(spec.alibi_slopes, chunk.distances)
        added = of_heads.unflatten(0, (spec.num_kv_heads, -1)).permute(2, 0, 1, 3)
    return attend(spec, grouped, k, v, chunk.mask, sinks, lse, added).reshape(q.shape)


def prefill(
    spec: AttentionSpec,
    q: torch.Tensor,
    keys: tuple[torch.Tensor, torch.Tensor] | None,
    cache: torch.Tensor,
    prepared: PreparedGroup,
    row: PrefillRow,
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Attend one row of several tokens; its own keys and values, if passed, are not read back.

    Shapes: q [T, H, D], keys [T, K, D] each, cache [2, N, P, K, D], lse [T, H], bias [H, 2 M - 1]
    -> [T, H, D]. Mutates: lse
    """
    first = _first_seen(spec, row.start)
    if keys is None or row.start > 0 or cache.dtype != keys[0].dtype:
        keys = read(cache, prepared.row_slots(row.row, first, row.end), q.dtype)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, *keys))
    if sinks is not None:
        sinks = sinks.view(1, -1, 1, 1)
    if lse is None and bias is None and _is_plain_causal(spec, row, sinks):
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=spec.scale, enable_gqa=_is_grouped(spec)
        )
    else:
        if lse is not None:
            lse = lse.transpose(0, 1).unsqueeze(0)
        out = _prefill_masked(spec, q, k, v, row, first, sinks, lse, bias)
    return out.squeeze(0).transpose(0, 1)


def _is_grouped(spec: AttentionSpec) -> bool:
    return spec.num_heads != spec.num_kv_heads


def _is_plain_causal(spec: AttentionSpec, row: PrefillRow, sinks: torch.Tensor | None) -> bool:
    """Return whether torch's own causal mask says it all."""
    window = spec.window_tokens or spec.chunk_tokens
    has_window = window is not None and window < row.end
    is_plain = sinks is None and spec.soft_cap is None and spec.alibi_slopes is None
    return spec.is_causal and row.start == 0 and is_plain and not has_window


def _prefill_masked(
    spec: AttentionSpec,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    row: PrefillRow,
    first: int,
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """Attend under an explicit mask, some queries at a time.

    Shapes: q [1, H, T, D], k and v [1, K, S, D] (positions `first` .. row.end - 1), lse [1, H, T],
    bias [H, 2 M - 1] -> [1, H, T, D]. Mutates: lse
    """
    out = torch.empty_like(q)
    rules = (spec.soft_cap, spec.alibi_slopes, sinks, lse, bias)
    is_open = any(x is not None for x in rules)
    max_queries = MAX_SCORES // (spec.num_heads * k.shape[2]) if is_open else QUERY_CHUNK_TOKENS
    step = min(max(max_queries, 1), QUERY_CHUNK_TOKENS)
    for start in range(row.start, row.end, step):
        end = min(start + step, row.end)
        low, high = _visible(spec, start, end, row.end)
        low = max(low, first)
        keys = slice(low - first, high - first)
        mask = _mask(spec, start, end, low, high, q.device)
        part = slice(start - row.start, end - row.start)
        own_lse = None if lse is None else lse[:, :, part]
        seen = k[:, :, keys], v[:, :, keys]
        added = _added(spec, bias, start, end, low, high, q.device)
        out[:, :, part] = attend(spec, q[:, :, part], *seen, mask, sinks, own_lse, added)
    return out


def _added(
    spec: AttentionSpec,
    bias: torch.Tensor | None,
    start: int,
    end: int,
    low: int,
    high: int,
    device: torch.device,
) -> torch.Tensor | None:
    """Return the bias of the scores of queries start .. end - 1 and keys low .. high - 1, None for
    none.

    Shapes: bias [H, 2 M - 1] -> [1, H, end - start, high - low]
    """
    if bias is None and spec.alibi_slopes is None:
        return None
    query = torch.arange(start, end, device=device).unsqueeze(1)
    distances = torch.arange(low, high, device=device) - query
    added = torch.zeros((), device=device)
    if bias is not None:
        added = added + bias[:, bias.shape[1] // 2 + distances]
    if spec.alibi_slopes is not None:
        added = added + added_to_scores(spec.alibi_slopes, distances)
    return added.unsqueeze(0)


def _first_seen(spec: AttentionSpec, position: int) -> int:
    """Return the first key that a query sees."""
    if spec.chunk_tokens is not None:
        return position // spec.chunk_tokens * spec.chunk_tokens
    return 0 if spec.window_tokens is None else max(0, position - spec.window_tokens + 1)


def _visible(spec: AttentionSpec, start: int, end: int, last: int) -> tuple[int, int]:
    """Return the range of keys that queries start .. end - 1 of a row of `last` tokens see."""
    low = _first_seen(spec, start)
    if spec.is_causal:
        return low, end
    return low, last if spec.window_tokens is None else min(last, end - 1 + spec.window_tokens)


def _mask(
    spec: AttentionSpec, start: int, end: int, low: int, high: int, device: torch.device
) -> torch.Tensor | None:
    """Return which keys low .. high - 1 the queries see, or None for all.

    Shapes: [1, 1, end - start, high - low] bool
    """
    query = torch.arange(start, end, device=device).unsqueeze(1)
    key = torch.arange(low, high, device=device)
    if spec.is_causal:
        mask = key <= query
        if spec.chunk_tokens is not None:
            mask &= key >= query // spec.chunk_tokens * spec.chunk_tokens
        if spec.window_tokens is not None:
            mask &= key > query - spec.window_tokens
    elif spec.window_tokens is not None:
        mask = (key > query - spec.window_tokens) & (key < query + spec.window_tokens)
    else:
        return None
    return mask[None, None]


def attend(
    spec: AttentionSpec,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
    lse: torch.Tensor | None,
    added: torch.Tensor | None,
) -> torch.Tensor:
    """Return softmax(scores) v. Shapes: q [B, H, T, D], k and v [B, K, S, D], mask that spreads to
    [B, 1, T, S], sinks that spread to [B, H, T, 1], lse [B, H, T], score bias [B, H, T, S] ->
    [B, H, T, D]. Mutates: lse
    """
    is_grouped = q.shape[1] != k.shape[1]
    # torch converts the score bias to the queries' type, where 16 bits are not precise enough.
    is_exact = added is None or q.dtype not in (torch.float16, torch.bfloat16)
    if sinks is None and spec.soft_cap is None and lse is None and is_exact:
        if added is not None:
            added = added if mask is None else added.masked_fill(~mask, -torch.inf)
            mask = added.to(q.dtype)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=is_grouped
        )
    if is_grouped:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = torch.matmul(q.float(), k.float().transpose(-1, -2)) * spec.scale
    if added is not None:
        scores = scores + added
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if lse is not None:
        lse.copy_(scores.logsumexp(dim=-1))
    if sinks is not None:
        column = sinks.float().expand(*q.shape[:3], 1)
        weights = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    else:
        weights = scores.softmax(dim=-1)
    return torch.matmul(weights, v.float()).to(q.dtype)


def _decode_chunks(
    layout: BatchLayout, rows: list[int], spec: AttentionSpec, max_keys: int
) -> list[DecodeChunk]:
    """Return decode rows of similar length together, so that little is gathered in vain."""
    whole = layout.seq_lens_host
    lens = {r: whole[r] - _first_seen(spec, whole[r] - 1) for r in rows}
    is_all = len(rows) == layout.num_rows
    if is_all and len(rows) * max(lens.values()) <= max_keys:
        return [_decode_chunk(layout, None, spec, max(lens.values()), min(lens.values()))]
    chunks: list[list[int]] = []
    for row in sorted(rows, key=lens.__getitem__):
        if not chunks or (len(chunks[-1]) + 1) * lens[row] > max_keys:
            chunks.append([])
        chunks[-1].append(row)
    return [_decode_chunk(layout, c, spec, lens[c[-1]], lens[c[0]]) for c in chunks]


def _decode_chunk(
    layout: BatchLayout, rows: list[int] | None, spec: AttentionSpec, num_keys: int, fewest: int
) -> DecodeChunk:
    """Return one chunk. Places beyond a row's end name its last token and are masked."""
    device = layout.block_table.device
    seq_lens, table, tokens = layout.seq_lens, layout.block_table, None
    if rows is not None:
        index = torch.tensor(rows, device=device)
        tokens = layout.query_start[index].long()
        seq_lens, table = seq_lens[index], table[index]
    lens = seq_lens.long().unsqueeze(1)
    first: torch.Tensor | int = 0
    if spec.chunk_tokens is not None:
        first = (lens - 1) // spec.chunk_tokens * spec.chunk_tokens
    elif spec.window_tokens is not None:
        first = (lens - spec.window_tokens).clamp(min=0)
    positions = torch.arange(num_keys, device=device) + first
    mask = None
    if fewest != num_keys:
        mask = (positions < lens)[:, None, None]
        positions = torch.minimum(positions, lens - 1)
    positions = positions.expand(len(lens), -1)
    blocks = table.gather(1, positions // layout.block_tokens).long()
    slots = blocks * layout.block_tokens + positions % layout.block_tokens
    return DecodeChunk(
        tokens=tokens,
        slots=slots.flatten(),
        distances=lens - 1 - positions,
        mask=mask,
        num_keys=num_keys,
    )
