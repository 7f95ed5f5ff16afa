"""App: what every route of one application uses. Built once; contains no request."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from dovetail.config.report.in_force import InForce
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.requests.claims import claimed_fields
from dovetail.errors import model_not_found
from dovetail.interfaces.api import GENERATE, TRANSCRIBE
from dovetail.interfaces.data.media_settings import AUDIO
from dovetail.server.generate.adapters import ServedAdapters
from dovetail.server.generate.body.ignored_fields import FieldReporter
from dovetail.server.generate.model_text import ModelText, TextThreads
from dovetail.server.http.admission import Admission
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The parts of one application. Close it in the event loop that used it.

    `text` is how the model's own text is read and written; `text_for` returns an adapter's.
    `in_force` has the settings and their sources; None if this process did not receive them.
    """

    frontend: FrontendConfig
    text: ModelText
    admission: Admission
    fields: FieldReporter
    threads: TextThreads
    adapters: ServedAdapters
    created_s: int
    fingerprint: str
    in_force: InForce | None
    adapter_texts: dict[str, ModelText] = field(default_factory=dict)

    @property
    def engine(self) -> AsyncEngine:
        """Return the engine that runs the model."""
        return self.text.engine

    @property
    def tasks(self) -> frozenset[str]:
        """Return the tasks that the model supports: generate, transcribe, or the pooling tasks. A
        chat model that hears can be asked what was said."""
        spec = self.engine.spec
        pooling, encoder = spec.run.pooling, spec.run.model.encoder
        if encoder is not None and encoder.kind == "audio":
            return frozenset((TRANSCRIBE,))
        if pooling is not None:
            return frozenset(pooling.tasks)
        hears = spec.media is not None and AUDIO in spec.media.kinds
        return frozenset((GENERATE, TRANSCRIBE) if hears else (GENERATE,))

    async def text_for(self, requested: str | None) -> tuple[ModelText, str]:
        """Return (how text of a model or adapter is read and written, the name to answer with).

        An adapter may have its own tokens, tokenizer and template. Raises: NotFound; RequestError
        for an adapter that was found but cannot be loaded, or has lost its tokenizer. Mutates:
        self.adapter_texts
        """
        names = self.engine.spec.model_names
        if not requested or requested in names:
            return self.text, requested or names[0]
        if await self.adapters.find(requested) is None:
            raise model_not_found(requested, (*names, *self.adapters.shown_names()))
        vocabulary = self.engine.vocabularies.of(requested)
        if vocabulary is self.text.vocabulary:
            return self.text, requested
        known = self.adapter_texts.get(requested)
        if known is None or known.vocabulary is not vocabulary:
            known = self.text.for_adapter(requested, vocabulary)
            self.adapter_texts[requested] = known
        return known, requested

    async def model_name(self, requested: str | None) -> str:
        """Return the name to answer with: a model's or an adapter's. Raises: as `text_for`"""
        return (await self.text_for(requested))[1]

    async def run(self, call: Callable[[], Answer], num_chars: int) -> Answer:
        """Return call(), run in a thread if its text is long."""
        return await self.threads.run(call, num_chars)

    async def aclose(self) -> None:
        """End this server's own processes, which decode media. The engine keeps running."""
        if self.text.media is not None:
            await self.text.media.close()


def make_app(
    text: ModelText, max_queued_requests: int | None, in_force: InForce | None = None
) -> App:
    """Return the parts of one application."""
    engine, frontend = text.engine, text.frontend
    return App(
        frontend=frontend,
        text=text,
        admission=Admission(
            engine,
            max_running=engine.spec.total_rows,
            max_queued=max_queued_requests,
            max_tokens=frontend.max_num_queued_tokens,
        ),
        fields=FieldReporter(
            names_users=text.frontend.owner_from_user,
            is_strict=frontend.strict_request_fields,
            claimed=claimed_fields(engine.spec),
        ),
        threads=text.threads,
        adapters=ServedAdapters(engine),
        created_s=int(time.time()),
        fingerprint=_fingerprint(engine),
        in_force=in_force,
    )


def _fingerprint(engine: AsyncEngine) -> str:
    """Return a fingerprint of the configuration that determines the generated tokens."""
    run = engine.spec.run
    cache = (run.kv_dtype, run.kv_scales, run.kv_steps)
    facts = msgspec.json.encode((run.model, run.device, cache, run.quantization.name))
    return f"dovetail-{__version__}-{hashlib.sha256(facts).hexdigest()[:8]}"
