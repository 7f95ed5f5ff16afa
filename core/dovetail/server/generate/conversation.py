"""The steps from a ChatRequest to the engine, for every dialect: checks, prompt, constraint.

Every dialect first converts its body to a ChatRequest; from there the path is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request

from dovetail.errors import RequestError
from dovetail.server.generate.body.as_chat import in_words_of
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.body.dialect import Dialect
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.generation import Generation, generation_for, response_meta
from dovetail.server.generate.logprobs import check_named_logprobs
from dovetail.server.generate.server_state import ServerState
from dovetail.server.generate.template.switches import Switch
from dovetail.server.generate.tools.thinking import thinking_budget
from dovetail.server.generate.tools.tool_choice import (
    answer_constraint,
    kept_special_ids,
    session_plan,
    with_offered_tools,
)


async def prepare(
    server: ServerState,
    body: ChatRequest,
    request: Request,
    *,
    dialect: Dialect,
    ignored: Sequence[str] = (),
    others: Sequence[Switch] = (),
) -> Generation:
    """Return the request ready for the engine. Raises: RequestError in the dialect's field names

    `ignored` are fields that the dialect has reported itself; `others` are its thinking switches.
    """
    with in_words_of(dialect.field_names):
        body = with_offered_tools(body, server.frontend)
        server, model = await server.for_model(body.model)
        parsers = server.parsers_for(body.tool_parser, body.reasoning_parser)
        prompt = await server.render(body, others)
        ids = await server.tokenize_prompt(prompt, body)
        placed = await server.read_media(prompt, body, ids) if prompt.media else ids
        plan = session_plan(body, parsers, server.frontend, prompt.tail)
        kept_ids = kept_special_ids(plan, server.special_ids, server.vocabulary.tokenizer)
        constraint = answer_constraint(body, plan, server.structured_output_spec)
        fields = {"kept_special_ids": kept_ids, **_engine_fields(server, body, plan)}
        if constraint is not None:
            compiled = await server.compile_constraint(constraint, plan, prompt.tail)
            fields["constraint"] = compiled
        names = [*ignored, *server.fields.report(prompt.unused)]
        meta = response_meta(server, body, request, model, names)
        return generation_for(server, body, meta, placed, fields, plan, dialect)


async def count_prompt_tokens(
    server: ServerState, body: ChatRequest, switches: Sequence[Switch] = ()
) -> tuple[int, Sequence[str]]:
    """Return the number of prompt tokens of a conversation, even above the context length, and the
    ignored fields. Raises: RequestError, also for tools that cannot be used"""
    body = with_offered_tools(body, server.frontend)
    parsers = server.parsers_for(body.tool_parser, body.reasoning_parser)
    prompt = await server.render(body, switches)
    session_plan(body, parsers, server.frontend, prompt.tail)
    ids = await server.tokenize_prompt(prompt, body, takes_any_length=True)
    if prompt.media:
        ids = (await server.read_media(prompt, body, ids)).token_ids
    return len(ids), prompt.unused


def _engine_fields(server: ServerState, body: ChatRequest, plan: SessionPlan) -> dict[str, Any]:
    """Return the sampling fields that chat spells differently. Raises: RequestError"""
    if (body.best_of or 1) > (body.n or 1) and not body.use_beam_search:
        raise RequestError("needs use_beam_search in a conversation.", where="best_of")
    fields: dict[str, Any] = {}
    max_tokens = body.max_completion_tokens or body.max_tokens
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise RequestError("needs logprobs to be true.", where="top_logprobs")
    if body.logprob_token_ids:
        check_named_logprobs(is_on=bool(body.logprobs))
    if body.thinking_token_budget is not None:
        server.check_structured_output("thinking_token_budget")
        tokens, tokenizer = body.thinking_token_budget, server.vocabulary.tokenizer
        fields["thinking"] = budget = thinking_budget(tokens, plan, tokenizer)
        marks = (*budget.end_ids, *tokenizer.encode(budget.start, add_special_tokens=False))
        if max(marks, default=0) >= server.engine.vocabularies.own.num_tokens:
            raise RequestError(
                "a token that the adapter adds marks the reasoning, so it cannot be limited.",
                where="thinking_token_budget",
                fix="leave it out; max_tokens limits reasoning and answer together.",
                code="unsupported_field",
            )
    return fields
