"""Messages in the form that renderers expect: plain dicts, and the media among their parts.

Developer turns, content parts, call arguments and both reasoning names are normalized here, once
for every endpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.renderer import Reads
from dovetail.json_values import InvalidJson, TooDeep, json_value
from dovetail.multimodal.content import MediaItem
from dovetail.multimodal.parts import FILES, KIND_OF, media_item, media_type
from dovetail.server.generate.body.chat import ContentPart, Message, MessageToolCall, ToolBody
from dovetail.server.generate.rendering.places import MediaPlaces
from dovetail.unsupported import remedy, sentence

PARTS = "openai"
"""The form of content that is a list of parts."""
TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""The roles of OpenAI's chat; a renderer may support others."""
NULLABLE = frozenset({"assistant", "function"})
"""The roles that may have null content."""


def normalise(
    messages: Sequence[Message],
    reads: Reads,
    media_kinds: frozenset[str] = frozenset(),
    places: MediaPlaces | None = None,
) -> tuple[list[dict[str, Any]], tuple[MediaItem, ...]]:
    """Return a renderer's messages, and their media in the order of their parts.

    `media_kinds` are the media that the model takes
    (`interfaces.media_settings.KINDS`), and `places` marks them in texts. A single text is wrapped
    in a part if the renderer supports only parts. Raises: RequestError for parts that the model
    does not take, and for arguments nested too deep.
    """
    reader = _Reader(reads, media_kinds, places)
    turns = [reader.message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    return turns, tuple(reader.media)


class _Reader:
    """Converts messages for one renderer; `media` collects their media."""

    __slots__ = ("media", "media_kinds", "places", "reads", "wraps_text")

    def __init__(
        self, reads: Reads, media_kinds: frozenset[str], places: MediaPlaces | None
    ) -> None:
        self.places = places
        self.reads = reads
        self.wraps_text = reads.content == PARTS and not reads.takes_text
        self.media_kinds = media_kinds
        self.media: list[MediaItem] = []

    def message(self, message: Message, where: str) -> dict[str, Any]:
        """Return a message in the renderer's form. Raises: RequestError. Mutates: self"""
        self._check(message, where)
        content = self._content(message, where)
        return _message(message, content, where, self.reads)

    def _check(self, message: Message, where: str) -> None:
        """Raise RequestError for an unsupported role, and for an empty turn."""
        role, is_known = message.role, message.role in ROLES
        if not is_known and role not in self.reads.roles:
            raise RequestError(
                f'"{role}" is not a role of this model\'s chat template.',
                where=f"{where}.role",
                fix="use system, developer, user, assistant or tool.",
            )
        extra = message.model_extra or {}
        is_read = any(name in self.reads.fields for name in extra)
        says = (message.content, message.refusal, message.tool_calls, _thoughts(message) or None)
        is_silent = all(one is None for one in says)
        may_be_null = role in NULLABLE and "content" in message.model_fields_set
        if is_silent and not is_read and extra.get("audio") is not None:
            raise RequestError(
                "answers in sound are not kept here.",
                where=f"{where}.audio",
                fix="send what was said as content.",
                code="unsupported_field",
            )
        if is_known and is_silent and not is_read and not may_be_null:
            raise RequestError(
                "a message needs content.", where=f"{where}.content", fix='send text, or "".'
            )

    def _content(self, message: Message, where: str) -> Any:
        content = message.content
        if not content:
            return message.refusal or ""
        if isinstance(content, str):
            return [{"type": "text", "text": content}] if self.wraps_text else content
        parts = [self._part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
        if self.reads.content == PARTS:
            return parts
        if any(part["type"] != "text" for part in parts):
            assert self.places is not None, "media are parts of models that take some"
            return self.places.joined(parts)
        return "\n".join(part["text"] for part in parts)

    def _part(self, part: ContentPart | str, where: str) -> dict[str, Any]:
        """Return a part in the renderer's form. Raises: RequestError. Mutates: self"""
        if isinstance(part, str):
            return {"type": "text", "text": part}
        given = part.model_dump(exclude_unset=True)
        word = None if part.text is not None else media_type(given)
        if word is None:
            return {"type": "text", "text": _part_text(part, where)}
        if word not in FILES and KIND_OF[word] not in self.media_kinds:
            what = "this model does not take {} in prompts." if self.media_kinds else ""
            raise RequestError(
                what.format(KIND_OF[word]) or sentence("media"),
                where=where,
                fix=None if self.media_kinds else remedy("media", "send text alone"),
                code="unsupported_field",
            )
        item = media_item(given, where)
        self.media.append(item)
        return {"type": item.modality}


def _message(message: Message, content: Any, where: str, reads: Reads) -> dict[str, Any]:
    role = message.role
    if role == "developer" and "developer" not in reads.roles:
        role = "system"
    if role == "function" and "function" not in reads.roles:
        role = "tool"
    turn: dict[str, Any] = {
        "role": role,
        "content": content,
    }
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            turn[name] = getattr(message, name)
    reasoning = _thoughts(message)
    if reasoning:
        turn |= {"reasoning": reasoning, "reasoning_content": reasoning}
        # gpt-oss's template takes the content before a call as the thoughts, and accepts only one.
        if "thinking" in reads.fields and not (content and message.tool_calls):
            turn["thinking"] = reasoning
    if message.tool_calls:
        turn["tool_calls"] = [_call(call, where) for call in message.tool_calls]
    return turn | {n: v for n, v in _extras(message).items() if n in reads.fields}


def _thoughts(message: Message) -> str:
    """Return the assistant's reasoning, whichever field the client used."""
    given = (message.model_extra or {}).get("thinking")
    other = given if isinstance(given, str) else ""
    return message.reasoning_content or message.reasoning or other


def _extras(message: Message) -> dict[str, Any]:
    """Return the nonempty fields of a message that are not handled here."""
    extra = (message.model_extra or {}).items()
    is_thought = isinstance((message.model_extra or {}).get("thinking"), str)
    return {n: v for n, v in extra if v not in (None, []) and not (is_thought and n == "thinking")}


def unused_extras(messages: Sequence[Message], reads: Reads) -> set[str]:
    """Return the names of message fields that neither dovetail nor the renderer uses."""
    names = {name for message in messages for name in _extras(message)}
    return {name for name in names if name not in reads.fields}


def _part_text(part: ContentPart, where: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in TEXT_PARTS:
        raise RequestError(f'content parts of type "{part.type}" are not supported.', where=where)
    if text is None:
        raise RequestError("a text part without text.", where=where)
    return text


def _call(call: MessageToolCall, where: str) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call, where)}
    return {"id": call.id, "type": "function", "function": function}


def _arguments(call: MessageToolCall, where: str) -> dict[str, Any]:
    """Return an earlier call's arguments as an object. Invalid ones, as in a truncated answer,
    become an empty object: the tool result that follows shows the model that the call failed.
    Raises: RequestError for arguments nested too deep"""
    arguments = call.function.arguments
    if isinstance(arguments, dict):
        return arguments
    try:
        parsed = json_value(arguments)
    except TooDeep as error:
        raise RequestError(
            f"the arguments of {call.function.name} nest too deep.", where=where
        ) from error
    except InvalidJson:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def tool_dicts(tools: Sequence[ToolBody]) -> list[dict[str, Any]]:
    """Return the tools as renderers take them, with the client's extra fields."""
    return [_tool(tool) for tool in tools if not tool.is_left_out]


def _tool(tool: ToolBody) -> dict[str, Any]:
    return tool.model_dump(exclude_unset=True, exclude={"custom"}) | {"type": "function"}


def tool_values(tools: Sequence[ToolBody]) -> tuple[Tool, ...]:
    """Return the tools in the form that parsers take."""
    return tuple(
        Tool(
            name=tool.function.name,
            description=tool.function.description or "",
            parameters=tool.function.parameters or {},
        )
        for tool in tools
    )
