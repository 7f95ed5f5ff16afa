"""A conversation on its way to the engine, whichever dialect it came in: checks, prompt,
constraint.

Every dialect turns its body into a ChatRequest first; from there on they are one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from dovetail.errors import RequestError
from dovetail.interfaces.constraint import Choice, Constraint, choice_of
from dovetail.interfaces.text import Tool
from dovetail.server.generate.as_chat import in_words_of
from dovetail.server.generate.chat_body import ChatRequest
from dovetail.server.generate.dialect import Dialect
from dovetail.server.generate.events import SessionPlan
from dovetail.server.generate.generation import (
    Generation,
    generation_for,
    response_meta,
)
from dovetail.server.generate.logprobs import check_named_logprobs
from dovetail.server.generate.named_parsers import parsers_for
from dovetail.server.generate.server_state import LONG_WORK, ServerState
from dovetail.server.generate.structured_outputs import ConstraintRequest, requested_constraint
from dovetail.server.generate.template.chat import RenderQuery
from dovetail.server.generate.thinking import (
    Switch,
    switches_of,
    template_kwargs,
    thinking_budget,
    unused_fields,
)
from dovetail.server.generate.tool_choice import ToolUse, kept_special_ids, session_plan, tool_use


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A conversation as the model reads it, and what decides how the answer is read.

    `tail` is the end of its text, `unused` names the fields that changed nothing,
    `kept_special_ids` are the special tokens by which reasoning and calls are told.
    """

    ids: list[int]
    tail: str
    unused: Sequence[str]
    use: ToolUse
    plan: SessionPlan
    kept_special_ids: tuple[int, ...]


async def prepare(
    server: ServerState,
    body: ChatRequest,
    request: Request,
    *,
    dialect: Dialect,
    ignored: Sequence[str] = (),
    others: Sequence[Switch] = (),
) -> Generation:
    """Return the request ready for the engine. Raises: RequestError in the dialect's names

    `ignored` are names that the dialect has reported itself, `others` its words on thinking.
    """
    with in_words_of(dialect.field_names):
        switches = switches_of(body, others)
        meta = response_meta(server, body, request, body.model)
        prompt = await render(server, body, switches)
        meta.ignored += [*ignored, *server.fields.report(prompt.unused)]
        fields = await _engine_fields(server, body, prompt)
        return generation_for(server, body, meta, prompt.ids, fields, prompt.plan, dialect)


async def render(
    server: ServerState, body: ChatRequest, switches: Sequence[Switch]
) -> RenderedPrompt:
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
    defaults = server.frontend.default_chat_template_kwargs
    rendered = await server.run(
        lambda: server.renderer.render(render_query(body, use, switches, defaults)),
        text_size(body),
    )
    ids = await server.tokenize(rendered.prompt, add_special_tokens=body.add_special_tokens)
    is_strict = server.frontend.tool_parser_strict
    plan = session_plan(body, use, parsers.reasoning, rendered.tail, is_strict=is_strict)
    return RenderedPrompt(
        ids=ids,
        tail=rendered.tail,
        use=use,
        plan=plan,
        kept_special_ids=kept_special_ids(
            use.parser, parsers.reasoning, server.engine.tokenizer.facts()
        ),
        unused=unused_fields(body, switches, rendered.ignored, defaults),
    )


def text_size(body: ChatRequest) -> int:
    """Return roughly how many characters the messages and tools hold; a template is long work."""
    tools = 256 * len(body.tools or ())
    template = LONG_WORK if body.chat_template is not None else 0
    sizes = [len(m.content) if isinstance(m.content, str) else 1024 for m in body.messages]
    return template + tools + sum(sizes)


def render_query(
    body: ChatRequest, use: ToolUse, switches: Sequence[Switch], defaults: Mapping[str, Any]
) -> RenderQuery:
    """Return what to render; `defaults` are the server's variables of the template."""
    continues = body.continue_final_message
    is_set = "add_generation_prompt" in body.model_fields_set
    return RenderQuery(
        messages=body.messages,
        tools=use.tools,
        documents=body.documents or (),
        kwargs=template_kwargs(body, switches, defaults),
        adds_generation_prompt=body.add_generation_prompt and not (continues and not is_set),
        continues_final_message=continues,
        template=body.chat_template,
    )


async def _engine_fields(
    server: ServerState, body: ChatRequest, prompt: RenderedPrompt
) -> dict[str, Any]:
    """Return the sampling fields that a conversation decides. Raises: RequestError"""
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
    check_named_logprobs(body, bool(body.logprobs), bool(body.top_logprobs))
    fields["kept_special_ids"] = prompt.kept_special_ids
    if body.thinking_token_budget is not None:
        server.check_structured_output("thinking_token_budget")
        fields["thinking"] = thinking_budget(
            body.thinking_token_budget, prompt.plan, server.engine.tokenizer
        )
    constraint = answer_constraint(server, body, prompt.use)
    if constraint is not None:
        fields["constraint"] = await server.compile_constraint(constraint, prompt.plan, prompt.tail)
    return fields


def answer_constraint(
    server: ServerState, body: ChatRequest, use: ToolUse
) -> ConstraintRequest | None:
    """Return the constraint of the whole answer. Raises: RequestError

    What a request says of its answer's constraint holds for the words of it: a call that must be
    made is held to its tool alone, and one that may be made is another way to answer.
    """
    constraint = requested_constraint(body, body.response_format, server.structured_output_spec)
    if constraint is None or body.tool_choice not in (None, "auto", "none"):
        return use.constraint or constraint
    if constraint.constraint is None:
        return _with_strict_calls(constraint, use)
    calls = _possible_calls(body, use)
    if calls is None:
        return constraint
    return replace(constraint, constraint=Choice((constraint.constraint, calls)))


def _with_strict_calls(constraint: ConstraintRequest, use: ToolUse) -> ConstraintRequest:
    """Return tags in free text, those of strict tools' calls among them. Raises: RequestError"""
    if use.constraint is None:
        return constraint
    if use.constraint.constraint is not None:
        raise RequestError(
            "structural tags and strict tools cannot be combined for this model: its tool calls "
            "have no opening tag.",
            where=constraint.where,
            fix="remove strict from the tools, or remove the structural tags.",
            code="unsupported_field",
        )
    return replace(constraint, tags=(*constraint.tags, *use.constraint.tags))


def _possible_calls(body: ChatRequest, use: ToolUse) -> Constraint | None:
    """Return the text of calls that the model may make; None where the syntax has no constraint."""
    parser = use.parser
    if parser is None:
        return None
    constraints = []
    for tool in use.tools:
        function = tool.function
        schema = (function.parameters or {}) if function.strict else {}
        constraint = parser.constraint(Tool(name=function.name, parameters=schema))
        if constraint is None:
            return None
        constraints.append(constraint)
    most = 1 if body.parallel_tool_calls is False else None
    return parser.calls_constraint(choice_of(constraints), most)
