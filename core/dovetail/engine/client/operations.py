"""EngineOperations: what a client asks all its engines to do beside generating.

Each operation is one call that every engine gets; a new one is a method here and a message.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from dovetail.engine.client.vocabularies import Vocabularies
from dovetail.engine.messages import (
    CallWorkers,
    GetSleepStatus,
    ListAdapters,
    LoadAdapter,
    Operation,
    ResetPrefixCache,
    Sleep,
    UnloadAdapter,
    WakeUp,
)
from dovetail.errors import RequestError
from dovetail.interfaces.adapter_spec import AdapterSource
from dovetail.interfaces.executor import WorkerCall
from dovetail.interfaces.profile import GET_READY, START, STOP
from dovetail.interfaces.spec import EngineSpec

Result = TypeVar("Result")

# How much longer than its workers an engine may take for an answer, which names those that hang.
ANSWER_WAIT_S = 1.0


class EngineOperations(ABC):
    """The operations of one client's engines."""

    spec: EngineSpec
    vocabularies: Vocabularies

    @cached_property
    def _ended(self) -> asyncio.Event:
        """Return what is set once no engine lives any more, or the client has been shut down."""
        return asyncio.Event()

    async def wait_end(self) -> None:
        """Return once nothing can be asked for any more."""
        await self._ended.wait()

    @abstractmethod
    async def call_each(
        self, operation: Operation[Result], timeout_s: float | None = None
    ) -> list[Result]:
        """Have every engine that lives do something; return what comes of it in each.

        An engine that dies meanwhile is left out. Raises: what the first engine raised that did;
        EngineDead when none is left; Overloaded while draining and after `timeout_s`
        """

    @abstractmethod
    def _forget_prefixes(self) -> None:
        """Route as if no engine had cached anything."""

    async def call(self, operation: Operation[Result], timeout_s: float | None = None) -> Result:
        """Have every engine do something beside generating; return what comes of it in the first
        of those that live.

        Raises: as `call_each`
        """
        return (await self.call_each(operation, timeout_s))[0]

    async def reset_prefix_cache(self) -> None:
        """Have the engines find no prefix that they have cached so far.

        Raises: EngineDead; Overloaded when one does not answer within `reply_timeout_s`.
        """
        await self.call_each(ResetPrefixCache(), self.spec.reply_timeout_s)
        self._forget_prefixes()

    async def sleep(self, level: int = 1, *, waits: bool = False) -> None:
        """Have the engines release their memory, in whatever time that takes; new requests are
        refused, those under way end now or, if it `waits`, once they have finished.

        Raises: RequestError, EngineDead
        """
        await self.call_each(Sleep(level=level, waits=waits))
        self._forget_prefixes()

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Have the engines take the memory of "weights", "kv_cache" (none named: both) again.

        Raises: RequestError, EngineDead
        """
        await self.call_each(WakeUp(tuple(tags)))

    async def is_sleeping(self) -> bool:
        """Return whether any of an engine sleeps. Raises: EngineDead"""
        return any(status.asleep for status in await self.call_each(GetSleepStatus()))

    async def load_adapter(self, source: AdapterSource, *, replaces: bool = False) -> None:
        """Have the engines read an adapter and serve it. `replaces`: in place of one of its name.

        Raises: RequestError saying what is wrong with it; EngineDead
        """
        try:
            await self.call_each(LoadAdapter(source=source, replaces=replaces))
        except RequestError:
            await self._even_out(source.name)
            raise
        if self.vocabularies.can_grow:
            await self.adapters()

    async def unload_adapter(self, name: str) -> None:
        """Have the engines take no more requests for an adapter. Raises: RequestError for a name
        that is not known; EngineDead"""
        await self.call_each(UnloadAdapter(name))

    async def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that requests may ask for, whichever engine they go to; know their
        vocabularies from then on. Raises: EngineDead"""
        first, *others = [told.sources for told in await self.call_each(ListAdapters())]
        names = [{source.name for source in sources} for sources in others]
        found = tuple(source for source in first if all(source.name in known for known in names))
        if self.vocabularies.is_new(found):
            await asyncio.to_thread(self.vocabularies.note, found)
        else:
            self.vocabularies.note(found)
        return found

    async def learn_of(self, adapter: str) -> None:
        """Have the vocabulary of an adapter ("": none) at hand. Raises: EngineDead"""
        if not self.vocabularies.knows(adapter):
            await self.adapters()

    async def _even_out(self, name: str) -> None:
        """Have the engines forget an adapter that only some of them could load. Raises:
        EngineDead"""
        told = await self.call_each(ListAdapters())
        holding = [any(source.name == name for source in one.sources) for one in told]
        if any(holding) and not all(holding):
            with contextlib.suppress(RequestError):  # of those that do not have it
                await self.call_each(UnloadAdapter(name))

    async def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Have the workers of all ranks run a method; return the answers, engine by engine in one
        list. Raises: RequestError naming a rank, or without an answer in time; EngineDead
        """
        limit_s = None if call.timeout_s is None else call.timeout_s + ANSWER_WAIT_S
        found = await self.call_each(CallWorkers(call), limit_s)
        return [answer for engine in found for answer in engine.answers]

    async def start_profile(self) -> None:
        """Start the profiler of every rank of every engine, or of none.

        Raises: RequestError naming a rank where one runs already, or no trace can be written;
        EngineDead
        """
        for function in (GET_READY, START):
            await self.collective_rpc(WorkerCall(method=function))

    async def stop_profile(self) -> list[str]:
        """Stop the profiler of every rank; return the files of their traces, each on its machine.

        Raises: RequestError naming a rank where none runs; EngineDead
        """
        return await self.collective_rpc(WorkerCall(method=STOP))
