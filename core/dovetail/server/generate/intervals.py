"""--stream-interval: joins small steps into larger ones, to write less."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail.server.generate.events import ContentDelta, Event, ReasoningDelta, ToolCallArgsDelta
from dovetail.server.generate.streaming import Step


async def in_intervals(
    steps: AsyncGenerator[Step, None], num_tokens: int
) -> AsyncGenerator[Step, None]:
    """Yield steps of at least `num_tokens` tokens; an answer's first and last may be shorter.

    Closing it closes `steps`. Held steps are sent before an error.
    """
    waiting: dict[int, Step] = {}
    begun: set[int] = set()
    try:
        async for step in steps:
            earlier = waiting.pop(step.index, None)
            whole = step if earlier is None else joined(earlier, step)
            is_over = whole.finish_reason is not None or len(whole.token_ids) >= num_tokens
            if is_over or step.index not in begun:
                begun.add(step.index)
                yield whole
            else:
                waiting[step.index] = whole
    except Exception:
        for whole in waiting.values():
            yield whole
        raise
    finally:
        await steps.aclose()


def joined(first: Step, second: Step) -> Step:
    """Return two steps of one answer merged."""
    return replace(
        second,
        text=first.text + second.text,
        events=_merged([*first.events, *second.events]),
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=_both(first.logprobs, second.logprobs),
        prompt_logprobs=first.prompt_logprobs or second.prompt_logprobs,
    )


def _both(
    first: Sequence[TokenLogprobs] | None, second: Sequence[TokenLogprobs] | None
) -> Sequence[TokenLogprobs] | None:
    return None if first is None and second is None else [*(first or ()), *(second or ())]


def _merged(events: Sequence[Event]) -> list[Event]:
    """Return the events, with adjacent ones of the same kind joined."""
    found: list[Event] = []
    for event in events:
        match found[-1] if found else None, event:
            case ContentDelta(text=first), ContentDelta(text=second):
                found[-1] = ContentDelta(text=first + second)
            case ReasoningDelta(text=first), ReasoningDelta(text=second):
                found[-1] = ReasoningDelta(text=first + second)
            case ToolCallArgsDelta(index=last, text=first) as begun, ToolCallArgsDelta(
                index=index, text=second
            ) if last == index:
                found[-1] = replace(begun, text=first + second)
            case _:
                found.append(event)
    return found
