"""BlockTransfer: moves one rank's blocks between KV tensors and the store of a connector.

`block_pieces` decides whether a store gets them whole or in pieces.

When the next step begins, a block to save is copied, with room for a header; a thread seals and
writes it while steps run. A load reads and checks blocks in the requesting thread; the step that
starts their request copies them from there. Loads also find blocks that are not written yet. While
more than a maximum waits for a slow store, further blocks are not written.

The floor: a saved block of B bytes is read and written once (2 B over the memory bus), a loaded one
twice more for its check. SHA-256 at 1 to 2 GB/s per core bounds both, besides the steps.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

import numpy as np
import torch

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.data.kv_pieces import kept_bytes
from dovetail.interfaces.data.sealed_block import HEADER_BYTES
from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import BlockOrders, CachedLayer, KVLayout, StepPlan
from dovetail.interfaces.executor import BlockLoad, Preparation
from dovetail.interfaces.kv_connector import BlockStore, KVConnector, Part, StoreFacts, TransferSpec
from dovetail.observability.supervise import supervised_thread
from dovetail.registry.blame import described
from dovetail.runner.kv.block_pieces import Pieces, WholeBlocks
from dovetail.runner.step.allocated import Allocated
from dovetail.runner.step.part import RunnerPart

log = logging.getLogger(__name__)

CLOSE_WAIT_S = 10.0
"""How long an orderly shutdown waits for the store to take pending blocks."""


class _Copies:
    """Blocks copied from the device, each after room for its header. `ready` is the event to wait
    for before reading. Shapes: rows [blocks, HEADER_BYTES + bytes] uint8"""

    __slots__ = ("keys", "ready", "rows")

    def __init__(
        self, keys: Sequence[bytes], rows: torch.Tensor, ready: torch.cuda.Event | None
    ) -> None:
        self.keys = keys
        self.rows = rows
        self.ready = ready

    @property
    def num_bytes(self) -> int:
        return self.rows.numel()


_Job = _Copies | bytes
"""A job of the writing thread: copies to write, or a key to drop."""


class BlockTransfer:
    """The transfers of one rank. `tensors` are the KV tensors as blocks of bytes.

    The step thread calls `follow`; one other thread calls `load`.
    Shapes: each of `tensors` [num_blocks, block_bytes] uint8
    """

    def __init__(
        self,
        layout: KVLayout,
        tensors: Sequence[torch.Tensor],
        store: BlockStore,
        *,
        form: WholeBlocks | Pieces,
        buffer_bytes: int,
    ) -> None:
        self.num_unwritten = 0
        self._store = store
        self._form = form
        self._tensors = tensors
        self._width = layout.block_bytes
        self._payload_bytes = len(tensors) * layout.block_bytes
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._loaded: dict[int, tuple[torch.Tensor, int]] = {}
        self._sizes: dict[int, int] = {}
        self._released_early: set[int] = set()
        self._pending: dict[bytes, tuple[_Copies, int]] = {}
        self._pending_bytes = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._writer = supervised_thread("kv-writer", self._write_all)
        self._writer.start()

    def follow(self, orders: BlockOrders) -> None:
        """Carry out a plan's orders, in step order. Mutates: KV tensors, self"""
        if orders.saved:
            self._save(orders.saved)
        if orders.loaded:
            self._place(orders.loaded)
        for first in orders.released:
            self._release(first)
        for name in orders.dropped:
            self._jobs.put(name)

    def load(self, item: BlockLoad) -> None:
        """Read and check blocks. Raises: RequestError when one is missing or damaged.
        Mutates: self"""
        rows = self._host_rows(len(item.keys), self._payload_bytes)
        num_lost = self._read(item, rows.numpy())
        if num_lost:
            with self._lock:
                self._released_early.discard(item.first)
            raise RequestError(f"{num_lost} of {len(item.keys)} blocks are missing or damaged.")
        with self._lock:
            if item.first in self._released_early:
                self._released_early.discard(item.first)
                return
            self._sizes[item.first] = len(item.keys)
            for number in range(len(item.keys)):
                self._loaded[item.first + number] = (rows, number)

    def _read(self, item: BlockLoad, rows: np.ndarray) -> int:
        """Read blocks, from memory if they are not written yet; return how many are unavailable.
        Mutates: rows"""
        wanted: dict[bytes, list[tuple[int, int]]] = {}
        num_missing = [0] * len(item.keys)
        for number, key in enumerate(item.keys):
            with self._lock:
                copies, row = self._pending.get(key, (None, 0))
            if copies is not None:
                self._wait(copies)
                rows[number] = copies.rows[row].numpy()[HEADER_BYTES:]
                continue
            names = self._form.names(key)
            num_missing[number] = len(names)
            for unit, name in enumerate(names):
                wanted.setdefault(name, []).append((number, unit))
        try:
            for name, parts in self._store.gather(tuple(wanted), item.source, self._form.ranks_for):
                for number, unit in wanted.pop(name, ()):
                    key, row = item.keys[number], rows[number]
                    num_missing[number] -= parts is not None and self._is_placed(
                        key, unit, parts, row
                    )
        except Exception as error:  # a store's fault only costs its blocks
            log.warning("KV blocks could not be read: %s", described(error))
        return sum(1 for count in num_missing if count)

    def _is_placed(self, key: bytes, unit: int, parts: Sequence[Part], row: np.ndarray) -> bool:
        """Copy a part of a block to its place; return whether it is valid. A damaged one is
        dropped. Mutates: row"""
        if self._form.place(key, unit, parts, row):
            return True
        log.warning("a KV block in the store is damaged and dropped: %s", key.hex())
        self._jobs.put(self._form.names(key)[unit])
        return False

    def _save(self, saved: Sequence[tuple[int, bytes]]) -> None:
        num_bytes = len(saved) * (HEADER_BYTES + self._payload_bytes)
        with self._lock:
            if self._pending_bytes and self._pending_bytes + num_bytes > self._buffer_bytes:
                self.num_unwritten += len(saved)
                log.debug("the store is slow: %d KV blocks are not written", len(saved))
                return
        keys = [key for _, key in saved]
        copies = self._copied([block for block, _ in saved], keys)
        with self._lock:
            self._pending_bytes += num_bytes
            self._pending |= {key: (copies, row) for row, key in enumerate(keys)}
        self._jobs.put(copies)

    def _copied(self, blocks: Sequence[int], keys: Sequence[bytes]) -> _Copies:
        rows = self._host_rows(len(blocks), HEADER_BYTES + self._payload_bytes)
        # One copy of whole rows: the host would wait for a copy with strides.
        staged = torch.empty_like(rows, device=self._device) if rows.is_pinned() else rows
        index = self._index(blocks)
        for i, tensor in enumerate(self._tensors):
            start = HEADER_BYTES + i * self._width
            staged[:, start : start + self._width] = tensor.index_select(0, index)
        if staged is not rows:
            rows.copy_(staged, non_blocking=True)
        ready = None
        if rows.is_pinned():
            ready = torch.cuda.Event()
            ready.record()
        return _Copies(keys, rows, ready)

    def _place(self, loaded: Sequence[tuple[int, int]]) -> None:
        """Copy loaded data to its blocks. Mutates: the KV tensors"""
        with self._lock:
            sources = [self._loaded[number] for number, _ in loaded]
        start = 0
        for end in range(1, len(loaded) + 1):
            if end < len(loaded) and sources[end][0] is sources[start][0]:
                continue
            rows = sources[start][0][[row for _, row in sources[start:end]]]
            rows = rows.to(self._device)
            index = self._index([block for _, block in loaded[start:end]])
            for i, tensor in enumerate(self._tensors):
                tensor.index_copy_(0, index, rows[:, i * self._width : (i + 1) * self._width])
            start = end

    def _release(self, first: int) -> None:
        with self._lock:
            count = self._sizes.pop(first, None)
            if count is None:
                self._released_early.add(first)
                return
            for number in range(first, first + count):
                del self._loaded[number]

    def _write_all(self) -> None:
        """Write and drop blocks in order, until None arrives."""
        while (job := self._jobs.get()) is not None:
            if isinstance(job, bytes):
                self._guarded("dropped", self._store.drop, job)
            else:
                self._write(job)

    def _write(self, copies: _Copies) -> None:
        """Seal and write blocks. Mutates: self"""
        try:
            self._wait(copies)
            data = copies.rows.numpy()
            for row, key in enumerate(copies.keys):
                for name, block in self._form.sealed(key, data[row]):
                    self._guarded("written", self._store.write, name, block)
        finally:
            self._forget(copies)

    def _forget(self, copies: _Copies) -> None:
        """Release the memory of blocks. Mutates: self"""
        with self._lock:
            self._pending_bytes -= copies.num_bytes
            for key in copies.keys:
                if self._pending.get(key, (None, 0))[0] is copies:
                    del self._pending[key]

    def _guarded(self, what: str, call: Callable[..., None], *args: object) -> None:
        try:
            call(*args)
        except Exception as error:  # a store's fault only costs its blocks
            log.warning("a KV block could not be %s: %s", what, described(error))

    def _wait(self, copies: _Copies) -> None:
        if copies.ready is not None:
            copies.ready.synchronize()

    @property
    def _device(self) -> torch.device:
        return self._tensors[0].device if self._tensors else torch.device("cpu")

    def _index(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks).to(self._device, non_blocking=True)

    def _host_rows(self, count: int, width: int) -> torch.Tensor:
        is_pinned = self._device.type == "cuda"
        return torch.empty((count, width), dtype=torch.uint8, pin_memory=is_pinned)

    def close(self) -> None:
        """Write pending blocks, for a limited time. May be called twice."""
        if self._writer.is_alive():
            self._jobs.put(None)
            self._writer.join(CLOSE_WAIT_S)


