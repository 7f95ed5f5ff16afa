"""KVCacheManager: which blocks each request owns, and which of its tokens are already cached.

Implements interfaces.scheduler.KVCache over a BlockPool and, for preempted requests, host blocks.
Every group's block table of a request has the same length; a windowed group has the null block
where tokens fell out of its window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import islice

from dovetail.engine.kv import kv_groups
from dovetail.engine.kv.block_pool import NULL_BLOCK, BlockPool
from dovetail.engine.kv.host_blocks import Copies, HostBlockAccounting
from dovetail.engine.kv.prefix_hash import PrefixHasher
from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.spec import CacheSpec
from dovetail.interfaces.step import KVLayout

Blocks = tuple[tuple[int, ...], ...]


class _Holding:
    """The blocks of one request: `tables[g]` block ids, and how far they are committed."""

    __slots__ = ("num_blocks", "num_committed", "num_dropped", "tables")

    def __init__(self, tables: list[list[int]], num_cached: int) -> None:
        self.tables = tables
        self.num_blocks = num_cached
        self.num_committed = num_cached
        self.num_dropped = [0] * len(tables)


class KVCacheManager:
    """The block accounting of one engine.

    `num_queried_tokens` and `num_hit_tokens` count the tokens of first allocations and those of
    them found in the prefix index, since the start; `num_swaps` requests went to host blocks, and
    `num_swapped_in_tokens` were copied back from there.
    """

    def __init__(self, layout: KVLayout, cache: CacheSpec, hash_key: bytes) -> None:
        self.layout = layout
        self.num_blocks = layout.num_blocks - 1
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._block_tokens = layout.block_tokens
        self._windows = [group.window_tokens for group in layout.groups]
        self._has_windows = any(window is not None for window in self._windows)
        self._uses_prefix_cache = cache.uses_prefix_cache
        self._hasher = PrefixHasher(cache.hash_algorithm, hash_key, layout.block_tokens)
        self._pool = BlockPool(layout.num_blocks, len(layout.groups))
        self._holdings: dict[str, _Holding] = {}
        self._nothing: Blocks = ((),) * len(layout.groups)
        self.host = HostBlockAccounting(layout.num_host_blocks)
        self.num_swaps = 0
        self.num_swapped_in_tokens = 0

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks are free (those that keep prefixes included)."""
        return self._pool.num_free

    @property
    def usage(self) -> float:
        """Return the share of blocks owned by requests, 0 to 1."""
        return 1.0 - self._pool.num_free / self.num_blocks

    def blocks_for(self, num_tokens: int, step_tokens: int) -> int:
        """Return the most blocks a request of this many tokens owns at any time."""
        return kv_groups.blocks_for(self.layout, num_tokens, step_tokens)

    def blocks_of(self, request: RequestState) -> Blocks:
        """Return the block table of each group; empty ones for a request that owns nothing."""
        holding = self._holdings.get(request.request_id)
        return self._nothing if holding is None else tuple(map(tuple, holding.tables))

    def find_prefix(self, request: RequestState) -> int:
        """Return how many leading tokens are cached: whole blocks, at most num_tokens - 1.

        Mutates: request.block_hashes (extended)
        """
        if not self._uses_prefix_cache or request.needs_whole_prompt:
            return 0
        limit = (request.num_tokens - 1) // self._block_tokens
        hashes = self._hasher.extend(request, limit)
        groups = [
            (window, partial(self._is_cached, group, hashes))
            for group, window in enumerate(self._windows)
        ]
        return kv_groups.longest_hit(groups, limit, self._block_tokens) * self._block_tokens

    def _is_cached(self, group: int, hashes: Sequence[bytes], index: int) -> bool:
        return self._pool.find(group, hashes[index]) != NULL_BLOCK

    def allocate(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> Blocks | None:
        """Make room up to position `num_tokens`; return the new block ids per group, or None.

        Mutates: nothing when it returns None
        """
        holding = self._holdings.get(request.request_id)
        if holding is None:
            return self._allocate_first(request, num_tokens, cached_tokens // self._block_tokens)
        count = -(-num_tokens // self._block_tokens) - holding.num_blocks
        if count <= 0:
            return self._nothing
        if count * len(holding.tables) > self._pool.num_free:
            return None
        return self._grow(holding, count)

    def _grow(self, holding: _Holding, count: int) -> Blocks:
        """Append `count` fresh blocks to each group's table; return them."""
        holding.num_blocks += count
        new_blocks = []
        for table in holding.tables:
            taken = self._pool.take(count)
            table.extend(taken)
            new_blocks.append(tuple(taken))
        return tuple(new_blocks)

    def _allocate_first(
        self, request: RequestState, num_tokens: int, num_cached: int
    ) -> Blocks | None:
        tables = self._prefix_tables(request, num_cached)
        count = max(0, -(-num_tokens // self._block_tokens) - num_cached)
        owned = [block for table in tables for block in table if block != NULL_BLOCK]
        # A cached block that nobody owns leaves the free list just as a fresh one does.
        if count * len(tables) + self._pool.num_free_among(owned) > self._pool.num_free:
            return None
        self._pool.share(owned)
        self.host.drop(request.request_id)
        holding = self._holdings[request.request_id] = _Holding(tables, num_cached)
        for group, table in enumerate(tables):
            holding.num_dropped[group] = _num_leading_nulls(table)
        self._grow(holding, count)
        self.num_queried_tokens += request.num_tokens
        self.num_hit_tokens += num_cached * self._block_tokens
        return tuple(map(tuple, holding.tables))

    def _prefix_tables(self, request: RequestState, num_cached: int) -> list[list[int]]:
        """Return each group's blocks for a prefix that find_prefix has just found."""
        tables = []
        for group, window in enumerate(self._windows):
            start = 0
            if window is not None:
                start = kv_groups.window_start(
                    window, num_cached * self._block_tokens, self._block_tokens
                )
            hashes = request.block_hashes[start:num_cached]
            blocks = [self._pool.find(group, prefix_hash) for prefix_hash in hashes]
            assert NULL_BLOCK not in blocks, "cached_tokens is not what find_prefix returned"
            tables.append([NULL_BLOCK] * start + blocks)
        return tables

    def commit(self, request: RequestState, num_tokens: int) -> None:
        """Record that the first `num_tokens` tokens are computed and known.

        Mutates: full blocks become findable, blocks that left a window are freed
        """
        holding = self._holdings[request.request_id]
        num_full = num_tokens // self._block_tokens
        first = holding.num_committed
        if num_full <= first:
            return
        holding.num_committed = num_full
        if self._uses_prefix_cache:
            hashes = self._hasher.extend(request, num_full)
            for group, table in enumerate(holding.tables):
                for i in range(max(first, holding.num_dropped[group]), num_full):
                    self._pool.publish(group, table[i], hashes[i])
        if self._has_windows:
            self._drop_out_of_window(holding, num_tokens)

    def _drop_out_of_window(self, holding: _Holding, num_tokens: int) -> None:
        """Free the blocks that no query from position `num_tokens` on can see."""
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            table = holding.tables[group]
            first = holding.num_dropped[group]
            end = min(kv_groups.window_start(window, num_tokens, self._block_tokens), len(table))
            if end > first:
                self._pool.release(reversed(table[first:end]))
                table[first:end] = [NULL_BLOCK] * (end - first)
                holding.num_dropped[group] = end

    def swap_out(self, request: RequestState, num_tokens: int) -> Copies | None:
        """Free the blocks and keep what `num_tokens` tokens cached in host blocks.

        Returns the copies (block, host block), or None when too few host blocks are free or the
        tokens fill no block: they are computed again as fast. Mutates: nothing when it returns None
        """
        if num_tokens < self._block_tokens:
            return None
        holding = self._holdings[request.request_id]
        count = -(-num_tokens // self._block_tokens)
        tables = [table[:count] for table in holding.tables]
        copies = self.host.put(request.request_id, tables, num_tokens)
        if copies is not None:
            self._release(request, forget=False)
            self.num_swaps += 1
        return copies

    def find_swapped(self, request: RequestState) -> int:
        """Return how many leading tokens the host blocks hold, at most num_tokens - 1.

        What lies behind the last known token was computed for drafts that did not come true.
        """
        swapped = self.host.find(request.request_id)
        return 0 if swapped is None else min(swapped.num_tokens, request.num_tokens - 1)

    def swap_in(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[Blocks, Copies] | None:
        """Make room up to position `num_tokens`; return the block ids and the copies (host block,
        block) for what the first `cached_tokens` tokens do not bring from the prefix index.

        Mutates: nothing when it returns None
        """
        swapped = self.host.find(request.request_id)
        assert swapped is not None, "swap_in of a request that has no host blocks"
        num_kept = self.find_swapped(request)
        num_cached = cached_tokens // self._block_tokens
        tables = self._prefix_tables(request, num_cached)
        num_dropped = []
        for group, table in enumerate(tables):
            nulls = max(swapped.num_nulls[group], _num_leading_nulls(table))
            tables[group] = [NULL_BLOCK] * nulls + table[nulls:]
            num_dropped.append(nulls)
        owned = [block for table in tables for block in table if block != NULL_BLOCK]
        count = -(-num_tokens // self._block_tokens)
        num_fresh = sum(count - len(table) for table in tables)
        if num_fresh + self._pool.num_free_among(owned) > self._pool.num_free:
            return None
        self._pool.share(owned)
        copies = []
        for table, hosts in zip(tables, swapped.tables, strict=True):
            first = len(table)
            table.extend(self._pool.take(count - first))
            kept = range(first, -(-num_kept // self._block_tokens))
            copies += [(_held(hosts[i]), table[i]) for i in kept]
        holding = self._holdings[request.request_id] = _Holding(tables, num_cached)
        holding.num_blocks, holding.num_dropped = count, num_dropped
        self.host.drop(request.request_id)
        self.num_swapped_in_tokens += num_kept - cached_tokens
        return tuple(map(tuple, tables)), tuple(copies)

    def free(self, request: RequestState, *, forget: bool = False) -> None:
        """Free all blocks, last ones first, so that the start of a prefix is kept longest.

        `forget` also removes them from the prefix index. Host blocks are freed too.
        """
        self.host.drop(request.request_id)
        self._release(request, forget=forget)

    def _release(self, request: RequestState, *, forget: bool) -> None:
        holding = self._holdings.pop(request.request_id, None)
        if holding is None:
            return
        if forget:
            for block in {block for table in holding.tables for block in table}:
                self._pool.forget(block)
        for blocks in zip(*map(reversed, holding.tables), strict=True):
            self._pool.release(blocks)

    def forget_all(self) -> None:
        """Make no cached prefix findable any more (weights or adapters changed)."""
        self._pool.forget_all()

    def check_invariants(self) -> None:
        """Raise AssertionError when blocks are lost, used twice or counted wrongly.

        O(num_blocks); runs when the engine goes idle, and every step in tests.
        """
        self._pool.check_invariants()
        self.host.check_invariants()
        owners: Counter[int] = Counter()
        for request_id, holding in self._holdings.items():
            lengths = {len(table) for table in holding.tables}
            assert lengths <= {holding.num_blocks}, f"{request_id}: tables differ in length"
            for table in holding.tables:
                owners.update(block for block in table if block != NULL_BLOCK)
            self._check_private_blocks(request_id, holding)
            assert self.host.find(request_id) is None, f"{request_id} has blocks in both places"
        for block in range(1, self.layout.num_blocks):
            assert self._pool.refs(block) == owners[block], f"block {block}: wrong owner count"

    def _check_private_blocks(self, request_id: str, holding: _Holding) -> None:
        """Blocks that are still being written belong to one request alone."""
        for table in holding.tables:
            for block in islice(table, holding.num_committed, None):
                if block == NULL_BLOCK:  # behind the window of one that came back from the host
                    continue
                assert self._pool.refs(block) == 1, f"{request_id}: unfinished block {block} shared"


def _held(host: int | None) -> int:
    assert host is not None, "a block within the window has no copy on the host"
    return host


def _num_leading_nulls(table: Sequence[int]) -> int:
    for i, block in enumerate(table):
        if block != NULL_BLOCK:
            return i
    return len(table)
