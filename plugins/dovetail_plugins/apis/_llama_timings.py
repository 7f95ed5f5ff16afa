"""Times and progress of an answer in the words of llama.cpp's server, which its pages and clients
request in chat as well.

Source: the API page of llama.cpp's server, `timings_per_token` and `return_progress`.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from dovetail.engine.client.results.outputs import RequestMetrics
from dovetail.server.endpoint import Step

TIMINGS, PROGRESS = "timings_per_token", "return_progress"
MS = 1e3


def honoured(body: BaseModel) -> list[str]:
    """Return these fields if a body sets them to true or false."""
    extra = body.model_extra or {}
    return [name for name in (TIMINGS, PROGRESS) if isinstance(extra.get(name), bool)]


def is_wanted(body: BaseModel, field: str) -> bool:
    """Return whether a body that does not declare these fields sets one of them to true."""
    return (body.model_extra or {}).get(field) is True


def timings(step: Step, num_generated: int) -> dict[str, Any]:
    """Return how long prompt and answer took, without the time in the queue; zeros if unknown.
    Units: tokens, milliseconds. The first token belongs to the prompt's time"""
    num_prompt = step.num_prompt_tokens - step.num_cached_tokens
    prompt_ms, answer_ms = _durations_ms(step.metrics)
    num_decoded = max(num_generated - 1, 0)
    return {
        "cache_n": step.num_cached_tokens,
        "prompt_n": num_prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, num_prompt),
        "prompt_per_second": _ratio(MS * num_prompt, prompt_ms),
        "predicted_n": num_generated,
        "predicted_ms": answer_ms,
        "predicted_per_token_ms": _ratio(answer_ms, num_decoded),
        "predicted_per_second": _ratio(MS * num_decoded, answer_ms),
    }


def progress(step: Step) -> dict[str, int]:
    """Return how much of the prompt is processed at the first token: all of it."""
    prompt_ms, _ = _durations_ms(step.metrics)
    return {
        "total": step.num_prompt_tokens,
        "cache": step.num_cached_tokens,
        "processed": step.num_prompt_tokens,
        "time_ms": round(prompt_ms),
    }


def _durations_ms(metrics: RequestMetrics | None) -> tuple[float, float]:
    if metrics is None or not metrics.first_scheduled_s or not metrics.first_token_s:
        return 0.0, 0.0
    first_s = metrics.first_token_s
    return MS * (first_s - metrics.first_scheduled_s), MS * (metrics.last_token_s - first_s)


def _ratio(amount: float, by: float) -> float:
    return amount / by if by > 0 else 0.0
