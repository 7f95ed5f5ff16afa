"""MaskedGuesses: the drafts of drafters that guess all places in one pass."""

from __future__ import annotations

import numpy as np
import torch

from dovetail.interfaces.drafter import MaskedBlock, WorkerDrafter
from dovetail.runner.drafts.passes import DraftPasses, lines_of
from dovetail.runner.drafts.sampled import SampledDrafts, chosen
from dovetail.runner.rows.batch import Batch


class MaskedGuesses:
    """Runs a drafter over one masked block per row. With `sampled`, drafts are sampled."""

    def __init__(
        self,
        block: MaskedBlock,
        drafter: WorkerDrafter,
        passes: DraftPasses,
        batch: Batch,
        sampled: SampledDrafts | None,
    ) -> None:
        self._block = block
        self._drafter = drafter
        self._passes = passes
        self._batch = batch
        self._sampled = sampled

    def guess(
        self, rows: np.ndarray, starts: np.ndarray, wants: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the drafts of each row, and how many there are: fewer than wanted where the row's
        KV blocks end. `starts` are the positions of the last known tokens.

        Shapes: rows, starts, wants [R] -> [R, D], [R]. Mutates: the cache
        """
        batch, table, more = self._batch, self._batch.tables[0], 1 - self._block.guess_shift
        room = table.counts[rows] * table.block_tokens - starts - more
        wants = np.clip(room, 0, wants)
        drafts = np.zeros((len(rows), int(wants.max())), dtype=np.int64)
        sizes = np.where(wants > 0, wants + more, 1)
        states = self._passes.over_blocks(rows, starts, sizes, self._block)
        logits, firsts = self._drafter.logits(states, 1), np.cumsum(sizes) - sizes + more
        before = batch.tokens[rows, starts].astype(np.int64)
        if self._sampled is not None:
            self._sampled.begin(rows)
        for depth in range(drafts.shape[1]):
            live = np.flatnonzero(wants > depth)
            tokens = torch.from_numpy(before[live]).to(states.device)
            own, guesses = (lines_of(one, firsts[live] + depth) for one in (states, logits))
            guesses = self._drafter.after_tokens(guesses, own, tokens)
            drawn = starts[live] + 1 + depth - batch.num_prompt[rows[live]]
            before[live] = chosen(self._sampled, guesses, rows[live], drawn)
            drafts[live, depth] = before[live]
        return drafts, wants
