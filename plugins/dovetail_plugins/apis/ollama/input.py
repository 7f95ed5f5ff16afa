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
GENERATE_NAMES = {
    **CHAT_NAMES,
    "messages": "prompt",
    "chat_template": "template",
    "chat_template_kwargs.suffix": "suffix",
}
"""The same for /api/generate, where the prompt is the conversation."""


def chat_of(body: OllamaChatRequest) -> ChatRequest:
    """Return a conversation as a chat request. Raises: RequestError"""
    messages = list(_Turns().all_of(body.messages or ()))
    return as_chat(body, {"messages": messages, "tools": body.tools or None, **_shared(body)})


def turns_of(body: OllamaGenerateRequest) -> list[dict[str, Any]]:
    """Return a prompt as the turns of a conversation. Raises: RequestError"""
    check_prompt(body)
    turns: list[dict[str, Any]] = []
    if body.system:
        turns.append({"role": "system", "content": body.system})
    content = _with_images(body.prompt or "", body.images, "images")
    return [*turns, {"role": "user", "content": content}]


def chat_of_prompt(
    body: OllamaGenerateRequest, turns: Sequence[dict[str, Any]] | None = None
) -> ChatRequest:
    """Return a prompt as a conversation, by default of `turns_of`. Raises: RequestError"""
    fields: dict[str, Any] = {"messages": turns_of(body) if turns is None else turns}
    if body.template:
        fields["chat_template"] = body.template
    if body.suffix and not body.raw:
        fields["chat_template_kwargs"] = {"suffix": body.suffix}
    return as_chat(body, fields | _shared(body))


def check_prompt(body: OllamaGenerateRequest) -> None:
    """Raise RequestError for prompt fields that contradict each other"""
    clashes = {"raw": ("system", "template", "context", "images"), "suffix": ("context", "images")}
    for field, others in clashes.items():
        clash = next((name for name in others if getattr(body, name)), None)
        if getattr(body, field) and clash:
            why = "no template is used" if field == "raw" else "the answer is between two texts"
            raise RequestError(f"cannot be combined with {field}: {why}.", where=clash)
    if body.context and body.images:
        raise RequestError(
            "cannot be combined with context, which is of text alone.",
            where="images",
            fix="send the conversation's messages to /api/chat.",
            code="unsupported_field",
        )


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
