"""KVCacheManager: which blocks each request owns, and which of its tokens are already cached.

Implements interfaces.scheduler.KVCache with a BlockPool and, for preempted requests, host blocks.
The block tables of a request's groups have the same length; a windowed group has null blocks for
tokens that have left its window. Cross-attention groups are separate: they get all their blocks at
the start and are not in the prefix index.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from dovetail.engine.kv import kv_groups
from dovetail.engine.kv.block_pool import NULL_BLOCK, BlockPool
from dovetail.engine.kv.host_blocks import Copies, HostBlockAccounting, Swapped
from dovetail.engine.kv.pins import Pins
from dovetail.engine.kv.prefix_hash import PrefixHasher
from dovetail.interfaces.data.media import encoder_rows
from dovetail.interfaces.data.spec import CacheSpec
from dovetail.interfaces.data.step import KVLayout
from dovetail.interfaces.kv_policy import BlockWatcher, Found, Has
from dovetail.interfaces.scheduler import RequestState

Blocks = tuple[tuple[int, ...], ...]
Hashes = Sequence[bytes]


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

    Counts since the start: `num_queried_tokens` of first allocations, `num_hit_tokens` of them from
    the prefix index, `num_swaps` requests swapped out to host blocks, `num_swapped_in_tokens`
    copied back from there, and `num_loaded_tokens` from an external store.
    """

    def __init__(self, layout: KVLayout, cache: CacheSpec, hash_key: bytes) -> None:
        self.layout = layout
        self.num_blocks = layout.num_blocks - 1
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0
        self._block_tokens = layout.block_tokens
        self._windows = [group.window_tokens for group in layout.groups]
        self._has_windows = any(window is not None for window in self._windows)
        self._hash_algorithm = cache.hash_algorithm
        self._is_cross = [group.cross_rows > 0 for group in layout.groups]
        self.num_groups = len(layout.groups)
        self.num_growing = self.num_groups - sum(self._is_cross)
        self._uses_prefix_cache = cache.uses_prefix_cache and not any(self._is_cross)
        self._hash_tokens = cache.hash_tokens
        self.rekey(hash_key)
        self._pool = BlockPool(layout.num_blocks, len(layout.groups))
        self._pins = Pins(self._pool)
        self._holdings: dict[str, _Holding] = {}
        self._nothing: Blocks = ((),) * len(layout.groups)
        self.host = HostBlockAccounting(layout.num_host_blocks)
        self.num_swaps = 0
        self.num_swapped_in_tokens = 0
        self.num_loaded_tokens = 0
        self._watchers: list[BlockWatcher] = []

    def watch(self, watcher: BlockWatcher) -> None:
        """Report blocks that become findable or are evicted to a watcher from now on."""
        self._watchers.append(watcher)
        self._pool.on_forget = self._tell_evicted

    def _tell_evicted(self, group: int, prefix_hash: bytes) -> None:
        for watcher in self._watchers:
            watcher.evicted(group, prefix_hash)

    @property
    def num_free_blocks(self) -> int:
        """Return how many blocks are free (including those with cached prefixes)."""
        return self._pool.num_free

    @property
    def num_pinned_blocks(self) -> int:
        """Return how many blocks are pinned by requests; none of them is free."""
        return len(self._pins)

    def pin(self, request: RequestState, duration_s: float, num_tokens: int) -> None:
        """Pin the cached blocks of a prompt's first tokens for a time, unless requests need the
        room. Mutates: self"""
        num_blocks = min(num_tokens, request.num_prompt_tokens) // self._block_tokens
        if not self._uses_prefix_cache:
            return
        hashes = self._hasher.extend(request, num_blocks)[:num_blocks]
        for group in range(self.num_groups):
            found = (self._pool.find(group, one) for one in hashes)
            until_s = time.monotonic() + duration_s
            self._pins.hold((block for block in found if block != NULL_BLOCK), until_s)

    def _has_room(self, count: int) -> bool:
        """Return whether `count` blocks are free, dropping pins if needed. Mutates: the pins"""
        self._pins.expire(time.monotonic())
        if count > self._pool.num_free:
            self._pins.make_room(count)
        return count <= self._pool.num_free

    def _can_own(self, cached: Sequence[int], num_fresh: int) -> bool:
        """Return whether these cached blocks plus fresh ones are available. Mutates: the pins"""
        # A cached block without an owner leaves the free list, just like a fresh one.
        needed = num_fresh + self._pool.num_free_among(cached)
        while self._has_room(needed):
            now = num_fresh + self._pool.num_free_among(cached)
            if now == needed:
                return True
            needed = now  # a dropped pin was the only owner of some of them
        return False

    @property
    def usage(self) -> float:
        """Return the fraction of blocks owned by requests, 0 to 1."""
        return 1.0 - self._pool.num_free / self.num_blocks

    def blocks_for(self, num_tokens: int, step_tokens: int) -> int:
        """Return the maximum number of blocks that a request with this many tokens owns."""
        return kv_groups.blocks_for(self.layout, num_tokens, step_tokens)

    def _cross_blocks(self, request: RequestState) -> int:
        """Return the number of cross-attention blocks of a request, over all groups."""
        if not any(self._is_cross):
            return 0
        rows = encoder_rows(part.place for part in request.parts)
        return -(-rows // self._block_tokens) * sum(self._is_cross)

    def blocks_of(self, request: RequestState) -> Blocks:
        """Return the block table of each group; empty tables for a request without blocks."""
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
        if self._windows == [None]:  # the usual case; policies may ask about many requests
            return self._pool.num_leading(hashes, limit) * self._block_tokens
        groups = [
            (window, partial(self._is_cached, group, hashes))
            for group, window in enumerate(self._windows)
        ]
        return kv_groups.longest_hit(groups, limit, self._block_tokens) * self._block_tokens

    def find_elsewhere(self, request: RequestState, has: Has) -> Found | None:
        """Return the blocks that `has` reports beyond the cached ones, or None. Mutates:
        request.block_hashes"""
        size = self._block_tokens
        limit = (request.num_tokens - 1) // size
        num_cached = self.find_prefix(request) // size
        if not self._uses_prefix_cache or request.needs_whole_prompt or num_cached == limit:
            return None
        hashes = tuple(request.block_hashes[:limit])
        groups = [
            (window, partial(_is_there, num_cached, partial(has, group), hashes))
            for group, window in enumerate(self._windows)
        ]
        num_found = kv_groups.longest_hit(groups, limit, size)
        if num_found <= num_cached:
            return None
        starts = [
            0 if window is None else kv_groups.window_start(window, num_found * size, size)
            for window in self._windows
        ]
        return Found(num_cached=num_cached, num_blocks=num_found, starts=starts, hashes=hashes)

    def adopt(self, request: RequestState, found: Found, first: int) -> None:
        """Register blocks loaded in the order of `found.blocks`, from `first`. Mutates: self"""
        size = self._block_tokens
        tables: list[list[int | None]] = [[None] * found.num_blocks for _ in self._windows]
        for number, (group, index) in enumerate(found.blocks(), first):
            tables[group][index] = number
        loaded = Swapped(
            tables,
            found.num_blocks * size,
            num_nulls=list(found.starts),
            num_missing=found.num_cached * size,
            load=first,
        )
        self.host.adopt(request.request_id, loaded)

    def _is_cached(self, group: int, hashes: Sequence[bytes], index: int) -> bool:
        return self._pool.find(group, hashes[index]) != NULL_BLOCK

    def allocate(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> Blocks | None:
        """Allocate blocks up to position `num_tokens`; return the new block ids per group, or None.

        Mutates: nothing if it returns None
        """
        holding = self._holdings.get(request.request_id)
        if holding is None:
            return self._allocate_first(request, num_tokens, cached_tokens // self._block_tokens)
        count = -(-num_tokens // self._block_tokens) - holding.num_blocks
        if count <= 0:
            return self._nothing
        if not self._has_room(count * self.num_growing):
            return None
        return self._grow(holding, count)

    def _grow(self, holding: _Holding, count: int) -> Blocks:
        """Append `count` fresh blocks to the table of each growing group; return them."""
        holding.num_blocks += count
        new_blocks = []
        for table, is_cross in zip(holding.tables, self._is_cross, strict=True):
            taken = [] if is_cross else self._pool.take(count)
            table.extend(taken)
            new_blocks.append(tuple(taken))
        return tuple(new_blocks)

    def _allocate_first(
        self, request: RequestState, num_tokens: int, num_cached: int
    ) -> Blocks | None:
        tables = self._prefix_tables(request, num_cached)
        count = max(0, -(-num_tokens // self._block_tokens) - num_cached)
        owned = [block for table in tables for block in table if block != NULL_BLOCK]
        num_cross = self._cross_blocks(request)
        num_fresh = count * self.num_growing + num_cross
        if not self._can_own(owned, num_fresh):
            return None
        self._pool.share(owned)
        self.host.drop(request.request_id)
        holding = self._holdings[request.request_id] = _Holding(tables, num_cached)
        for group, table in enumerate(tables):
            holding.num_dropped[group] = _num_leading_nulls(table)
            if self._is_cross[group]:
                table.extend(self._pool.take(num_cross // sum(self._is_cross)))
        self._grow(holding, count)
        self.num_queried_tokens += request.num_tokens
        self.num_hit_tokens += num_cached * self._block_tokens
        return tuple(map(tuple, holding.tables))

    def _prefix_tables(self, request: RequestState, num_cached: int) -> list[list[int]]:
        """Return each group's blocks of a prefix that find_prefix has just found."""
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

        Mutates: full blocks become findable, blocks outside their window are freed
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
                start = max(first, holding.num_dropped[group])
                for i in range(start, num_full):
                    is_new = self._pool.publish(group, table[i], hashes[i])
                    for watcher in self._watchers:
                        watcher.filled(request, group, i, table[i], is_new=is_new)
        if self._has_windows:
            self._drop_out_of_window(holding, num_tokens)

    def _drop_out_of_window(self, holding: _Holding, num_tokens: int) -> None:
        """Free the blocks that queries from position `num_tokens` on cannot see."""
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
        """Free the blocks and save the cache of `num_tokens` tokens in host blocks.

        Returns the copies (block, host block). None if too few host blocks are free, or if the
        tokens fill no block, since recomputing is as fast. Mutates: nothing if it returns None
        """
        if num_tokens < self._block_tokens:
            return None
        holding = self._holdings[request.request_id]
        count = -(-num_tokens // self._block_tokens)
        tables = [
            table if is_cross else table[:count]
            for table, is_cross in zip(holding.tables, self._is_cross, strict=True)
        ]
        copies = self.host.put(request.request_id, tables, num_tokens)
        if copies is not None:
            self._release(request, forget=False)
            self.num_swaps += 1
        return copies

    def find_swapped(self, request: RequestState) -> int:
        """Return how many leading tokens are in host blocks, at most num_tokens - 1.

        Entries after the last known token belong to rejected drafts. Blocks from an external store
        count only while the prefix before them is still cached.
        """
        swapped = self.host.find(request.request_id)
        if swapped is None:
            return 0
        if swapped.num_missing and self.find_prefix(request) < swapped.num_missing:
            return 0
        return min(swapped.num_tokens, request.num_tokens - 1)

    def swap_in(
        self, request: RequestState, num_tokens: int, *, cached_tokens: int = 0
    ) -> tuple[Blocks, Copies] | None:
        """Allocate blocks up to position `num_tokens`; return the block ids and the copies (host
        block, block) for tokens beyond the first `cached_tokens`, which come from the prefix index.

        Mutates: nothing if it returns None
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
        counts = [
            len(hosts) if is_cross else count
            for hosts, is_cross in zip(swapped.tables, self._is_cross, strict=True)
        ]
        num_fresh = sum(n - len(table) for n, table in zip(counts, tables, strict=True))
        if not self._can_own(owned, num_fresh):
            return None
        self._pool.share(owned)
        copies = []
        last = -(-num_kept // self._block_tokens)
        for group, (table, hosts) in enumerate(zip(tables, swapped.tables, strict=True)):
            first = len(table)
            table.extend(self._pool.take(counts[group] - first))
            indices = range(first, counts[group] if self._is_cross[group] else last)
            copies += [(_host_block(hosts[i]), table[i]) for i in indices]
        holding = self._holdings[request.request_id] = _Holding(tables, num_cached)
        holding.num_blocks, holding.num_dropped = count, num_dropped
        self.host.drop(request.request_id)
        if swapped.load is None:
            self.num_swapped_in_tokens += num_kept - cached_tokens
        else:
            self._count_loaded(request, num_kept, cached_tokens)
        return tuple(map(tuple, tables)), tuple(copies)

    def _count_loaded(self, request: RequestState, num_kept: int, num_cached: int) -> None:
        self.num_queried_tokens += request.num_tokens
        self.num_hit_tokens += num_cached
        self.num_loaded_tokens += num_kept - num_cached

    def free(self, request: RequestState, *, forget: bool = False) -> None:
        """Free all blocks, last ones first, so that the start of a prefix stays cached longest.

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
                key = self._pool.key_of(block)
                if key is not None:
                    self._tell_suspect(*key)
                self._pool.forget(block)
        growing: list[list[int]] = []
        cross: list[list[int]] = []
        for table, is_cross in zip(holding.tables, self._is_cross, strict=True):
            (cross if is_cross else growing).append(table)
        for blocks in zip(*map(reversed, growing), strict=True):
            self._pool.release(blocks)
        for table in cross:
            self._pool.release(table)

    def forget_all(self) -> None:
        """Invalidate all cached prefixes (weights or adapters changed)."""
        self._pins.clear()
        self._pool.forget_all()
        for watcher in self._watchers:
            watcher.cleared()

    def rekey(self, hash_key: bytes) -> None:
        """Hash with another key from now on. Mutates: self"""
        sizes = (self._block_tokens, self._hash_tokens)
        self._hasher = PrefixHasher(self._hash_algorithm, hash_key, *sizes)

    def _tell_suspect(self, group: int, prefix_hash: bytes) -> None:
        for watcher in self._watchers:
            watcher.suspected(group, prefix_hash)

    def check_invariants(self) -> None:
        """Raise AssertionError if blocks are lost, used twice or counted wrongly.

        O(num_blocks); runs when the engine goes idle, and every step in tests.
        """
        self._pool.check_invariants()
        self.host.check_invariants()
        owners: Counter[int] = Counter()
        for request_id, holding in self._holdings.items():
            lengths = {
                len(table)
                for table, is_cross in zip(holding.tables, self._is_cross, strict=True)
                if not is_cross
            }
            assert lengths <= {holding.num_blocks}, f"{request_id}: tables differ in length"
            for table in holding.tables:
                owners.update(block for block in table if block != NULL_BLOCK)
            self._check_private_blocks(request_id, holding)
            assert self.host.find(request_id) is None, f"{request_id} has blocks in both places"
        for block in range(1, self.layout.num_blocks):
            wanted = owners[block] + (block in self._pins)
            assert self._pool.refs(block) == wanted, f"block {block}: wrong owner count"

    def _check_private_blocks(self, request_id: str, holding: _Holding) -> None:
        """Check that blocks that are still being written have a single owner."""
        for table, is_cross in zip(holding.tables, self._is_cross, strict=True):
            for block in islice(table, 0 if is_cross else holding.num_committed, None):
                if block == NULL_BLOCK:  # outside the window, after a swap-in
                    continue
                refs = self._pool.refs(block) - (block in self._pins)
                assert refs == 1, f"{request_id}: unfinished block {block} shared"


def _is_there(num_cached: int, has: Callable[[bytes], bool], hashes: Hashes, index: int) -> bool:
    return index < num_cached or has(hashes[index])


def _host_block(host: int | None) -> int:
    assert host is not None, "a block within the window has no copy on the host"
    return host


def _num_leading_nulls(table: Sequence[int]) -> int:
    for i, block in enumerate(table):
        if block != NULL_BLOCK:
            return i
    return len(table)
