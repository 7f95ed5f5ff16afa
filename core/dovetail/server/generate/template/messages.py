"""Messages as a template reads them: plain dicts of the shapes that checkpoints expect.

Developer turns, content parts, call arguments and both reasoning names are made uniform here, once,
for every endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.text import Tool
from dovetail.server.generate.chat_body import ContentPart, Message, MessageToolCall, ToolBody

TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})


def normalise(
    messages: Sequence[Message], content_format: str, template_source: str
) -> list[dict[str, Any]]:
    """Return template messages. `content_format` is "string" or "openai".

    Raises: RequestError for parts that are not text and arguments that are not a JSON object.
    """
    knows_developer = "developer" in template_source
    return [
        _message(message, f"messages[{i}]", content_format, template_source, knows_developer)
        for i, message in enumerate(messages)
    ]


def _message(
    message: Message, where: str, content_format: str, source: str, knows_developer: bool
) -> dict[str, Any]:
    role = message.role
    if role == "developer" and not knows_developer:
        role = "system"
    turn: dict[str, Any] = {
        "role": role,
        "content": _content(message, where, content_format),
    }
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            turn[name] = getattr(message, name)
    reasoning = message.reasoning_content or message.reasoning
    if reasoning:
        turn |= {"reasoning": reasoning, "reasoning_content": reasoning}
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, where) for call in message.tool_calls]
    extra = message.model_extra or {}
    turn |= {name: value for name, value in extra.items() if name in source}
    return turn


def unused_extras(messages: Sequence[Message], template_source: str) -> set[str]:
    """Return the names of message fields that neither dovetail nor the template knows."""
    names = {name for message in messages for name in message.model_extra or {}}
    return {name for name in names if name not in template_source}


def _content(message: Message, where: str, content_format: str) -> Any:
    content = message.content
    if content is None:
        return message.refusal or ""
    if isinstance(content, str):
        return content
    texts = [_part_text(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    if content_format == "openai":
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: ContentPart | str, where: str) -> str:
    if isinstance(part, str):
        return part
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in TEXT_PARTS:
        raise RequestError(
            f'content parts of type "{part.type}" are not supported; only text is.', where=where
        )
    if text is None:
        raise RequestError("a text part without text.", where=where)
    return text


def _call(call: MessageToolCall, where: str) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call, where)}
    return {"id": call.id, "type": "function", "function": function}


def _arguments(call: MessageToolCall, where: str) -> dict[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, dict):
        return arguments
    try:
        parsed = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise RequestError(
            f"the arguments of {call.function.name} are not JSON: {error}", where=where
        ) from error
    if not isinstance(parsed, dict):
        raise RequestError(f"the arguments of {call.function.name} are not an object.", where=where)
    return parsed


def tool_dicts(tools: Sequence[ToolBody]) -> list[dict[str, Any]]:
    """Return tools as templates read them, the client's own fields kept."""
    return [tool.model_dump(exclude_unset=True) | {"type": "function"} for tool in tools]


def tool_values(tools: Sequence[ToolBody]) -> tuple[Tool, ...]:
    """Return tools as parsers read them."""
    return tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters or {},
        )
        for tool in tools
    )
