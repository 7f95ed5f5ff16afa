"""FileCopies: copies matrices out of a file that is read one piece at a time.

A piece is copied while it is in a core's cache, and the file as a whole needs no memory.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from dovetail.interfaces.adapter import AdapterContent
from dovetail_kernels.scaled_copy.native import ScaledCopies

PIECE_BYTES = 1 << 19
"""Size of a piece (a larger matrix is one piece): it fits a core's cache along with its copy."""


class FileCopies:
    """Copies whose sources are within a file's bytes, in file order. They can run again on another
    file of the same size. `copies` are the native calls' arguments; `content_bytes` is the file's
    length."""

    def __init__(self, copies: ScaledCopies, content: AdapterContent) -> None:
        self.copies = copies
        self.content_bytes = len(content.memory)
        self._numbers = copies.sort()
        self._address = content.memory.data_ptr()
        starts = (copies.places[:, 0] - self._address).tolist()
        ends = np.maximum.accumulate(copies.source_ends() - self._address).tolist()
        self._pieces: list[tuple[slice, int, int]] = []
        first = 0
        while first < len(starts):
            last = max(bisect_right(ends, starts[first] + PIECE_BYTES, lo=first), first + 1)
            self._pieces.append((slice(first, last), starts[first], ends[last - 1]))
            first = last
        sizes = (end - start for _, start, end in self._pieces)
        self._longest = max(sizes, default=0)

    @classmethod
    def of(cls, copies: ScaledCopies, content: AdapterContent) -> FileCopies | None:
        """Return copies out of a file, or None if a source is outside it. Mutates: copies, whose
        order changes"""
        sources, start = copies.places[:, 0], content.memory.data_ptr()
        if (
            not len(sources)
            or sources.min() < start
            or sources.max() >= start + len(content.memory)
        ):
            return None
        return cls(copies, content)

    def carry_out(self, content: AdapterContent, target_shift: int = 0) -> int:
        """Copy to targets shifted by `target_shift` bytes. Return the index of a matrix that is not
        finite, or -1. Raises: ConfigError if the file was truncated. Mutates: the targets'
        memory"""
        if content.is_read:
            found = self.copies(content.memory.data_ptr() - self._address, target_shift)
            return found if found < 0 else int(self._numbers[found])
        piece = np.empty(self._longest, dtype=np.uint8)
        place = piece.ctypes.data - self._address
        for chosen, start, end in self._pieces:
            content.read_piece(start, piece[: end - start].data)
            found = self.copies(place - start, target_shift, chosen)
            if found >= 0:
                return int(self._numbers[chosen.start + found])
        return -1
