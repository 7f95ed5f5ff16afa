"""Adapters of one engine: which are served, which are in host memory, and which are in slots.

Tracks the holds of requests and decides which adapters are read, moved into a slot, or dropped. The
ranks carry this out: files are read in parallel with steps, and the next plan fills slots. A
request holds its slot from before it is queued until it ends, so schedulers ignore slots.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count

import msgspec

from dovetail.config.checkpoint.sources.weights_digest import folder_digest
from dovetail.engine.parts.virtual_tokens import virtual_tokens
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.adapter_spec import AdapterFacts, AdapterSource, AdapterSpec
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.data.step import NO_SLOT, AdapterMove, StepPlan
from dovetail.interfaces.executor import Loaded, Preparation
from dovetail.registry.blame import described

logger = logging.getLogger(__name__)

Read = Callable[[Preparation], Loaded]
"""Has every rank read an adapter, in parallel with the steps."""
Count = Callable[[AdapterSource], int]
"""Returns how many virtual tokens an adapter puts before a prompt. Raises: ConfigError"""
Names = tuple[str, ...]

PASSES_PER_SLOT = 64
"""How many requests in a row may overtake those that wait for a slot."""
WAIT_S = 0.002


def unknown_adapter(name: str) -> RequestError:
    """Return the error for a request whose adapter is not loaded."""
    return RequestError(
        f'the adapter "{name}" is not loaded.',
        where="model",
        code="model_not_found",
        status=404,
        fix="load it first, or name one that /v1/models lists.",
    )


def of_another_key(name: str) -> RequestError:
    """Return the error for changing an adapter that another API key has loaded."""
    return RequestError(
        f'the adapter "{name}" was loaded with another key, or when the server started.',
        where="lora_name",
        fix="use the key that loaded it, or another name.",
        code="adapter_of_another_key",
        status=403,
    )


def without(source: AdapterSource) -> int:
    """Return 0: adapters that only change modules have no virtual tokens."""
    return 0


class AdapterHolder:
    """A request's hold on an adapter. `slot` is NO_SLOT until one is assigned; `num_virtual_tokens`
    is the number of vectors before its prompt."""

    __slots__ = ("key", "num_virtual_tokens", "slot")

    def __init__(self, key: str, num_virtual_tokens: int = 0) -> None:
        self.key = key
        self.num_virtual_tokens = num_virtual_tokens
        self.slot = NO_SLOT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """An adapter's copy in the ranks' host memory, read or being read. Each read has its own key,
    so that a late drop cannot hit the next copy."""

    key: str
    read: Loaded

    @property
    def has_failed(self) -> bool:
        return self.read.done() and self.read.exception() is not None


class Adapters:
    """The adapters that an engine serves. Used by the engine's thread."""

    def __init__(self, spec: AdapterSpec, read: Read, num_virtual: Count = without) -> None:
        self._spec = spec
        self._count = num_virtual
        self._read = read
        self._serials = count(1)
        self._served: dict[str, AdapterSource] = {}
        self._known: dict[str, AdapterSource] = {}
        self._content_keys: dict[str, str] = {}
        self._num_virtual: dict[str, int] = {}
        self._copies: OrderedDict[str, _Copy] = OrderedDict()
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._free_slots = list(reversed(range(spec.max_slots)))
        self._holders: Counter[str] = Counter()
        self._users: Counter[str] = Counter()
        self._waiting: OrderedDict[str, int] = OrderedDict()
        self._num_passed = 0
        self._loading: list[tuple[AdapterSource, Future[None]]] = []
        self._moves: dict[int, AdapterMove] = {}
        self._dropped: list[str] = []
        self.has_freed = False

    def load(self, source: AdapterSource, *, replaces: bool = False) -> Future[None]:
        """Start to read an adapter; it is served once the future is done.

        Raises: RequestError with the reason, immediately or through the future. Mutates: self
        """
        loading = [(one, done) for one, done in self._loading if one.name == source.name]
        for one, begun in loading:
            if not replaces and msgspec.structs.replace(one, key=source.key) == source:
                return begun  # another process of this server loads the same adapter
        self._check_free(source, [one for one, _ in loading], replaces=replaces)
        key = f"{source.name}#{next(self._serials)}"
        keyed = self._known[key] = msgspec.structs.replace(source, key=key)
        done: Future[None] = Future()
        self._loading.append((keyed, done))
        self._bring(key)
        return done

    def _check_free(
        self, source: AdapterSource, loading: Iterable[AdapterSource], *, replaces: bool
    ) -> None:
        """Raise RequestError if another loaded or loading adapter keeps the name."""
        served = self._served.get(source.name)
        present = [*loading, *([served] if served else [])]
        if present and not replaces:
            raise RequestError(
                f'an adapter "{source.name}" is loaded already.',
                where="lora_name",
                fix="unload it first, or load it in place.",
            )
        if any(one.owner != source.owner for one in present):
            raise of_another_key(source.name)

    def unload(self, name: str) -> None:
        """Stop serving an adapter; running requests keep it. Raises: RequestError"""
        if name not in self._served:
            raise unknown_adapter(name)
        self._forget_if_unused(self._served.pop(name).key)

    def served(self) -> tuple[AdapterSource, ...]:
        """Return the adapters that requests may name."""
        return tuple(self._served.values())

    @property
    def max_slots(self) -> int:
        """Return how many adapters a step may use."""
        return self._spec.max_slots

    @property
    def names_in_use(self) -> tuple[Names, Names]:
        """Return the names of adapters with a slot in use, and of those that requests wait for."""
        used_keys = (key for key in self._slots if self._users[key])
        return self._names(used_keys), self._names(self._waiting)

    def poll(self) -> None:
        """Serve the adapters that have been read since the last call. Mutates: self"""
        loading, self._loading = self._loading, []
        for source, done in loading:
            read = self._copies[source.key].read
            if not read.done():
                self._loading.append((source, done))
                continue
            error = read.exception()
            if error is None:
                error = self._count_virtual(source)
            if error is not None:
                self._forget(source.key)
                done.set_exception(_refusal(source, error))
                continue
            previous = self._served.pop(source.name, None)
            self._served[source.name] = _described(source, read.result())
            if previous is not None:
                self._forget_if_unused(previous.key)
            done.set_result(None)

    def _count_virtual(self, source: AdapterSource) -> Exception | None:
        """Record an adapter's virtual tokens; return the error if that fails. Mutates: self"""
        try:
            self._num_virtual[source.key] = self._count(source)
        except Exception as error:  # the method is a plugin
            return as_request_error(error)
        return None

    def hold(self, name: str) -> tuple[AdapterHolder, Loaded]:
        """Hold the adapter of this name for a request; the future is done once every rank has read
        it. Raises: RequestError when it is not served. Mutates: self"""
        source = self._served.get(name)
        if source is None:
            raise unknown_adapter(name)
        self._holders[source.key] += 1
        holder = AdapterHolder(source.key, self._num_virtual[source.key])
        return holder, self._bring(source.key)

    def take_slot(self, holder: AdapterHolder) -> bool:
        """Return whether the held adapter, which has been read, has a slot now.

        Adapters get slots in order. Requests whose adapter has a slot already may overtake, but
        only a bounded number in a row, so that nobody starves. Mutates: self, holder
        """
        key = holder.key
        has_others = len(self._waiting) > (key in self._waiting)
        may_pass = not has_others or self._num_passed < PASSES_PER_SLOT * self._spec.max_slots
        slot = self._slots.get(key) if may_pass else None
        if slot is not None:
            self._num_passed += has_others
            return self._give(holder, slot)
        if not has_others or next(iter(self._waiting)) == key:
            slot = self._slots.get(key, self._empty_slot())
        if slot is None:
            self._waiting[key] = self._waiting.get(key, 0) + 1
            return False
        if key not in self._slots:
            self._moves[slot] = AdapterMove(slot, self._copies[key].key)
            self._slots[key] = slot
        self._num_passed = 0
        return self._give(holder, slot)

    def content_key(self, key: str) -> str:
        """Return a key that includes a digest of an adapter's files. Mutates: self"""
        if key not in self._content_keys:
            source = self._known[key]
            self._content_keys[key] = f"{source.name}#{folder_digest(source.path)}"
        return self._content_keys[key]

    def release(self, holder: AdapterHolder) -> None:
        """Release a request's hold. Mutates: self"""
        self._holders[holder.key] -= 1
        if holder.slot != NO_SLOT:
            self._users[holder.key] -= 1
        if not self._holders[holder.key]:
            self._waiting.pop(holder.key, None)
        self.has_freed |= not self._users[holder.key]
        self._forget_if_unused(holder.key)

    def take_moves(self, plan: StepPlan) -> StepPlan:
        """Return the plan with the adapter moves that ranks must do first. Mutates: self"""
        if not self._moves and not self._dropped:
            return plan
        moves, self._moves = tuple(self._moves.values()), {}
        dropped, self._dropped = tuple(self._dropped), []
        return msgspec.structs.replace(plan, adapters=moves, dropped_adapters=dropped)

    def empty_slots(self) -> None:
        """Mark all slots as empty: the ranks' contents are lost, no request runs. Mutates: self"""
        assert not any(self._holders.values()), "an adapter in use cannot be taken away"
        self._slots.clear()
        self._moves.clear()
        self._free_slots = list(reversed(range(self._spec.max_slots)))

    def _give(self, holder: AdapterHolder, slot: int) -> bool:
        self._slots.move_to_end(holder.key)
        self._users[holder.key] += 1
        self._waiting.pop(holder.key, None)
        holder.slot = slot
        return True

    def _empty_slot(self) -> int | None:
        """Return an empty slot, or else the least recently used one without users. Mutates: self"""
        if self._free_slots:
            return self._free_slots.pop()
        for key in self._slots:
            if not self._users[key]:
                return self._slots.pop(key)
        return None

    def _bring(self, key: str) -> Loaded:
        """Read an adapter into host memory, evicting others that nobody holds. Mutates: self"""
        copy = self._copies.get(key)
        if copy is not None and not copy.has_failed:
            self._copies.move_to_end(key)
            return copy.read
        copy_key = f"{key}/{next(self._serials)}"
        read = self._read(msgspec.structs.replace(self._known[key], key=copy_key))
        self._copies[key] = _Copy(key=copy_key, read=read)
        loading = {source.key for source, _ in self._loading}
        spare = [k for k in self._copies if not (self._holders[k] or k == key or k in loading)]
        for other in spare[: max(0, len(self._copies) - self._spec.max_host)]:
            self._drop(other)
        return read

    def _drop(self, key: str) -> None:
        """Drop the host copy of an adapter on the ranks. A filled slot has its own copy; a slot
        that was still to be filled is freed. Mutates: self"""
        copy = self._copies.pop(key, None)
        if copy is None:
            return
        self._dropped.append(copy.key)
        slot = self._slots.get(key)
        if slot is not None and slot in self._moves:
            del self._moves[slot], self._slots[key]
            self._free_slots.append(slot)

    def _forget_if_unused(self, key: str) -> None:
        """Forget an adapter once it is not served, loading or held. Mutates: self"""
        is_served = any(source.key == key for source in self._served.values())
        is_loading = any(source.key == key for source, _ in self._loading)
        if not (self._holders[key] or is_served or is_loading):
            self._forget(key)

    def _forget(self, key: str) -> None:
        """Forget an adapter, its host copy and its slot. Mutates: self"""
        del self._known[key]
        self._content_keys.pop(key, None)
        self._num_virtual.pop(key, None)
        self._holders.pop(key, None)
        self._users.pop(key, None)
        self._drop(key)
        if key in self._slots:
            self._free_slots.append(self._slots.pop(key))

    def _names(self, keys: Iterable[str]) -> Names:
        return tuple(self._known[key].name for key in keys)


