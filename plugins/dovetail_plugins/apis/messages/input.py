"""Conversion of a /v1/messages body to a ChatRequest: turns, tools and settings.

Source: the Anthropic API reference, messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import (
    ChatRequest,
    Switch,
    as_chat,
    check_one,
    is_left_out,
    switch,
)
from dovetail_plugins.apis.messages.content import with_notes
from dovetail_plugins.apis.messages.hints import IGNORED_NAME, has_mark, pin_of
from dovetail_plugins.apis.messages.protocol import (
    Block,
    CountRequest,
    MessagesRequest,
    OutputConfig,
)
from dovetail_plugins.apis.messages.thoughts import sealed_thought
from dovetail_plugins.apis.messages.tools import check_choice, offered_tools
from dovetail_plugins.apis.messages.turns import chat_turns, in_places_of
from dovetail_plugins.apis.messages.words import BLOCKS

NAMES = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Chat's field names -> their different names here."""


def chat_of(body: CountRequest, *, can_budget: bool, sees_images: bool = True) -> ChatRequest:
    """Return the conversation as a chat request. Raises: RequestError

    `can_budget`: a thinking budget is passed on. `sees_images`: the model takes images. Otherwise
    those in tool results are a note, as a client cannot know what a file that it reads holds.
    """
    check_one(body)
    check_choice(body)
    if body.compaction:
        raise RequestError(
            "this server does not summarize conversations.",
            where="compaction",
            fix="ask for a summary in a message.",
            code="unsupported_field",
        )
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [turn.message for turn in chat_turns(body, sees_images=sees_images)],
        "tools": offered_tools(body),
        "chat_template_kwargs": body.chat_template_kwargs,
        "media_io_kwargs": body.media_io_kwargs,
        "mm_processor_kwargs": body.mm_processor_kwargs,
    }
    fields |= _tool_choice(body) | _output(body)
    if body.messages[-1].role == "assistant":
        fields |= {"continue_final_message": True, "add_generation_prompt": False}
    thinking = body.thinking
    if can_budget and thinking is not None and thinking.type == "enabled":
        fields["thinking_token_budget"] = thinking.budget_tokens
    if isinstance(body, MessagesRequest):
        fields |= {"max_tokens": body.max_tokens, "stop": body.stop_sequences or body.stop}
    with in_places_of(body):
        return as_chat(body, fields)


def switches(body: CountRequest) -> list[Switch]:
    """Return the body's thinking switches and effort. An effort alone does not turn thinking on;
    with adaptive thinking it does."""
    effort = body.output_config.effort if body.output_config else None
    found = []
    kind = body.thinking.type if body.thinking else None
    if kind in ("enabled", "disabled") or (kind == "adaptive" and effort is not None):
        found.append(switch("thinking", kind != "disabled"))
    if effort is not None:
        found.append(Switch(field="output_config.effort", kwargs={"reasoning_effort": effort}))
    return found


def ignored_fields(
    body: CountRequest, *, can_budget: bool, can_pin: bool, sees_images: bool
) -> list[str]:
    """Return the declared fields that have no effect here, and the blocks that are left out."""
    thinking = body.thinking
    names = {
        "thinking.budget_tokens": bool(thinking and thinking.budget_tokens and not can_budget),
        "thinking.type": bool(thinking and thinking.type == "between_tools"),
        "metadata": bool(isinstance(body, MessagesRequest) and body.metadata),
        "mcp_servers": bool(body.mcp_servers),
        IGNORED_NAME: has_mark(body) and not (can_pin and pin_of(body)),
        "messages.content.content.image": not sees_images and _has_image_result(body),
    }
    kinds = dict.fromkeys(block.type for block in _blocks(body) if _is_left_out(block))
    left = [f"messages.content.{kind}" for kind in kinds]
    return [name for name, is_ignored in names.items() if is_ignored] + left


def _has_image_result(body: CountRequest) -> bool:
    turns = (turn.content for turn in body.messages if not isinstance(turn.content, str))
    return any(with_notes(blocks) != blocks for blocks in turns)


def _is_left_out(block: Block) -> bool:
    return is_left_out(BLOCKS, block.type) and sealed_thought(block) is None


def _blocks(body: CountRequest) -> Iterator[Block]:
    """Yield the blocks of all turns, including those in tool results."""
    for turn in body.messages:
        for block in turn.content if not isinstance(turn.content, str) else ():
            yield block
            if block.type == "tool_result" and isinstance(block.content, list):
                yield from block.content


def _tool_choice(body: CountRequest) -> dict[str, Any]:
    choice = body.tool_choice
    if choice is None:
        return {}
    fields: dict[str, Any] = {}
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    if choice.type == "tool":
        return fields | {"tool_choice": {"type": "function", "function": {"name": choice.name}}}
    return fields | {"tool_choice": {"any": "required"}.get(choice.type, choice.type)}


def _output(body: CountRequest) -> dict[str, Any]:
    config = body.output_config or OutputConfig.model_construct()
    fields: dict[str, Any] = {}
    if config.format is not None and body.output_format is not None:
        raise RequestError("cannot be combined with output_config.format.", where="output_format")
    wanted = body.output_format if config.format is None else config.format
    if wanted is not None:
        if wanted.get("type") != "json_schema":
            raise RequestError(
                "the only supported type is json_schema.", where="output_config.format.type"
            )
        schema = {"schema": wanted.get("schema")}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return fields
