"""What chat and completions share on the way to the engine and back: checks, params, steps.

Routes stay thin: they turn bodies into a Query and steps into their own shapes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from dovetail.engine.input import truncated
from dovetail.errors import RequestError
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.observability.logging import shortened
from dovetail.server.generate.bodies import (
    CompletionTokensDetails,
    PromptTokensDetails,
    SamplingFields,
    StreamOptions,
    Usage,
)
from dovetail.server.generate.events import CountedSession, SessionPlan
from dovetail.server.generate.finish_reason import Dialect
from dovetail.server.generate.ignored_fields import HEADER, header_value
from dovetail.server.generate.logprobs import TokenNames
from dovetail.server.generate.sampling import build_sampling, sampling_fields
from dovetail.server.generate.server_state import ServerState
from dovetail.server.generate.streaming import (
    EventStream,
    Framing,
    Step,
    StreamHead,
    cancel_on_disconnect,
    continued,
    event_steps,
)

logger = logging.getLogger("dovetail.server")
Item = TypeVar("Item")
PARAM_CHARS = 200
"""Most characters of one sampling parameter in the log: a schema may be a page long."""

CLAMPED_HEADER = "x-dovetail-max-tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One prompt on its way: everything the engine and the session need.

    `names`: what the dialect calls the fields that errors of the engine name.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    plan: SessionPlan = field(default_factory=SessionPlan)
    dialect: Dialect = "chat"
    names: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    cache_salt: str = ""

    def steps(self, server: ServerState) -> AsyncGenerator[Step, None]:
        """Return the steps of the answer; closing them aborts the request."""
        plan = self.plan
        outputs = server.engine.generate(
            self.prompt_ids,
            self.params,
            self.request_id,
            priority=self.priority,
            cache_salt=self.cache_salt,
            watch=(lambda: CountedSession(plan)) if plan.stops else None,
        )
        steps = event_steps(outputs, plan, self.dialect, self.names)
        return (
            with_request_log(server, self, steps) if server.frontend.enable_log_requests else steps
        )


async def with_request_log(
    server: ServerState, generation: Generation, steps: AsyncGenerator[Step, None]
) -> AsyncGenerator[Step, None]:
    """Yield the steps; log the request as it comes, and how and why it ended, in a line each."""
    _log_arrival(server, generation)
    start_s = time.monotonic()
    first_s: float | None = None
    causes: dict[int, str] = {}
    texts: dict[int, list[str]] = {}
    num_tokens = 0
    end = "the client left"
    try:
        async for step in steps:
            first_s = first_s or time.monotonic()
            num_tokens = step.num_generated_tokens
            if step.finish_reason is not None:
                causes[step.index] = step.finish_reason
            if server.frontend.enable_log_outputs:
                texts.setdefault(step.index, []).append(step.text)
            yield step
        end = ", ".join(causes[index] for index in sorted(causes))
    except Exception as error:
        end = f"{type(error).__name__}: {error}"
        raise
    finally:
        await steps.aclose()
        for index in sorted(texts):
            _log_answer(server, generation, index, "".join(texts[index]))
        seconds = time.monotonic() - start_s
        wait_s = (first_s or time.monotonic()) - start_s
        logger.info(
            "request %s ended: %s; %d prompt and %d generated tokens, %.2f s, first token %.2f s",
            generation.request_id, end, len(generation.prompt_ids), num_tokens, seconds, wait_s,
        )  # fmt: skip


def _log_arrival(server: ServerState, generation: Generation) -> None:
    """Log the numbers of a request; its text only at level debug."""
    ids = generation.prompt_ids
    logger.info(
        "request %s: %d prompt tokens%s", generation.request_id, len(ids), _asked(generation.params)
    )
    if logger.isEnabledFor(logging.DEBUG):
        text = _beginning(server, ids, server.frontend.max_log_len)
        logger.debug("request %s: prompt %r", generation.request_id, text)


def _asked(params: SamplingParams) -> str:
    """Return the fields that are not as they are without asking, in a length that fits a line."""
    fields = msgspec.to_builtins(params, str_keys=False)  # leaves defaults out
    shown = (f", {name}={shortened(repr(value), PARAM_CHARS)}" for name, value in fields.items())
    return "".join(shown)


def _beginning(server: ServerState, ids: Sequence[int], limit: int | None) -> str:
    """Return the prompt's text, cut after `limit` characters."""
    if limit is None:
        return server.engine.tokenizer.decode(ids, skip_special_tokens=False)
    # No more is decoded than can be shown: how much is left out stands in tokens, a line above.
    text = server.engine.tokenizer.decode(ids[: limit + 1], skip_special_tokens=False)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _log_answer(server: ServerState, generation: Generation, index: int, text: str) -> None:
    """Log one answer as the model wrote it, whole, also where it was streamed."""
    shown = shortened(text, server.frontend.max_log_len)
    logger.info("request %s: answer %d %r", generation.request_id, index, shown)


