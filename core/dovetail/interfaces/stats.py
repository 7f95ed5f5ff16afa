"""StatLogger: receives the engine's numbers. Times in seconds of one monotonic clock."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import msgspec

from dovetail.interfaces.plugin import Plugin


class StepStats(msgspec.Struct, frozen=True, kw_only=True):
    """The engine after one step. Counts since the previous StepStats unless named `num_`.

    `drafts` counts verified runs of guesses, `draft_tokens` the guesses in them, and
    `accepted_tokens` the guesses that came true.
    """

    num_running: int
    num_waiting: int
    kv_usage: float
    step_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    faults: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    forward_s: float = 0.0
    step_s: float = 0.0


class RequestStats(msgspec.Struct, frozen=True, kw_only=True):
    """One finished request. Durations: `queue_s` arrival to first step, `prefill_s` first step
    to first token, `decode_s` first to last token; `ttft_s` and `e2e_s` from arrival."""

    request_id: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    max_tokens: int
    n: int
    queue_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float
    e2e_s: float
    inter_token_s: tuple[float, ...] = ()


class StatLogger(Plugin):
    """Lives in the API process; every call must return quickly and never raise."""

    interface_version: ClassVar[int] = 1

    @abstractmethod
    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        """Prepare to receive numbers of one served model."""

    @abstractmethod
    def step(self, stats: StepStats) -> None:
        """Record the engine's state after a step."""

    @abstractmethod
    def request(self, stats: RequestStats) -> None:
        """Record a finished request."""

    def flush(self) -> None:
        """Write what is held back; called on shutdown and every few seconds."""
