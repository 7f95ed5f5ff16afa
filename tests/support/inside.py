"""Returns the private parts of an engine that tests look at; each path is written once, here.

A test that needs two private attributes in a row asks here (tests/meta/test_tests.py holds it to
that). A single private attribute of the class that a test file is about may be read there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.engine.parts.adapter_requests import AdapterRequests
from dovetail.engine.parts.adapters import Adapters
from dovetail.engine.parts.block_events import BlockEvents
from dovetail.engine.parts.drafting import Drafting
from dovetail.engine.parts.encodings import Encodings
from dovetail.engine.parts.kv_transfer import KVTransfer
from dovetail.engine.parts.part import EnginePart
from dovetail.runner.kv.block_transfer import BlockTransfer, BlockTransfers
from dovetail.runner.media.runner_media import RunnerMedia

if TYPE_CHECKING:
    from collections import deque

    import torch

    from dovetail.engine.client.async_engine import AsyncEngine
    from dovetail.engine.client.connection import EngineConnection
    from dovetail.engine.client.host import EngineHost
    from dovetail.engine.core import EngineCore
    from dovetail.engine.kv.block_pool import BlockPool
    from dovetail.engine.kv.kv_cache import KVCacheManager
    from dovetail.interfaces.data.step import KVLayout
    from dovetail.llm.llm import LLM
    from dovetail.runner.media.encoder_pass import EncoderPass
    from dovetail.runner.model_runner import ModelRunner
    from dovetail.runner.replay.graphs import GraphManager
    from dovetail.runner.replay.recorded import RecordedForward
    from dovetail.runner.rows.batch import Batch
    from dovetail.structured_output.cache import ConstraintCache
    from dovetail.structured_output.compiler import ConstraintCompiler

# An LLM of one process


def engine_of(llm: LLM) -> Any:
    """Return the offline engine of an LLM."""
    return llm._engine


def core_of(llm: LLM) -> EngineCore:
    """Return the engine core of an LLM that runs it in this process."""
    core: EngineCore = engine_of(llm).core
    return core


def hosts_of(llm: LLM) -> Sequence[EngineHost]:
    """Return what holds the engines of an LLM that has several."""
    hosts: Sequence[EngineHost] = engine_of(llm)._engine.hosts
    return hosts


def worker_of(llm: LLM) -> Any:
    """Return the worker of an LLM that runs it in this process."""
    return executor_of(core_of(llm)).worker


def runner_of(llm: LLM) -> ModelRunner:
    """Return the model runner of an LLM that runs it in this process."""
    runner: ModelRunner = worker_of(llm).runner
    return runner


# An engine core

Part = TypeVar("Part", bound=EnginePart)


def part_of(core: EngineCore, kind: type[Part]) -> Part:
    """Return the core's part of this class. Raises: ValueError if it is not switched on"""
    (found,) = (part for part in core._parts if isinstance(part, kind))
    return found


def adapters_of(core: EngineCore) -> Adapters:
    """Return the adapters that the core serves."""
    return part_of(core, AdapterRequests)._adapters


def executor_of(core: EngineCore) -> Any:
    """Return the executor, whichever plugin it is."""
    return core._executor


def scheduler_of(core: EngineCore) -> Any:
    """Return the scheduler, whichever plugin it is."""
    return core._scheduler


def drafting_of(core: EngineCore) -> Any:
    """Return what asks for draft tokens."""
    return part_of(core, Drafting)


def kv_transfer_of(core: EngineCore) -> KVTransfer:
    """Return what loads KV blocks from other places."""
    return part_of(core, KVTransfer)


def encodings_of(core: EngineCore) -> Encodings:
    """Return what keeps track of encoded media."""
    return part_of(core, Encodings)


def pending_steps_of(core: EngineCore) -> deque[Any]:
    """Return the steps that have been started and not read."""
    return core._pending_steps


def announces_blocks(core: EngineCore) -> bool:
    """Return whether KV blocks are announced."""
    return any(isinstance(part, BlockEvents) for part in core._parts)


