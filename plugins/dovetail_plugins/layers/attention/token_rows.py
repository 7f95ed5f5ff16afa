"""Each token of a step as a row, for attention that picks keys for each."""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.interfaces.attention import BatchLayout


def tokens_of(layout: BatchLayout) -> tuple[list[int], list[int]]:
    """Return for each token of a step its row, and how many tokens it sees."""
    rows: list[int] = []
    counts: list[int] = []
    starts = layout.query_start_host
    for row, end in enumerate(layout.seq_lens_host):
        count = starts[row + 1] - starts[row]
        rows += [row] * count
        counts += range(end - count + 1, end + 1)
    return rows, counts


def alone_rows(
    layout: BatchLayout, tokens: torch.Tensor, rows: list[int], lengths: list[int]
) -> BatchLayout:
    """Return a layout of some tokens, each a row that sees as many as `lengths` says. Shapes:
    tokens [T]"""
    device = layout.slots.device
    return replace(
        layout,
        query_start=torch.arange(len(rows) + 1, dtype=torch.int32, device=device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        block_table=layout.block_table[torch.tensor(rows, device=device)],
        slots=layout.slots[tokens],
        query_start_host=list(range(len(rows) + 1)),
        seq_lens_host=lengths,
        max_query_tokens=1,
        max_seq_tokens=max(lengths, default=0),
    )
