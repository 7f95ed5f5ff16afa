"""From answers to the figures of a run: times, throughput, goodput, failures.

Times are milliseconds here. Goodput is the rate of requests that meet all time limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail_plugins.bench.answers import RequestOutcome
from dovetail_plugins.bench.stats import peak_overlap, summary

PER_REQUEST: Mapping[str, Callable[[RequestOutcome], float | None]] = {
    "ttft": lambda answer: answer.ttft_s,
    "tpot": lambda answer: answer.tpot_s,
    "e2el": lambda answer: answer.e2e_s,
}
TITLES = {
    "ttft": "time to first token",
    "tpot": "time per further token",
    "itl": "time between tokens",
    "e2el": "whole request",
}


def parsed_goodput(words: Sequence[str]) -> dict[str, float]:
    """Return the limits in milliseconds from words like `ttft:200`. Raises: ConfigError"""
    limits: dict[str, float] = {}
    for word in words:
        name, _, text = word.partition(":")
        try:
            limits[name] = float(text)
        except ValueError:
            name = ""
        if name not in PER_REQUEST or limits[name] < 0:
            raise ConfigError(
                f"{word!r} is not a limit.",
                where="--goodput",
                fix=f"write NAME:MS with NAME one of {', '.join(PER_REQUEST)}: `ttft:200 tpot:50`.",
            )
    return limits


def checked_names(words: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the times to show, without duplicates. Raises: ConfigError"""
    for word in words:
        if word not in TITLES:
            raise ConfigError(
                f"{word!r} is not a time that is measured.",
                where="--percentile-metrics",
                fix=f"use some of {', '.join(TITLES)}.",
            )
    return tuple(dict.fromkeys(words))


def times_ms(answers: Sequence[RequestOutcome]) -> dict[str, list[float]]:
    """Return name -> values of every time; requests without the time are skipped."""
    found = {
        name: [1e3 * value for answer in answers if (value := of(answer)) is not None]
        for name, of in PER_REQUEST.items()
    }
    return found | {"itl": [1e3 * gap for answer in answers for gap in answer.itl_s()]}


def is_good(answer: RequestOutcome, limits_ms: Mapping[str, float]) -> bool:
    """Return whether a request meets every limit; a missing time meets its limit."""
    values = ((PER_REQUEST[name](answer), limit) for name, limit in limits_ms.items())
    return all(value is None or 1e3 * value <= limit for value, limit in values)


def figures(
    answers: Sequence[RequestOutcome],
    prompts: Sequence[BenchPrompt],
    *,
    percentiles: Sequence[float],
    limits_ms: Mapping[str, float],
) -> dict[str, Any]:
    """Return the figures of a run, which lasts from the first start to the last end.

    A prompt's own length is used if the server reports no count. `other_length` counts answers that
    are not as long as requested.
    """
    duration_s = max(1e-9, max(a.end_s for a in answers) - min(a.start_s for a in answers))
    good = [answer for answer in answers if answer.error is None]
    pairs = [(a, p) for a, p in zip(answers, prompts, strict=True) if a.error is None]
    num_prompt_tokens = sum(_prompt_tokens(answer, prompt) for answer, prompt in pairs)
    num_output_tokens = sum(answer.output_tokens for answer in good)
    num_good = sum(is_good(answer, limits_ms) for answer in good)
    return {
        "requests": len(answers),
        "completed": len(good),
        "failed": len(answers) - len(good),
        "errors": _counted(a.error for a in answers if a.error is not None),
        "duration_s": duration_s,
        "prompt_tokens": num_prompt_tokens,
        "output_tokens": num_output_tokens,
        "other_length": sum(a.output_tokens != p.output_tokens for a, p in pairs),
        "distinct_prompts": len({prompt.prompt for prompt in prompts}),
        "counted_by": _counted(answer.counted_by for answer in good),
        "finish_reasons": _counted(str(answer.finish_reason) for answer in good),
        "requests_per_s": len(good) / duration_s,
        "output_tokens_per_s": num_output_tokens / duration_s,
        "total_tokens_per_s": (num_prompt_tokens + num_output_tokens) / duration_s,
        "goodput_requests_per_s": num_good / duration_s if limits_ms else None,
        "peak_concurrency": peak_overlap((a.start_s, a.end_s) for a in answers),
        "mean_concurrency": sum(a.e2e_s for a in answers) / duration_s,
        **{f"{name}_ms": summary(v, percentiles) for name, v in times_ms(good).items()},
    }


def _prompt_tokens(answer: RequestOutcome, prompt: BenchPrompt) -> int:
    counted = answer.prompt_tokens
    return counted if counted is not None else prompt.prompt_tokens or 0


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(Counter(words).most_common())


def details(answers: Sequence[RequestOutcome]) -> list[dict[str, Any]]:
    """Return every request as plain data; times in ms, `start_s` counts from the first start."""
    first_s = min(answer.start_s for answer in answers)
    return [_detail(answer, first_s) for answer in answers]


def _detail(answer: RequestOutcome, first_s: float) -> dict[str, Any]:
    values = {f"{name}_ms": of(answer) for name, of in PER_REQUEST.items()}
    return {
        "start_s": answer.start_s - first_s,
        "connect_ms": 1e3 * answer.connect_s,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "finish_reason": answer.finish_reason,
        "error": answer.error,
        **{name: None if value is None else 1e3 * value for name, value in values.items()},
        "itl_ms": [1e3 * gap for gap in answer.itl_s()],
    }
