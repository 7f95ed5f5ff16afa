"""Routing: the router chooses an engine for each request, from those that accept requests.

With one engine there is no choice and no router. Knows connections, not requests' results.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dovetail import registry
from dovetail.engine.client.cache_news import CacheNews, feeds_of
from dovetail.engine.client.connection import EngineConnection
from dovetail.engine.client.requests.input_processor import PreparedRequest
from dovetail.engine.parts.sleep_mode import asleep_error
from dovetail.errors import EngineDead, RequestFault
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.router import RoutedRequest, Router, RouterFacts
from dovetail.registry.blame import described

logger = logging.getLogger(__name__)


class Routing:
    """The router of one API process, created by `open`."""

    def __init__(self, spec: EngineSpec, connections: Sequence[EngineConnection]) -> None:
        self._spec = spec
        self._connections = connections
        self._router: Router | None = None
        self._news: CacheNews | None = None
        self._name = spec.router.name if spec.router is not None else ""

    def open(self, process: int) -> None:
        """Create the router, now that all engines have started. `process` is this API process's
        number among several. Raises: PluginError"""
        if self._spec.router is not None:
            facts = _facts(self._spec, self._connections, process)
            self._router = registry.make(self._spec.router, facts)
            if feeds := feeds_of(self._spec.events, facts.num_engines):
                self._news = CacheNews(feeds)

    def close(self) -> None:
        """Stop reading the engines' events. May be called twice."""
        if self._news is not None:
            self._news.close()

    def home_of(self, prepared: PreparedRequest) -> EngineConnection:
        """Return the engine for a request. Raises: EngineDead, EngineAsleep, RequestFault"""
        alive = [connection for connection in self._connections if connection.is_alive]
        staying = [connection for connection in alive if not connection.condition.is_leaving]
        awake = [one for one in staying or alive if not one.condition.asleep]
        if not alive:
            raise EngineDead(f"every engine is dead: {self._connections[0].death_reason}")
        if not awake:
            raise asleep_error()
        if self._router is None:
            return awake[0]
        moving = [connection for connection in awake if not connection.is_stalled]
        return self._chosen(self._router, prepared, moving or awake)

    def _chosen(
        self, router: Router, prepared: PreparedRequest, awake: Sequence[EngineConnection]
    ) -> EngineConnection:
        first = prepared.requests[0]
        salt = first.cache_salt if not first.adapter else f"{first.cache_salt}\0{first.adapter}"
        request = RoutedRequest(prepared.prompt_ids, salt, len(prepared.requests))
        if self._news is not None:
            self._news.tell(router)
        try:
            number = router.choose(request, awake)
        except Exception as error:
            logger.exception("the router %s raised", self._name)
            what = f"the router {self._name} raised {described(error)}"
            raise RequestFault(what, where=prepared.request_id) from error
        for connection in awake:
            if connection.number == number:
                return connection
        raise RequestFault(
            f"the router {self._name} chose {number!r}, but no engine of this number takes "
            "requests.",
            where=prepared.request_id,
        )

    def forget(self, connection: EngineConnection) -> None:
        """Tell the router that an engine has lost its cached prefixes."""
        if self._router is not None:
            self._router.forget(connection.number)


def _facts(spec: EngineSpec, connections: Sequence[EngineConnection], process: int) -> RouterFacts:
    block_tokens = spec.cache.block_tokens
    num_blocks = min(connection.num_blocks for connection in connections if connection.is_alive)
    return RouterFacts(
        num_engines=len(connections),
        block_tokens=block_tokens,
        cache_tokens=num_blocks * block_tokens if spec.cache.uses_prefix_cache else 0,
        max_rows=spec.schedule.max_rows,
        process=process,
    )
