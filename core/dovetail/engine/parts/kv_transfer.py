"""KVTransfer: one engine's KV blocks in an external store (KV connector), and requests that wait
for some.

Before a request is queued, its leading blocks are looked up. Every rank loads the ones not cached
here into host memory, in parallel with the steps. The request is then queued with them as its host
blocks, so schedulers treat it as swapped out. Full blocks are written by the ranks after the next
step has copied them. If a load fails, the tokens are recomputed or the request fails, depending on
the failure policy. A request may name the engine that has computed its prompt (kv_transfer_params,
as in vLLM), or request the params with which another engine continues.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from dovetail.engine.active_request import ActiveRequest
from dovetail.engine.messages import RequestUpdate
from dovetail.engine.parts.part import EnginePart, Ready
from dovetail.errors import RequestError
from dovetail.interfaces.data.kv_pieces import names_of, state_groups
from dovetail.interfaces.data.step import BlockOrders, CachedLayer, KVLayout, StepPlan
from dovetail.interfaces.executor import BlockLoad, Loaded, Preparation
from dovetail.interfaces.kv_connector import FAIL, StoreIndex, TransferSpec
from dovetail.interfaces.kv_policy import Found, KVAccounting
from dovetail.interfaces.scheduler import RequestState
from dovetail.interfaces.stats import TransferStats

logger = logging.getLogger(__name__)

Load = Callable[[Preparation], Loaded]
FROM_PEER, FOR_PEER = "do_remote_prefill", "do_remote_decode"
NUM_TOKENS = "remote_num_tokens"
"""Keys of kv_transfer_params: another engine has the prompt's blocks, another will fetch them, and
the number of tokens."""
FAILED = ("abort", "error")
ORDERS_ALONE = -3
"""Step id of steps without requests, to write out KV blocks."""
MAX_LOOKS = 2
"""How often a request is looked up: unreadable blocks are gone the second time."""


def key_of(group: int, prefix_hash: bytes) -> bytes:
    """Return the store's name of a block."""
    return bytes((group,)) + prefix_hash


_Sighting = tuple[Found | None, str]
"""The result of a look-up, and its source."""


class _Arrival:
    """A request that waits for its look-up, for buffer room, or for its load."""

    __slots__ = (
        *("active", "deadline_s", "first", "found", "keys", "load", "look", "num_looks", "params"),
        *("request", "source", "started_s"),
    )

    def __init__(self, active: ActiveRequest) -> None:
        self.active = active
        self.request: RequestState = active.request
        params = active.kv_transfer
        self.params: Mapping[str, Any] = params if params.get(FROM_PEER) else {}
        self.source = ""
        self.started_s = 0.0
        self.num_looks = 0
        self.look: Future[_Sighting] | None = None
        self.found: Found | None = None
        self.keys: tuple[bytes, ...] = ()
        self.first = 0
        self.load: Loaded | None = None
        self.deadline_s = 0.0


