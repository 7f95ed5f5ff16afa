"""Conversion of a /v1/responses body to a ChatRequest: items become turns.

Source: the OpenAI API reference, responses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import ChatRequest, as_chat, check_one, is_deep
from dovetail.unsupported import remedy, sentence
from dovetail_plugins.apis.responses.compaction import SYSTEM_ROLES
from dovetail_plugins.apis.responses.offered_tools import choice_of, is_mcp, tools_of
from dovetail_plugins.apis.responses.protocol import Item, ResponsesRequest
from dovetail_plugins.apis.responses.turns import left_out_items

NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
"""Chat's field names -> their different names here."""
UNSUPPORTED_FIELDS = {
    "prompt": "stored_prompts",
}
"""Declared fields of missing features -> the feature's name in `dovetail.unsupported`."""
TEXT_LOGPROBS = "message.output_text.logprobs"
"""The `include` value for logprobs."""
SEALED_REASONING = "reasoning.encrypted_content"
"""The `include` value for reasoning that clients send back sealed."""
WITHOUT_EFFECT: Mapping[str, Sequence[Any]] = {
    "client_metadata": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
    "user": (),
}
"""Declared fields without effect -> the values that request the usual behavior."""

Message = dict[str, Any]


def chat_of(
    body: ResponsesRequest,
    messages: Sequence[Message],
    offered: Sequence[Item] = (),
    labels: Mapping[str, str] | None = None,
) -> ChatRequest:
    """Return the request as a chat request. `messages` are all turns, `offered` the functions of
    its mcp tools, `labels` the labels of their servers. Raises: RequestError"""
    check_one(body)
    _check_supported(body)
    _check_depths(body)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*_instructions(body), *messages],
        "tools": tools_of(body, offered) or None,
        "tool_choice": choice_of(body, labels or {}),
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_completion_tokens": body.max_output_tokens,
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "response_format": _response_format(body),
        "logprobs": tells_logprobs(body) or None,
        "top_logprobs": body.top_logprobs,
        "chat_template_kwargs": body.chat_template_kwargs,
        "media_io_kwargs": body.media_io_kwargs,
        "mm_processor_kwargs": body.mm_processor_kwargs,
        "thinking_token_budget": body.thinking_token_budget,
    }
    return as_chat(body, fields)


def conversation_id(body: ResponsesRequest) -> str:
    """Return the id of the conversation that a request continues; empty if none."""
    given = body.conversation
    return (given if isinstance(given, str) else given.id) if given else ""


def tells_logprobs(body: ResponsesRequest) -> bool:
    """Return whether the logprobs of the text's tokens are shown."""
    return body.top_logprobs is not None or TEXT_LOGPROBS in (body.include or ())


def compact_threshold(body: ResponsesRequest) -> int | None:
    """Return the number of prompt tokens above which earlier turns are replaced by a summary."""
    entries = [one for one in body.context_management or () if one.type == "compaction"]
    thresholds = [one.compact_threshold for one in entries if one.compact_threshold is not None]
    return min(thresholds, default=None)


def is_compaction(body: ResponsesRequest) -> bool:
    """Return whether the answer is only to be a compaction: the input ends with a trigger."""
    last = body.input[-1] if body.input else None
    return isinstance(last, dict) and last.get("type") == "compaction_trigger"


def seals_reasoning(body: ResponsesRequest) -> bool:
    """Return whether reasoning is answered with a sealed copy too."""
    return SEALED_REASONING in (body.include or ())


def _check_supported(body: ResponsesRequest) -> None:
    """Raise RequestError for the first unsupported field."""
    asks = [(name, feature) for name, feature in UNSUPPORTED_FIELDS.items() if getattr(body, name)]
    for where, feature in asks:
        fix = remedy(feature, "leave it out")
        raise RequestError(sentence(feature), where=where, fix=fix, code="unsupported_field")


def without_oldest(chat: ChatRequest, num_turns: int) -> ChatRequest | None:
    """Return the request without its oldest `num_turns` turns (a user message and what follows it).
    System messages and the last turn always stay. The caller doubles `num_turns` on every try. None
    if half as many turns were already all that can be removed."""
    messages = chat.messages
    starts = [i for i, message in enumerate(messages) if message.role == "user"]
    if num_turns >= 2 * (len(starts) - 1):
        return None
    num_turns = min(num_turns, len(starts) - 1)
    said = [message for message in messages[: starts[0]] if message.role in SYSTEM_ROLES]
    return chat.model_copy(update={"messages": [*said, *messages[starts[num_turns] :]]})


def ignored_fields(body: ResponsesRequest) -> list[str]:
    """Return the declared fields that have no effect here."""
    found = left_out_items(body.input)
    found += ["include"] if set(body.include or ()) - {TEXT_LOGPROBS, SEALED_REASONING} else []
    for name, neutral in WITHOUT_EFFECT.items():
        if getattr(body, name) is not None and getattr(body, name) not in neutral:
            found.append(name)
    if body.context_management and compact_threshold(body) is None:
        found.append("context_management")
    if body.max_tool_calls is not None and not any(map(is_mcp, body.tools or ())):
        found.append("max_tool_calls")
    if body.text is not None and body.text.verbosity is not None:
        found.append("text.verbosity")
    if body.reasoning is not None:
        names = ("summary", "generate_summary")
        found += [f"reasoning.{name}" for name in names if getattr(body.reasoning, name)]
    return found


def _instructions(body: ResponsesRequest) -> list[Message]:
    return [{"role": "system", "content": body.instructions}] if body.instructions else []


def _check_depths(body: ResponsesRequest) -> None:
    """Raise RequestError for schemas nested too deep to be echoed."""
    schemas: dict[str, Any] = {}
    if body.text is not None and body.text.format is not None:
        schemas["text.format.schema"] = body.text.format.schema_
    for where, schema in schemas.items():
        if is_deep(schema):
            raise RequestError("is nested too deep.", where=where)


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = body.text.format if body.text else None
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type, "schema": given.schema_}
    schema = {"name": given.name, "schema": given.schema_}
    return {"type": "json_schema", "json_schema": schema}
