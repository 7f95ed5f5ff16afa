"""The adapters that requests may name, as one API process knows them.

Only the engines know which are loaded: another API process may have loaded or unloaded one. Their
answer is cached briefly. For an unknown name the engines are queried again, then the resolvers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from dovetail import registry
from dovetail.config.checkpoint.sources.adapter_path import find_adapter
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.engine.parts.adapters import of_another_key
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.adapter_resolver import AdapterResolver, ResolverFacts
from dovetail.interfaces.data.adapter_spec import AdapterSource

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine

logger = logging.getLogger("dovetail.server")
FRESH_S = 1.0
"""How long the list of adapters is cached. The engine refuses requests for unloaded ones."""
MAX_NAME_CHARS = 256
MAX_SHOWN = 8


class ServedAdapters:
    """The adapters of an application's engines. For use within one event loop."""

    def __init__(self, engine: AsyncEngine) -> None:
        """Create the resolvers. Raises: ConfigError"""
        spec, search = engine.spec, engine.spec.adapter_search
        self._engine = engine
        self._is_on = spec.run.adapters is not None
        facts = ResolverFacts(base_names=search.base_names, model_path=spec.run.model.path)
        self._resolvers: Sequence[tuple[str, AdapterResolver]] = [
            (one.name, registry.make(one, facts)) for one in search.resolvers
        ]
        self._hub = Hub(cache=search.hub_cache or None)
        self._known: dict[str, AdapterSource] = {}
        self._asked_s = float("-inf")
        self._finding: dict[str, asyncio.Task[AdapterSource | None]] = {}

    async def all(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that are loaded now. Raises: EngineDead"""
        if not self._is_on:
            return ()
        sources = await self._engine.adapters()
        self._known = {source.name: source for source in sources}
        self._asked_s = time.monotonic()
        return sources

    async def find(self, name: str) -> AdapterSource | None:
        """Return the adapter with a name, or None. A resolver may find it; then the engines load
        it. Raises: RequestError if it cannot be loaded, EngineDead"""
        if not self._is_on:
            return None
        if name not in self._known or time.monotonic() - self._asked_s > FRESH_S:
            await self.all()
        if name in self._known or not self._resolvers or len(name) > MAX_NAME_CHARS:
            return self._known.get(name)
        task = self._finding.get(name)
        if task is None:
            task = self._finding[name] = asyncio.create_task(self._resolved(name))
            task.add_done_callback(self._note_found)
        return await asyncio.shield(task)

    def _note_found(self, task: asyncio.Task[AdapterSource | None]) -> None:
        """Remove a finished search, even if nobody waits for it any more. Mutates: self"""
        self._finding = {name: one for name, one in self._finding.items() if one is not task}
        if not task.cancelled():
            task.exception()

    def shown_names(self) -> list[str]:
        """Return some of the adapters' names, for an error message."""
        return list(self._known)[:MAX_SHOWN]

    async def load(
        self, name: str, path: str, *, base: str = "", replaces: bool = False, owner: str = ""
    ) -> None:
        """Load an adapter in the engines and serve it. Raises: RequestError, EngineDead"""
        self._check_on()
        if replaces:
            await self._check_owner(name, owner)
        names = self._engine.spec.model_names
        if name in names:
            raise RequestError(
                f'"{name}" is the name of the model.', where="lora_name", fix="use another name."
            )
        try:
            find = partial(find_adapter, path, self._hub, where="lora_path")
            folder = await asyncio.to_thread(find)
        except ConfigError as error:
            raise RequestError(
                error.what, where=error.where, fix=error.fix, code="adapter_not_found", status=404
            ) from error
        source = AdapterSource(name=name, path=str(folder), base=base, owner=owner)
        await self._engine.load_adapter(source, replaces=replaces)
        self._known[name] = source

    async def unload(self, name: str, owner: str = "") -> None:
        """Make the engines refuse further requests for an adapter. Raises: RequestError,
        EngineDead"""
        self._check_on()
        await self._check_owner(name, owner)
        self._known.pop(name, None)
        await self._engine.unload_adapter(name)

    async def _check_owner(self, name: str, owner: str) -> None:
        """Raise RequestError if the adapter with this name belongs to another owner."""
        found = next((source for source in await self.all() if source.name == name), None)
        if found is not None and found.owner != owner:
            raise of_another_key(name)

    def _check_on(self) -> None:
        if not self._is_on:
            raise RequestError(
                "this server does not serve adapters.", fix="start it with --enable-lora."
            )

    async def _resolved(self, name: str) -> AdapterSource | None:
        """Load the adapter from the first resolver that finds it and return it. Raises:
        RequestError"""
        for label, resolver in self._resolvers:
            source = await asyncio.to_thread(_found_by, label, resolver, name)
            if source is not None:
                return await self._loaded(source, label)
        return None

    async def _loaded(self, source: AdapterSource, label: str) -> AdapterSource | None:
        logger.info("adapter %s: found by the resolver %s in %s", source.name, label, source.path)
        try:
            await self._engine.load_adapter(source)
        except RequestError:
            await self.all()
            if source.name in self._known:  # another API process was faster
                return self._known[source.name]
            raise
        self._known[source.name] = source
        return source


def _found_by(label: str, resolver: AdapterResolver, name: str) -> AdapterSource | None:
    """Return the adapter that a resolver finds. Exceptions other than RequestError are logged."""
    try:
        source = resolver.find(name)
    except RequestError:
        raise
    except Exception:
        logger.exception("the resolver %s raised for %r", label, name)
        return None
    if source is not None and source.name != name:
        logger.error("the resolver %s found %r for %r, which does not count", label, source, name)
        return None
    return source
