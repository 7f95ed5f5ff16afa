"""DraftStates: recurrent states of rows with drafts, so that a rejected draft leaves no trace.

A row with drafts stores the state after its known token in its usual block. The state after each
draft goes to a block of its own: one of the layout's draft blocks, which no request owns. For a
recurrent layer such a row has blocks of one token (see dovetail_kernels.states). Once the drafts
are verified, the state after the last accepted one is copied to the row's block, and so are states
at block boundaries before it. The result is what single steps would have left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.step import KVLayout
from dovetail.layers.context import LayerCache
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.block_table import BlockTable
from dovetail.runner.rows.layer_groups import LayerGroups, state_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drafted:
    """A row of the running step with drafts: its index, the position of its known token, and the
    draft blocks per state group, one for each draft."""

    index: int
    row: int
    start: int
    blocks: Mapping[int, Sequence[int]]


class DraftStates:
    """The draft blocks of a layout, assigned afresh in each step."""

    def __init__(
        self,
        layout: KVLayout,
        groups: LayerGroups,
        tables: Sequence[BlockTable],
        caches: Mapping[str, LayerCache],
    ) -> None:
        self._tables = {group: tables[group] for group in sorted(set(groups.states.values()))}
        self._parts = state_parts(groups, caches)
        self._first, self._count = layout.num_blocks, layout.num_draft_blocks
        self._drafted: list[_Drafted] = []

    @property
    def are_laid(self) -> bool:
        """Return whether states of the step's drafts wait for `settle`."""
        return bool(self._drafted)

    def laid(self, inputs: StepInputs, layouts: Sequence[BatchLayout]) -> Sequence[BatchLayout]:
        """Return a step's layouts; in a step with drafts the state groups get layouts that use
        draft blocks. Mutates: self, which remembers the step's drafts until `settle`"""
        if not self._tables or not inputs.drafted:
            return layouts
        self._drafted = self._handed_out(inputs)
        found = list(layouts)
        for group, table in self._tables.items():
            found[group] = self._laid(inputs, found[group], group, table)
        return found

    def settle(self, accepted: Mapping[int, int]) -> None:
        """Move the states after accepted drafts to the rows' blocks. `accepted` maps a row's index
        in the step to its number of accepted drafts. Mutates: the states"""
        moves: dict[int, tuple[list[int], list[int]]] = {}
        for group, table in self._tables.items():
            sources, targets = moves.setdefault(group, ([], []))
            for one in self._drafted:
                for nth in _saved_drafts(one.start, accepted.get(one.index, 0), table.block_tokens):
                    sources.append(one.blocks[group][nth])
                    place = (one.start + nth + 1) // table.block_tokens
                    targets.append(int(table.ids[one.row, place]))
        self._drafted = []
        for group, part in self._parts:
            sources, targets = moves[group]
            if sources:
                part[targets] = part[sources]

    def _handed_out(self, inputs: StepInputs) -> list[_Drafted]:
        free = iter(range(self._first, self._first + self._count))
        found = []
        for index in inputs.drafted:
            step = inputs.steps[index]
            blocks = {group: [next(free) for _ in step.drafts] for group in self._tables}
            found.append(_Drafted(index=index, row=step.row, start=step.start, blocks=blocks))
        return found

    def _laid(
        self, inputs: StepInputs, layout: BatchLayout, group: int, table: BlockTable
    ) -> BatchLayout:
        """Return the layout of a state group: rows with drafts have one block per token, and the
        block of the state before them comes first."""
        size, lengths = table.block_tokens, inputs.seq_lens
        widest = max(len(one.blocks[group]) + 2 for one in self._drafted)
        width = max(widest, -(-int(lengths.max()) // size))
        blocks = np.zeros((len(inputs.rows), width), dtype=np.int32)
        own = table.ids[inputs.rows, : min(width, table.ids.shape[1])]
        blocks[:, : own.shape[1]] = own
        sizes = np.full(len(inputs.rows), size, dtype=np.int32)
        for one in self._drafted:
            has_past = one.start > 0
            here = table.ids[one.row, one.start // size]
            past = [table.ids[one.row, (one.start - 1) // size]] if has_past else []
            line = [*past, here, *one.blocks[group]]
            blocks[one.index, : len(line)] = line
            lengths[one.index], sizes[one.index] = len(line), 1
        starts = inputs.query_start
        device = layout.query_start.device
        put = [torch.from_numpy(a.astype(np.int32)).to(device) for a in (starts, lengths, sizes)]
        return replace(
            layout,
            query_start=put[0],
            seq_lens=put[1],
            block_table=torch.from_numpy(blocks).to(device),
            row_block_tokens=put[2],
            query_start_host=starts.tolist(),
            seq_lens_host=lengths.tolist(),
            max_query_tokens=int(inputs.counts.max()),
            max_seq_tokens=int(lengths.max()),
        )


def _saved_drafts(start: int, accepted: int, block_tokens: int) -> list[int]:
    """Return the indices of accepted drafts whose state is saved: the last one, and each that ends
    a block. The known token is at position `start`; draft 0 follows it."""
    ends = ((start + 1 + nth + 1) % block_tokens == 0 for nth in range(accepted))
    return [nth for nth, is_end in enumerate(ends) if is_end or nth == accepted - 1]
