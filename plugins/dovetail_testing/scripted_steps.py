"""Drive: fixed requests become StepPlans, and StepResults the requests' tokens.

Plans do not depend on results (nothing stops early), so the same plans can run immediately, one
ahead, or elsewhere. For tests of runners, workers and executors; knows no scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.step import (
    KVLayout,
    NewRow,
    RowStep,
    StepPlan,
    StepResult,
    TokenLogprobs,
)

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveRequest:
    """A request that draws `num_tokens` tokens and joins at step `joins_at`."""

    request_id: str
    prompt_ids: tuple[int, ...]
    num_tokens: int = 6
    sampling: SamplingParams = GREEDY
    seed: int = 0
    joins_at: int = 0


@dataclass(slots=True, kw_only=True)
class DriveOutput:
    """The output of a request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Live:
    request: DriveRequest
    row: int
    blocks: list[list[int]]
    num_computed: int = 0

    @property
    def end(self) -> int:
        """Return how many tokens are to be computed in all; the last drawn one is not."""
        return len(self.request.prompt_ids) + self.request.num_tokens - 1


class Driver:
    """Plans for one KV layout. Block ids are handed out backwards, so tables are scattered."""

    def __init__(self, layout: KVLayout, *, max_rows: int = 8) -> None:
        self.layout = layout
        self._free_blocks = list(range(1, layout.num_blocks))
        self._free_rows = list(range(max_rows))
        self._freed: list[int] = []
        self._step_id = 0

    def plans(
        self, requests: Sequence[DriveRequest], *, chunk_tokens: int = 1 << 20
    ) -> Iterator[StepPlan]:
        """Yield plans until every request has drawn its tokens, then one that frees the rows."""
        waiting, running, number = list(requests), list[_Live](), 0
        while waiting or running:
            joining = [r for r in waiting if r.joins_at <= number]
            waiting = [r for r in waiting if r.joins_at > number]
            fresh = [self._admit(r) for r in joining]
            running += fresh
            yield self._plan(running, fresh, chunk_tokens)
            for live in [live for live in running if live.num_computed == live.end]:
                self._release(live)
                running.remove(live)
            number += 1
        yield self._plan([], [], chunk_tokens)

    def _admit(self, request: DriveRequest) -> _Live:
        groups = len(self.layout.groups)
        return _Live(
            request=request, row=self._free_rows.pop(0), blocks=[[] for _ in range(groups)]
        )

    def _release(self, live: _Live) -> None:
        self._freed.append(live.row)
        self._free_rows.append(live.row)
        for blocks in live.blocks:
            self._free_blocks += blocks

    def _plan(self, running: list[_Live], fresh: list[_Live], chunk_tokens: int) -> StepPlan:
        new_rows = tuple(_new_row(live, len(self.layout.groups)) for live in fresh)
        freed, self._freed = tuple(self._freed), []
        steps = tuple(self._row_step(live, chunk_tokens) for live in running)
        self._step_id += 1
        return StepPlan(step_id=self._step_id, rows=steps, new_rows=new_rows, freed_rows=freed)

    def _row_step(self, live: _Live, chunk_tokens: int) -> RowStep:
        num_prompt, start = len(live.request.prompt_ids), live.num_computed
        count = 1 if start >= num_prompt else min(chunk_tokens, num_prompt - start)
        live.num_computed += count
        needed = -(-live.num_computed // self.layout.block_tokens) - len(live.blocks[0])
        new = tuple(
            tuple(self._free_blocks.pop() for _ in range(needed)) for _ in self.layout.groups
        )
        for blocks, added in zip(live.blocks, new, strict=True):
            blocks += added
        return RowStep(
            row=live.row,
            start=start,
            num_tokens=count,
            samples=live.num_computed >= num_prompt,
            new_blocks=new,
        )


def _new_row(live: _Live, num_groups: int) -> NewRow:
    request = live.request
    return NewRow(
        row=live.row,
        request_id=request.request_id,
        token_ids=request.prompt_ids,
        num_prompt_tokens=len(request.prompt_ids),
        num_computed_tokens=0,
        blocks=((),) * num_groups,
        sampling=request.sampling,
        seed=request.seed,
    )


class Collector:
    """Turns results back into outputs by request."""

    def __init__(self) -> None:
        self.outputs: dict[str, DriveOutput] = {}
        self._owners: dict[int, str] = {}

    def add(self, plan: StepPlan, result: StepResult) -> None:
        """Record one step. Results must come in the order of the plans."""
        assert result.step_id == plan.step_id
        assert [r.row for r in result.rows] == [r.row for r in plan.rows]
        for new in plan.new_rows:
            self._owners[new.row] = new.request_id
            self.outputs.setdefault(new.request_id, DriveOutput())
        for row in result.rows:
            output = self.outputs[self._owners[row.row]]
            output.token_ids += row.token_ids
            output.logprobs += row.logprobs
            output.prompt_logprobs += row.prompt_logprobs
            if row.fault is not None:
                output.faults.append(row.fault)


def collect(pairs: Iterable[tuple[StepPlan, StepResult]]) -> dict[str, DriveOutput]:
    """Return each request's output."""
    collector = Collector()
    for plan, result in pairs:
        collector.add(plan, result)
    return collector.outputs
