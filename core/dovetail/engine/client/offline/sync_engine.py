"""SyncEngine: an engine that the caller steps in its own thread. For offline use.

Same input, core and output as AsyncEngine, without a transport.
"""

from __future__ import annotations

import abc
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.engine import messages
from dovetail.engine.client.pooling.input_processor import PooledInput
from dovetail.engine.client.requests.input_processor import (
    InputProcessor,
    PreparedRequest,
    Prompt,
    load_tokenizer,
)
from dovetail.engine.client.results.output_processor import OutputProcessor
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.core import EngineCore
from dovetail.engine.parts.adapters import WAIT_S
from dovetail.engine.parts.sleep_mode import asleep_error
from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.executor import WorkerCall
from dovetail.observability.stats import StatLoggers
from dovetail.registry.blame import blaming


@dataclass(slots=True, kw_only=True)
class SyncStep:
    """The results of a step, by the keys that `submit` returned."""

    outputs: list[tuple[int, RequestOutput]] = field(default_factory=list)
    errors: list[tuple[int, DovetailError]] = field(default_factory=list)


class SyncClient(abc.ABC):
    """Shared by both kinds of offline engines: checks and numbers requests."""

    def __init__(self, spec: EngineSpec, vocabularies: Vocabularies) -> None:
        self.spec = spec
        self.vocabularies = vocabularies
        self.tokenizer = vocabularies.own.tokenizer
        self._input = InputProcessor(spec, vocabularies)
        self._pooled_input = PooledInput(spec, vocabularies, self._input)
        self._serials = itertools.count()

    @property
    def media_words(self) -> dict[str, str]:
        """Return each kind of medium's placeholder text."""
        return self._input.media_words

    @abc.abstractmethod
    def _refusal(self) -> RequestError | None:
        """Return why requests are refused now, or None."""

    @abc.abstractmethod
    def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that requests may name, and update their vocabularies."""

    def _learn_of(self, adapter: str) -> None:
        """Make sure that an adapter's vocabulary is known ("": none)."""
        if not self.vocabularies.knows(adapter):
            self.adapters()

    @blaming("reading a request")
    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None = None,
        *,
        priority: int = 0,
        cache_salt: str = "",
        adapter: str = "",
    ) -> PreparedRequest:
        """Return a checked request that has not been submitted. Raises: RequestError"""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        self._learn_of(adapter)
        serial = next(self._serials)
        return self._input.prepare(
            prompt,
            params,
            request_id or str(serial),
            serial=serial,
            priority=priority,
            cache_salt=cache_salt,
            adapter=adapter,
        )

    @blaming("reading a request")
    def prepare_pooled(
        self,
        prompt: Prompt,
        params: PoolingParams,
        *,
        truncate: int | None = None,
        adapter: str = "",
    ) -> PreparedRequest:
        """Return a checked pooling request; `truncate` as in PooledInput. Raises: RequestError"""
        refusal = self._refusal()
        if refusal is not None:
            raise refusal
        self._learn_of(adapter)
        serial = next(self._serials)
        return self._pooled_input.prepare(
            prompt, params, str(serial), serial=serial, truncate=truncate, adapter=adapter
        )


class SyncEngine(SyncClient):
    """One engine in this thread. Close it with `shutdown`."""

    def __init__(self, spec: EngineSpec) -> None:
        """Load everything. Raises: ConfigError"""
        super().__init__(spec, Vocabularies(spec, load_tokenizer(spec)))
        self.core = EngineCore(spec)
        self._output = OutputProcessor(engine=spec.engine)
        self._stats = StatLoggers.build(spec, is_offline=True)

    def _refusal(self) -> RequestError | None:
        return asleep_error() if self.spec.can_sleep and self.is_sleeping else None

    @property
    def has_work(self) -> bool:
        """Return whether any request is unfinished."""
        return len(self._output) > 0

    @blaming("reading a request")
    def submit(self, prepared: PreparedRequest) -> int:
        """Queue a prepared request; return the key of its only output."""
        key = next(self._serials)
        self._output.add(key, prepared, is_whole=True)
        for request in prepared.requests:
            self.core.add(request)
        return key

    def abort(self, key: int) -> None:
        """Abort a request; it has no further output."""
        ids, stats = self._output.drop(key)
        self.core.abort(ids)
        if stats is not None:
            self._stats.request(stats)

    @blaming("a step")
    def step(self) -> SyncStep:
        """Run one step; return its results. Raises: EngineDead

        If nothing can run yet it waits briefly, for threads that are loading.
        """
        step = self.core.step()
        if step.is_stalled and not step.updates:
            time.sleep(WAIT_S)
        processed = self._output.process(step.updates)
        if processed.aborts:
            self.core.abort(processed.aborts)
        for stats in processed.stats:
            self._stats.request(stats)
        return SyncStep(outputs=processed.outputs, errors=processed.errors)

    def sleep(self, level: int) -> None:
        """Release the engine's memory once it is idle. Raises: RequestError"""
        self.settle()
        self._finish(messages.Sleep(level=level, waits=True))

    def wake_up(self, tags: Sequence[str]) -> None:
        """Reallocate memory. Raises: RequestError"""
        self.core.perform(messages.WakeUp(tuple(tags)))

    @property
    def is_sleeping(self) -> bool:
        """Return whether weights or KV cache are asleep."""
        return bool(self.core.condition().asleep)

    def reset_prefix_cache(self) -> None:
        """Invalidate all cached prefixes."""
        self.core.reset_prefix_cache()

    def collective_rpc(self, call: WorkerCall) -> list[Any]:
        """Run a method on the workers of all ranks; return their answers. Raises: RequestError"""
        answers: list[Any] = self.core.perform(messages.CallWorkers(call)).answers
        return answers

    def load_adapter(self, source: AdapterSource, *, replaces: bool = False) -> None:
        """Load an adapter and serve it. Raises: RequestError with what is wrong with it"""
        self._finish(messages.LoadAdapter(source=source, replaces=replaces))
        self.adapters()

    def _finish(self, operation: messages.AnyOperation) -> None:
        """Perform an operation to its end. Raises: RequestError"""
        done = self.core.perform(operation)
        while not done.done():
            time.sleep(WAIT_S)
            self.core.poll()
        done.result()

    def unload_adapter(self, name: str) -> None:
        """Stop accepting requests for an adapter. Raises: RequestError"""
        self.core.perform(messages.UnloadAdapter(name))

    def adapters(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that requests may name, and update their vocabularies."""
        found: tuple[AdapterSource, ...] = self.core.perform(messages.ListAdapters()).sources
        self.vocabularies.note(found)
        return found

    @blaming("a step")
    def settle(self) -> None:
        """Run the remaining steps until the engine is idle; their results are dropped."""
        while self.core.has_work:
            self.core.step()

    @blaming("the shutdown")
    def shutdown(self) -> None:
        """Release all resources. May be called twice."""
        self.core.shutdown()
        self._stats.close()
