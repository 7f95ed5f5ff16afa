"""POST /completion and /infill, and the other paths that clients of llama.cpp's server use.

/tokenize, /detokenize, /reranking and /v1/health belong to the families that have their other
shapes: `tokenize`, `scores` and `health`.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from dovetail.errors import RequestError
from dovetail.interfaces.api import GENERATE, Api, ApiError, Route
from dovetail.interfaces.data.pooling_params import EMBED, TOKEN_EMBED
from dovetail.interfaces.plugin import Info
from dovetail.multimodal.prompt import PlacedPrompt
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    Dialect,
    Generation,
    ModelText,
    ResponseMeta,
    ServerOf,
    SessionPlan,
    Step,
    engine_names,
    event_stream_response,
    generation_for,
    in_words_of,
    merged,
    requested_constraint,
    response_meta,
    sent_as,
)
from dovetail_plugins.apis._infill import infill_of
from dovetail_plugins.apis.llamacpp.embed import embed
from dovetail_plugins.apis.llamacpp.errors import error_body
from dovetail_plugins.apis.llamacpp.facts import (
    apply_template,
    change_props,
    list_adapters,
    scale_adapters,
    show_props,
)
from dovetail_plugins.apis.llamacpp.infill import infill_prompt
from dovetail_plugins.apis.llamacpp.limits import limited
from dovetail_plugins.apis.llamacpp.prompts import read_prompt, sent_prompts
from dovetail_plugins.apis.llamacpp.protocol import (
    CompletionRequest,
    ContinueRequest,
    InfillRequest,
    LlamaEmbedRequest,
    SlotRequest,
)
from dovetail_plugins.apis.llamacpp.response import FRAMING, LLAMA, Shown, events, whole
from dovetail_plugins.apis.llamacpp.saved_slots import change_slot, slot_prompt
from dovetail_plugins.apis.llamacpp.settings import (
    adapter_name,
    biases_of,
    check_probabilities,
    generation_settings,
    with_chain,
)
from dovetail_plugins.apis.llamacpp.slots import Slots, SlotsOf, SlotUse, list_slots

MAX_ANSWERS = 2048
INFILL = Dialect(
    finish_reason=LLAMA.finish_reason,
    field_names=engine_names(
        {"messages": "input_prefix", "logprobs": "n_probs", "suffix": "input_suffix"}
    ),
)
Prompt = Sequence[int] | PlacedPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What the two endpoints do differently: their field names, and the places and the reading of
    their prompts."""

    dialect: Dialect
    places: Sequence[str]
    read: Callable[[ModelText, int], Awaitable[Prompt]]
    fills_in: bool = False


async def create_completion(
    body: CompletionRequest, request: Request, server: ServerOf, slots: SlotsOf
) -> Any:
    """Continue one or more prompts in llama.cpp's format, streamed or whole."""
    prompts = sent_prompts(body.prompt)
    kind = Kind(
        dialect=LLAMA,
        places=[one.where for one in prompts],
        read=lambda text, which: read_prompt(text, prompts[which]),
    )
    return await _answered(server, slots, body, request, kind)


async def create_infill(
    body: InfillRequest, request: Request, server: ServerOf, slots: SlotsOf
) -> Any:
    """Return the text between a prefix and a suffix in llama.cpp's format, streamed or whole."""
    kind = Kind(
        dialect=INFILL,
        places=["input_prefix"],
        read=lambda text, _: infill_prompt(text, body),
        fills_in=True,
    )
    return await _answered(server, slots, body, request, kind)


async def _answered(
    server: App, slots: Slots, body: ContinueRequest, request: Request, kind: Kind
) -> Response:
    """Return the response. Raises: RequestError"""
    num_prompts = len(kind.places)
    num_answers = num_prompts * (body.n or 1)
    _check(body, num_answers)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(num_answers))
        with in_words_of({**kind.dialect.field_names, **sent_as(body)}):
            meta, generations, shown = await _prepared(server, body, request, kind)
        num_slots, prompts = server.engine.spec.total_rows, [slot_prompt(o) for o in generations]
        uses = owned.enter_context(slots.used(num_slots, prompts, shown.settings, body.id_slot))
        shown = replace(shown, slots=[use.slot for use in uses])
        steps = merged(
            [_steps(server, body, one, use) for one, use in zip(generations, uses, strict=True)]
        )
        owned.push_async_callback(steps.aclose)
        if body.stream:
            run = partial(events, shown=shown)
            return await event_stream_response(request, owned, meta, steps, run, FRAMING)
        data = await whole(steps, shown)
        return Response(data, media_type="application/json", headers=meta.headers())


def _check(body: ContinueRequest, num_answers: int) -> None:
    if num_answers > MAX_ANSWERS:
        raise RequestError(f"prompts times n_cmpl is above {MAX_ANSWERS}.", where="n_cmpl")
    if _is_limited(body) and (body.n or 1) > 1:
        where = "n_indent" if body.n_indent else "t_max_predict_ms"
        raise RequestError("cannot be combined with several answers.", where=where)


def _is_limited(body: ContinueRequest) -> bool:
    return body.n_indent > 0 or body.t_max_predict_ms > 0


