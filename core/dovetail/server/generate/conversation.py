"""The steps from a ChatRequest to the engine, for every dialect: checks, prompt, constraint.

Every dialect first converts its body to a ChatRequest; from there the path is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.requests import HTTPConnection

from dovetail.errors import RequestError
from dovetail.multimodal.prompt import PlacedPrompt
from dovetail.server.generate.application import App
from dovetail.server.generate.body.as_chat import in_words_of
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.body.dialect import Dialect
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.generation import Generation, generation_for, response_meta
from dovetail.server.generate.logprobs import check_named_logprobs
from dovetail.server.generate.model_text import ModelText
from dovetail.server.generate.rendering.switches import Switch
from dovetail.server.generate.tools.thinking import thinking_limit, without_unheard_budget
from dovetail.server.generate.tools.tool_choice import (
    compiled_constraint,
    kept_special_ids,
    session_plan,
    with_offered_tools,
)
from dovetail.server.generate.tools.tool_formats import checked_formats


async def prepare(
    server: App,
    body: ChatRequest,
    request: HTTPConnection,
    *,
    dialect: Dialect,
    ignored: Sequence[str] = (),
    others: Sequence[Switch] = (),
) -> Generation:
    """Return the request ready for the engine. Raises: RequestError in the dialect's field names

    `ignored` are fields that the dialect has reported itself; `others` are its thinking switches.
    """
    names = body._sent_as
    if names:
        dialect = replace(dialect, field_names={**dialect.field_names, **names})
    with in_words_of(dialect.field_names):
        checked = checked_formats(body) if body.tools else body
        body = with_offered_tools(checked, server.frontend)
        text, model = await server.text_for(body.model)
        parsers = text.parsers_for(body.tool_parser, body.reasoning_parser)
        prompt = await text.render(body, others)
        ids = await text.read(prompt, body)
        plan = session_plan(body, parsers, server.frontend, prompt.tail)
        body, unheard = without_unheard_budget(body, plan, text, names) if names else (body, [])
        plan = replace(plan, note_calls=text.renderer.note_calls)
        kept_ids = kept_special_ids(plan, text.special_ids, text.vocabulary.tokenizer)
        constraint, formats = await compiled_constraint(text, body, plan, prompt.tail)
        fields = {"kept_special_ids": kept_ids, **_engine_fields(text, body, plan)}
        if body.prediction is not None and takes_predictions(text):
            said = body.prediction.text
            found = await text.tokenize(said, add_special_tokens=False, takes_any_length=True)
            fields["prediction"] = tuple(found)
        elif body.prediction is not None:
            unheard = [*unheard, "prediction"]
        fields |= {"constraint": constraint} if constraint is not None else {}
        unheard += [*(names.get(name, name) for name in prompt.unused), *formats]
        ignored = [*ignored, *server.fields.report(unheard)]
        meta = response_meta(server, text, body, request, model, ignored)
        return generation_for(text, body, meta, ids, fields, plan, dialect)


async def count_prompt_tokens(
    server: App, body: ChatRequest, switches: Sequence[Switch] = ()
) -> tuple[int, Sequence[str]]:
    """Return the number of prompt tokens of a conversation, even above the context length, and the
    ignored fields. Raises: RequestError, also for tools that cannot be used"""
    text, _ = await server.text_for(body.model)
    body = with_offered_tools(body, server.frontend)
    parsers = text.parsers_for(body.tool_parser, body.reasoning_parser)
    prompt = await text.render(body, switches)
    session_plan(body, parsers, server.frontend, prompt.tail)
    read = await text.read(prompt, body, takes_any_length=True)
    return len(read.token_ids if isinstance(read, PlacedPrompt) else read), prompt.unused


def takes_predictions(text: ModelText) -> bool:
    """Return whether the engine drafts what a client predicts."""
    drafting = text.engine.spec.drafting
    return drafting is not None and drafting.takes_predictions


def _engine_fields(text: ModelText, body: ChatRequest, plan: SessionPlan) -> dict[str, Any]:
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
    budget = body.thinking_token_budget
    if budget is None and plan.reasoning is not None and not body.use_beam_search:
        budget = text.frontend.reasoning_budget
    if budget is not None and budget >= 0:
        fields["thinking"] = thinking_limit(budget, plan, text)
    return fields
