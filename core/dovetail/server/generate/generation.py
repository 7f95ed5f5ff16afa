"""The path to the engine and back that chat and completions share: checks, params, steps.

Routes stay thin: they turn bodies into a Generation and steps into their own bodies.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from dovetail.engine.client.requests.prompt_checks import truncated
from dovetail.engine.client.results.outputs import RequestOutput
from dovetail.errors import RequestError
from dovetail.interfaces.data.media import PromptPart
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.multimodal.prompt import PlacedPrompt
from dovetail.processes.uninterrupted import ended
from dovetail.server.generate.application import App
from dovetail.server.generate.beam_search import (
    BeamSettings,
    beam_outputs,
    beam_settings,
    check_beams,
)
from dovetail.server.generate.body.dialect import Dialect
from dovetail.server.generate.body.fields import SamplingFields
from dovetail.server.generate.body.ignored_fields import HEADER, header_value
from dovetail.server.generate.body.sampling import build_sampling
from dovetail.server.generate.events import CountedSession, SessionPlan
from dovetail.server.generate.intervals import in_intervals
from dovetail.server.generate.logprobs import TokenNames
from dovetail.server.generate.model_text import ModelText
from dovetail.server.generate.request_log import LoggedRequest, with_request_log
from dovetail.server.generate.streaming import (
    EventStream,
    Framing,
    Step,
    StreamHead,
    begun_within,
    continued,
    event_steps,
)

Item = TypeVar("Item")
CLAMPED_HEADER = "x-dovetail-max-tokens"


@dataclass(slots=True, kw_only=True)
class ResponseMeta:
    """What is known of an answer before its first token: ids, names, headers. `adapter` is the one
    that the request uses ("": none)."""

    request_id: str
    model: str
    adapter: str = ""
    created_s: int
    fingerprint: str
    names: TokenNames
    ignored: Sequence[str]
    clamped_tokens: int | None = None

    def headers(self) -> dict[str, str]:
        """Return the response headers: ignored fields, and max_tokens if it was lowered."""
        found = {}
        if self.ignored:
            found[HEADER] = header_value(self.ignored)
        if self.clamped_tokens is not None:
            found[CLAMPED_HEADER] = str(self.clamped_tokens)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One prompt with everything that the engine and the session need.

    `request_id` is the engine's: each of several prompts of one request has its own.
    """

    meta: ResponseMeta
    request_id: str
    prompt_ids: Sequence[int]
    parts: tuple[PromptPart, ...] = ()
    params: SamplingParams
    plan: SessionPlan
    dialect: Dialect
    priority: int = 0
    cache_salt: str = ""
    cache_pin_s: float = 0.0
    cache_pin_tokens: int = 0
    kv_transfer: dict[str, Any] | None = None
    beams: BeamSettings | None = None

    def steps(self, server: App, *, is_whole: bool = False) -> AsyncGenerator[Step, None]:
        """Return the steps of the answer; with `is_whole`, one step per completion. Closing them
        aborts the request."""
        plan = self.plan
        outputs = self._outputs(server, is_whole=is_whole)
        steps = event_steps(outputs, plan, self.dialect)
        if server.frontend.stream_interval > 1:
            steps = in_intervals(steps, server.frontend.stream_interval)
        if not server.frontend.enable_log_requests:
            return steps
        tokenizer, adapter = self.meta.names.tokenizer, self.meta.adapter
        logged = LoggedRequest(self.request_id, self.prompt_ids, self.params, adapter, tokenizer)
        return with_request_log(server.frontend, logged, steps)

    def _outputs(self, server: App, *, is_whole: bool) -> AsyncGenerator[RequestOutput, None]:
        plan = self.plan
        if self.beams is not None:
            return beam_outputs(
                server.engine,
                server.engine.vocabularies.of(self.meta.adapter),
                self.beams,
                self.prompt_ids,
                self.params,
                self.request_id,
                priority=self.priority,
                cache_salt=self.cache_salt,
                adapter=self.meta.adapter,
            )
        prompt: Sequence[int] | PlacedPrompt = self.prompt_ids
        if self.parts:
            prompt = PlacedPrompt(token_ids=tuple(self.prompt_ids), parts=self.parts)
        return server.engine.generate(
            prompt,
            self.params,
            self.request_id,
            priority=self.priority,
            cache_salt=self.cache_salt,
            cache_pin_s=self.cache_pin_s,
            cache_pin_tokens=self.cache_pin_tokens,
            kv_transfer=self.kv_transfer,
            adapter=self.meta.adapter,
            watch=(lambda: CountedSession(plan)) if plan.stops else None,
            is_whole=is_whole,
        )


