"""The data of a plan: jobs (requests as the scheduler stores them) and the tally of a step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable

from dovetail.interfaces.data.step import NewRow, RowStep
from dovetail.interfaces.scheduler import RequestState

Order = tuple[tuple[float, ...], int]
Blocks = tuple[tuple[int, ...], ...]


class ScheduledRequest:
    """A request as this scheduler keeps it.

    `order` is fixed while it waits and runs, unless the policy's keys move; `epoch` counts its
    preemptions, so that a result is not mistaken for one of an earlier life; `max_tokens` is the
    length at which it surely ends; `queued_s` is when it came, by the clock of this process. `line`
    and `in_line` are where it waits, and its order there, if the policy has lines.
    """

    __slots__ = (
        *("arrival_index", "epoch", "in_line", "line", "max_tokens", "order", "queued_s"),
        "request",
    )

    def __init__(
        self, request: RequestState, arrival_index: int, max_tokens: int, queued_s: float
    ) -> None:
        self.request = request
        self.arrival_index = arrival_index
        self.max_tokens = max_tokens
        self.queued_s = queued_s
        self.epoch = 0
        self.order: Order = ((), arrival_index)
        self.line: Hashable = None
        self.in_line: Order = self.order


class StepBudget:
    """A plan in the making: the budget left, and what has been given away."""

    __slots__ = (
        "has_preempted",
        "jobs",
        "max_rows",
        "new_rows",
        "rows",
        "swapped_in",
        "tokens_left",
    )

    def __init__(self, tokens_left: int, max_rows: int) -> None:
        self.tokens_left = tokens_left
        self.max_rows = max_rows
        self.has_preempted = False
        self.rows: list[RowStep] = []
        self.new_rows: list[NewRow] = []
        self.swapped_in: list[tuple[int, int]] = []
        self.jobs: list[tuple[ScheduledRequest, int]] = []

    @property
    def has_room(self) -> bool:
        """Return whether another row may compute something."""
        return self.tokens_left > 0 and len(self.rows) < self.max_rows

    def take(
        self,
        job: ScheduledRequest,
        num_tokens: int,
        new_blocks: Blocks,
        drafts: tuple[int, ...] = (),
        num_drafts: int = 0,
    ) -> None:
        """Give a job its next `num_tokens` tokens, the last of them `drafts`; request `num_drafts`
        from the worker.

        Mutates: tally and request counters.
        """
        request = job.request
        start = request.num_computed_tokens
        end = start + num_tokens
        samples = end >= request.num_tokens + request.num_inflight
        request.num_computed_tokens = end
        if samples:
            request.num_inflight += 1
        self.tokens_left -= num_tokens
        self.jobs.append((job, job.epoch))
        self.rows.append(
            RowStep(
                row=request.row,
                start=start,
                num_tokens=num_tokens,
                samples=samples,
                new_blocks=new_blocks,
                drafts=drafts,
                num_drafts=num_drafts,
            )
        )


def order_of(job: ScheduledRequest) -> Order:
    return job.order


def remove(jobs: list[ScheduledRequest], job: ScheduledRequest) -> None:
    """Remove a job from a list sorted by order."""
    index = bisect_left(jobs, job.order, key=order_of)
    assert jobs[index] is job, "the list of jobs is out of order"
    del jobs[index]


def new_row(request: RequestState, blocks: Blocks) -> NewRow:
    return NewRow(
        row=request.row,
        request_id=request.request_id,
        token_ids=tuple(request.token_ids),
        num_prompt_tokens=request.num_prompt_tokens,
        num_computed_tokens=request.num_computed_tokens,
        blocks=blocks,
        sampling=request.sampling,
        seed=request.seed,
        pooling=request.pooling,
        adapter_slot=request.adapter_slot,
        parts=tuple(part.place for part in request.parts),
    )
