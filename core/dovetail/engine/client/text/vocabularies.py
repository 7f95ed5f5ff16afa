"""Vocabularies: the token ids that requests may use, and the tokenizers for them.

The model has one vocabulary. An adapter with token embeddings has its own: the model's tokens
followed by the added ones, with the tokenizer of its folder if that has one. Engines report their
adapters; this caches the latest report, and loads each tokenizer once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from dovetail import registry
from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.tokenizer import Tokenizer, end_token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Token ids from 0 to `num_tokens` - 1. `eos_token_ids` end an answer. `tokenizer_path` is the
    folder of its own tokenizer ("": it uses the model's)."""

    tokenizer: Tokenizer
    num_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    tokenizer_path: str = ""


class Vocabularies:
    """The vocabularies of one client's engines. Used by several threads."""

    def __init__(self, spec: EngineSpec, tokenizer: Tokenizer) -> None:
        self.own = Vocabulary(
            tokenizer=tokenizer,
            num_tokens=spec.run.model.vocab_size,
            eos_token_ids=end_token_ids(spec.run.model.eos_token_ids, tokenizer.facts()),
        )
        adapters = spec.run.adapters
        self.can_grow = adapters is not None and adapters.max_added_tokens > 0
        """Whether adapters may add tokens."""
        self._selection = spec.tokenizer
        self._sources: dict[str, AdapterSource] = {}
        self._found: dict[str, Vocabulary | DovetailError] = {}
        self._lock = Lock()

    def knows(self, adapter: str) -> bool:
        """Return whether an adapter ("": none) uses the model's vocabulary or a known one."""
        return not adapter or not self.can_grow or adapter in self._sources

    def is_new(self, sources: Iterable[AdapterSource]) -> bool:
        """Return whether `note` would have to load a tokenizer."""
        return any(
            source.has_tokenizer and self._sources.get(source.name) != source for source in sources
        )

    def note(self, sources: Iterable[AdapterSource]) -> None:
        """Store the adapters that engines have reported. Mutates: self"""
        if not self.can_grow:
            return
        with self._lock:
            by_name = {source.name: source for source in sources}
            found = {
                name: self._found[name]
                if self._sources.get(name) == source
                else self._vocabulary(source)
                for name, source in by_name.items()
                if source.num_added_tokens or source.has_tokenizer
            }
            self._sources, self._found = by_name, found

    def of(self, adapter: str) -> Vocabulary:
        """Return an adapter's vocabulary; the model's for one that adds nothing or is unknown.
        Raises: RequestError if its tokenizer is missing"""
        found = self._found.get(adapter, self.own)
        if isinstance(found, DovetailError):
            raise RequestError(found.what, where=found.where, fix=found.fix, status=500)
        return found

    def _vocabulary(self, source: AdapterSource) -> Vocabulary | DovetailError:
        tokenizer, ends = self.own.tokenizer, self.own.eos_token_ids
        if source.has_tokenizer:
            try:
                tokenizer = registry.make(self._selection, source.path)
            except DovetailError as error:  # requests for this adapter get the error
                return error
            ends = end_token_ids(ends, tokenizer.facts())
        return Vocabulary(
            tokenizer=tokenizer,
            num_tokens=self.own.num_tokens + source.num_added_tokens,
            eos_token_ids=ends,
            tokenizer_path=source.path if source.has_tokenizer else "",
        )
