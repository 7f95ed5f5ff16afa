"""Sizes of KV caches of whole numbers: bits, steps and scales. Needs no torch.

What is stored is in `paged_attention/integers.py`.
"""

from __future__ import annotations

CELL_TOKENS = 16
GROUP = 32
SCALE_BYTES = 4
BITS = {"int8": (8, 8), "k8v4": (8, 4), "int4": (4, 4)}
"""Name of a cache's type -> bits of a key's number, and of a value's."""


def cell_bytes(bits: tuple[int, int], size: int) -> int:
    """Return the bytes of 16 keys and values of one kv head."""
    keys, values = bits
    groups = 2 * (size // GROUP) * ((keys == 4) + (values == 4))
    a_token = size * (keys + values) // 8 + groups + 2 * SCALE_BYTES
    return CELL_TOKENS * a_token + size * (keys == 4)


def stored_size(dtype: str, size: int) -> int:
    """Return the elements of a key of `size` numbers in a cache of this type; a value is counted as
    many, and 16 tokens take 32 times as many bytes, though keys and values may differ."""
    bits = BITS.get(dtype)
    return size if bits is None else cell_bytes(bits, size) // (2 * CELL_TOKENS)


def bits_of(stored_size: int, size: int) -> tuple[int, int]:
    """Return the bits of a cache of int8 by the elements that a key of `size` numbers takes."""
    for bits in BITS.values():
        if cell_bytes(bits, size) == 2 * CELL_TOKENS * stored_size:
            return bits
    raise AssertionError(f"a key of {size} numbers does not take {stored_size} bytes")


def size_fault(dtype: str, size: int) -> list[str]:
    """Return why a cache of this type cannot hold heads of `size` numbers, if it cannot."""
    if dtype not in BITS or BITS[dtype] == (8, 8) or not size % GROUP:
        return []
    return [f"{dtype} needs a head size in multiples of {GROUP}, it is {size}"]
