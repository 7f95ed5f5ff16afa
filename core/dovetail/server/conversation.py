"""A conversation on its way to the engine, whichever dialect it came in: checks, prompt, form.

Every dialect turns its body into a ChatRequest first; from there on they are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from dovetail.errors import RequestError
from dovetail.interfaces.form import Choice, Form
from dovetail.interfaces.text import Tool
from dovetail.server.events import SessionPlan
from dovetail.server.finish import Dialect
from dovetail.server.generation import Generation, Reply, generation_for, open_reply, request_id_of
from dovetail.server.named_parsers import parsers_for
from dovetail.server.protocol.chat import ChatRequest
from dovetail.server.render.chat import Rendered, RenderQuery
from dovetail.server.state import LONG_WORK, Parsers, Server
from dovetail.server.structured import Asked, asked_form
from dovetail.server.thinking import (
    Switch,
    switches_of,
    template_kwargs,
    thinking_budget,
    unused_fields,
)
from dovetail.server.tools import ToolUse, kept_special_ids, session_plan, tool_use
from dovetail.server.translate import CHAT_NAMES, in_words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A rendered conversation: its ids, and what decides how the answer is read."""

    ids: list[int]
    rendered: Rendered
    use: ToolUse
    parsers: Parsers
    plan: SessionPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that is decided before the engine hears of the request."""

    reply: Reply
    generation: Generation
    prompt: Prompt


async def prepare(
    server: Server,
    body: ChatRequest,
    request: Request,
    *,
    dialect: Dialect = "chat",
    ignored: Sequence[str] = (),
    others: Sequence[Switch] = (),
    names: Mapping[str, str] = CHAT_NAMES,
) -> Prepared:
    """Return the request ready for the engine. Raises: RequestError in the dialect's `names`

    `ignored` are names that the dialect has reported itself, `others` its words on thinking.
    """
    with in_words_of(names):
        switches = switches_of(body, others)
        model = server.model_name(body.model)
        reply = open_reply(server, body, request_id_of(request, body.request_id), model)
        reply.ignored += ignored
        prompt = await render(server, body, switches)
        unused = unused_fields(body, switches, prompt.rendered.ignored)
        reply.ignored += server.fields.report(unused)
        fields = await _engine_fields(server, body, prompt)
        made = generation_for(server, body, reply, prompt.ids, fields, prompt.plan)
    generation = replace(made, dialect=dialect, names=names)
    return Prepared(reply=reply, generation=generation, prompt=prompt)


async def render(server: Server, body: ChatRequest, switches: Sequence[Switch]) -> Prompt:
    """Return the conversation as the model will read it. Raises: RequestError"""
    server.check_text("messages")
    server.check_template(body.chat_template)
    parsers = parsers_for(server.parsers, body.tool_parser, body.reasoning_parser)
    use = tool_use(
        body,
        parsers,
        hides_unused=server.frontend.exclude_tools_when_tool_choice_none,
        may_decide=server.frontend.enable_auto_tool_choice,
    )
    rendered = await server.run(
        lambda: server.renderer.render(render_query(body, use, switches)), text_size(body)
    )
    ids = await server.tokenize(rendered.prompt, add_special_tokens=body.add_special_tokens)
    is_strict = server.frontend.tool_parser_strict
    plan = session_plan(body, use, parsers.reasoning, rendered.tail, is_strict=is_strict)
    return Prompt(ids=ids, rendered=rendered, use=use, parsers=parsers, plan=plan)


def text_size(body: ChatRequest) -> int:
    """Return roughly how many characters the messages and tools hold; a template is long work."""
    tools = 256 * len(body.tools or ())
    template = LONG_WORK if body.chat_template is not None else 0
    sizes = [len(m.content) if isinstance(m.content, str) else 1024 for m in body.messages]
    return template + tools + sum(sizes)


def render_query(body: ChatRequest, use: ToolUse, switches: Sequence[Switch]) -> RenderQuery:
    """Return what to render."""
    continues = body.continue_final_message
    asked = "add_generation_prompt" in body.model_fields_set
    return RenderQuery(
        messages=body.messages,
        tools=use.tools,
        documents=body.documents or (),
        kwargs=template_kwargs(body, switches),
        adds_generation_prompt=body.add_generation_prompt and not (continues and not asked),
        continues_final_message=continues,
        template=body.chat_template,
    )


async def _engine_fields(server: Server, body: ChatRequest, prompt: Prompt) -> dict[str, Any]:
    """Return the sampling fields that a conversation decides. Raises: RequestError"""
    fields: dict[str, Any] = {}
    max_tokens = body.max_completion_tokens or body.max_tokens
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise RequestError("needs logprobs to be true.", where="top_logprobs")
    tokenizer = server.engine.tokenizer
    fields["kept_special_ids"] = kept_special_ids(
        prompt.use.parser, prompt.parsers.reasoning, tokenizer.facts()
    )
    if body.thinking_token_budget is not None:
        server.check_guides("thinking_token_budget")
        fields["thinking"] = thinking_budget(body.thinking_token_budget, prompt.plan, tokenizer)
    asked = asked_answer(server, body, prompt.use)
    if asked is not None:
        fields["guide"] = await server.guide(asked, prompt.plan, prompt.rendered.tail)
    return fields


def asked_answer(server: Server, body: ChatRequest, use: ToolUse) -> Asked | None:
    """Return the form of the whole answer. Raises: RequestError

    What a request says of its answer's form holds for the words of it: a call that must be made is
    held to its tool alone, and one that may be made is another way to answer.
    """
    asked = asked_form(body, body.response_format, server.guided_spec)
    if asked is None or body.tool_choice not in (None, "auto", "none"):
        return use.asked or asked
    if asked.form is None:
        return _with_strict_calls(asked, use)
    calls = _possible_calls(body, use)
    if calls is None:
        return asked
    return replace(asked, form=Choice((asked.form, calls)))


def _with_strict_calls(asked: Asked, use: ToolUse) -> Asked:
    """Return tags in free text, those of strict tools' calls among them. Raises: RequestError"""
    if use.asked is None:
        return asked
    if use.asked.form is not None:
        raise RequestError(
            "structural tags and strict tools cannot be combined for this model: its tool calls "
            "have no opening tag.",
            where=asked.where,
            fix="remove strict from the tools, or remove the structural tags.",
            code="unsupported_field",
        )
    return replace(asked, tags=(*asked.tags, *use.asked.tags))


def _possible_calls(body: ChatRequest, use: ToolUse) -> Form | None:
    """Return the text of calls that the model may make; None where the syntax has no form."""
    parser = use.parser
    if parser is None:
        return None
    forms = []
    for tool in use.tools:
        function = tool.function
        schema = (function.parameters or {}) if function.strict else {}
        form = parser.form(Tool(name=function.name, parameters=schema))
        if form is None:
            return None
        forms.append(form)
    most = 1 if body.parallel_tool_calls is False else None
    return parser.forms(forms[0] if len(forms) == 1 else Choice(tuple(forms)), most)