def event_publisher_of(core: EngineCore) -> Any:
    """Return the plugin that publishes what happens to KV blocks."""
    return part_of(core, BlockEvents)._publisher


def replace_counter(core: EngineCore, wrap: Callable[[Any], Any]) -> None:
    """Wrap what counts steps. Mutates: core"""
    core._counter = wrap(core._counter)


def watch_preemptions(core: EngineCore) -> list[Any]:
    """Return a list that the jobs join which are preempted from now on. Mutates: core"""
    preempted: list[Any] = []
    preempt = scheduler_of(core)._preempt

    def noted(job: Any) -> Any:
        preempted.append(job)
        return preempt(job)

    scheduler_of(core)._preempt = noted
    return preempted


def pool_of(cache: KVCacheManager) -> BlockPool:
    """Return the pool of a KV cache's blocks."""
    return cache._pool


def hashes_of(pool: BlockPool, group: int) -> dict[bytes, int]:
    """Return the blocks of a group that can be found again, by their hashes."""
    return pool._index[group]


# A client's side of engines


def connections_of(engine: AsyncEngine) -> list[EngineConnection]:
    """Return the connections to the engines."""
    return engine._connections


def num_open(engine: AsyncEngine) -> int:
    """Return the number of entries that a client holds for requests: 0 when all are over."""
    return len(engine._mailboxes) + len(engine._homes) + len(engine._keys) + len(engine._aborted)


def router_of(engine: AsyncEngine) -> Any:
    """Return the plugin that chooses an engine for a request."""
    return engine._routing._router


def replace_router(routing: Any, router: Any, news: Any) -> None:
    """Have a client choose engines by another plugin, told of other news. Mutates: routing"""
    routing._router, routing._news = router, news


def loggers_of(engine: Any) -> list[Any]:
    """Return the stat loggers of a client."""
    loggers: list[Any] = engine._stats._loggers
    return loggers


def grow_older(connection: EngineConnection, *, heard_s: float = 0, busy_s: float = 0) -> None:
    """Act as if a connection had heard nothing, or had work, for longer. Mutates: connection"""
    connection._heard_s -= heard_s
    connection._busy_since_s -= busy_s


# A model runner


def layout_of(runner: ModelRunner) -> KVLayout:
    """Return the layout of the KV cache."""
    return runner.allocated.layout


def caches_of(runner: ModelRunner) -> dict[str, Any]:
    """Return the KV tensors by layers."""
    return runner.allocated.caches


def batch_of(runner: ModelRunner) -> Batch:
    """Return the rows."""
    return runner.allocated.batch


def graphs_of(runner: ModelRunner) -> GraphManager | None:
    """Return the captured graphs, None on a device that captures none."""
    return runner.passes.graphs


def recorder_of(runner: ModelRunner) -> Any:
    """Return the `RecordedForward`, None where steps are not recorded."""
    return runner.passes.recorded


def programs_of(recorder: RecordedForward) -> dict[Any, Any]:
    """Return the recorded programs by their sizes."""
    return recorder._programs


def compiled_of(runner: ModelRunner) -> Any:
    """Return the compiled forward pass."""
    return runner.passes.compiled


def calls_of(runner: ModelRunner) -> Any:
    """Return the calls to the device."""
    return runner._calls


def unread_steps_of(runner: ModelRunner) -> Any:
    """Return the steps that were begun and not read."""
    return runner._pending_steps


def update_rows(runner: ModelRunner, plan: Any) -> None:
    """Take over a plan's new rows without a step. Mutates: runner"""
    runner._update_rows(plan)


def set_halves(runner: ModelRunner, halves: Any) -> None:
    """Have a runner that divides its steps take these halves. Mutates: runner"""
    if runner.passes.halves is not None:
        runner.passes.halves._halves = halves


def encoder_passes_of(runner: ModelRunner) -> dict[str, EncoderPass]:
    """Return the passes of the media encoder that have begun."""
    return passes_of(runner.parts.of(RunnerMedia))


