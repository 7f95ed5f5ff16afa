"""Plain-Python fakes of objects that core passes to plugins. No torch, no files, no processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.stats import RequestStats, StepStats


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRequest:
    """A request as a scheduling policy sees it."""

    request_id: str = "r"
    owner: str = ""
    weight: float = 1.0
    priority: int = 0
    arrival_s: float = 0.0
    num_prompt_tokens: int = 8
    max_tokens: int = 40
    now_s: float = 0.0
    num_tokens: int = 8
    num_computed_tokens: int = 0
    num_prefix_tokens: int = 0
    num_preemptions: int = 0


def view_of(
    request: RequestState, *, max_tokens: int, num_prefix_tokens: int = 0, now_s: float = 0.0
) -> FakeRequest:
    """Return a request as a scheduling policy must see it."""
    return FakeRequest(
        request_id=request.request_id,
        owner=request.owner[0],
        weight=request.owner[1],
        priority=request.priority,
        arrival_s=request.arrival_s,
        num_prompt_tokens=request.num_prompt_tokens,
        max_tokens=max_tokens,
        now_s=now_s,
        num_tokens=request.num_tokens,
        num_computed_tokens=request.num_computed_tokens,
        num_prefix_tokens=num_prefix_tokens,
        num_preemptions=request.num_preemptions,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeRow:
    """A row as a test model sees it."""

    token_ids: Sequence[int]
    num_prompt_tokens: int
    start: int
    num_tokens: int


def step_stats(**counts: Any) -> StepStats:
    """Return the numbers of a quiet step with these counts changed."""
    quiet: dict[str, Any] = {"num_running": 1, "num_waiting": 0, "kv_usage": 0}
    return StepStats(**(quiet | counts))


def request_stats(request_id: str = "r", finish_reason: str = "stop") -> RequestStats:
    """Return the numbers of an ordinary finished request."""
    return RequestStats(
        request_id=request_id,
        finish_reason=finish_reason,
        prompt_tokens=12,
        generated_tokens=3,
        cached_tokens=4,
        max_tokens=16,
        n=1,
        queue_s=0.01,
        prefill_s=0.2,
        decode_s=0.3,
        ttft_s=0.21,
        e2e_s=0.51,
        inter_token_s=(0.15, 0.15),
    )
