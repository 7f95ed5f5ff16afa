"""Characters as bytes: sets of code points become sequences of sets of bytes. Source: RFC 3629."""

from __future__ import annotations

from collections.abc import Iterator

from dovetail_grammars.regex import Cat, Chars, Many, Node, Or

_LAST_OF_SIZE = (0x7F, 0x7FF, 0xFFFF, 0x10FFFF)


def in_bytes(node: Node) -> Node:
    """Return a tree over bytes (code points 0 to 255) for the same texts as one over characters."""
    match node:
        case Chars(ranges):
            if ranges[-1][1] < 128:
                return node
            plain = tuple((a, min(b, 127)) for a, b in ranges if a < 128)
            longer = [seq for a, b in ranges if b > 127 for seq in _sequences(max(a, 128), b)]
            runs: list[Node] = [Cat(tuple(Chars((pair,)) for pair in seq)) for seq in longer]
            return Or(tuple([Chars(plain), *runs] if plain else runs))
        case Cat(parts):
            return Cat(tuple(map(in_bytes, parts)))
        case Or(parts):
            return Or(tuple(map(in_bytes, parts)))
        case Many(part, minimum, maximum):
            return Many(in_bytes(part), minimum, maximum)
    return node


def _sequences(first: int, last: int) -> Iterator[list[tuple[int, int]]]:
    """Yield sequences of byte ranges that together cover the code points from `first` to `last`."""
    for limit in _LAST_OF_SIZE:
        if first <= limit < last:
            yield from _sequences(first, limit)
            yield from _sequences(limit + 1, last)
            return
    low, high = chr(first).encode(), chr(last).encode()
    for tail in range(1, len(low)):
        mask = (1 << 6 * tail) - 1
        if first & ~mask != last & ~mask:
            if first & mask:
                yield from _sequences(first, first | mask)
                yield from _sequences((first | mask) + 1, last)
                return
            if last & mask != mask:
                yield from _sequences(first, (last & ~mask) - 1)
                yield from _sequences(last & ~mask, last)
                return
    yield list(zip(low, high, strict=True))
