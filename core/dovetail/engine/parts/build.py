"""Builds the parts of an engine, in the order in which the core calls them.

A new feature is a part in a file of its own, with a line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dovetail import registry
from dovetail.engine.parts.adapter_requests import AdapterRequests, NoAdapters
from dovetail.engine.parts.adapters import Adapters, serve_adapters
from dovetail.engine.parts.block_events import BlockEvents
from dovetail.engine.parts.constraints import Constraints
from dovetail.engine.parts.drafting import Drafting
from dovetail.engine.parts.encodings import Encodings
from dovetail.engine.parts.kv_transfer import KVTransfer
from dovetail.engine.parts.part import Engine, EnginePart
from dovetail.engine.parts.pausing import Pausing
from dovetail.engine.parts.sleep_mode import SleepMode
from dovetail.engine.parts.steps_together import StepsTogether
from dovetail.engine.parts.stop_conditions import StopConditions
from dovetail.engine.parts.worker_methods import WorkerMethods
from dovetail.engine.step_stats import StepCounter
from dovetail.interfaces.data.kv_pieces import kept_bytes
from dovetail.interfaces.data.sealed_block import HEADER_BYTES
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import KVLayout
from dovetail.interfaces.drafter import Drafter
from dovetail.interfaces.executor import Executor
from dovetail.interfaces.kv_connector import KVConnector, StoreFacts
from dovetail.interfaces.kv_event_publisher import CPU, GPU, KVEventPublisher
from dovetail.interfaces.kv_policy import KVAccounting


class PartsBuilder:
    """Builds the parts of one engine. What needs no weights is built first, so that a wrong option
    fails before they are loaded. Raises: ConfigError"""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._together = _steps_together(spec)
        self._drafter = _build_drafter(spec)

    def build(
        self,
        executor: Executor,
        layout: KVLayout,
        cache: KVAccounting,
        engine: Engine,
        counter: StepCounter,
    ) -> Sequence[EnginePart]:
        """Return the parts. Raises: ConfigError. Mutates: the cache, which they watch"""
        spec = self._spec
        return (
            SleepMode(executor, engine, can_sleep=spec.can_sleep),
            Pausing(engine, spec.engine),
            _adapter_requests(spec, serve_adapters(spec, executor.prepare), layout),
            Constraints(executor.prepare),
            StopConditions(spec.stop_conditions),
            Encodings.within(spec.schedule, engine.active),
            *_kv_transfer(spec, executor, layout, cache),
            *self._drafting(counter),
            *_block_events(spec, layout, cache),
            *self._together,
            WorkerMethods(executor, engine),
        )

    def _drafting(self, counter: StepCounter) -> list[Drafting]:
        spec, drafts = self._spec, self._spec.run.drafts
        if spec.drafting is None:
            return []
        is_steady = drafts is not None and drafts.is_sampled
        model = spec.run.model
        return [Drafting(spec.drafting, self._drafter, model, counter, is_steady=is_steady)]


def _steps_together(spec: EngineSpec) -> list[StepsTogether]:
    """Return the step synchronization, if the engine shares experts with others."""
    if not spec.shares_experts:
        return []
    rank = spec.run.rank
    return [StepsTogether(Path(spec.run.engines_folder), rank.data_rank, rank.data_size)]


def _build_drafter(spec: EngineSpec) -> Drafter | None:
    """Return the drafter that runs in the engine; None if there is none, or on the worker."""
    if spec.drafting is None or spec.run.drafts is not None:
        return None
    drafter: Drafter = registry.make(
        spec.drafting.drafter, spec.run.model, spec.drafting.max_tokens
    )
    return drafter


def _adapter_requests(spec: EngineSpec, adapters: Adapters | None, layout: KVLayout) -> EnginePart:
    if adapters is None:
        return NoAdapters()
    hashes_files = _stores_blocks(spec, layout)
    return AdapterRequests(adapters, spec, hashes_files=hashes_files)


def _stores_blocks(spec: EngineSpec, layout: KVLayout) -> bool:
    return spec.run.transfer is not None and bool(layout.num_tensors)


def _kv_transfer(
    spec: EngineSpec, executor: Executor, layout: KVLayout, cache: KVAccounting
) -> list[KVTransfer]:
    """Return the transfer of KV blocks, if the engine has a connector. Raises: ConfigError"""
    transfer = spec.run.transfer
    if transfer is None or not _stores_blocks(spec, layout):
        return []
    layers = executor.kv_layers()
    connector: KVConnector = registry.make(transfer.connector)
    facts = StoreFacts(
        identity=transfer.identity,
        block_bytes=HEADER_BYTES + kept_bytes(layout, layers, transfer.unit_tokens),
        world_size=spec.run.rank.world_size,
        engine_id=transfer.engine_id,
        model=spec.run.model.path,
        unit_tokens=transfer.unit_tokens,
        engine=transfer.engine,
    )
    is_slow = "slow_look_up" in connector.capabilities
    index, load = connector.index(facts), executor.prepare
    return [KVTransfer(transfer, index, cache, layout, load, layers=layers, is_slow=is_slow)]


def _block_events(spec: EngineSpec, layout: KVLayout, cache: KVAccounting) -> list[BlockEvents]:
    """Return the prefix cache's events, if they are published. Raises: ConfigError"""
    if spec.events is None:
        return []
    publisher: KVEventPublisher = registry.make(spec.events.publisher, spec.engine)
    medium = CPU if spec.run.device == "cpu" else GPU
    events = BlockEvents(publisher, layout.block_tokens, spec.engine, medium)
    cache.watch(events)
    events.cleared()  # subscribers drop the blocks of an earlier engine
    events.publish()
    return [events]
