"""ConstraintCache: backends and loaded constraints of one process: an LRU cache bounded in bytes.

`prepare` may be called by any thread, long before the first step that needs the constraint.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.spec import NO_TOKENIZER, EngineSpec, Selection, StructuredOutputSpec
from dovetail.interfaces.structured_output import (
    AnswerConstraint,
    CompiledConstraint,
    InvalidConstraint,
    LoadedConstraint,
    StructuredOutputBackend,
    TriggeredConstraints,
    Vocabulary,
)
from dovetail.registry.blame import described
from dovetail.structured_output.artifacts import ArtifactLoader
from dovetail.structured_output.first_token_probe import FirstTokenProbe, TooSlow
from dovetail.structured_output.select_backend import (
    check_backend,
    first_backend,
    none_installed,
    prepared,
    select_backends,
)
from dovetail.structured_output.trigger import Trigger
from dovetail.structured_output.vocabulary import load_vocabulary
from dovetail_grammars.early_close import EarlyClose

logger = logging.getLogger(__name__)

WHERE = "constraint"


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedConstraint:
    """A compiled constraint, ready for rows.

    `constraints` pairs up with `triggers`; without triggers the only constraint applies from the
    first token. `repeats`: after a complete constraint, text is free until the next trigger.
    """

    constraints: Sequence[LoadedConstraint]
    triggers: Sequence[Trigger] = ()
    repeats: bool = False
    closes: bool = False
    reasoning_markers: tuple[bytes, ...] = ()
    starts_in_reasoning: bool = False

    @property
    def num_bytes(self) -> int:
        """Return the memory of the backend's objects in bytes."""
        return sum(constraint.num_bytes for constraint in self.constraints)


class ConstraintCache:
    """Backends, the vocabulary and loaded constraints of one process."""

    def __init__(self, spec: StructuredOutputSpec) -> None:
        self.spec = spec
        self._selections: Mapping[str, Selection] = {s.name: s for s in spec.backends}
        self._backends: dict[str, StructuredOutputBackend] = {}
        self._vocabulary: Vocabulary | None = None
        self._early_close: EarlyClose | None = None
        self._probe: FirstTokenProbe | None = None
        self._loaded: OrderedDict[str, CachedConstraint] = OrderedDict()
        self._lock = threading.Lock()
        self._building = threading.RLock()
        self._builder: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Read the vocabulary and construct the most used backend, on another thread.

        That thread has the caller's priority, and constructs the other backends on demand. Without
        a tokenizer there is nothing to read. Mutates: self
        """
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="dovetail-vocabulary")
        if self.spec.tokenizer.name == NO_TOKENIZER:
            return
        self._builder.submit(self._constructed, first_backend(self.spec)).add_done_callback(
            _log_failure
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, read on first use."""
        if self._vocabulary is not None:  # steps do not wait while a backend is constructed
            return self._vocabulary
        with self._building:
            if self._vocabulary is None:
                spec = self.spec
                self._vocabulary = load_vocabulary(
                    spec.tokenizer, spec.tokenizer_path, spec.eos_ids, spec.vocab_size
                )
            return self._vocabulary

    def backend(self, name: str) -> StructuredOutputBackend:
        """Return a backend, constructed on first use. Raises: RequestError"""
        if name in self._backends:
            return self._backends[name]
        if self._builder is None:
            return self._constructed(name)
        return self._builder.submit(self._constructed, name).result()

    def _constructed(self, name: str) -> StructuredOutputBackend:
        with self._building:
            if name not in self._backends:
                if name not in self._selections:
                    raise RequestError(f'backend "{name}" is not loaded.', where="backend")
                selection = self._selections[name]
                self._backends[name] = registry.make(selection, self.vocabulary)
            return self._backends[name]

    @cached_property
    def _loader(self) -> ArtifactLoader:
        return ArtifactLoader(self.vocabulary)

    @property
    def probe(self) -> FirstTokenProbe:
        """Return the probe of constraints for this vocabulary."""
        if self._probe is None:
            self._probe = FirstTokenProbe(self.vocabulary)
        return self._probe

    @property
    def early_close(self) -> EarlyClose:
        """Return the search for short ways to an answer's end, for this vocabulary."""
        if self._early_close is None:
            self._early_close = EarlyClose(self.vocabulary)
        return self._early_close

    def prepare(self, compiled: CompiledConstraint) -> CachedConstraint:
        """Return the constraint, loading it if needed. Raises: RequestError. Mutates: self"""
        with self._lock:
            cached = self._loaded.get(compiled.key)
            if cached is not None:
                self._loaded.move_to_end(compiled.key)
                return cached
            cached = self._load(compiled)
            if cached.closes:
                _ = self.early_close  # constructed here, in parallel with the steps
            self._loaded[compiled.key] = cached
            self._trim()
            return cached

    def _load(self, compiled: CompiledConstraint) -> CachedConstraint:
        match compiled:
            case AnswerConstraint(artifact=artifact, starts_after=text):
                return CachedConstraint(
                    constraints=self._parts(compiled.backend, (artifact,)),
                    triggers=self._triggers((text,) if text else (), may_be_blank=True),
                    closes=compiled.closes,
                )
            case TriggeredConstraints():
                markers = tuple(text.encode() for text in compiled.reasoning_markers)
                return CachedConstraint(
                    constraints=self._parts(compiled.backend, compiled.artifacts),
                    triggers=self._triggers(compiled.triggers, may_be_blank=False),
                    repeats=True,
                    reasoning_markers=markers,
                    starts_in_reasoning=compiled.starts_in_reasoning,
                    closes=compiled.closes,
                )

    def _parts(self, name: str, artifacts: Sequence[bytes]) -> list[LoadedConstraint]:
        backend = self.backend(name)
        try:
            return [self._loader.loaded(backend, artifact) for artifact in artifacts]
        except InvalidConstraint as error:
            raise RequestError(f"the constraint could not be loaded: {error}") from error

    def _triggers(self, texts: Sequence[str], *, may_be_blank: bool) -> list[Trigger]:
        return [Trigger(text, self.vocabulary, may_be_blank=may_be_blank) for text in texts]

    def _trim(self) -> None:
        """Drop the least recently used constraints until the rest fits; never the newest."""
        total = sum(cached.num_bytes for cached in self._loaded.values())
        while total > self.spec.cache_bytes and len(self._loaded) > 1:
            _, dropped = self._loaded.popitem(last=False)
            total -= dropped.num_bytes


