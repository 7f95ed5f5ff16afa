"""BlockPool: owners of KV blocks, and the prefix index of used and free blocks.

Contains only numbers: block ids, reference counts, and an index from (group, prefix hash) to block;
no requests or tokens. Block 0 is the null block: it is never allocated, and fills block-table
entries without a block. Free blocks form an intrusive doubly linked list (`_next`, `_prev` over
block ids, with 0 as the sentinel); blocks are taken from its head. A block with a hash is freed to
the tail, so the least recently used prefix is evicted first. A block without one goes to the head,
since reusing it loses nothing. Every operation is O(1) per block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

NULL_BLOCK = 0

Forgotten = Callable[[int, bytes], None]
"""Called with the group and the hash of a prefix that was evicted."""


class BlockPool:
    """Blocks 1 .. num_blocks - 1 of one KV layout with `num_groups` groups."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self._next = [*range(1, num_blocks), 0]
        self._prev = [num_blocks - 1, *range(num_blocks - 1)]
        self._refs = [0] * num_blocks
        self._key_of: list[tuple[int, bytes] | None] = [None] * num_blocks
        self._index: list[dict[bytes, int]] = [{} for _ in range(num_groups)]
        self.on_forget: Forgotten | None = None

    def find(self, group: int, prefix_hash: bytes) -> int:
        """Return the block with this prefix in this group, or the null block."""
        return self._index[group].get(prefix_hash, NULL_BLOCK)

    def num_leading(self, hashes: Sequence[bytes], limit: int) -> int:
        """Return how many of the first `limit` prefixes have blocks in group 0, without a gap."""
        index = self._index[0]
        for count in range(limit):
            if hashes[count] not in index:
                return count
        return limit

    def refs(self, block: int) -> int:
        """Return how many requests own a block."""
        return self._refs[block]

    def take(self, count: int) -> list[int]:
        """Return `count` newly owned blocks; their old prefixes are evicted.

        The caller has checked `num_free`.
        """
        assert count <= self.num_free, "more blocks were taken than are free"
        taken = []
        for _ in range(count):
            block = self._next[NULL_BLOCK]
            self._unlink(block)
            if self._key_of[block] is not None:
                self.forget(block)
            self._refs[block] = 1
            taken.append(block)
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Add an owner to each block; free blocks leave the free list."""
        for block in blocks:
            if self._refs[block] == 0:
                self._unlink(block)
            self._refs[block] += 1

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks are free."""
        return sum(1 for block in blocks if self._refs[block] == 0)

    def release(self, blocks: Iterable[int]) -> None:
        """Remove an owner from each block, in this order; null blocks are skipped."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            refs = self._refs[block] - 1
            assert refs >= 0, f"block {block} was released twice"
            self._refs[block] = refs
            if refs == 0:
                self._link(block)

    def publish(self, group: int, block: int, prefix_hash: bytes) -> bool:
        """Make an owned block findable; return whether its prefix is new. If another block has this
        hash, it stays if owned; a free one is replaced, since it will be evicted sooner."""
        if self._key_of[block] is not None:
            return False
        other = self.find(group, prefix_hash)
        if other != NULL_BLOCK:
            if self._refs[other]:
                return False
            self._key_of[other] = None
        self._index[group][prefix_hash] = block
        self._key_of[block] = (group, prefix_hash)
        return other == NULL_BLOCK

    def key_of(self, block: int) -> tuple[int, bytes] | None:
        """Return the group and the hash in a block's index entry, or None."""
        return self._key_of[block]

    def forget(self, block: int) -> None:
        """Remove a block from the prefix index, even if it is in use."""
        key = self._key_of[block]
        if key is not None:
            del self._index[key[0]][key[1]]
            self._key_of[block] = None
            if self.on_forget is not None:
                self.on_forget(*key)

    def forget_all(self) -> None:
        """Clear the prefix index. `on_forget` is not called."""
        self._key_of = [None] * self.num_blocks
        for index in self._index:
            index.clear()

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.num_free -= 1

    def _link(self, block: int) -> None:
        """Put a block at the tail of the free list, or at the head if it has no prefix."""
        has_prefix = self._key_of[block] is not None
        before = self._prev[NULL_BLOCK] if has_prefix else NULL_BLOCK
        after = self._next[before]
        self._next[before] = self._prev[after] = block
        self._prev[block] = before
        self._next[block] = after
        self.num_free += 1

    def check_invariants(self) -> None:
        """Raise AssertionError if list, counts and index disagree. O(num_blocks)."""
        free = self._free_blocks()
        assert len(free) == self.num_free, "num_free differs from the free list"
        assert self._refs[NULL_BLOCK] == 0, "the null block is owned"
        unowned = {block for block in range(1, self.num_blocks) if self._refs[block] == 0}
        assert unowned == set(free), "the free list is not the set of blocks without an owner"
        keys = {block: key for block, key in enumerate(self._key_of) if key is not None}
        indexed = {
            block: (g, h) for g, index in enumerate(self._index) for h, block in index.items()
        }
        assert keys == indexed, "the prefix index and the blocks' own hashes differ"
        assert NULL_BLOCK not in keys, "the null block is findable"

    def _free_blocks(self) -> list[int]:
        """Return the free list from head to tail."""
        free = []
        before, block = NULL_BLOCK, self._next[NULL_BLOCK]
        while block != NULL_BLOCK:
            assert self._prev[block] == before, f"the links of block {block} differ"
            free.append(block)
            assert len(free) < self.num_blocks, "the free list has a cycle"
            before, block = block, self._next[block]
        assert self._prev[NULL_BLOCK] == before, "the tail of the free list is not its end"
        return free
