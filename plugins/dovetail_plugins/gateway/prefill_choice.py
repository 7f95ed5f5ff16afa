"""PrefillChoice: chooses the server that computes a prompt, preferably one with its prefix cached.

Prefill servers that publish KV events report what they have cached. The router `prefix_aware`
weighs that against their load. A server tokenizes the prompt (`/tokenize`) unless the request
contains token ids. Without events or tokens, the least busy server is chosen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.engine.client.cache_news import CacheNews
from dovetail.errors import ConfigError
from dovetail.interfaces.kv_event_publisher import EventFeed
from dovetail.interfaces.router import RoutedRequest, Router, RouterFacts
from dovetail.json_values import json_value
from dovetail_plugins.gateway.upstream import ASK_LIMIT_S, Upstream, least_busy
from dovetail_plugins.http_client.response import Header

FLAG = "--kv-events-config"
CACHE_TOKENS = 1 << 22
"""The assumed cache size of a server that publishes no events; what was sent to it counts as
cached."""
OF_THE_PROMPT = ("model", "prompt", "messages", "tools", "add_generation_prompt")
OF_THE_TEMPLATE = ("continue_final_message", "add_special_tokens", "chat_template_kwargs")


@dataclass(slots=True, kw_only=True)
class _Load:
    """A server's load, as a router sees it."""

    number: int
    num_running: int = 0
    num_waiting: int = 0
    pending_tokens: int = 0
    kv_usage: float = 0.0


class PrefillChoice:
    """Chooses among servers. Used only in the event loop's thread."""

    def __init__(
        self, servers: Sequence[Upstream], router: Router | None, news: CacheNews | None
    ) -> None:
        self._servers = servers
        self._router = router
        self._news = news
        self._loads = [_Load(number=number) for number in range(len(servers))]

    async def tokens_of(self, fields: dict[str, Any], headers: Sequence[Header]) -> tuple[int, ...]:
        """Return a request's prompt as tokens; () if they are not needed or unknown."""
        if self._router is None or len(self._servers) < 2:
            return ()
        prompt = fields.get("prompt")
        if isinstance(prompt, list):
            return tuple(prompt) if _are_ids(prompt) else ()
        server = least_busy(self._servers)
        if server is None:
            return ()
        names = (*OF_THE_PROMPT, *OF_THE_TEMPLATE)
        body = json.dumps({name: fields[name] for name in names if name in fields}).encode()
        try:
            async with (
                asyncio.timeout(ASK_LIMIT_S),
                server.stream("POST", b"/tokenize", headers, body) as answer,
            ):
                whole = await answer.read()
            tokens = json_value(whole)["tokens"] if answer.status == 200 else ()
            return tuple(tokens) if _are_ids(tokens) else ()
        except (ConnectionError, TimeoutError, ValueError, LookupError, TypeError):
            return ()

    def pick(
        self, prompt_ids: tuple[int, ...], salt: str, tried: Sequence[Upstream]
    ) -> Upstream | None:
        """Return the server for a prompt, excluding tried ones; None if all were tried. Mutates:
        self"""
        left = [number for number, one in enumerate(self._servers) if one not in tried]
        back = [number for number in left if self._servers[number].is_back]
        if self._router is None or len(back) < 2 or not prompt_ids:
            return least_busy(self._servers, tried)
        if self._news is not None:
            self._news.tell(self._router)
        loads = [self._loads[number] for number in back]
        return self._servers[self._router.choose(RoutedRequest(prompt_ids, salt), loads)]

    def began(self, server: Upstream, num_tokens: int) -> None:
        """Record that a server has started to compute a prompt. Mutates: self"""
        load = self._loads[self._servers.index(server)]
        load.pending_tokens += num_tokens
        load.num_running += 1

    def ended(self, server: Upstream, num_tokens: int) -> None:
        """Record that a server has finished a prompt. Mutates: self"""
        load = self._loads[self._servers.index(server)]
        load.pending_tokens -= num_tokens
        load.num_running -= 1

    def close(self) -> None:
        """Stop listening to servers. May be called twice."""
        if self._news is not None:
            self._news.close()


def _are_ids(values: Sequence[Any]) -> bool:
    """Return whether these can be token ids, as routers hash them."""
    return all(type(one) is int and 0 <= one < 1 << 31 for one in values)


def prefill_choice(
    servers: Sequence[Upstream], events: Sequence[str], block_tokens: int
) -> PrefillChoice:
    """Return the choice among servers with these --kv-events-config values: none, one for all
    servers, or one each. Raises: ConfigError"""
    if not events:
        return PrefillChoice(servers, None, None)
    if len(events) not in (1, len(servers)):
        raise ConfigError(
            f"{len(events)} are given for {len(servers)} prefill servers.",
            where=FLAG,
            fix="give one for all of them, or one for each in their order.",
        )
    each = events if len(events) == len(servers) else [events[0]] * len(servers)
    facts = RouterFacts(
        num_engines=len(servers),
        block_tokens=block_tokens,
        cache_tokens=CACHE_TOKENS,
        max_rows=1 << 10,
    )
    target = registry.load("router", "prefix_aware", where=FLAG)
    router: Router = target(registry.admin.options_for(target, {}), facts)
    feeds = {
        n: _feed(text, server) for n, (text, server) in enumerate(zip(each, servers, strict=True))
    }
    return PrefillChoice(servers, router, CacheNews(feeds))


def _feed(text: str, server: Upstream) -> EventFeed:
    """Return the event feed of a server that was started with this flag. Raises: ConfigError"""
    try:
        keys = dict(json_value(text))
    except (ValueError, TypeError):
        raise ConfigError(
            "is not a JSON object.", where=FLAG, fix="repeat the flag of the prefill server."
        ) from None
    is_on = keys.pop("enable_kv_cache_events", True)
    publisher = registry.load("kv_event_publisher", keys.pop("publisher", "zmq"), where=FLAG)
    options = registry.admin.options_for(publisher, keys, where=FLAG)
    feed: EventFeed | None = publisher.feed(options, 0, host=server.hostname) if is_on else None
    if feed is None:
        raise ConfigError(
            f"nobody can listen to {server.url} by that.",
            where=FLAG,
            fix='use the publisher zmq with an endpoint such as "tcp://*:5557".',
        )
    return feed
