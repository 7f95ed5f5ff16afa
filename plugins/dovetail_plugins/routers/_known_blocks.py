"""KnownBlocks: which blocks of tokens engines have reported as cached. Knows no loads.

Engines name blocks by their own hashes; here a block is identified by its tokens and its prefix, so
one lookup finds a prompt in several engines. Reports of a block with an unreported parent, another
block size or an adapter are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dovetail.interfaces.kv_event_publisher import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Event,
)


class _Block:
    """A block of tokens after its `parent`. `engines` are those that have it, as bits; `counts` say
    under how many hashes each has it, because prefixes with several salts look alike."""

    __slots__ = ("after", "counts", "engines", "parent", "tokens")

    def __init__(self, parent: _Block | None, tokens: tuple[int, ...]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.after: dict[tuple[int, ...], _Block] = {}
        self.counts: dict[int, int] = {}
        self.engines = 0


class KnownBlocks:
    """Blocks of `block_tokens` tokens that engines have reported."""

    def __init__(self, num_engines: int, block_tokens: int) -> None:
        self._size = block_tokens
        self._root = _Block(None, ())
        self._named: list[dict[int, _Block]] = [{} for _ in range(num_engines)]
        self._all = (1 << num_engines) - 1
        self.informed = 0
        """The engines that have reported all their blocks, as bits."""

    def __len__(self) -> int:
        return sum(map(len, self._named))

    def take(self, engine: int, events: Iterable[Event]) -> None:
        """Process an engine's events. Mutates: self"""
        for event in events:
            match event:
                case AllBlocksCleared():
                    self.forget(engine)
                    self.informed |= 1 << engine
                case BlockStored():
                    self._store(engine, event)
                case BlockRemoved(block_hashes=hashes):
                    for own in hashes:
                        self._remove(engine, own)

    def forget(self, engine: int) -> None:
        """Forget an engine's blocks. Mutates: self"""
        self.informed &= ~(1 << engine)
        for own in list(self._named[engine]):
            self._remove(engine, own)

    def _store(self, engine: int, event: BlockStored) -> None:
        named, size = self._named[engine], self._size
        block = self._root
        if event.parent_block_hash is not None:
            found = named.get(event.parent_block_hash)
            if found is None:
                return
            block = found
        if event.block_size != size or event.lora_name is not None:
            return
        for place, own in enumerate(event.block_hashes):
            tokens = event.token_ids[place * size : (place + 1) * size]
            parent, after = block, block.after.get(tokens)
            block = after if after is not None else _Block(parent, tokens)
            parent.after[tokens] = block
            if own not in named:
                named[own] = block
                block.counts[engine] = block.counts.get(engine, 0) + 1
                block.engines |= 1 << engine

    def _remove(self, engine: int, own: int) -> None:
        block: _Block | None = self._named[engine].pop(own, None)
        if block is None:
            return
        block.counts[engine] -= 1
        if block.counts[engine]:
            return
        del block.counts[engine]
        block.engines &= ~(1 << engine)
        while block is not None and block.parent is not None and not (block.counts or block.after):
            del block.parent.after[block.tokens]
            block = block.parent

    def found(self, prompt_ids: Sequence[int]) -> list[tuple[int, int]]:
        """Return (tokens, engines as bits with exactly that many cached), longest first. The last
        token always has to be computed, so it belongs to no block."""
        size, block, having = self._size, self._root, self._all
        levels: list[tuple[int, int]] = []
        for start in range(0, (len(prompt_ids) - 1) // size * size, size):
            after = block.after.get(tuple(prompt_ids[start : start + size]))
            still = 0 if after is None else having & after.engines
            if start and still != having:
                levels.append((start, having & ~still))
            if after is None or not still:
                having = 0
                break
            block, having = after, still
        else:
            levels.append(((len(prompt_ids) - 1) // size * size, having))
        levels.reverse()
        return [(tokens, engines) for tokens, engines in levels if tokens and engines]