def response_meta(
    server: App,
    text: ModelText,
    body: SamplingFields,
    request: HTTPConnection,
    model: str,
    ignored: Sequence[str],
) -> ResponseMeta:
    """Return the metadata of an answer. Its id is the body's, the header's, or a new one. `ignored`
    are the fields without effect."""
    writes_ids = body.return_tokens_as_token_ids
    if writes_ids is None:
        writes_ids = server.frontend.return_tokens_as_token_ids
    return ResponseMeta(
        request_id=body.request_id or str(request.state.request_id),
        model=model,
        adapter=server.engine.spec.adapter_of(model),
        created_s=int(time.time()),
        fingerprint=server.fingerprint,
        names=TokenNames(tokenizer=text.vocabulary.tokenizer, writes_ids=writes_ids),
        ignored=ignored,
    )


def generation_for(
    text: ModelText,
    body: SamplingFields,
    meta: ResponseMeta,
    prompt: PlacedPrompt | Sequence[int],
    fields: dict[str, Any],
    plan: SessionPlan,
    dialect: Dialect,
) -> Generation:
    """Return the generation of one prompt. Raises: RequestError. Mutates: meta (clamping)"""
    limit = text.engine.spec.run.max_model_tokens
    wanted = fields.get("max_tokens")
    parts = prompt.parts if isinstance(prompt, PlacedPrompt) else ()
    prompt_ids = truncated(
        prompt.token_ids if isinstance(prompt, PlacedPrompt) else prompt,
        body.truncate_prompt_tokens,
        limit,
        wanted,
        keeps_start=body.truncation_side == "right",
    )
    params, clamped_tokens = build_sampling(text.engine, body, fields, len(prompt_ids))
    if clamped_tokens is not None:
        meta.clamped_tokens = clamped_tokens
    beams = beam_settings(body) if body.use_beam_search else None
    if beams is not None and parts:
        raise RequestError(
            "a beam search takes no media or embeddings yet.", where="use_beam_search"
        )
    if beams is not None and body.kv_transfer_params:
        raise RequestError("a beam search stays on one engine.", where="kv_transfer_params")
    if beams is not None:
        check_beams(beams, params, text.engine, text.vocabulary)
    return Generation(
        meta=meta,
        request_id=meta.request_id,
        prompt_ids=prompt_ids,
        parts=parts,
        params=params,
        plan=plan.with_stops(
            params.stop,
            includes_stop=params.include_stop_str_in_output,
            min_tokens=params.min_tokens,
        ),
        dialect=dialect,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        cache_pin_s=body.cache_pin_s,
        kv_transfer=body.kv_transfer_params,
        beams=beams,
    )


async def json_response(meta: ResponseMeta, body: Coroutine[Any, Any, BaseModel]) -> Response:
    """Return a complete answer as one JSON body. Raises: what `body` raises"""
    answer = await body
    return Response(
        answer.model_dump_json(),
        media_type="application/json",
        headers=meta.headers(),
    )


async def event_stream_response(
    request: Request,
    owned: AsyncExitStack,
    meta: ResponseMeta,
    steps: AsyncGenerator[Item, None],
    run: Callable[[AsyncIterator[Item]], AsyncGenerator[bytes, None]],
    framing: Framing | None = None,
) -> EventStream:
    """Return a stream of `run(steps)`, begun by the first step or the first keep-alive comment.

    Mutates: owned (the stream takes over its contents)
    """
    keep_alive_s = request.app.state.server.frontend.sse_keep_alive_interval
    first = await begun_within(steps, keep_alive_s)
    owned.push_async_callback(ended, first)  # a stream that is never sent never awaits it
    head = StreamHead(
        headers=meta.headers(),
        request_id=meta.request_id,
        logs_stack=request.app.state.server.frontend.log_error_stack,
        keep_alive_s=keep_alive_s,
        framing=framing or Framing(),
    )
    return EventStream(run(continued(first, steps)), owned.pop_all(), head)
