"""ConstraintCache: the constraints that one runner has loaded, bounded in bytes; the oldest unused
ones go.

`prepare` may be called by any thread, long before the first step that needs the constraint.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.interfaces.spec import EngineSpec, Selection, StructuredOutputSpec
from dovetail.interfaces.structured_output import (
    CompiledConstraint,
    InvalidConstraint,
    LoadedConstraint,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail.structured_output.early_close import EarlyClose
from dovetail.structured_output.select_backend import none_installed
from dovetail.structured_output.trigger import Trigger
from dovetail.structured_output.vocabulary import load_vocabulary


class CachedConstraint:
    """A compiled constraint whose parts are in place. `calls_constraint` pairs up with `markers`;
    without triggers there is one constraint, and a marker only if it starts after a text."""

    def __init__(
        self,
        compiled: CompiledConstraint,
        constraints: list[LoadedConstraint],
        markers: list[Trigger],
    ) -> None:
        self.compiled = compiled
        self.constraints = constraints
        self.markers = markers
        self.num_bytes = sum(constraint.num_bytes for constraint in constraints)


class ConstraintCache:
    """Backends, the vocabulary and loaded compiled constraints of one process."""

    def __init__(self, spec: StructuredOutputSpec) -> None:
        self.spec = spec
        self._selections: Mapping[str, Selection] = {s.name: s for s in spec.backends}
        self._backends: dict[str, StructuredOutputBackend] = {}
        self._vocabulary: Vocabulary | None = None
        self._closing: EarlyClose | None = None
        self._loaded: OrderedDict[str, CachedConstraint] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the vocabulary, read at its first use."""
        if self._vocabulary is None:
            spec = self.spec
            self._vocabulary = load_vocabulary(
                spec.tokenizer, spec.tokenizer_path, spec.eos_ids, spec.vocab_size
            )
        return self._vocabulary

    def backend(self, name: str) -> StructuredOutputBackend:
        """Return a backend, made at its first use. Raises: RequestError"""
        if name not in self._backends:
            if name not in self._selections:
                raise RequestError(f'there is no backend "{name}" here.', where="backend")
            selection = self._selections[name]
            made = registry.load_selection(selection)(
                registry.build_options(selection), self.vocabulary
            )
            self._backends[name] = made
        return self._backends[name]

    @property
    def closing(self) -> EarlyClose:
        """Return the ways to an answer's end in this vocabulary."""
        if self._closing is None:
            self._closing = EarlyClose(self.vocabulary)
        return self._closing

    def prepare(self, compiled: CompiledConstraint) -> CachedConstraint:
        """Return the compiled constraint with everything loaded. Raises: RequestError. Mutates:
        self"""
        with self._lock:
            found = self._loaded.get(compiled.key)
            if found is not None:
                self._loaded.move_to_end(compiled.key)
                return found
            loaded = self._load(compiled)
            if compiled.closes:
                _ = self.closing  # made here, beside the steps
            self._loaded[compiled.key] = loaded
            self._trim()
            return loaded

    def _load(self, compiled: CompiledConstraint) -> CachedConstraint:
        backend = self.backend(compiled.backend)
        artifacts = compiled.artifacts if compiled.triggers else (compiled.artifact,)
        texts = compiled.triggers or ((compiled.starts_after,) if compiled.starts_after else ())
        try:
            constraints = [backend.load(artifact) for artifact in artifacts]
        except InvalidConstraint as error:
            raise RequestError(f"the constraint could not be loaded: {error}") from error
        may_be_blank = not compiled.triggers
        markers = [Trigger(text, self.vocabulary, may_be_blank=may_be_blank) for text in texts]
        return CachedConstraint(compiled, constraints, markers)

    def _trim(self) -> None:
        """Forget the compiled constraints used longest ago until the rest fits; the newest
        stays."""
        total = sum(loaded.num_bytes for loaded in self._loaded.values())
        while total > self.spec.cache_bytes and len(self._loaded) > 1:
            _, gone = self._loaded.popitem(last=False)
            total -= gone.num_bytes


def open_constraint_cache(spec: EngineSpec) -> ConstraintCache:
    """Return the table of an engine. Raises: RequestError where no backend is installed."""
    if spec.run.structured_output is None:
        raise none_installed()
    return ConstraintCache(spec.run.structured_output)