class KVTransfer(EnginePart):
    """One engine's view of its connector's store. Used by one thread.

    The counts are since the start: failed loads, bytes loaded, bytes submitted for writing, and the
    total seconds of loads.
    """

    def __init__(
        self,
        spec: TransferSpec,
        index: StoreIndex,
        cache: KVAccounting,
        layout: KVLayout,
        load: Load,
        *,
        layers: Sequence[CachedLayer] = (),
        is_slow: bool = False,
    ) -> None:
        self.num_failures = self.num_loads = 0
        self.loaded_bytes = self.saved_bytes = 0
        self.load_s = 0.0
        self._told = TransferStats(connector=spec.connector.name)
        self._num_units = layout.block_tokens // (spec.unit_tokens or layout.block_tokens)
        self._states = state_groups(layout, layers)
        self._block_tokens = layout.block_tokens
        self._spec = spec
        self._index = index
        self._cache = cache
        self._load = load
        self._looker = ThreadPoolExecutor(1, "kv-look-up") if is_slow else None
        self._arrivals: dict[str, _Arrival] = {}
        self._adopted: set[str] = set()
        self._roomless: deque[_Arrival] = deque()
        self._saved: dict[bytes, int] = {}
        self._dropped: list[bytes] = []
        self._released: list[int] = []
        self._num_host_blocks = layout.num_host_blocks
        self._next_number = layout.num_host_blocks
        self._block_bytes = max(1, layout.num_tensors * layout.block_bytes)
        self._held: dict[int, int] = {}
        self._stuck: list[Loaded | Future[_Sighting]] = []
        self._unsaved: frozenset[str] = frozenset()
        cache.watch(self)

    def report(self, stats: dict[str, Any]) -> None:
        """Add the connector's traffic since the last call. Mutates: self, stats"""
        now = TransferStats(
            connector=self._spec.connector.name,
            loads=self.num_loads,
            failures=self.num_failures,
            loaded_tokens=self._cache.num_loaded_tokens,
            loaded_bytes=self.loaded_bytes,
            saved_bytes=self.saved_bytes,
            load_s=self.load_s,
        )
        last, self._told = self._told, now
        names = [name for name in now.__struct_fields__ if name != "connector"]
        since = {name: getattr(now, name) - getattr(last, name) for name in names}
        stats["transfer"] = TransferStats(connector=now.connector, **since)

    # Requests

    def must_wait(self, active: ActiveRequest) -> bool:
        """Return whether a request must wait for blocks. Mutates: self"""
        if not self._spec.loads or not _is_text(active.request) or self._is_stuck():
            return False
        arrival = _Arrival(active)
        self._look_up(arrival)
        if arrival.look is None and arrival.found is None:
            return False
        self._arrivals[active.request_id] = arrival
        return True

    def begin(self, active: ActiveRequest, num_unfinished: int) -> None:
        """Leave a request's loaded blocks to the scheduler. Mutates: self"""
        self._adopted.discard(active.request_id)

    def complete_update(self, active: ActiveRequest, update: RequestUpdate) -> RequestUpdate:
        """Return a last update with the params with which another engine continues, if the request
        asks for them."""
        is_asked = active.kv_transfer.get(FOR_PEER) and self._spec.saves
        if not is_asked or update.finish_reason in FAILED:
            return update
        request, size = active.request, self._block_tokens
        num_tokens = (request.num_tokens - 1) // size * size
        ticket = self._index.ticket(num_tokens if _is_text(request) else 0)
        if not ticket:
            return update
        transfer = {FROM_PEER: True, FOR_PEER: False, NUM_TOKENS: num_tokens, **ticket}
        return msgspec.structs.replace(update, transfer=transfer)

    def take_ready(self) -> list[Ready]:
        """Return the requests that have stopped waiting. Mutates: self, the cache"""
        done: list[Ready] = []
        now_s = time.monotonic()
        for request_id, arrival in list(self._arrivals.items()):
            error = self._advance(arrival, now_s)
            if error is not None or (arrival.look is None and arrival.found is None):
                del self._arrivals[request_id]
                done.append((arrival.active, error))
        self._fill_room()
        return done

    def forget(self, active: ActiveRequest) -> None:
        """Stop a request's wait; free its loaded blocks if it was not scheduled. Mutates: self, the
        cache"""
        arrival = self._arrivals.pop(active.request_id, None)
        if arrival is not None:
            if arrival.look is not None:
                arrival.look.cancel()
            self._abandon(arrival)
        if active.request_id in self._adopted:
            self._adopted.discard(active.request_id)
            self._cache.free(active.request)

    def _look_up(self, arrival: _Arrival) -> None:
        arrival.num_looks += 1
        # Compute hashes in this thread, so that the look-up thread reads only immutable data.
        everything = self._cache.find_elsewhere(arrival.request, _everywhere)
        if everything is None:
            return
        if self._looker is None:
            self._take_found(arrival, self._sight(arrival, everything))
            return
        arrival.deadline_s = time.monotonic() + self._spec.load_timeout_s
        arrival.look = self._looker.submit(self._sight, arrival, everything)

    def _sight(self, arrival: _Arrival, everything: Found) -> _Sighting:
        """Return the blocks of a request that are in the store, and their source."""
        keys = [
            name
            for index in range(everything.num_cached, everything.num_blocks)
            for group in range(len(everything.starts))
            for name in self._names(key_of(group, everything.hashes[index]))
        ]
        source = self._index.look(keys, arrival.params)
        return self._cache.find_elsewhere(arrival.request, self._has), source

    def _names(self, key: bytes) -> tuple[bytes, ...]:
        return names_of(key, self._num_units, self._states)

    def _has(self, group: int, prefix_hash: bytes) -> bool:
        return all(map(self._index.has, self._names(key_of(group, prefix_hash))))

    def _take_found(self, arrival: _Arrival, sighting: _Sighting) -> None:
        """Start to load the blocks of a look-up as soon as there is room. Mutates: self"""
        arrival.look = None
        arrival.found, arrival.source = found, _ = sighting
        if found is None:
            return
        arrival.keys = tuple(key_of(group, found.hashes[i]) for group, i in found.blocks())
        self._roomless.append(arrival)
        self._fill_room()

    def _fill_room(self) -> None:
        """Start the loads for which there is room, in order of arrival. Mutates: self"""
        while self._roomless:
            arrival = self._roomless[0]
            num_bytes = len(arrival.keys) * self._block_bytes
            if self._held and sum(self._held.values()) + num_bytes > self._spec.buffer_bytes:
                return
            self._roomless.popleft()
            if arrival.found is None:
                continue  # aborted
            arrival.first = self._next_number
            self._next_number += len(arrival.keys)
            self._held[arrival.first] = num_bytes
            arrival.started_s = time.monotonic()
            arrival.deadline_s = arrival.started_s + self._spec.load_timeout_s
            load = BlockLoad(first=arrival.first, keys=arrival.keys, source=arrival.source)
            arrival.load = self._load(load)

    def _advance(self, arrival: _Arrival, now_s: float) -> RequestError | None:
        """Advance one request; return the error if it fails. Mutates: self, the cache"""
        waits_for = arrival.look or arrival.load
        if waits_for is None:
            return None  # waits for room
        if not waits_for.done():
            if now_s < arrival.deadline_s:
                return None
            if arrival.look is None or not arrival.look.cancel():
                self._stuck.append(waits_for)
            limit_s = self._spec.load_timeout_s
            return self._fail(arrival, f"the store did not answer in {limit_s:g} s.", is_lost=False)
        error = waits_for.exception()
        if arrival.look is not None:
            if error is not None:
                return self._fail(arrival, str(error), is_lost=False)
            sighting = arrival.look.result()
            if arrival.num_looks == 1 and self._is_short(arrival, sighting[0]):
                why = "the engine that it names does not have all of them."
                ending = self._fail(arrival, why, is_lost=False)
                if ending is not None:
                    return ending
            self._take_found(arrival, sighting)
            return None
        if error is not None:
            return self._fail(arrival, str(error), is_lost=True)
        assert arrival.found is not None
        self.num_loads += 1
        self.load_s += now_s - arrival.started_s
        self.loaded_bytes += len(arrival.keys) * self._block_bytes
        self._index.used([name for key in arrival.keys for name in self._names(key)])
        self._cache.adopt(arrival.request, arrival.found, arrival.first)
        self._adopted.add(arrival.request.request_id)
        arrival.found = arrival.load = None
        return None

    def _fail(self, arrival: _Arrival, why: str, *, is_lost: bool) -> RequestError | None:
        """Handle a failed load of a request's blocks. Mutates: self"""
        self.num_failures += 1
        logger.warning("%s: KV blocks could not be loaded: %s", arrival.request.request_id, why)
        if is_lost:
            self._index.lost([name for key in arrival.keys for name in self._names(key)])
        self._abandon(arrival)
        if self._spec.failure_policy == FAIL:
            return RequestError(
                f"KV blocks of this request could not be loaded: {why}",
                where="kv_load_failure_policy",
                status=500,
            )
        if is_lost and arrival.num_looks < MAX_LOOKS:
            self._look_up(arrival)
        return None

    def _is_short(self, arrival: _Arrival, found: Found | None) -> bool:
        """Return whether the look-up found less than the request's params promise."""
        promised = arrival.params.get(NUM_TOKENS)
        if not isinstance(promised, int):
            return bool(arrival.params) and found is None
        size = self._block_tokens
        whole = min(promised, arrival.request.num_tokens - 1) // size
        return whole > (0 if found is None else found.num_blocks)

    def _abandon(self, arrival: _Arrival) -> None:
        """Release what was or is being loaded. Mutates: self, arrival"""
        if arrival.load is not None:
            self._released.append(arrival.first)
            self._held.pop(arrival.first, None)
        arrival.look = arrival.load = arrival.found = None

    def _is_stuck(self) -> bool:
        """Return whether a look-up or load that timed out still occupies the store."""
        self._stuck = [call for call in self._stuck if not call.done()]
        return bool(self._stuck)

    # Blocks

    def filled(
        self, request: RequestState, group: int, index: int, block: int, *, is_new: bool
    ) -> None:
        """Have a full block written unless the store has it already. Mutates: self"""
        del is_new
        if not self._spec.saves or not _is_text(request) or request.request_id in self._unsaved:
            return
        key = key_of(group, request.block_hashes[index])
        if any([self._index.keep(name) for name in self._names(key)]):
            self._saved[key] = block
            self.saved_bytes += self._block_bytes

    def evicted(self, group: int, prefix_hash: bytes) -> None:
        """Do nothing: evicted blocks stay in the store."""

    def suspected(self, group: int, prefix_hash: bytes) -> None:
        """Drop a block whose content may be wrong. Mutates: self"""
        key = key_of(group, prefix_hash)
        self._saved.pop(key, None)
        self._index.lost(self._names(key))
        self._dropped += self._names(key)

    def cleared(self) -> None:
        """Do nothing: clearing the device cache does not affect the store."""

    def distrust(self, request_ids: Iterable[str]) -> None:
        """Save no more blocks of the running requests, since the weights may have changed. New
        requests hash with another key. Mutates: self, the cache"""
        self._unsaved = frozenset((*request_ids, *self._arrivals))
        for arrival in self._arrivals.values():
            arrival.active.request.share_nothing()
        self._saved.clear()
        self._cache.rekey(os.urandom(32))

    def complete(self, plan: StepPlan) -> StepPlan:
        """Return the next plan with orders for the ranks' stores. Mutates: self"""
        loaded: tuple[tuple[int, int], ...] = ()
        own = plan.swapped_in
        if self._held and own:
            first = self._num_host_blocks
            loaded = tuple(pair for pair in own if pair[0] >= first)
            own = tuple(pair for pair in own if pair[0] < first)
        released = self._take_released()
        dropped = (*self._dropped, *self._index.take_dropped())
        if not (self._saved or loaded or released or dropped):
            return plan
        orders = BlockOrders(
            saved=tuple((block, key) for key, block in self._saved.items()),
            loaded=loaded,
            released=tuple(released),
            dropped=dropped,
        )
        self._saved.clear()
        self._dropped.clear()
        return msgspec.structs.replace(plan, swapped_in=own, block_orders=orders)

    def collect(self) -> bool:
        """Return whether there are orders that no step has sent to the ranks yet. Mutates: self,
        the cache"""
        self._released += self._cache.host.take_released()
        return self.has_work

    def leftover_plans(self) -> Sequence[StepPlan]:
        """Return a plan with the orders that no step has sent to the ranks yet. Mutates: self, the
        cache"""
        if not self.collect():
            return ()
        return (self.complete(StepPlan(step_id=ORDERS_ALONE, rows=())),)

    @property
    def has_work(self) -> bool:
        """Return whether there are orders for the ranks, not counting what `collect` would add."""
        return bool(self._saved or self._released or self._dropped)

    def _take_released(self) -> list[int]:
        self.collect()
        released, self._released = self._released, []
        for first in released:
            self._held.pop(first, None)
        return released

    def close(self) -> None:
        """Close the index. May be called twice."""
        if self._looker is not None:
            self._looker.shutdown(wait=False, cancel_futures=True)
        self._index.close()


def _is_text(request: RequestState) -> bool:
    """Return whether a request's blocks depend only on tokens, salt and adapter. Blocks of media
    are not stored: clients may choose media names, which can be reused for other content."""
    named = all(key != "encoded" for key, _ in request.prefix_keys)
    return named and not request.parts_between(0, request.num_tokens)


def _everywhere(group: int, prefix_hash: bytes) -> bool:
    return True
