"""Triton's kernels of paged_attention: decodes over splits of their keys, prefills in tiles.

A tile holds some queries of a row times the G query heads that share a kv head; keys come through
the block table, `KEYS` at a time, under the online softmax. Rows of one token run in `decode`: a
row's keys are cut into splits whose length follows from the row's own number of keys, and `join`
adds them up. All other rows run in `prefill`, whose key tiles begin at multiples of KEYS and whose
sums restart at multiples of SPAN: spans run one launch after the other, or all in parallel and then
added up, in the same order by the same operations. Every launch covers the whole batch, and a
program without work ends: so a row's numbers depend on its own tokens only, not on its neighbours,
nor, when causal, on how a prompt was cut into chunks of several tokens. Knows no launch: grids and
sizes are `triton.py`'s.

Floor: a decode reads each key and value it sees once (G queries share a read), 2 * K * D numbers a
token; a prefill does 4 * H * D operations for each pair of query and key.

Source: Dao, "FlashAttention-2", 2023; Dao et al., "Flash-Decoding for long-context inference", 2023
"""

from __future__ import annotations

import triton
import triton.language as tl

from dovetail_kernels.paged_attention.triton_packed import packed_keys, packed_values


@triton.jit
def _row_of(tile, query_start, num_rows, QUERIES: tl.constexpr):
    """Return the row that a tile belongs to. Row r's tiles begin at query_start[r] // QUERIES + r:
    a row of n tokens has room for ceil(n / QUERIES) of them, and some tiles stay empty."""
    low, high = tile * 0, num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        begins = tl.load(query_start + middle) // QUERIES + middle <= tile
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle - 1)
    return low


@triton.jit
def _split_tokens(count, LEAST: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr):
    """Return the length of a row's splits: at least LEAST, at most SPLITS of them."""
    return tl.maximum(LEAST, tl.cdiv(tl.cdiv(count, SPLITS), KEYS) * KEYS)


