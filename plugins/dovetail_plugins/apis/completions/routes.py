"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request

from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.engine.context_length import PROMPT
from dovetail.errors import RequestError
from dovetail.interfaces.api import GENERATE, Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.multimodal.prompt import PlacedPrompt
from dovetail.multimodal.vectors import FIELD, check_taken
from dovetail.server.endpoint import (
    LONG_WORK,
    App,
    Generation,
    ModelText,
    ResponseMeta,
    ServerOf,
    SessionPlan,
    Step,
    check_named_logprobs,
    event_stream_response,
    generation_for,
    in_words_of,
    json_response,
    merged,
    requested_constraint,
    response_meta,
    sent_as,
)
from dovetail_plugins.apis._infill import infill_of, suffix_ids
from dovetail_plugins.apis.completions.best_of import best_steps
from dovetail_plugins.apis.completions.protocol import MAX_CHOICES, CompletionRequest
from dovetail_plugins.apis.completions.response import (
    COMPLETIONS,
    CompletionResponseOptions,
    completion_body,
    completion_chunks,
)
from dovetail_plugins.apis.completions.vectors import decode_vectors
from dovetail_plugins.usage import StreamUsage, shows_cached, stream_usage

Prompt = tuple[str, Sequence[int]]
"""A prompt's text (empty unless it is echoed) and its token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentVectors:
    """A prompt of embedding vectors as sent: a base64 tensor."""

    data: str


SentPrompt = str | list[int] | SentVectors


async def create_completion(body: CompletionRequest, request: Request, server: ServerOf) -> Any:
    """Continue one or more prompts, streamed or whole."""
    prompts = sent_prompts(body)
    _check(body, len(prompts))
    if body.prompt_embeds:
        check_taken(is_taken=server.engine.spec.takes_vectors)
    usage = stream_usage(server, body.stream, body.stream_options)
    async with AsyncExitStack() as owned:
        num_answers = len(prompts) * max(body.n or 1, body.best_of or 1)
        owned.enter_context(server.admission.admit(num_answers))
        with in_words_of(sent_as(body)):
            meta, generations, options = await _prepare(server, body, request, prompts, usage)
        steps = merged([_steps(server, body, generation) for generation in generations])
        owned.push_async_callback(steps.aclose)
        if body.stream:
            run = partial(completion_chunks, meta=meta, options=options)
            return await event_stream_response(request, owned, meta, steps, run)
        return await json_response(meta, completion_body(steps, meta, options))


def _steps(
    server: App, body: CompletionRequest, generation: Generation
) -> AsyncGenerator[Step, None]:
    """Return the steps of a prompt's answers; with best_of, of the n best."""
    steps = generation.steps(server, is_whole=not body.stream)
    return best_steps(steps, body.n or 1) if _draws_more(body) else steps


def _draws_more(body: CompletionRequest) -> bool:
    return (body.best_of or 1) > (body.n or 1) and not body.use_beam_search


def sent_prompts(body: CompletionRequest) -> list[SentPrompt]:
    """Return the prompts as a list: vectors first, then texts or token ids. Raises: RequestError"""
    vectors = body.prompt_embeds or []
    found: list[SentPrompt] = [
        SentVectors(data=one) for one in ([vectors] if isinstance(vectors, str) else vectors)
    ]
    prompt = body.prompt
    if not prompt and found:
        return found  # many clients cannot omit the field
    if prompt is None:
        raise RequestError("is missing.", where=PROMPT, fix="send text or token ids.")
    if isinstance(prompt, str):
        return [*found, prompt]
    if isinstance(prompt[0], int):
        return [*found, prompt]  # type: ignore[list-item]  # one list of ids
    return [*found, *prompt]  # type: ignore[list-item]  # texts or lists of ids


