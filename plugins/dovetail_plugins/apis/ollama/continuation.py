"""/api/generate with `raw` or `suffix`: the prompt is continued without a template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from dovetail.engine.client.requests.prompt_checks import verify_text
from dovetail.errors import RequestError
from dovetail.server.endpoint import (
    App,
    ChatRequest,
    Generation,
    ModelText,
    SessionPlan,
    generation_for,
    in_words_of,
    requested_constraint,
    response_meta,
)
from dovetail_plugins.apis._infill import infill_of, suffix_ids
from dovetail_plugins.apis.ollama.input import chat_of_prompt
from dovetail_plugins.apis.ollama.protocol import OllamaGenerateRequest
from dovetail_plugins.apis.ollama.response import GENERATE


async def prepare_continuation(
    server: App,
    body: OllamaGenerateRequest,
    request: Request,
    *,
    model: str,
    ignored: Sequence[str],
) -> Generation:
    """Return the request ready for the engine. Raises: RequestError in the client's field names"""
    with in_words_of(GENERATE.field_names):
        chat = chat_of_prompt(body)
        for name in ("think", "system", "template"):
            if getattr(body, name):
                raise RequestError("needs a template, which raw and suffix leave out.", where=name)
        text, model = await server.text_for(model)
        ids = await _prompt_ids(text, body)
        constraint = requested_constraint(chat, chat.response_format, text.structured_output_spec)
        fields = _engine_fields(text, body, chat)
        if constraint is not None:
            fields["constraint"] = await text.compile_constraint(constraint, SessionPlan(), "")
        meta = response_meta(server, text, chat, request, model, ignored)
        return generation_for(text, chat, meta, ids, fields, SessionPlan(), GENERATE)


async def _prompt_ids(text: ModelText, body: OllamaGenerateRequest) -> Sequence[int]:
    prompt, suffix = body.prompt or "", body.suffix
    text.check_text("prompt")
    if not suffix:
        return await text.tokenize(prompt, add_special_tokens=True)
    tokenizer = text.vocabulary.tokenizer
    verify_text("suffix", suffix)
    infill = infill_of(tokenizer)
    before = await text.tokenize(prompt, add_special_tokens=False)
    after = await text.threads.run(lambda: suffix_ids(tokenizer, suffix), len(suffix))
    return infill.prompt(before, after)


def _engine_fields(
    text: ModelText, body: OllamaGenerateRequest, chat: ChatRequest
) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if chat.max_tokens is not None:
        fields["max_tokens"] = chat.max_tokens
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    if body.suffix and not chat.ignore_eos:
        ends = infill_of(text.vocabulary.tokenizer).ends
        fields["stop_token_ids"] = (*(chat.stop_token_ids or ()), *ends)
    return fields
