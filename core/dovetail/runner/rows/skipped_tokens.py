"""DrawnAlone: skips tokens in layers that share the keys and values of other layers.

Such layers write no cache. So their output for a prompt token is needed only if something is drawn
after it. Independent of models: those with the capability leaves_out_tokens do this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.model import Model
from dovetail.layers.context import DrawnTokens

CAPABILITY = "leaves_out_tokens"
NO_TOKENS = np.zeros(0, dtype=np.int64)
"""The selection of tokens in a step that draws nothing."""

Prepare = Callable[[Sequence[BatchLayout]], Mapping[str, Any]]
"""Prepares the layouts of all groups for a backend."""


def may_leave_out(run: RunSpec, model: Model) -> bool:
    """Return whether steps may skip tokens: it is enabled, the model can, nobody reads the hidden
    states of other tokens, and ranks need not compute equal numbers."""
    reads_all = run.pooling is not None or run.drafts is not None or run.rank.data_size > 1
    is_last = run.rank.is_last_stage
    return run.leaves_out_tokens and CAPABILITY in model.capabilities and is_last and not reads_all


def drawn_alone(layouts: Sequence[BatchLayout], after: np.ndarray, prepare: Prepare) -> DrawnTokens:
    """Return the tokens after which something is drawn, as rows of one token each.

    Shapes: after [S] token indices, each the last of a row of the layouts
    """
    device = layouts[0].block_table.device
    tokens = torch.from_numpy(after).to(device, non_blocking=True)
    if not len(after):
        return DrawnTokens(tokens=tokens, prepared={})
    ends = np.asarray(layouts[0].query_start_host[1:]) - 1
    rows = np.searchsorted(ends, after)
    assert (ends[rows] == after).all(), "something is drawn after a token within a row"
    own = [_last_tokens(layout, rows) for layout in layouts]
    return DrawnTokens(tokens=tokens, prepared=prepare(own))


def _last_tokens(layout: BatchLayout, rows: np.ndarray) -> BatchLayout:
    """Return a layout of the last tokens of some rows that writes nothing. Shapes: rows [S]"""
    device, count = layout.block_table.device, len(rows)
    index = torch.from_numpy(rows).to(device, non_blocking=True)
    lens = [layout.seq_lens_host[row] for row in rows.tolist()]
    return BatchLayout(
        query_start=torch.arange(count + 1, dtype=torch.int32, device=device),
        seq_lens=layout.seq_lens[index],
        block_table=layout.block_table[index],
        slots=layout.slots[:0],
        query_start_host=list(range(count + 1)),
        seq_lens_host=lens,
        block_tokens=layout.block_tokens,
        max_query_tokens=1,
        max_seq_tokens=max(lens),
    )
