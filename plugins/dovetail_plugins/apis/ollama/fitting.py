"""`truncate`: the oldest messages of a conversation that is too long are left out."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.server.endpoint import App, ChatRequest, Switch, count_prompt_tokens


async def fitted(server: App, chat: ChatRequest, switches: Sequence[Switch]) -> ChatRequest:
    """Return a conversation that fits the context with its answer: system messages stay, and what
    is left begins with a user's. If even the last such turn is too long, its start is cut.

    Raises: RequestError
    """
    if await _fits(server, chat, switches):
        return chat
    starts = [i for i, turn in enumerate(chat.messages) if turn.role == "user"]
    shortest, longest = 0, len(starts)
    while shortest < longest:
        middle = (shortest + longest) // 2
        if await _fits(server, _from(chat, starts[middle]), switches):
            longest = middle
        else:
            shortest = middle + 1
    if shortest < len(starts):
        return _from(chat, starts[shortest])
    last = _from(chat, starts[-1]) if starts else chat
    return last.model_copy(update={"truncate_prompt_tokens": -1})


def _from(chat: ChatRequest, start: int) -> ChatRequest:
    """Return a conversation without its turns before one, but for those of the system."""
    messages = [turn for i, turn in enumerate(chat.messages) if i >= start or turn.role == "system"]
    return chat.model_copy(update={"messages": messages})


async def _fits(server: App, chat: ChatRequest, switches: Sequence[Switch]) -> bool:
    """Return whether half the context, or less if the answer is shorter, is left for the answer."""
    limit = server.engine.spec.run.max_model_tokens
    count, _ = await count_prompt_tokens(server, chat, switches)
    return count <= limit - min(chat.max_tokens or 1, limit // 2)