def _log_failure(started: Future[StructuredOutputBackend]) -> None:
    """Log why a backend could not be constructed; the first request for it gets the error too."""
    if (error := started.exception()) is not None:
        logger.warning("structured output could not be prepared: %s", described(error))


def open_constraint_cache(spec: EngineSpec) -> ConstraintCache:
    """Return an empty cache for an engine. Raises: RequestError if no backend is installed."""
    if spec.run.structured_output is None:
        raise none_installed()
    return ConstraintCache(spec.run.structured_output)


def compile_in_process(
    cache: ConstraintCache,
    constraint: Constraint,
    *,
    backend: str | None = None,
    starts_after: str = "",
) -> AnswerConstraint:
    """Compile the constraint of a whole answer without a time limit, for callers who wrote it
    themselves. If one backend cannot compile it or finds no possible answer, the next one is tried,
    as in the server. Raises: the first backend's RequestError"""
    if backend and cache.spec.backends:
        check_backend(cache.spec, backend, "backend")
    constraint = prepared(constraint, WHERE)
    first: RequestError | None = None
    for name in select_backends(cache.spec, [constraint], backend, WHERE):
        try:
            artifact = cache.probe.compiled(cache.backend(name), constraint)
        except (InvalidConstraint, TooSlow, RecursionError) as error:
            pointer = error.pointer if isinstance(error, InvalidConstraint) else ""
            what = "is nested too deep" if isinstance(error, RecursionError) else str(error)
            first = first or RequestError(f"{what}.", where=WHERE + pointer)
            continue
        key = constraint_key(name, artifact, starts_after.encode(), str(False))
        return AnswerConstraint(backend=name, key=key, artifact=artifact, starts_after=starts_after)
    assert first is not None
    raise first


def constraint_key(*parts: bytes | str) -> str:
    """Return a digest that is equal for equal parts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