@dataclass(slots=True, kw_only=True)
class ResponseMeta:
    """What is known of an answer before its first token: ids, names, headers."""

    request_id: str
    model: str
    created_s: int
    names: TokenNames
    ignored: list[str]
    clamped_tokens: int | None = None

    def headers(self) -> dict[str, str]:
        """Return the response headers that report what was not done as asked."""
        found = {}
        if self.ignored:
            found[HEADER] = header_value(self.ignored)
        if self.clamped_tokens is not None:
            found[CLAMPED_HEADER] = str(self.clamped_tokens)
        return found


def response_meta(
    server: ServerState, body: SamplingFields, request_id: str, model: str
) -> ResponseMeta:
    """Return the meta's frame."""
    writes_ids = body.return_tokens_as_token_ids
    if writes_ids is None:
        writes_ids = server.frontend.return_tokens_as_token_ids
    return ResponseMeta(
        request_id=request_id,
        model=model,
        created_s=int(time.time()),
        names=TokenNames(tokenizer=server.engine.tokenizer, writes_ids=writes_ids),
        ignored=[],
    )


def check_stream(is_stream: bool, options: StreamOptions | None) -> None:
    """Raise RequestError for stream options without a stream."""
    if options is not None and not is_stream:
        raise RequestError("is only allowed when stream is true.", where="stream_options")


def request_id_of(request: Request, given: str | None) -> str:
    """Return the id of this request: the body's, the header's, or a new one."""
    return given or str(request.state.request_id)


def generation_for(
    server: ServerState,
    body: SamplingFields,
    meta: ResponseMeta,
    prompt_ids: Sequence[int],
    fields: dict[str, Any],
    plan: SessionPlan,
) -> Generation:
    """Return the generation of one prompt. Raises: RequestError. Mutates: meta (clamping)"""
    limit = server.engine.spec.run.max_model_tokens
    wanted = fields.get("max_tokens")
    kept = truncated(prompt_ids, body.truncate_prompt_tokens, limit, wanted)
    made = build_sampling(server.engine, sampling_fields(body) | fields, len(kept))
    if made.clamped_tokens is not None:
        meta.clamped_tokens = made.clamped_tokens
    return Generation(
        request_id=meta.request_id,
        prompt_ids=kept,
        params=made.params,
        plan=_with_stops(plan, made.params),
        priority=body.priority,
        cache_salt=body.cache_salt or "",
    )


def _with_stops(plan: SessionPlan, params: SamplingParams) -> SessionPlan:
    """Return the plan that looks for the stop strings, where not all text is content."""
    if plan.is_plain or not params.stop:
        return plan
    return replace(
        plan,
        stops=params.stop,
        includes_stop=params.include_stop_str_in_output,
        min_tokens=params.min_tokens,
    )


def admit(server: ServerState, owned: AsyncExitStack, size: int) -> None:
    """Take a place in the queue, given back when `owned` closes. Raises: Overloaded, EngineDead"""
    server.check_alive()
    owned.callback(server.admission.enter(size).close)


@dataclass(slots=True, kw_only=True)
class UsageCounter:
    """Tokens of an answer so far, prompts of several generations added up."""

    shows_cached: bool = False
    shows_reasoning: bool = False
    prompt_tokens: dict[int, int] = field(default_factory=dict)
    generated_tokens: dict[int, int] = field(default_factory=dict)
    cached_tokens: dict[int, int] = field(default_factory=dict)
    reasoning_tokens: dict[int, int] = field(default_factory=dict)

    def note(self, step: Step, which: int = 0) -> None:
        """Record a step of generation `which`. Mutates: self"""
        self.prompt_tokens[which] = step.num_prompt_tokens
        self.generated_tokens[which] = step.num_generated_tokens
        self.cached_tokens[which] = step.num_cached_tokens
        self.reasoning_tokens[which] = step.num_reasoning_tokens

    def usage(self) -> Usage:
        """Return OpenAI's usage object."""
        prompt = sum(self.prompt_tokens.values())
        generated = sum(self.generated_tokens.values())
        fields: dict[str, Any] = {}
        if self.shows_cached:
            cached = sum(self.cached_tokens.values())
            fields["prompt_tokens_details"] = PromptTokensDetails(cached_tokens=cached)
        if self.shows_reasoning:
            fields["completion_tokens_details"] = CompletionTokensDetails(
                reasoning_tokens=sum(self.reasoning_tokens.values())
            )
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=generated,
            total_tokens=prompt + generated,
            **fields,
        )


async def json_response(
    request: Request, meta: ResponseMeta, body: Coroutine[Any, Any, BaseModel]
) -> Response:
    """Return a whole answer as one JSON body. Raises: what `body` raises, ClientDisconnected"""
    answer = await cancel_on_disconnect(request, body)
    return Response(
        answer.model_dump_json(exclude_unset=True),
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
    """Return a stream of `run(steps)`; its status waits until the first step has come.

    Mutates: owned (the stream takes over what it holds)
    """
    first = await cancel_on_disconnect(request, anext(steps))
    head = StreamHead(
        headers=meta.headers(),
        request_id=meta.request_id,
        logs_stack=request.app.state.server.frontend.log_error_stack,
        framing=framing or Framing(),
    )
    return EventStream(run(continued(first, steps)), owned.pop_all(), head)
