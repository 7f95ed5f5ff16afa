"""EngineOperations: operations of a client on all its engines, other than generation.

Each operation is one call that every engine gets; to add one, add a method here and a message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.messages import (
    CallWorkers,
    ListAdapters,
    LoadAdapter,
    Operation,
    Ping,
    ResetPrefixCache,
    Sleep,
    UnloadAdapter,
    WakeUp,
)
from dovetail.errors import RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.executor import WorkerCall

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

# Extra time for an engine's answer after its workers' timeout, to name the hanging ones.
ANSWER_WAIT_S = 1.0


class EngineOperations(ABC):
    """The operations of one client's engines."""

    spec: EngineSpec
    vocabularies: Vocabularies

    @cached_property
    def _ended(self) -> asyncio.Event:
        """Return the event that is set when all engines are dead or the client is shut down."""
        return asyncio.Event()

    async def wait_end(self) -> None:
        """Return once no more operations are possible."""
        await self._ended.wait()

    @abstractmethod
    async def call_each(
        self, operation: Operation[Result], timeout_s: float | None = None
    ) -> list[Result]:
        """Run an operation in every live engine; return the result of each.

        An engine that dies meanwhile is left out. Raises: the first engine's error; EngineDead if
        no engine is left; Overloaded while draining and after `timeout_s`
        """

    async def call(self, operation: Operation[Result], timeout_s: float | None = None) -> Result:
        """Run an operation in every engine; return the result of the first live one.

        Raises: as `call_each`
        """
        return (await self.call_each(operation, timeout_s))[0]

    async def reset_prefix_cache(self) -> None:
        """Invalidate the engines' cached prefixes.

        Raises: EngineDead; Overloaded if one does not answer within `reply_timeout_s`.
        """
        await self.call_each(ResetPrefixCache(), self.spec.reply_timeout_s)

    async def sleep(self, level: int = 1, *, waits: bool = False) -> None:
        """Have the engines release their memory, without a time limit. New requests are refused;
        running ones are aborted, or finish first if it `waits`.

        Raises: RequestError, EngineDead
        """
        await self.call_each(Sleep(level=level, waits=waits))

    async def wake_up(self, tags: Sequence[str] = ()) -> None:
        """Have the engines reallocate the memory of "weights", "kv_cache" (none named: both).

        Raises: RequestError, EngineDead
        """
        await self.call_each(WakeUp(tuple(tags)))

    async def is_sleeping(self) -> bool:
        """Return whether any part of an engine sleeps. Raises: EngineDead"""
        return any(status.condition.asleep for status in await self.call_each(Ping()))

    async def load_adapter(self, source: AdapterSource, *, replaces: bool = False) -> None:
        """Load an adapter into the engines and serve it. `replaces`: instead of one with its name.

        Raises: RequestError with what is wrong with it; EngineDead
        """
        try:
            await self.call_each(LoadAdapter(source=source, replaces=replaces))
        except RequestError:
            await self._even_out(source.name)
            raise
        if self.vocabularies.can_grow:
            await self.adapters()

    async def unload_adapter(self, name: str) -> None:
        """Stop accepting requests for an adapter in all engines. Raises: RequestError for an
        unknown name; EngineDead"""
        await self.call_each(UnloadAdapter(name))

    async def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that all engines serve, and update their vocabularies. Raises:
        EngineDead"""
        first, *others = [listing.sources for listing in await self.call_each(ListAdapters())]
        names = [{source.name for source in sources} for sources in others]
        found = tuple(source for source in first if all(source.name in known for known in names))
        if self.vocabularies.is_new(found):
            await asyncio.to_thread(self.vocabularies.note, found)
        else:
            self.vocabularies.note(found)
        return found

    async def learn_of(self, adapter: str) -> None:
        """Make sure that an adapter's vocabulary is known ("": none). Raises: EngineDead"""
        if not self.vocabularies.knows(adapter):
            await self.adapters()

    async def _even_out(self, name: str) -> None:
        """Unload an adapter that only some of the engines could load. Raises: EngineDead"""
        listings = await self.call_each(ListAdapters())
        holding = [any(source.name == name for source in one.sources) for one in listings]
        if any(holding) and not all(holding):
            with contextlib.suppress(RequestError):  # from engines that do not have it
                await self.call_each(UnloadAdapter(name))

    async def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Run a method on the workers of all ranks; return all engines' answers in one list.

        Raises: RequestError naming a rank, or without an answer in time; EngineDead
        """
        limit_s = None if call.timeout_s is None else call.timeout_s + ANSWER_WAIT_S
        found = await self.call_each(CallWorkers(call), limit_s)
        return [answer for engine in found for answer in engine.answers]

    def default_params(self, **fields: Any) -> SamplingParams:
        """Return the model's default sampling params with `fields` overriding them."""
        return SamplingParams(**{**self.spec.default_sampling, **fields})
