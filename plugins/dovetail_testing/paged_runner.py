"""PagedRunner: a runner without a model that remembers the content of every KV block.

Each cache cell holds a mark that represents all tokens up to its position (and the request's prefix
keys), per KV group. Every position that attention would read is compared with the mark it should
hold, so a lost, doubly used or wrongly shared block shows in the step where it would hurt. Sampled
tokens depend only on the request's seed and the output position. Drafts leave their marks in the
cache whether they come true or not, as a real forward pass would.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.step import (
    KVLayout,
    NewRow,
    RowResult,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
)


def drawn_token(seed: int, position: int, vocab_size: int) -> int:
    """Return the token that every run draws as output number `position` under this seed."""
    return hash((seed, position, 0x5EED)) % vocab_size


class _Row:
    """One row as the runner keeps it: tokens, their marks per group, block tables."""

    __slots__ = ("fault", "marks", "new", "num_computed", "tables", "token_ids")

    def __init__(self, new: NewRow, root: Hashable, num_groups: int) -> None:
        self.new = new
        self.fault: str | None = None
        self.token_ids: list[int] = []
        self.num_computed = new.num_computed_tokens
        self.tables = [list(blocks) for blocks in new.blocks]
        self.marks: list[list[int]] = [[] for _ in range(num_groups)]
        for token_id in new.token_ids:
            self.append(token_id, root)

    def append(self, token_id: int, root: Hashable = None) -> None:
        """Add a token and its mark in each group."""
        self.token_ids.append(token_id)
        for group, marks in enumerate(self.marks):
            marks.append(hash((marks[-1] if marks else root, token_id, group)))

    def cut(self, num_tokens: int) -> None:
        """Forget all tokens but the first ones; none of those left out counts as computed."""
        for values in (self.token_ids, *self.marks):
            del values[num_tokens:]
        self.num_computed = min(self.num_computed, num_tokens)


class PagedRunner:
    """Runs plans immediately, in order. Raises AssertionError on the first plan that breaks a rule.

    `root_of` returns the dependencies of a request's cached content besides tokens; `faulty` says
    whether the next sampled token of a request is to be a fault.
    """

    def __init__(
        self,
        layout: KVLayout,
        schedule: ScheduleSpec,
        *,
        root_of: Callable[[str], Hashable],
        faulty: Callable[[str], bool] = lambda request_id: False,
        vocab_size: int = 50,
    ) -> None:
        self._layout = layout
        self._schedule = schedule
        self._root_of = root_of
        self._faulty = faulty
        self._vocab_size = vocab_size
        self._rows: dict[int, _Row] = {}
        self._memory = [[0] * layout.block_tokens for _ in range(layout.num_blocks)]
        self._host = [[0] * layout.block_tokens for _ in range(layout.num_host_blocks)]

    @property
    def num_rows(self) -> int:
        """Return how many rows are taken."""
        return len(self._rows)

    def run(self, plan: StepPlan) -> StepResult:
        """Return the plan's result, after checking the plan and every read it makes."""
        self._check_limits(plan)
        self._swap(plan)
        for row in plan.freed_rows:
            assert row in self._rows, f"row {row} is freed but was never taken"
            del self._rows[row]
        for new in plan.new_rows:
            self._take(new)
        for step in plan.rows:
            self._write(step)
        for step in plan.rows:
            self._check_reads(step)
        return StepResult(step_id=plan.step_id, rows=tuple(self._answer(s) for s in plan.rows))

    def _swap(self, plan: StepPlan) -> None:
        """Copy blocks to the host, then others from there. Mutates: memory"""
        assert plan.rows or not (plan.swapped_out or plan.swapped_in), "copies without rows"
        outs, ins = [{to for _, to in pairs} for pairs in (plan.swapped_out, plan.swapped_in)]
        assert len(outs) == len(plan.swapped_out), "two blocks go to one host block"
        assert len(ins) == len(plan.swapped_in) and 0 not in ins, "a block is filled twice"
        for block, host in plan.swapped_out:
            self._host[host] = list(self._memory[block])
        for host, block in plan.swapped_in:
            self._memory[block] = list(self._host[host])

    def _check_limits(self, plan: StepPlan) -> None:
        limit = self._schedule.max_step_tokens
        assert plan.num_tokens <= limit, f"{plan.num_tokens} tokens planned, {limit} allowed"
        numbers = [step.row for step in plan.rows]
        assert len(set(numbers)) == len(numbers), f"a row appears twice in {numbers}"

    def _take(self, new: NewRow) -> None:
        assert 0 <= new.row < self._schedule.max_rows, f"row {new.row} does not exist"
        assert new.row not in self._rows, f"row {new.row} is already taken"
        num_groups = len(self._layout.groups)
        assert len(new.blocks) == num_groups, "a new row names blocks of the wrong groups"
        self._rows[new.row] = _Row(new, self._root_of(new.request_id), num_groups)

    def _write(self, step: RowStep) -> None:
        """Store the marks of the step's tokens in their cells. Mutates: memory, row"""
        assert step.row in self._rows, f"row {step.row} is planned but nobody took it"
        row = self._rows[step.row]
        # A step planned before the fault was known: there is no token to compute.
        if row.fault is not None:
            return
        end = step.start + step.num_tokens
        assert step.num_tokens >= 1, f"row {step.row} computes nothing"
        assert step.start == row.num_computed, f"row {step.row} skips or repeats a position"
        if step.drafts:
            self._check_drafts(row, step)
        for draft in step.drafts:
            row.append(draft)
        assert end <= len(row.token_ids), f"row {step.row} computes a token nobody knows"
        assert step.samples == (end == len(row.token_ids)), f"row {step.row}: samples is wrong"
        size = self._layout.block_tokens
        for marks, table, blocks in zip(row.marks, row.tables, step.new_blocks, strict=True):
            table.extend(blocks)
            assert len(table) * size >= end, f"row {step.row} has too few blocks"
            for position in range(step.start, end):
                block = table[position // size]
                assert block != 0, f"row {step.row} writes to the null block"
                self._memory[block][position % size] = marks[position]
        row.num_computed = end
        self._check_room(row, step, end)

    def _check_room(self, row: _Row, step: RowStep, end: int) -> None:
        """Assert that the worker's drafts have room after the step's tokens."""
        if not step.num_drafts:
            return
        assert step.samples, f"row {step.row} wants drafts and draws nothing"
        last = end + step.num_drafts
        room = min(len(table) for table in row.tables) * self._layout.block_tokens
        assert last <= room, f"row {step.row} has no room for the drafts that it wants"
        limit = self._schedule.max_model_tokens
        assert last < limit, f"row {step.row} wants drafts beyond the longest context"

    def _check_drafts(self, row: _Row, step: RowStep) -> None:
        is_decode = step.start == len(row.token_ids) - 1
        assert is_decode, f"row {step.row} has drafts in the middle of its known tokens"
        # Were all drafts to come true, one more token would be drawn.
        longest = len(row.token_ids) + len(step.drafts) + 1
        limit = self._schedule.max_model_tokens
        assert longest <= limit, f"row {step.row} has drafts beyond the longest context"

    def _check_reads(self, step: RowStep) -> None:
        row = self._rows[step.row]
        if row.fault is not None:
            return
        for group, marks, table in zip(self._layout.groups, row.marks, row.tables, strict=True):
            first = 0
            if group.window_tokens is not None:
                first = max(0, step.start - group.window_tokens + 1)
            self._compare(row, table, marks, first, row.num_computed)

    def _compare(
        self, row: _Row, table: Sequence[int], marks: list[int], first: int, end: int
    ) -> None:
        """Assert that positions first .. end - 1 hold this row's own content."""
        size = self._layout.block_tokens
        for index in range(first // size, -(-end // size)):
            low, high = max(first, index * size), min(end, (index + 1) * size)
            start = low - index * size
            cells = self._memory[table[index]][start : start + high - low]
            assert cells == marks[low:high], (
                f"{row.new.request_id}: block {table[index]} does not hold "
                f"the tokens at positions {low} to {high - 1}"
            )

    def _answer(self, step: RowStep) -> RowResult:
        """Return the row's result. Mutates: the row's tokens, when one is drawn"""
        row = self._rows[step.row]
        if row.fault is None and step.samples and self._faulty(row.new.request_id):
            row.fault = "a planned fault"
        if row.fault is not None:
            return RowResult(row=step.row, fault=row.fault)
        prompt_logprobs = self._prompt_logprobs(row, step)
        if not step.samples:
            return RowResult(row=step.row, prompt_logprobs=prompt_logprobs)
        return RowResult(
            row=step.row, token_ids=self._draw(row, step.drafts), prompt_logprobs=prompt_logprobs
        )

    def _draw(self, row: _Row, drafts: Sequence[int]) -> tuple[int, ...]:
        """Return one token, and one more for each draft that came true. Mutates: row"""
        first = len(row.token_ids) - len(drafts)
        row.cut(first)
        drawn: list[int] = []
        while len(drawn) <= len(drafts) and tuple(drafts[: len(drawn)]) == tuple(drawn):
            position = first + len(drawn) - row.new.num_prompt_tokens
            drawn.append(drawn_token(row.new.seed, position, self._vocab_size))
            row.append(drawn[-1])
        # The cache content of an accepted draft is its token's.
        row.num_computed = len(row.token_ids) - 1
        return tuple(drawn)

    def _prompt_logprobs(self, row: _Row, step: RowStep) -> tuple[TokenLogprobs, ...]:
        """Return an entry for each prompt token that follows a position of this step."""
        if row.new.sampling.prompt_logprobs is None:
            return ()
        end = min(step.start + step.num_tokens, row.new.num_prompt_tokens - 1)
        return tuple(
            TokenLogprobs(token_id=row.token_ids[position + 1], logprob=-1.0, rank=1)
            for position in range(step.start, end)
        )
