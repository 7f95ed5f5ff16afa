"""The tokens that a mark keeps cached: what the conversation up to the mark and the whole share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dovetail.errors import RequestError
from dovetail.server.endpoint import App, ChatRequest, Generation
from dovetail_plugins.apis.messages.hints import IGNORED_NAME, Pin, pin_of
from dovetail_plugins.apis.messages.input import switches
from dovetail_plugins.apis.messages.protocol import CountRequest

ToChat = Callable[[CountRequest], ChatRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """How many tokens of a prompt stay cached, and for which time (`hints.SECONDS`)."""

    ttl: str
    num_tokens: int


async def with_pin(
    server: App, body: CountRequest, to_chat: ToChat, generation: Generation
) -> tuple[Generation, Pinned | None]:
    """Return a generation with the pin that its body requests, and the pin. Mutates: its meta, if
    the marked part cannot be rendered alone"""
    pin = pin_of(body) if server.engine.spec.cache.uses_prefix_cache else None
    if pin is None:
        return generation, None
    try:
        num_tokens = await _num_tokens(server, pin, to_chat, generation)
    except RequestError:
        generation.meta.ignored = [*generation.meta.ignored, IGNORED_NAME]
        return generation, None
    changed = dataclasses.replace(
        generation,
        cache_pin_s=max(body.cache_pin_s, pin.seconds),
        cache_pin_tokens=0 if body.cache_pin_s else num_tokens,
    )
    return changed, Pinned(ttl=pin.ttl, num_tokens=num_tokens)


async def _num_tokens(server: App, pin: Pin, to_chat: ToChat, generation: Generation) -> int:
    """Return how many tokens of the prompt are marked. Raises: RequestError"""
    if pin.body is None:
        return len(generation.prompt_ids)
    chat = to_chat(pin.body)
    text, _ = await server.text_for(chat.model)
    prompt = await text.render(chat, switches(pin.body))
    return _num_shared(await text.tokenize_prompt(prompt, chat), generation.prompt_ids)


def _num_shared(some: Sequence[int], others: Sequence[int]) -> int:
    pairs = zip(some, others, strict=False)
    places = (place for place, (one, other) in enumerate(pairs) if one != other)
    return next(places, min(len(some), len(others)))