@triton.jit
def _blocks(table, key, low, end, BLOCK_TOKENS: tl.constexpr):
    """Return the ids of the blocks of keys, 0 for those outside of low .. end - 1."""
    return tl.load(table + key // BLOCK_TOKENS, mask=(key >= low) & (key < end), other=0)


@triton.jit
def _first_seen(position, window, REACH: tl.constexpr):
    """Return the first key that a query sees, if limited: of its window, or its chunk."""
    if REACH == "chunk":
        return tl.maximum(0, position) // window * window
    return tl.maximum(0, position - window + 1)


@triton.jit
def _walk(
    q, acc, total, maximum, positions, start, stop, low, end,
    keys_at, values_at, key_scales, value_scales, table, block_stride, token_stride,
    block_scales, token_scales, score_scale, soft_cap, slope, window, kv_head,
    KV_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    IS_MASKED: tl.constexpr, IS_CAUSAL: tl.constexpr, REACH: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the running sums after the keys start .. stop - 1. Only those from `low` to before
    `end` may be read; with IS_MASKED the others are masked.

    `maximum` is the largest product so far, without score_scale, or, under a cap or slopes, the
    largest score. Scores are exponents of 2. `slope` is of each line, as score_scale makes scores.
    `BITS`: 0 for floats, else ten times the bits of a key's number plus those of a value's.
    """
    at, step = tl.arange(0, WIDE), tl.arange(0, KEYS)
    block = _blocks(table, start + step, low, end, BLOCK_TOKENS)
    for first in range(start, stop, KEYS):
        key = first + step
        # Block ids come one round early: so keys are fetched as far ahead as there are stages.
        next_block = _blocks(table, key + KEYS, low, end, BLOCK_TOKENS)
        is_there = (key >= low) & (key < end)
        inside = (at < SIZE)[None, :]
        if IS_MASKED:
            inside = inside & is_there[:, None]
        place = block.to(tl.int64) * block_stride + (key % BLOCK_TOKENS) * token_stride
        beside = block.to(tl.int64) * block_scales + (key % BLOCK_TOKENS) * token_scales
        where = place[:, None] + at[None, :]
        if BITS == 44 or BITS == 84:
            place = keys_at + block.to(tl.int64) * block_stride
            line = (key % BLOCK_TOKENS) * KV_HEADS + kv_head
            k = packed_keys(place, line, key, key_scales + beside, token_scales, at, inside,
                            is_there, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)  # fmt: skip
        elif IS_MASKED or SIZE < WIDE:
            k = tl.load(keys_at + where, mask=inside, other=0.0)
        else:
            k = tl.load(keys_at + where)
        scores = tl.dot(q, tl.trans(k.to(DTYPE)), input_precision="ieee")
        if BITS == 88:
            scores *= tl.load(key_scales + beside, mask=is_there, other=0.0)[None, :]
        factor = score_scale
        if HAS_SLOPES:
            away = tl.abs(key[None, :] - positions[:, None]).to(tl.float32)
            scores = scores * score_scale - slope[:, None] * away
            factor = 1.0
        if HAS_CAP:
            if not HAS_SLOPES:
                scores = scores * score_scale
            scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)
            factor = 1.0
        if IS_MASKED:
            seen = is_there[None, :]
            if IS_CAUSAL:
                seen = seen & (key[None, :] <= positions[:, None])
            if REACH == "chunk":
                seen = seen & (key[None, :] >= (positions // window * window)[:, None])
            if REACH == "window":
                seen = seen & (key[None, :] > positions[:, None] - window)
                if not IS_CAUSAL:
                    seen = seen & (key[None, :] < positions[:, None] + window)
            scores = tl.where(seen, scores, float("-inf"))
        new_most = tl.maximum(maximum, tl.max(scores, axis=1))
        level = tl.where(new_most == float("-inf"), 0.0, new_most * factor)
        weights = tl.exp2(scores * factor - level[:, None])
        fade = tl.exp2(maximum * factor - level)
        total = total * fade + tl.sum(weights, axis=1)
        acc = acc * fade[:, None]
        if BITS > 0:
            weights *= tl.load(value_scales + beside, mask=is_there, other=0.0)[None, :]
        if BITS == 44 or BITS == 84:
            v = packed_values(place, line, at, inside, BLOCK_TOKENS, KV_HEADS, SIZE, BITS)
        elif IS_MASKED or SIZE < WIDE:
            v = tl.load(values_at + where, mask=inside, other=0.0)
        else:
            v = tl.load(values_at + where)
        acc = tl.dot(weights.to(DTYPE), v.to(DTYPE), acc, input_precision="ieee")
        maximum, block = new_most, next_block
    return acc, total, maximum


@triton.jit
def _slope(
    slopes, head, inside, soft_cap, HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    LOG2_E: tl.constexpr,
):  # fmt: skip
    """Return the slope of each line as `_walk` takes it: a cap c comes as c * LOG2_E, and scores
    are divided by it."""
    slope = head.to(tl.float32)
    if HAS_SLOPES:
        slope = tl.load(slopes + head, mask=inside, other=0.0) * LOG2_E
        if HAS_CAP:
            slope = slope / soft_cap
    return slope


@triton.jit
def _sum_with_sinks(
    total, maximum, sinks, head, inside, HAS_SINKS: tl.constexpr, LOG2_E: tl.constexpr
):
    """Return the divisor of sums of weighted values; 1 if no key was seen."""
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        total = total + tl.exp2(sink - maximum)
    return tl.where(maximum == float("-inf"), 1.0, total)


@triton.jit
def _span(
    q, positions, here, there, plain, low, end,
    keys_at, values_at, key_scales, value_scales, table, block_stride, token_stride,
    block_scales, token_scales, score_scale, soft_cap, slope, window, kv_head,
    KV_HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, KEYS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    LANES: tl.constexpr, IS_CAUSAL: tl.constexpr, REACH: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Return the sums over the keys here .. there - 1, and the largest score. All queries see those
    before `plain`."""
    acc = tl.zeros((LANES, WIDE), dtype=tl.float32)
    total = tl.zeros((LANES,), dtype=tl.float32)
    maximum = tl.full((LANES,), float("-inf"), dtype=tl.float32)
    if REACH == "all":
        plain = tl.minimum(plain // KEYS * KEYS, there)
        acc, total, maximum = _walk(
            q, acc, total, maximum, positions, here, plain, 0, end,
            keys_at, values_at, key_scales, value_scales, table, block_stride, token_stride,
            block_scales, token_scales, score_scale, soft_cap, slope, window,
            kv_head, KV_HEADS, BLOCK_TOKENS, KEYS, SIZE, WIDE,
            False, IS_CAUSAL, REACH, HAS_CAP, HAS_SLOPES, BITS, DTYPE,
        )  # fmt: skip
        here = tl.maximum(here, plain)
    acc, total, maximum = _walk(
        q, acc, total, maximum, positions, tl.maximum(here, low // KEYS * KEYS), there, low, end,
        keys_at, values_at, key_scales, value_scales, table, block_stride, token_stride,
        block_scales, token_scales, score_scale, soft_cap, slope, window,
        kv_head, KV_HEADS, BLOCK_TOKENS, KEYS, SIZE, WIDE,
        True, IS_CAUSAL, REACH, HAS_CAP, HAS_SLOPES, BITS, DTYPE,
    )  # fmt: skip
    if not (HAS_CAP or HAS_SLOPES):
        maximum = maximum * score_scale
    return acc, total, maximum


@triton.jit
def _added(whole, whole_total, whole_most, acc, total, maximum):
    """Return the sums of some spans and the next one's. Fused operations are explicit, so that no
    compiler chooses."""
    top = tl.maximum(whole_most, maximum)
    level = tl.where(top == float("-inf"), 0.0, top)
    fade, share = tl.exp2(whole_most - level), tl.exp2(maximum - level)
    acc *= share[:, None]
    whole = tl.fma(whole, tl.broadcast_to(fade[:, None], whole.shape), acc)
    return whole, tl.fma(whole_total, fade, total * share), top


@triton.jit
def _keep(acc, total, maximum, sums, levels, part, is_line, inside, at, SIZE: tl.constexpr):
    """Store sums at their places. Shapes: part [LANES]. Mutates: sums, levels"""
    tl.store(sums + part[:, None] * SIZE + at[None, :], acc, mask=inside)
    tl.store(levels + part * 2, maximum, mask=is_line)
    tl.store(levels + part * 2 + 1, total, mask=is_line)


@triton.jit
def _kept(sums, levels, part, is_line, inside, at, SIZE: tl.constexpr):
    """Return the sums of some places."""
    acc = tl.load(sums + part[:, None] * SIZE + at[None, :], mask=inside, other=0.0)
    maximum = tl.load(levels + part * 2, mask=is_line, other=float("-inf"))
    return acc, tl.load(levels + part * 2 + 1, mask=is_line, other=0.0), maximum


@triton.jit
def _finish(
    acc, total, maximum, out, lse, sinks, target, place, head, is_query, inside, value_scale,
    HAS_SINKS: tl.constexpr, HAS_LSE: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """Store the attended values of a tile, and on request the log-sum-exps of its scores.

    Shapes: place [LANES], of these. Mutates: out, lse
    """
    if HAS_LSE:
        seen = tl.where(is_query, total, 1.0)  # lines of no query may see no key
        tl.store(lse + place, (maximum + tl.log2(seen)) / LOG2_E, mask=is_query)
    total = _sum_with_sinks(total, maximum, sinks, head, is_query, HAS_SINKS, LOG2_E)
    result = acc * (value_scale / total)[:, None]
    tl.store(out + target, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _tile_of(
    query_start, seq_lens, num_rows, window, KV_HEADS: tl.constexpr, QUERIES: tl.constexpr,
    IS_CAUSAL: tl.constexpr, REACH: tl.constexpr,
):  # fmt: skip
    """Return a program's row, its first token, the number of queries from there on (0: nothing to
    do), the first query's position, and the range of keys: start, end, and the end of those that
    all queries see."""
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // KV_HEADS  # the longest walks start first
    row = _row_of(tile, query_start, num_rows, QUERIES)
    first = tl.load(query_start + row)
    count = tl.load(query_start + row + 1) - first
    skipped = (tile - first // QUERIES - row) * QUERIES
    length = tl.load(seq_lens + row)
    start = length - count + skipped
    left = tl.where(count > 1, tl.maximum(count - skipped, 0), 0)
    low, end, plain = length * 0, length, length
    if IS_CAUSAL:
        end, plain = tl.minimum(length, start + QUERIES), start + 1
    if REACH != "all":
        low = _first_seen(start, window, REACH)
    if REACH == "window" and not IS_CAUSAL:
        end = tl.minimum(length, start + QUERIES - 1 + window)
    return row, first + skipped, left, start, low, end, plain


@triton.jit(do_not_specialize=["num_rows", "window", "kept_spans", "span"])
def prefill(
    q, out, lse, sums, levels, cache, scales, sinks, slopes, table, query_start, seq_lens, num_rows,
    kept_spans, span, q_token_stride, q_head_stride, out_token_stride, table_stride,
    half_stride, block_stride, token_stride, head_stride,
    half_scales, block_scales, token_scales, score_scale, soft_cap, value_scale, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, LANES: tl.constexpr,
    KEYS: tl.constexpr, SPANS: tl.constexpr, SPAN: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr, IS_CAUSAL: tl.constexpr,
    REACH: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    BITS: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LSE: tl.constexpr, DTYPE: tl.constexpr,
    LOG2_E: tl.constexpr,
):  # fmt: skip
    """Attend one tile: QUERIES queries of a row by GROUP heads, on LANES lines of the product.

    SPANS: "one" (no row is longer), or sums are stored as in a decode, sums [T, H, spans, D] and
    levels [T, H, spans, 2]: of "each" span, a program each, or (spans being 1) of all up to the
    "next" one, `span`, a launch each. The last of these stores the answer.
    """
    row, first, left, start, low, end, plain = _tile_of(
        query_start, seq_lens, num_rows, window, KV_HEADS, QUERIES, IS_CAUSAL, REACH
    )
    here, there, num_spans = low * 0, end, 1
    number = span + tl.program_id(1)
    if SPANS != "one":
        here = (low // SPAN + number) * SPAN
        there = tl.minimum(here + SPAN, end)
        num_spans = tl.cdiv(end, SPAN) - low // SPAN
    if (left > 0) & (number < num_spans):
        kv_head = tl.program_id(0) % KV_HEADS
        line, at = tl.arange(0, LANES), tl.arange(0, WIDE)
        query, head = line // GROUP, kv_head * GROUP + line % GROUP
        is_query = (query < QUERIES) & (query < left)
        inside = is_query[:, None] & (at < SIZE)[None, :]
        token = (first + query).to(tl.int64)
        source = q + token[:, None] * q_token_stride + (head * q_head_stride)[:, None] + at[None, :]
        tile_q = tl.load(source, mask=inside, other=0.0).to(DTYPE)
        keys_at = cache + kv_head.to(tl.int64) * head_stride
        values_at = keys_at + half_stride
        key_scales, value_scales = cache, cache
        if BITS > 0:
            key_scales = scales + kv_head
            value_scales = key_scales + half_scales
        row_table = table + row.to(tl.int64) * table_stride
        slope = _slope(slopes, head, is_query, soft_cap, HAS_CAP, HAS_SLOPES, LOG2_E)
        acc, total, maximum = _span(
            tile_q, start + query, here, there, plain, low, end,
            keys_at, values_at, key_scales, value_scales, row_table, block_stride, token_stride,
            block_scales, token_scales, score_scale, soft_cap, slope, window,
            kv_head, KV_HEADS, BLOCK_TOKENS, KEYS, SIZE, WIDE, LANES, IS_CAUSAL, REACH,
            HAS_CAP, HAS_SLOPES, BITS, DTYPE,
        )  # fmt: skip
        part = (token * KV_HEADS * GROUP + head) * kept_spans + tl.program_id(1)
        if SPANS == "next" and number > 0:
            before, before_total, before_most = _kept(
                sums, levels, part, is_query, inside, at, SIZE
            )
            acc, total, maximum = _added(before, before_total, before_most, acc, total, maximum)
        if SPANS == "each" or (SPANS == "next" and number < num_spans - 1):
            _keep(acc, total, maximum, sums, levels, part, is_query, inside, at, SIZE)
        else:
            target = token[:, None] * out_token_stride + (head * SIZE)[:, None] + at[None, :]
            _finish(acc, total, maximum, out, lse, sinks, target, token * KV_HEADS * GROUP + head,
                    head, is_query, inside, value_scale, HAS_SINKS, HAS_LSE, LOG2_E)  # fmt: skip


@triton.jit(do_not_specialize=["num_rows", "window", "kept_spans"])
def add_spans(
    out, lse, sums, levels, sinks, query_start, seq_lens, num_rows, kept_spans, out_token_stride,
    value_scale, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, QUERIES: tl.constexpr, LANES: tl.constexpr,
    SPAN: tl.constexpr, SIZE: tl.constexpr, COLUMNS: tl.constexpr, IS_CAUSAL: tl.constexpr,
    REACH: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LSE: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """Add up some columns of a tile's spans in their order, as launch after launch does."""
    _row, first, left, _start, low, end, _plain = _tile_of(
        query_start, seq_lens, num_rows, window, KV_HEADS, QUERIES, IS_CAUSAL, REACH
    )
    if left > 0:
        line, at = tl.arange(0, LANES), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        query, head = line // GROUP, tl.program_id(0) % KV_HEADS * GROUP + line % GROUP
        is_query = (query < QUERIES) & (query < left)
        inside = is_query[:, None] & (at < SIZE)[None, :]
        token = (first + query).to(tl.int64)
        part = (token * KV_HEADS * GROUP + head) * kept_spans
        acc, total, maximum = _kept(sums, levels, part, is_query, inside, at, SIZE)
        for _span in range(1, tl.cdiv(end, SPAN) - low // SPAN):
            part += 1
            own, own_total, own_most = _kept(sums, levels, part, is_query, inside, at, SIZE)
            acc, total, maximum = _added(acc, total, maximum, own, own_total, own_most)
        target = token[:, None] * out_token_stride + (head * SIZE)[:, None] + at[None, :]
        _finish(acc, total, maximum, out, lse, sinks, target, token * KV_HEADS * GROUP + head, head,
                is_query, inside, value_scale, HAS_SINKS, HAS_LSE, LOG2_E)  # fmt: skip


@triton.jit(do_not_specialize=["kept_splits", "window"])
def decode(
    q, out, lse, sums, levels, cache, scales, sinks, slopes, table, query_start, seq_lens,
    kept_splits,
    q_token_stride, q_head_stride, out_token_stride, table_stride,
    half_stride, block_stride, token_stride, head_stride,
    half_scales, block_scales, token_scales, score_scale, soft_cap, value_scale, window,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr, KEYS: tl.constexpr,
    LEAST: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr,
    REACH: tl.constexpr, HAS_CAP: tl.constexpr, HAS_SLOPES: tl.constexpr,
    BITS: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LSE: tl.constexpr, DTYPE: tl.constexpr,
    LOG2_E: tl.constexpr,
):  # fmt: skip
    """Attend some splits of a row's keys with the GROUP heads of one kv head.

    If a row has one split the answer is stored, else the parts: sums [R, H, splits, D] of weighted
    values, levels [R, H, splits, 2] with the largest score and the sum of weights.
    """
    row, kv_head = tl.program_id(0) // KV_HEADS, tl.program_id(0) % KV_HEADS
    token = tl.load(query_start + row).to(tl.int64)
    if tl.load(query_start + row + 1) - token == 1:
        length = tl.load(seq_lens + row)
        low = length * 0
        if REACH != "all":
            low = _first_seen(length - 1, window, REACH)
        size = _split_tokens(length - low, LEAST, SPLITS, KEYS)
        num_splits = tl.maximum(1, tl.cdiv(length - low, size))
        line, at = tl.arange(0, LANES), tl.arange(0, WIDE)
        is_head, head = line < GROUP, kv_head * GROUP + line
        inside = is_head[:, None] & (at < SIZE)[None, :]
        source = q + token * q_token_stride + (head * q_head_stride)[:, None] + at[None, :]
        tile_q = tl.load(source, mask=inside, other=0.0).to(DTYPE)
        keys_at = cache + kv_head.to(tl.int64) * head_stride
        values_at = keys_at + half_stride
        key_scales, value_scales = cache, cache
        if BITS > 0:
            key_scales = scales + kv_head
            value_scales = key_scales + half_scales
        row_table = table + row.to(tl.int64) * table_stride
        slope = _slope(slopes, head, is_head, soft_cap, HAS_CAP, HAS_SLOPES, LOG2_E)
        for split in range(tl.program_id(1), num_splits, tl.num_programs(1)):
            acc = tl.zeros((LANES, WIDE), dtype=tl.float32)
            total = tl.zeros((LANES,), dtype=tl.float32)
            maximum = tl.full((LANES,), float("-inf"), dtype=tl.float32)
            start = low + split * size
            end = tl.minimum(start + size, length)
            acc, total, maximum = _walk(
                tile_q, acc, total, maximum, line * 0 + length - 1, start, end, start, end,
                keys_at, values_at, key_scales, value_scales, row_table, block_stride,
                token_stride, block_scales, token_scales, score_scale, soft_cap, slope, window,
                kv_head, KV_HEADS, BLOCK_TOKENS, KEYS, SIZE, WIDE,
                True, False, "all", HAS_CAP, HAS_SLOPES, BITS, DTYPE,
            )  # fmt: skip
            maximum = maximum if HAS_CAP or HAS_SLOPES else maximum * score_scale
            if num_splits == 1:
                target = token * out_token_stride + (head * SIZE)[:, None] + at[None, :]
                _finish(acc, total, maximum, out, lse, sinks, target,
                        token * KV_HEADS * GROUP + head, head, is_head, inside, value_scale,
                        HAS_SINKS, HAS_LSE, LOG2_E)  # fmt: skip
            else:
                part = (row.to(tl.int64) * KV_HEADS * GROUP + head) * kept_splits + split
                _keep(acc, total, maximum, sums, levels, part, is_head, inside, at, SIZE)


@triton.jit(do_not_specialize=["kept_splits", "window"])
def join(
    out, lse, sums, levels, sinks, query_start, seq_lens, kept_splits, out_token_stride,
    value_scale, window,
    HEADS: tl.constexpr, KEYS: tl.constexpr, LEAST: tl.constexpr, SPLITS: tl.constexpr,
    SIZE: tl.constexpr, WIDE: tl.constexpr, REACH: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_LSE: tl.constexpr, LOG2_E: tl.constexpr,
):  # fmt: skip
    """Add up the parts of one head of one row, always over SPLITS places, so in the same order."""
    row, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    token = tl.load(query_start + row).to(tl.int64)
    length = tl.load(seq_lens + row)
    count = length
    if REACH != "all":
        count = length - _first_seen(length - 1, window, REACH)
    num_splits = tl.cdiv(count, _split_tokens(count, LEAST, SPLITS, KEYS))
    if (tl.load(query_start + row + 1) - token == 1) & (num_splits > 1):
        split, at = tl.arange(0, SPLITS), tl.arange(0, WIDE)
        is_part = split < num_splits
        part = (row.to(tl.int64) * HEADS + head) * kept_splits + split
        maxima = tl.load(levels + part * 2, mask=is_part, other=float("-inf"))
        total = tl.load(levels + part * 2 + 1, mask=is_part, other=0.0)
        top = tl.max(maxima, axis=0)
        share = tl.exp2(maxima - top)
        inside = is_part[:, None] & (at < SIZE)[None, :]
        acc = tl.load(sums + part[:, None] * SIZE + at[None, :], mask=inside, other=0.0)
        whole = tl.sum(total * share, axis=0)
        if HAS_LSE:
            tl.store(lse + token * HEADS + head, (top + tl.log2(whole)) / LOG2_E)
        if HAS_SINKS:
            whole += tl.exp2(tl.load(sinks + head).to(tl.float32) * LOG2_E - top)
        result = tl.sum(acc * share[:, None], axis=0) * (value_scale / whole)
        target = out + token * out_token_stride + head * SIZE + at
        tl.store(target, result.to(out.dtype.element_ty), mask=at < SIZE)