def passes_of(media: RunnerMedia) -> dict[str, EncoderPass]:
    """Return the passes that have begun and not ended."""
    return media._passes


def encoded_in(media: RunnerMedia) -> dict[str, torch.Tensor]:
    """Return the encodings that a rank holds."""
    return media._encodings


def failures_in(media: RunnerMedia) -> dict[str, str]:
    """Return why media could not be encoded."""
    return media._failures


def is_computing(encoder_pass: EncoderPass) -> bool:
    """Return whether the thread of a pass lives."""
    thread = encoder_pass._thread
    return thread is not None and thread.is_alive()


# Layers


def format_in(linear: Any) -> str:
    """Return the name of the format that a linear layer's matrix is stored in."""
    matrix = linear._matrix
    name: str = (matrix.packed or matrix._weight).format
    return name


# KV blocks elsewhere


def transfer_of(runner: ModelRunner) -> BlockTransfer:
    """Return what copies a rank's KV blocks to its store and back."""
    transfer = runner.parts.of(BlockTransfers)._current
    assert transfer is not None
    return transfer


def write_jobs_of(runner: ModelRunner) -> Any:
    """Return the queue of blocks that are to be written."""
    return transfer_of(runner)._jobs


def block_store_of(runner: ModelRunner) -> Any:
    """Return the store of a rank's KV blocks, whichever plugin's it is."""
    return runner.parts.of(BlockTransfers)._store


def replace_store(transfer: BlockTransfer, wrap: Callable[[Any], Any]) -> None:
    """Wrap the store that a transfer reads. Mutates: transfer"""
    transfer._store = wrap(transfer._store)


def host_blocks_of(store: Any) -> Any:
    """Return the memory in which a store keeps blocks for its peers."""
    return store._host_blocks


def stored_in(blocks: Any) -> dict[bytes, bytes]:
    """Return the blocks in such a memory, by their keys."""
    contents: dict[bytes, bytes] = blocks._blocks
    return contents


# Drafts


def num_finished_tokens(drafter: Any) -> int:
    """Return how many tokens of finished answers the suffix drafter holds."""
    return len(drafter._finished._tokens)


# Processors of logits


def adapted(processor: Any) -> Any:
    """Return the vLLM processor that one of dovetail's runs."""
    return processor._batch._processor


# Answers that a server keeps


def owners_in(store: Any) -> dict[str, str]:
    """Return whose each stored answer is, by their ids."""
    owners: dict[str, str] = store._kept._owners
    return owners


def bytes_in(store: Any) -> int:
    """Return the bytes that stored answers are counted with."""
    number: int = store._kept._bytes_of.total()
    return number


# Structured output


def process_of(compiler: ConstraintCompiler) -> Any:
    """Return the process that compiles."""
    assert compiler._process is not None
    return compiler._process


def turn_of(compiler: ConstraintCompiler) -> Any:
    """Return the lock for whose holder the process compiles."""
    return compiler._turn


def num_in_line(compiler: ConstraintCompiler) -> int:
    """Return how many callers wait or compile."""
    return compiler._num_waiting


def backends_of(table: ConstraintCache) -> dict[str, Any]:
    """Return the backends that a rank has made."""
    return table._backends


# Events of KV blocks


def num_published(publisher: Any) -> int:
    """Return the number of batches of events that a ZeroMQ publisher was given."""
    number: int = publisher._num_made
    return number


def num_lost(publisher: Any) -> int:
    """Return how many of them did not fit its queue."""
    number: int = publisher._num_lost
    return number


def kept_by(publisher: Any) -> Sequence[tuple[int, bytes]]:
    """Return the batches, with their numbers, that it can send again."""
    kept: Sequence[tuple[int, bytes]] = publisher._kept
    return kept


def queue_of(publisher: Any) -> Any:
    """Return the queue of what it has not sent."""
    return publisher._queue


def router_in(choice: Any) -> Any:
    """Return the plugin by which a choice of prefill servers is made."""
    return choice._router


def known_blocks_of(router: Any) -> Any:
    """Return the blocks that a router was told of."""
    return router._known