def _steps(
    server: App, body: ContinueRequest, generation: Generation, use: SlotUse
) -> AsyncGenerator[Step, None]:
    """Return the steps of a prompt's answers."""
    is_limited = _is_limited(body)
    steps = generation.steps(server, is_whole=not body.stream and not is_limited)
    if is_limited:
        steps = limited(steps, min_indent=body.n_indent, max_ms=body.t_max_predict_ms)
    return use.watched(steps)


async def _prepared(
    server: App, body: ContinueRequest, request: Request, kind: Kind
) -> tuple[ResponseMeta, list[Generation], Shown]:
    """Return the generations of all prompts, and what their answers show. Raises: RequestError"""
    body, unheard = with_chain(body, fills_in=kind.fills_in)
    ignored = [*server.fields.check(body), *server.fields.report(unheard)]
    if body.reasoning_format is not None:
        ignored.append("reasoning_format")
    check_probabilities(server, body)
    text, model = await server.text_for(await adapter_name(server, body))
    meta = response_meta(server, text, body, request, model, ignored)
    fields = await _engine_fields(text, body, kind)
    salt = body.cache_salt if body.cache_prompt else secrets.token_hex()
    plain = body.model_copy(update={"logit_bias": None, "cache_salt": salt})
    generations = []
    for which, place in enumerate(kind.places):
        with in_words_of({"prompt": place}):
            prompt = await kind.read(text, which)
            one = generation_for(text, plain, meta, prompt, fields, SessionPlan(), kind.dialect)
        is_alone = len(kind.places) == 1
        request_id = meta.request_id if is_alone else f"{meta.request_id}-{which}"
        generations.append(replace(one, request_id=request_id))
    written = [await _written(text, one.prompt_ids) for one in generations]
    return meta, generations, _shown(server, body, meta, generations[0], written)


async def _engine_fields(text: ModelText, body: ContinueRequest, kind: Kind) -> dict[str, Any]:
    """Return the sampling fields that have other names or shapes in the engine."""
    fields: dict[str, Any] = {}
    if body.max_tokens is not None and body.max_tokens >= 0:
        fields["max_tokens"] = max(body.max_tokens, 1)
    if body.n_probs:
        fields["logprobs"] = body.n_probs
    if body.logit_bias:
        fields["logit_bias"] = await biases_of(text, body)
    if kind.fills_in and not body.ignore_eos:
        ends = infill_of(text.vocabulary.tokenizer).ends
        fields["stop_token_ids"] = (*(body.stop_token_ids or ()), *ends)
    constraint = requested_constraint(body, None, text.structured_output_spec)
    if constraint is not None:
        fields["constraint"] = await text.compile_constraint(constraint, SessionPlan(), "")
    return fields


async def _written(text: ModelText, ids: Sequence[int]) -> str:
    """Return a prompt as the model reads it."""
    if not text.engine.spec.has_tokenizer:
        return ""
    decode = text.vocabulary.tokenizer.decode
    return await text.threads.run(lambda: decode(ids, skip_special_tokens=False), len(ids))


def _shown(
    server: App,
    body: ContinueRequest,
    meta: ResponseMeta,
    first: Generation,
    prompts: Sequence[str],
) -> Shown:
    lora = [one.model_dump() for one in body.lora or ()]
    return Shown(
        model=meta.model,
        names=meta.names,
        prompts=prompts,
        slots=(),
        settings=generation_settings(first.params, body, lora=lora),
        n=body.n or 1,
        num_context=server.engine.spec.run.max_model_tokens,
        num_probs=body.n_probs,
        is_after_sampling=body.post_sampling_probs,
        is_stream=body.stream,
        returns_tokens=body.return_tokens,
        times_each=body.timings_per_token,
        shows_progress=body.return_progress,
        hides_answer=body.max_tokens == 0,
        fields=body.response_fields,
    )


class LlamaApi(Api):
    """The API of llama.cpp's server."""

    info = Info(
        summary="completion, infill, props and slots of llama.cpp's server",
        source="the API page of llama.cpp's server",
    )
    routes = (
        *(
            Route(
                method="POST",
                path=path,
                endpoint=create_completion,
                body=CompletionRequest,
                tasks=(GENERATE,),
            )
            for path in ("/completion", "/completions")
        ),
        Route(
            method="POST",
            path="/infill",
            endpoint=create_infill,
            body=InfillRequest,
            tasks=(GENERATE,),
            takes_any_length=True,
        ),
        *(
            Route(
                method="POST",
                path=path,
                endpoint=embed,
                body=LlamaEmbedRequest,
                tasks=(EMBED, TOKEN_EMBED),
            )
            for path in ("/embedding", "/embeddings")
        ),
        Route(method="GET", path="/props", endpoint=show_props),
        Route(method="POST", path="/props", endpoint=change_props),
        Route(method="GET", path="/slots", endpoint=list_slots),
        Route(method="POST", path="/slots/{id_slot}", endpoint=change_slot, body=SlotRequest),
        Route(method="GET", path="/lora-adapters", endpoint=list_adapters),
        Route(method="POST", path="/lora-adapters", endpoint=scale_adapters),
        Route(method="POST", path="/apply-template", endpoint=apply_template, body=ChatRequest),
    )

    def state(self, frontend: Any) -> AbstractAsyncContextManager[Slots]:
        """Give the slots of this process."""
        return _slots()

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        """Return llama.cpp's JSON error body."""
        return error_body(status, error, request_id)


@asynccontextmanager
async def _slots() -> AsyncIterator[Slots]:
    yield Slots()