def _described(source: AdapterSource, facts: AdapterFacts | None) -> AdapterSource:
    """Return an adapter with the facts that the ranks report."""
    if facts is None:
        return source
    return msgspec.structs.replace(source, **msgspec.structs.asdict(facts))


def as_request_error(error: Exception) -> Exception:
    """Return a ConfigError as a RequestError; other errors unchanged."""
    if isinstance(error, ConfigError):
        return RequestError(error.what, where=error.where, fix=error.fix)
    return error


def _refusal(source: AdapterSource, error: BaseException) -> RequestError:
    """Return the error for a caller whose adapter could not be read."""
    if isinstance(error, RequestError):
        return error
    logger.error("adapter %s could not be read", source.name, exc_info=error)
    what = f'the adapter "{source.name}" could not be read: {described(error)}'
    return RequestError(what, status=500)


def serve_adapters(spec: EngineSpec, read: Read) -> Adapters | None:
    """Load the adapters of the command line; return None if adapters are disabled.

    Raises: ConfigError
    """
    if spec.run.adapters is None:
        return None
    adapters = Adapters(spec.run.adapters, read, virtual_tokens(spec.run))
    for source in spec.adapters:
        loaded = adapters.load(source)
        while not loaded.done():
            time.sleep(WAIT_S)
            adapters.poll()
        error = loaded.exception()
        if isinstance(error, RequestError):
            raise ConfigError(
                error.what, where=f"adapter {source.name}, {error.where}", fix=error.fix
            )
    return adapters
