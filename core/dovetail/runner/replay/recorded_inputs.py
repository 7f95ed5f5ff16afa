"""RecordedInputs: a step's inputs at fixed addresses, for recorded calls to read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from dovetail.interfaces.attention import BatchLayout
from dovetail.interfaces.data.step import NO_SLOT
from dovetail.layers.context import StepAdapters
from dovetail.runner.rows.batch import StepInputs
from dovetail.runner.rows.block_table import BlockTable


class RecordedInputs(ABC):
    """Room for the tokens and rows of one step."""

    def __init__(self, tables: Sequence[BlockTable], max_rows: int, max_tokens: int) -> None:
        self._tables = tables
        self._token_ids = np.zeros(max_tokens, dtype=np.int64)
        self._positions = np.zeros(max_tokens, dtype=np.int64)
        self._adapters = np.zeros(max_tokens, dtype=np.int32)
        self._seq_lens = [np.zeros(max_rows, dtype=np.int32) for _ in tables]
        self._starts = np.zeros(max_rows + 1, dtype=np.int32)
        self._blocks = [np.zeros((max_rows, t.ids.shape[1]), dtype=np.int32) for t in tables]
        self._slots = [np.zeros(max_tokens, dtype=np.int64) for _ in tables]

    @abstractmethod
    def fits(self, inputs: StepInputs) -> bool:
        """Return whether a step is of the recorded kind, whatever its number of tokens."""

    @abstractmethod
    def second_text(self, num_tokens: int) -> torch.Tensor | None:
        """Return the marks of second-text tokens, if steps may have them. Shapes: [T]"""

    @abstractmethod
    def num_rows(self, num_tokens: int) -> int:
        """Return the number of rows of all steps with this many tokens."""

    def fill(self, inputs: StepInputs, second_text: torch.Tensor | None) -> None:
        """Write a step's inputs to their buffers. Shapes: second_text [T]. Mutates: self"""
        count = len(inputs.token_ids)
        self._token_ids[:count] = inputs.token_ids
        self._positions[:count] = inputs.told_positions
        if inputs.adapters is not None:
            self._adapters[:count] = inputs.adapters
        for group, table in enumerate(self._tables):
            rows, lens = self._seen(inputs, table)
            written = inputs.slots_in(table)
            gathered = table.gather(rows, int(lens.max()))
            self._seq_lens[group][: len(rows)] = lens
            self._blocks[group][: len(rows), : gathered.shape[1]] = gathered
            self._slots[group][: len(written)] = written

    def _seen(self, inputs: StepInputs, table: BlockTable) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, and how much of a table's blocks each sees. Shapes: [R] twice"""
        return inputs.rows, inputs.lens_in(table)

    def pad(self, count: int, size: int) -> None:
        """Pad from `count` tokens to `size`, each a row of one token in the null block.
        Mutates: self"""
        rows = self.num_rows(count)
        end = rows + size - count
        self._token_ids[count:size] = self._positions[count:size] = 0
        self._adapters[count:size] = NO_SLOT
        for group in range(len(self._tables)):
            self._seq_lens[group][rows:end] = 1
            self._blocks[group][rows:end, 0] = 0
            self._slots[group][count:size] = 0

    def tokens(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the buffers of token ids and positions. Shapes: [T]"""
        token_ids = torch.from_numpy(self._token_ids)[:num_tokens]
        return token_ids, torch.from_numpy(self._positions)[:num_tokens]

    def adapters(self, num_tokens: int) -> StepAdapters:
        """Return the buffer of the tokens' adapter slots."""
        return StepAdapters(slots=torch.from_numpy(self._adapters)[:num_tokens])

    def layouts(self, num_tokens: int) -> list[BatchLayout]:
        """Return layouts over the buffers, one per table. Their host fields are this step's."""
        rows = self.num_rows(num_tokens)
        starts, lens = self._starts[: rows + 1], [own[:rows] for own in self._seq_lens]
        return [
            BatchLayout(
                query_start=torch.from_numpy(starts),
                seq_lens=torch.from_numpy(lens[group]),
                block_table=torch.from_numpy(self._blocks[group])[:rows],
                slots=torch.from_numpy(self._slots[group])[: 0 if table.is_cross else num_tokens],
                query_start_host=starts.tolist(),
                seq_lens_host=lens[group].tolist(),
                block_tokens=table.block_tokens,
                max_query_tokens=int(np.diff(starts).max()),
                max_seq_tokens=int(lens[group].max()),
            )
            for group, table in enumerate(self._tables)
        ]


class RowInputs(RecordedInputs):
    """Steps in which every row computes one token; each draft takes a row. With `shares_rows`
    drafts are further queries of their own row; the rows they would take are empty."""

    def __init__(
        self, tables: Sequence[BlockTable], max_rows: int, *, shares_rows: bool = False
    ) -> None:
        super().__init__(tables, max_rows, max_rows)
        self._shares_rows = shares_rows
        self._alone = np.arange(max_rows + 1, dtype=np.int32)
        self._starts[:] = self._alone
        self._are_alone = True

    def fits(self, inputs: StepInputs) -> bool:
        """Return whether every row has one token, or its last known one and drafts."""
        is_drafted = inputs.is_decoding and inputs.cross is None
        return is_drafted or len(inputs.rows) == len(inputs.token_ids)

    def fill(self, inputs: StepInputs, second_text: torch.Tensor | None) -> None:
        """Write a step's inputs; rows past the last one have no tokens. Mutates: self"""
        super().fill(inputs, second_text)
        rows, count = len(inputs.rows), len(inputs.token_ids)
        if not self._shares_rows or (self._are_alone and rows == count):
            return
        self._are_alone = rows == count
        self._starts[: rows + 1] = inputs.query_start
        self._starts[rows + 1 : count + 1] = count
        self._starts[count + 1 :] = self._alone[count + 1 :]
        for lens in self._seq_lens:
            lens[rows:count] = 0

    def _seen(self, inputs: StepInputs, table: BlockTable) -> tuple[np.ndarray, np.ndarray]:
        """Return a row for each token, which sees the tokens before it, unless drafts share their
        row. Shapes: [R] twice, R the number of tokens or of rows"""
        if table.is_cross or self._shares_rows or len(inputs.rows) == len(inputs.token_ids):
            return super()._seen(inputs, table)
        return inputs.token_rows, inputs.positions + 1

    def second_text(self, num_tokens: int) -> None:
        """Return None: no prompt is computed."""
        return

    def num_rows(self, num_tokens: int) -> int:
        """Return a row for each token."""
        return num_tokens


class PromptInputs(RecordedInputs):
    """Steps of a few prompts. They always have the maximum rows, and missing ones are empty, so
    that the calls do not depend on where prompts begin and end."""

    def __init__(self, tables: Sequence[BlockTable], max_rows: int, max_tokens: int) -> None:
        super().__init__(tables, max_rows, max_tokens)
        self._second_text = np.zeros(max_tokens, dtype=np.int64)
        self._max_rows = max_rows

    def fits(self, inputs: StepInputs) -> bool:
        """Return whether there is a row for every prompt."""
        return len(inputs.rows) <= self._max_rows

    def second_text(self, num_tokens: int) -> torch.Tensor:
        """Return the buffer of marks: zeros if no prompt has two texts. Shapes: [T]"""
        return torch.from_numpy(self._second_text)[:num_tokens]

    def num_rows(self, num_tokens: int) -> int:
        """Return the maximum number of rows."""
        return self._max_rows

    def fill(self, inputs: StepInputs, second_text: torch.Tensor | None) -> None:
        """Write a step's inputs; rows past the last one are empty. Mutates: self"""
        super().fill(inputs, second_text)
        count, rows = len(inputs.token_ids), len(inputs.rows)
        self._starts[: rows + 1] = inputs.query_start
        self._starts[rows + 1 :] = count
        for lens in self._seq_lens:
            lens[rows:] = 0
        self._second_text[:count] = 0 if second_text is None else second_text.numpy()
