"""Conversion of /api/chat and /api/generate bodies to a ChatRequest: turns, tools, settings.

Source: Ollama's API reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import ChatRequest, Content, Switch, as_chat, check_one, switch
from dovetail_plugins.apis.ollama import options
from dovetail_plugins.apis.ollama.protocol import (
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaRequest,
    OllamaToolCall,
)

FORMAT_NAMES = {
    "response_format.json_schema.schema": "format",
    "response_format": "format",
    "reasoning_effort": "think",
}
CHAT_NAMES = {**options.NAMES, **FORMAT_NAMES}
"""Chat's field names -> their different names in /api/chat."""
GENERATE_NAMES = {**CHAT_NAMES, "messages": "prompt"}
"""The same for /api/generate, where the prompt is the conversation."""


def chat_of(body: OllamaChatRequest) -> ChatRequest:
    """Return a conversation as a chat request. Raises: RequestError"""
    messages = list(_Turns().all_of(body.messages or ()))
    return as_chat(body, {"messages": messages, "tools": body.tools or None, **_shared(body)})


def chat_of_prompt(body: OllamaGenerateRequest) -> ChatRequest:
    """Return a prompt as a conversation of one turn. Raises: RequestError"""
    check_prompt(body)
    messages: list[dict[str, Any]] = []
    if body.system:
        messages.append({"role": "system", "content": body.system})
    content = _with_images(body.prompt or "", body.images, "images")
    messages.append({"role": "user", "content": content})
    return as_chat(body, {"messages": messages, **_shared(body)})


def check_prompt(body: OllamaGenerateRequest) -> None:
    """Raise RequestError for prompt fields that are unsupported or contradict each other"""
    if body.template:
        raise RequestError(
            "templates in Go's language are not supported; chat templates are Jinja here.",
            where="template",
            fix="send the whole prompt with raw, or start the server with --chat-template FILE.",
            code="unsupported_field",
        )
    if body.context:
        raise RequestError(
            "a conversation is not carried on by token ids.",
            where="context",
            fix="send its messages to /api/chat.",
            code="unsupported_field",
        )
    if body.images and (body.raw or body.suffix):
        other = "raw" if body.raw else "suffix"
        raise RequestError(f"cannot be combined with {other}: no template is used.", where="images")
    if body.system and (body.raw or body.suffix):
        other = "raw" if body.raw else "suffix"
        raise RequestError(f"cannot be combined with {other}: no template is used.", where="system")


def switches(body: OllamaRequest) -> list[Switch]:
    """Return the body's thinking switch; the effort is passed in chat's own field."""
    return [switch("think", body.think)] if isinstance(body.think, bool) else []


def _shared(body: OllamaRequest) -> dict[str, Any]:
    """Return the fields common to both endpoints, named as in chat. Raises: RequestError"""
    check_one(body)
    fields: dict[str, Any] = {"model": body.model, **options.sampling_of(body.options)}
    fields |= _format(body.format)
    if isinstance(body.think, str) and body.think:
        fields["reasoning_effort"] = body.think
    if body.logprobs:
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    elif body.top_logprobs:
        raise RequestError("needs logprobs to be true.", where="top_logprobs")
    return fields


def _format(wanted: str | dict[str, Any] | None) -> dict[str, Any]:
    if wanted is None or wanted == "":
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(wanted, str):
        raise RequestError(f'"{wanted[:64]}" is neither "json" nor a JSON schema.', where="format")
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": wanted}}}


def image_names(body: OllamaRequest) -> dict[str, str]:
    """Return the client's names of its images, which become parts of chat messages."""
    if isinstance(body, OllamaGenerateRequest):
        turn = f"prompt[{1 if body.system else 0}]"
        return {f"{turn}.content[{i}]": f"images[{i}]" for i in range(len(body.images or ()))}
    messages = body.messages if isinstance(body, OllamaChatRequest) else None
    return {
        f"messages[{turn}].content[{i}]": f"messages[{turn}].images[{i}]"
        for turn, message in enumerate(messages or ())
        for i in range(len(message.images or ()))
    }


def _with_images(text: str, images: Sequence[Any] | None, where: str) -> Content:
    """Return a turn's content: its images (base64 or data: URLs), then its text.

    Raises: RequestError
    """
    if not images:
        return text
    if not all(isinstance(image, str) for image in images):
        raise RequestError("must be images in base64.", where=where)
    urls = [i if i[:5].lower() == "data:" else f"data:;base64,{i}" for i in map(str.strip, images)]
    parts = [{"type": "image_url", "image_url": url} for url in urls]
    return [*parts, {"type": "text", "text": text}]


class _Turns:
    """Converts turns to chat messages. Calls without an id get one; results without an id are
    assigned in order to the calls of the previous turn."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._open: list[tuple[str, str]] = []

    def all_of(self, messages: Sequence[OllamaMessage]) -> Iterator[dict[str, Any]]:
        """Yield the turns. Raises: RequestError for images that are not text. Mutates: self"""
        for number, message in enumerate(messages):
            turn = self._turn(message)
            if message.images:
                text, where = message.content or "", f"messages[{number}].images"
                turn["content"] = _with_images(text, message.images, where)
            yield turn

    def _turn(self, message: OllamaMessage) -> dict[str, Any]:
        turn: dict[str, Any] = {"role": message.role}
        if "content" in message.model_fields_set:
            turn["content"] = message.content
        if message.role == "tool":
            turn["tool_call_id"] = message.tool_call_id or self._answered(message.tool_name)
            if message.tool_name:
                turn["name"] = message.tool_name
            return turn | (message.model_extra or {})
        if message.thinking:
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            self._open = []
            turn["tool_calls"] = [self._call(call) for call in message.tool_calls]
        return turn | (message.model_extra or {})

    def _call(self, call: OllamaToolCall) -> dict[str, Any]:
        self._num_calls += 1
        call_id = call.id or f"call{self._num_calls:05}"  # nine characters: some templates count
        self._open.append((call.function.name, call_id))
        function = {"name": call.function.name, "arguments": call.function.arguments}
        return {"id": call_id, "function": function}

    def _answered(self, name: str | None) -> str:
        """Return the id of the first call without a result, with this name if one is given."""
        for place, (called, call_id) in enumerate(self._open):
            if name in (None, "", called):
                del self._open[place]
                return call_id
        return ""
