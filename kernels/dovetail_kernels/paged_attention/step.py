"""PagedStep: the rows of one step over one block table, in a native kernel's argument struct."""

from __future__ import annotations

import ctypes
from typing import ClassVar

import torch

from dovetail_kernels.cpu.library import Library, needed_library


class PagedStep:
    """A step's rows, ready for the calls of its layers, which set few fields.

    Shapes: block_table [R, B], query_start [R + 1], seq_lens [R], all int32; slots [W] int64, or
    None to write nothing
    """

    kernel: ClassVar[str]
    args: ClassVar[type[ctypes.Structure]]

    def __init__(
        self,
        *,
        block_table: torch.Tensor,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        slots: torch.Tensor | None,
        block_tokens: int,
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        # The struct holds addresses, so the tensors must live as long as it does.
        self._kept = (block_table.contiguous(), query_start, seq_lens, slots)
        self._kernel = native.kernel(self.kernel, self.args)
        self._args = self.args(
            block_table=self._kept[0].data_ptr(),
            query_start=query_start.data_ptr(),
            seq_lens=seq_lens.data_ptr(),
            slots=None if slots is None else slots.data_ptr(),
            table_stride=block_table.shape[1],
            rows=len(seq_lens),
            block_tokens=block_tokens,
        )
        self._reference = ctypes.byref(self._args)