def _check(body: CompletionRequest, num_prompts: int) -> None:
    if body.suffix and (body.echo or body.truncate_prompt_tokens is not None):
        other = "echo" if body.echo else "truncate_prompt_tokens"
        raise RequestError("cannot be combined with suffix.", where=other)
    if body.prompt_embeds and (body.suffix or body.echo or body.truncate_prompt_tokens is not None):
        other = "suffix" if body.suffix else "echo" if body.echo else "truncate_prompt_tokens"
        raise RequestError(f"cannot be combined with {FIELD}.", where=other)
    if num_prompts * max(body.n or 1, body.best_of or 1) > MAX_CHOICES:
        where = "n" if (body.best_of or 1) <= (body.n or 1) else "best_of"
        raise RequestError(f"prompts times {where} is above {MAX_CHOICES}.", where=where)
    if num_prompts > 1 and body.kv_transfer_params:
        raise RequestError(
            "several prompts have different blocks; send one prompt.", where="kv_transfer_params"
        )
    if _draws_more(body) and body.stream:
        raise RequestError("answers that are chosen among cannot be streamed.", where="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("0 makes sense only with echo.", where="max_tokens")


async def _prepare(
    server: App,
    body: CompletionRequest,
    request: Request,
    prompts: Sequence[SentPrompt],
    usage: StreamUsage,
) -> tuple[ResponseMeta, list[Generation], CompletionResponseOptions]:
    text, model = await server.text_for(body.model)
    meta = response_meta(server, text, body, request, model, server.fields.check(body))
    fields = _engine_fields(body)
    if body.suffix and not body.ignore_eos:
        ends = infill_of(text.vocabulary.tokenizer).ends
        fields["stop_token_ids"] = (*(body.stop_token_ids or ()), *ends)
    constraint = requested_constraint(body, body.response_format, text.structured_output_spec)
    if constraint is not None:
        fields["constraint"] = await text.compile_constraint(constraint, SessionPlan(), "")
    generations: list[Generation] = []
    shown: list[Prompt] = []
    is_alone = len(prompts) == 1
    num_vectors = sum(isinstance(prompt, SentVectors) for prompt in prompts)
    for which, prompt in enumerate(prompts):
        field = FIELD if which < num_vectors else PROMPT
        number = which if which < num_vectors else which - num_vectors
        shown_field = field if is_alone else f"{field}[{number}]"
        with in_words_of({PROMPT: shown_field, FIELD: shown_field}):
            ids = await _read(text, body, prompt)
            generation = generation_for(text, body, meta, ids, fields, SessionPlan(), COMPLETIONS)
        request_id = meta.request_id if is_alone else f"{meta.request_id}-{which}"
        generations.append(replace(generation, request_id=request_id))
        shown_ids = () if isinstance(prompt, SentVectors) else generation.prompt_ids
        shown.append((await _echo_text(text, body, prompt), shown_ids))
    return meta, generations, _response_options(server, body, shown, usage)


async def _read(
    text: ModelText, body: CompletionRequest, prompt: SentPrompt
) -> Sequence[int] | PlacedPrompt:
    """Return a prompt in the engine's form. Raises: RequestError"""
    if not isinstance(prompt, SentVectors):
        return await _token_ids(text, body, prompt)
    run = text.engine.spec.run
    decode = partial(decode_vectors, prompt.data, run.model, run.max_model_tokens)
    return await text.engine.read(await text.threads.run(decode, LONG_WORK))


async def _token_ids(
    text: ModelText, body: CompletionRequest, prompt: str | list[int]
) -> Sequence[int]:
    if not body.suffix:
        if isinstance(prompt, str):
            return await text.tokenize(
                prompt,
                add_special_tokens=body.add_special_tokens,
                truncates_to=body.truncate_prompt_tokens,
                keeps_start=body.truncation_side == "right",
            )
        return prompt
    text.check_text("suffix")
    tokenizer, suffix = text.vocabulary.tokenizer, body.suffix
    verify_text("suffix", suffix)
    before: Sequence[int] | str = prompt
    if isinstance(before, str):
        before = await text.tokenize(before, add_special_tokens=False)
    after = await text.threads.run(lambda: suffix_ids(tokenizer, suffix), len(suffix))
    return infill_of(tokenizer).prompt(before, after)


async def _echo_text(text: ModelText, body: CompletionRequest, prompt: SentPrompt) -> str:
    if not body.echo or isinstance(prompt, SentVectors):
        return ""
    if isinstance(prompt, str):
        return prompt
    _check_ids(text, prompt)
    tokenizer = text.vocabulary.tokenizer
    return await text.threads.run(lambda: tokenizer.decode(prompt), len(prompt))


def _check_ids(text: ModelText, token_ids: Sequence[int]) -> None:
    size = text.vocabulary.num_tokens
    if token_ids and max(token_ids) >= size:
        raise RequestError(f"valid token ids are 0 to {size - 1}.", where="prompt")


def _engine_fields(body: CompletionRequest) -> dict[str, Any]:
    """Return the sampling fields that completions spell differently."""
    if body.logprob_token_ids:
        check_named_logprobs(is_on=body.logprobs is not None)
    fields: dict[str, Any] = {}
    if _draws_more(body):
        fields |= {"n": body.best_of, "logprobs": 0}
    if body.max_tokens is not None:
        fields["max_tokens"] = max(body.max_tokens, 1)
    if body.logprobs is not None:
        fields["logprobs"] = body.logprobs
        if body.echo and body.prompt_logprobs is None:
            fields["prompt_logprobs"] = body.logprobs
    return fields


def _response_options(
    server: App, body: CompletionRequest, prompts: Sequence[Prompt], usage: StreamUsage
) -> CompletionResponseOptions:
    return CompletionResponseOptions(
        n=body.n or 1,
        prompts=prompts,
        num_top_logprobs=_num_top_logprobs(body),
        echoes=body.echo,
        hides_answer=body.max_tokens == 0,
        skips_special=body.skip_special_tokens,
        shows_token_ids=body.return_token_ids or not server.engine.spec.has_tokenizer,
        stream_usage=usage,
        shows_cached=shows_cached(server, body),
        shows_prompt_logprobs=body.prompt_logprobs is not None,
        shows_timings=server.frontend.enable_per_request_metrics,
    )


def _num_top_logprobs(body: CompletionRequest) -> int | None:
    if body.logprobs is None:
        return None
    return len(body.logprob_token_ids or ()) or body.logprobs


class CompletionsApi(Api):
    """OpenAI's completions."""

    info = Info(summary="text completions of the OpenAI API", source="the OpenAI API reference")
    routes = (
        Route(
            method="POST",
            path="/v1/completions",
            endpoint=create_completion,
            body=CompletionRequest,
        ),
    )
    task = GENERATE
