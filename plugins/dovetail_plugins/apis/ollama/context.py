"""/api/generate with a `context`: a conversation that is carried on by its token ids.

The ids are those of the last prompt and its answer. What the template writes between an answer and
the model's next turn is appended: it is cut out of a conversation with an answer that is easily
found. Source: Ollama's API reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from dovetail.engine.client.requests.prompt_checks import verify_ids
from dovetail.errors import RequestError
from dovetail.server.endpoint import App, ChatRequest, Generation, ModelText, Switch

MARK = "5ee7c0de-an-earlier-answer"
"""The answer of the conversation from which the next turn is cut."""
EARLIER: list[dict[str, Any]] = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": MARK},
]


async def checked(
    server: App, model: str, context: Sequence[int], turns: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return the turns to render for a context: not the system message that it has already.

    Raises: RequestError for ids that are no tokens
    """
    text, _ = await server.text_for(model)
    text.check_text("context")
    tokenizer = text.vocabulary.tokenizer
    verify_ids("context", context, tokenizer.facts().vocab_size)
    earlier = await text.threads.run(lambda: tokenizer.decode(context), len(context))
    new = [turn for turn in turns if turn["role"] != "system" or turn["content"] not in earlier]
    return [*EARLIER, *new]


async def carried_on(
    server: App,
    generation: Generation,
    chat: ChatRequest,
    context: Sequence[int],
    switches: Sequence[Switch],
) -> Generation:
    """Return a generation whose prompt is the context and the next turn.

    `generation` is that of `chat`, which begins with EARLIER. Raises: RequestError
    """
    text, _ = await server.text_for(chat.model)
    ids = [*context, *await _next_turn(text, chat, context, switches)]
    limit = server.engine.spec.run.max_model_tokens
    if len(ids) >= limit:
        raise RequestError(
            f"context and prompt have {len(ids)} tokens, of {limit} that the model can have with "
            "its answer.",
            where="context",
            fix="begin anew, without it.",
            code="context_length_exceeded",
        )
    wanted = chat.max_completion_tokens or chat.max_tokens or generation.params.max_tokens
    room = limit - len(ids)
    params = msgspec.structs.replace(generation.params, max_tokens=min(wanted or room, room))
    return replace(generation, prompt_ids=ids, params=params)


async def _next_turn(
    text: ModelText, chat: ChatRequest, context: Sequence[int], switches: Sequence[Switch]
) -> Sequence[int]:
    """Return the ids from the end of an answer to the opening of the next one."""
    prompt = await text.render(chat, switches)
    start = prompt.text.rfind(MARK) + len(MARK)
    if start < len(MARK):
        raise RequestError(
            "this model's chat template changes earlier answers, so none can be carried on.",
            where="context",
            fix="send the conversation's messages to /api/chat.",
            code="unsupported_field",
        )
    plain = [(a - start, b - start) for a, b in prompt.plain if a >= start]
    ids = await text.tokenize(prompt.text[start:], add_special_tokens=False, plain=plain)
    is_closed = bool(ids) and bool(context) and ids[0] == context[-1]
    return ids[1:] if is_closed else ids
