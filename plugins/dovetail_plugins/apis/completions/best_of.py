"""best_of: generates more answers than are returned, and picks those with the best mean logprob.

Source: the OpenAI API reference, completions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from dovetail.engine.client.results.logprobs import finite
from dovetail.server.endpoint import Step
from dovetail.server.endpoint import joined_intervals as joined


async def best_steps(steps: AsyncGenerator[Step, None], count: int) -> AsyncGenerator[Step, None]:
    """Yield one step per returned answer, best first, after all have ended. All generated tokens
    count. Closing it closes `steps`."""
    answers: dict[int, Step] = {}
    last: Step | None = None
    try:
        async for step in steps:
            last = step
            known = answers.get(step.index)
            answers[step.index] = step if known is None else joined(known, step)
    finally:
        await steps.aclose()
    ranked = sorted(answers.values(), key=lambda one: (-_mean_logprob(one), one.index))
    for place, answer in enumerate(ranked[:count]):
        assert last is not None
        generated = last.num_generated_tokens
        yield replace(
            answer,
            index=place,
            num_generated_tokens=generated,
            num_cached_tokens=last.num_cached_tokens,
        )


def _mean_logprob(answer: Step) -> float:
    entries = answer.logprobs or ()
    return sum(finite(entry.logprob) for entry in entries) / len(entries) if entries else 0.0
