"""GuideTable: the forms that one runner has loaded, bounded in bytes; the oldest unused ones go.

`prepare` may be called by any thread, long before the first step that needs the form.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.guided.choose import none_installed
from dovetail.guided.closing import Closing
from dovetail.guided.marker import Marker
from dovetail.guided.vocabulary import load_vocabulary
from dovetail.interfaces.guided import Compiled, Guide, GuidedBackend, InvalidForm, Vocabulary
from dovetail.interfaces.spec import EngineSpec, GuidedSpec, Selection


class LoadedGuide:
    """A guide whose parts are in place. `forms` pairs up with `markers`; without triggers there is
    one form, and a marker only if it starts after a text."""

    def __init__(self, guide: Guide, forms: list[Compiled], markers: list[Marker]) -> None:
        self.guide = guide
        self.forms = forms
        self.markers = markers
        self.num_bytes = sum(form.num_bytes for form in forms)


class GuideTable:
    """Backends, the vocabulary and loaded guides of one process."""

    def __init__(self, spec: GuidedSpec) -> None:
        self.spec = spec
        self._selections: Mapping[str, Selection] = {s.name: s for s in spec.backends}
        self._backends: dict[str, GuidedBackend] = {}
        self._vocabulary: Vocabulary | None = None
        self._closing: Closing | None = None
        self._loaded: OrderedDict[str, LoadedGuide] = OrderedDict()
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

    def backend(self, name: str) -> GuidedBackend:
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
    def closing(self) -> Closing:
        """Return the ways to an answer's end in this vocabulary."""
        if self._closing is None:
            self._closing = Closing(self.vocabulary)
        return self._closing

    def prepare(self, guide: Guide) -> LoadedGuide:
        """Return the guide with everything loaded. Raises: RequestError. Mutates: self"""
        with self._lock:
            found = self._loaded.get(guide.key)
            if found is not None:
                self._loaded.move_to_end(guide.key)
                return found
            loaded = self._load(guide)
            if guide.closes:
                _ = self.closing  # made here, beside the steps
            self._loaded[guide.key] = loaded
            self._trim()
            return loaded

    def _load(self, guide: Guide) -> LoadedGuide:
        backend = self.backend(guide.backend)
        artifacts = guide.artifacts if guide.triggers else (guide.artifact,)
        texts = guide.triggers or ((guide.starts_after,) if guide.starts_after else ())
        try:
            forms = [backend.load(artifact) for artifact in artifacts]
        except InvalidForm as error:
            raise RequestError(f"the form could not be loaded: {error}") from error
        may_be_blank = not guide.triggers
        markers = [Marker(text, self.vocabulary, may_be_blank=may_be_blank) for text in texts]
        return LoadedGuide(guide, forms, markers)

    def _trim(self) -> None:
        """Forget the guides used longest ago until the rest fits; the newest stays."""
        total = sum(loaded.num_bytes for loaded in self._loaded.values())
        while total > self.spec.cache_bytes and len(self._loaded) > 1:
            _, gone = self._loaded.popitem(last=False)
            total -= gone.num_bytes


def guide_table(spec: EngineSpec) -> GuideTable:
    """Return the table of an engine. Raises: RequestError where no backend is installed."""
    if spec.run.guided is None:
        raise none_installed()
    return GuideTable(spec.run.guided)
