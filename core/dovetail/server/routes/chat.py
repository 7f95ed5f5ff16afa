"""POST /v1/chat/completions."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from fastapi import Request

from dovetail.errors import RequestError
from dovetail.server.chat_shapes import ChatChunks, ChatShape, chat_body
from dovetail.server.events import SessionPlan
from dovetail.server.generation import (
    Generation,
    Reply,
    check_stream,
    enter,
    generation_for,
    open_reply,
    request_id_of,
    streamed,
    whole,
)
from dovetail.server.protocol.chat import ChatRequest
from dovetail.server.render.chat import Rendered, RenderQuery
from dovetail.server.routes.access import ServerOf
from dovetail.server.state import LONG_WORK, Server
from dovetail.server.streaming import until_gone
from dovetail.server.structured import asked_form
from dovetail.server.tools import ToolUse, kept_special_ids, session_plan, tool_use


async def create_chat_completion(body: ChatRequest, request: Request, server: ServerOf) -> Any:
    """Answer a conversation, streamed or whole."""
    async with AsyncExitStack() as owned:
        enter(server, owned, body.n or 1)
        reply, generation, shape = await until_gone(request, _prepare(server, body, request))
        steps = generation.steps(server)
        owned.push_async_callback(steps.aclose)
        if body.stream:
            run = ChatChunks(reply, shape).run
            return await streamed(request, owned, reply, steps, run)
        return await whole(request, reply, chat_body(steps, reply, shape))


async def _prepare(
    server: Server, body: ChatRequest, request: Request
) -> tuple[Reply, Generation, ChatShape]:
    """Return all that is decided before the engine hears of the request. Raises: RequestError"""
    model = server.model_name(body.model)
    server.check_text("messages")
    check_stream(body.stream, body.stream_options)
    server.check_template(body.chat_template)
    hides = server.frontend.exclude_tools_when_tool_choice_none
    decides = server.frontend.enable_auto_tool_choice
    use = tool_use(body, server.parsers, hides_unused=hides, may_decide=decides)
    reply = open_reply(server, body, request_id_of(request, body.request_id), model)
    reply.ignored += server.fields.check(body, known=("messages.",))
    rendered = await server.run(
        lambda: server.renderer.render(render_query(body, use)), text_size(body)
    )
    reply.ignored += server.fields.report(rendered.ignored)
    prompt_ids = await server.tokenize(rendered.prompt, add_special_tokens=body.add_special_tokens)
    plan = _plan(server, body, use, rendered)
    fields = _engine_fields(body)
    fields["kept_special_ids"] = kept_special_ids(
        use.parser, server.parsers.reasoning, server.engine.tokenizer.facts()
    )
    asked = asked_form(body, body.response_format, server.guided_spec) or use.asked
    if asked is not None:
        fields["guide"] = await server.guide(asked, plan, rendered.tail)
    generation = generation_for(server, body, reply, prompt_ids, fields, plan)
    shape = _shape(server, body, rendered)
    return reply, generation, replace(shape, prompt_ids=tuple(generation.prompt_ids))


def text_size(body: ChatRequest) -> int:
    """Return roughly how many characters the messages and tools hold; a template is long work."""
    tools = 256 * len(body.tools or ())
    template = LONG_WORK if body.chat_template is not None else 0
    sizes = [len(m.content) if isinstance(m.content, str) else 1024 for m in body.messages]
    return template + tools + sum(sizes)


def render_query(body: ChatRequest, use: ToolUse) -> RenderQuery:
    """Return what to render."""
    kwargs = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", body.reasoning_effort)
    continues = body.continue_final_message
    asked = "add_generation_prompt" in body.model_fields_set
    return RenderQuery(
        messages=body.messages,
        tools=use.tools,
        documents=body.documents or (),
        kwargs=kwargs,
        adds_generation_prompt=body.add_generation_prompt and not (continues and not asked),
        continues_final_message=continues,
        template=body.chat_template,
    )


def _plan(server: Server, body: ChatRequest, use: ToolUse, rendered: Rendered) -> SessionPlan:
    return session_plan(body, use, server.parsers.reasoning, rendered.tail)


def _engine_fields(body: ChatRequest) -> dict[str, Any]:
    """Return the sampling fields that chat spells in its own way."""
    fields: dict[str, Any] = {}
    max_tokens = body.max_completion_tokens or body.max_tokens
    if max_tokens is not None:
        fields["max_tokens"] = max_tokens
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise RequestError("needs logprobs to be true.", where="top_logprobs")
    return fields


def _shape(server: Server, body: ChatRequest, rendered: Rendered) -> ChatShape:
    options = body.stream_options
    usage = bool(options and options.include_usage) or server.frontend.enable_force_include_usage
    return ChatShape(
        role=_role(server, body),
        fingerprint=server.fingerprint,
        num_top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        shows_token_ids=body.return_token_ids,
        shows_reasoning=body.include_reasoning,
        shows_usage=usage,
        shows_usage_always=usage and bool(options and options.continuous_usage_stats),
        shows_cached=server.frontend.enable_prompt_tokens_details,
        shows_prompt_logprobs=body.prompt_logprobs is not None,
        echo=_echo(server, body),
    )


def _role(server: Server, body: ChatRequest) -> str:
    if body.continue_final_message or not body.add_generation_prompt:
        return body.messages[-1].role
    return server.frontend.response_role


def _echo(server: Server, body: ChatRequest) -> str:
    """Return the final message's text when it is to be repeated before the answer."""
    final = body.messages[-1]
    if not body.echo or final.role != _role(server, body) or not isinstance(final.content, str):
        return ""
    return final.content