class BlockTransfers(RunnerPart):
    """The transfers of a runner with a connector. Its KV tensors may be replaced, the store
    stays."""

    prepares = (BlockLoad,)

    def __init__(self, run: RunSpec, spec: TransferSpec) -> None:
        self._run = run
        self._spec = spec
        self._store: BlockStore | None = None
        self._made: Allocated | None = None
        self._current: BlockTransfer | None = None

    def allocate(self, storage: Allocated) -> None:
        """Note the KV tensors, and the layers that use them. Mutates: self"""
        self._made = storage

    def open(self) -> None:
        """Start to follow orders for the KV tensors. Raises: ConfigError. Mutates: self"""
        if self._made is None or not self._made.tensors:
            return
        layout, layers = self._made.layout, self._made.layers
        form = self._form_of(layout, layers)
        if self._store is None:
            self._store = self._open_store(layout, layers)
        bound = self._spec.buffer_bytes
        self._current = BlockTransfer(
            layout, self._made.tensors, self._store, form=form, buffer_bytes=bound
        )

    def _form_of(self, layout: KVLayout, layers: Sequence[CachedLayer]) -> WholeBlocks | Pieces:
        """Return the form in which a store gets blocks. Raises: ConfigError"""
        run, spec = self._run, self._spec
        if not spec.unit_tokens:
            return WholeBlocks(run.rank.rank, layout.num_tensors * layout.block_bytes)
        return Pieces(
            layout,
            layers,
            registry.admin.load_selection(run.attention),
            run.rank,
            model_heads=run.model.num_kv_heads,
            unit_tokens=spec.unit_tokens,
        )

    def _open_store(self, layout: KVLayout, layers: Sequence[CachedLayer]) -> BlockStore:
        spec = self._spec
        connector: KVConnector = registry.make(spec.connector)
        num_bytes = kept_bytes(layout, layers, spec.unit_tokens)
        facts = StoreFacts(
            identity=spec.identity,
            block_bytes=HEADER_BYTES + num_bytes,
            rank=self._run.rank.rank,
            world_size=self._run.rank.world_size,
            engine_id=spec.engine_id,
            model=self._run.model.path,
            unit_tokens=spec.unit_tokens,
            engine=spec.engine,
        )
        return connector.store(facts)

    def before(self, plan: StepPlan) -> None:
        """Carry out a plan's orders, if any. Mutates: KV tensors, self"""
        if plan.block_orders is not None and self._current is not None:
            self._current.follow(plan.block_orders)

    def prepare(self, item: Preparation) -> None:
        """Read and check blocks. Raises: RequestError. Mutates: self"""
        assert isinstance(item, BlockLoad)
        if self._current is None:
            raise RequestError("no store of KV blocks is open.")
        self._current.load(item)

    def release(self) -> Sequence[torch.Tensor]:
        """Release the KV tensors; the store stays. Mutates: self"""
        self._made = None
        if self._current is not None:
            self._current.close()
            self._current = None
        return ()

    def close(self) -> None:
        """Release everything. May be called twice."""
        self.release()
        if self._store is not None:
            self._store.close()
            self._store = None
