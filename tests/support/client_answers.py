"""Answers to `client_requests`, read with the types of the clients' own libraries.

Every reader returns an `Answer`, or fails where a client would.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anthropic.types as an
import anthropic.types.beta as an_beta
import ollama
import openai.types as oa
import openai.types.chat as oa_chat
import openai.types.responses as oa_responses
from pydantic import TypeAdapter

from support.client_requests import ClientRequest

ENDED = ("stop", "tool_calls", "completed", "end_turn", "tool_use", "stop_sequence")
"""Why an answer that is complete ended."""


@dataclass(slots=True)
class Answer:
    """What a client makes of an answer."""

    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""
    end: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def is_complete(self) -> bool:
        """Return whether the model ended it, not a limit."""
        return self.end in ENDED


def read_whole(request: ClientRequest, content: Any) -> Answer:
    """Return the answer that is one JSON value."""
    return _WHOLE[request.dialect](content)


def read_stream(request: ClientRequest, content: str) -> Answer:
    """Return the answer that came in parts."""
    return _STREAMS[request.dialect](content)


def _events(content: str) -> list[dict[str, Any]]:
    """Return the events of a stream, whose names agree with their types."""
    found = []
    for block in content.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if lines.get("data", "[DONE]") != "[DONE]":
            event = json.loads(lines["data"])
            assert lines.get("event", event.get("type")) == event.get("type")
            found.append(event)
    return found


def _chat(content: Any) -> Answer:
    reply = oa_chat.ChatCompletion.model_validate(content)
    (choice,) = reply.choices
    calls = [
        (c.function.name, c.function.arguments)
        for c in choice.message.tool_calls or []
        if c.type == "function"
    ]
    usage = reply.usage
    assert usage is not None
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else 0
    text = choice.message.content or ""
    return Answer(text, calls, choice.finish_reason, usage.prompt_tokens, cached or 0)


def _chat_stream(content: str) -> Answer:
    assert content.rstrip().endswith("data: [DONE]")
    answer = Answer()
    for event in _events(content):
        chunk = oa_chat.ChatCompletionChunk.model_validate(event)
        for choice in chunk.choices:
            _add_chunk(answer, choice)
    return answer


def _add_chunk(answer: Answer, choice: Any) -> None:
    assert answer.end is None, "a chunk after the last"
    answer.text += choice.delta.content or ""
    answer.end = choice.finish_reason
    for part in choice.delta.tool_calls or []:
        if part.index == len(answer.calls):
            assert part.id and part.type == "function"
            answer.calls.append((part.function.name, ""))
        name, arguments = answer.calls[part.index]
        answer.calls[part.index] = (name, arguments + (part.function.arguments or ""))


def _response(content: Any) -> Answer:
    reply = oa_responses.Response.model_validate(content)
    answer = Answer(end=reply.status)
    for item in reply.output:
        if item.type == "message":
            answer.text += "".join(p.text for p in item.content if p.type == "output_text")
        elif item.type == "function_call":
            answer.calls.append((item.name, item.arguments))
        elif item.type == "custom_tool_call":
            answer.calls.append((item.name, item.input))
    if reply.usage:
        answer.prompt_tokens = reply.usage.input_tokens
        answer.cached_tokens = reply.usage.input_tokens_details.cached_tokens
    return answer


_RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(oa_responses.ResponseStreamEvent)


def _response_stream(content: str) -> Answer:
    events = [_RESPONSE_EVENT.validate_python(event) for event in _events(content)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    done = [
        event.item.model_dump() for event in events if event.type == "response.output_item.done"
    ]
    assert done == [item.model_dump() for item in events[-1].response.output]
    answer = _response(events[-1].response.model_dump(by_alias=True))
    parts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(parts) == answer.text
    return answer


def _message(content: Any) -> Answer:
    reply = an.Message.model_validate(content)
    an_beta.BetaMessage.model_validate(content)
    answer = Answer(end=reply.stop_reason)
    for block in reply.content:
        if block.type == "text":
            answer.text += block.text
        elif block.type == "tool_use":
            answer.calls.append((block.name, json.dumps(block.input)))
    return _with_usage(answer, reply.usage)


def _with_usage(answer: Answer, usage: Any) -> Answer:
    answer.cached_tokens = usage.cache_read_input_tokens or 0
    answer.prompt_tokens = usage.input_tokens + answer.cached_tokens
    answer.prompt_tokens += usage.cache_creation_input_tokens or 0
    return answer


_MESSAGE_EVENT: TypeAdapter[Any] = TypeAdapter(an.RawMessageStreamEvent)


def _message_stream(content: str) -> Answer:
    raw = [event for event in _events(content) if event["type"] != "ping"]
    events = [_MESSAGE_EVENT.validate_python(event) for event in raw]
    assert events[0].type == "message_start"
    assert [event.type for event in events[-2:]] == ["message_delta", "message_stop"]
    answer = _with_usage(Answer(end=events[-2].delta.stop_reason), events[0].message.usage)
    blocks = _blocks(events[1:-2])
    for start, text in blocks:
        if start.type == "text":
            answer.text += start.text + text
        elif start.type == "tool_use":
            is_cut = answer.end == "max_tokens" and start is blocks[-1][0]
            if not is_cut:
                answer.calls.append((start.name, json.dumps(json.loads(text or "{}"))))
    return answer


def _blocks(events: list[Any]) -> list[tuple[Any, str]]:
    """Return the blocks of a message and their texts: each ends before the next starts."""
    blocks: list[tuple[Any, str]] = []
    is_open = False
    for event in events:
        if event.type == "content_block_start":
            assert not is_open and event.index == len(blocks)
            blocks.append((event.content_block, ""))
        assert event.index == len(blocks) - 1
        is_open = event.type != "content_block_stop"
        if event.type == "content_block_delta":
            start, text = blocks[-1]
            more = getattr(event.delta, "text", None) or getattr(event.delta, "partial_json", "")
            blocks[-1] = (start, text + (more or ""))
    assert not is_open
    return blocks


def _ollama_chat(content: Any) -> Answer:
    reply = ollama.ChatResponse.model_validate(content)
    calls = reply.message.tool_calls or []
    found = [(c.function.name, json.dumps(dict(c.function.arguments))) for c in calls]
    return Answer(
        reply.message.content or "", found, reply.done_reason, reply.prompt_eval_count or 0
    )


def _ollama_text(content: Any) -> Answer:
    reply = ollama.GenerateResponse.model_validate(content)
    return Answer(reply.response or "", [], reply.done_reason, reply.prompt_eval_count or 0)


def _lines(read: Callable[[Any], Answer]) -> Callable[[str], Answer]:
    """Return a reader of a stream of such answers."""

    def joined(content: str) -> Answer:
        parts = [json.loads(line) for line in content.splitlines()]
        assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
        answers = [read(part) for part in parts]
        answers[-1].text = "".join(answer.text for answer in answers)
        answers[-1].calls = [call for answer in answers for call in answer.calls]
        return answers[-1]

    return joined


def _of(model: Any, end: str = "stop") -> Callable[[Any], Answer]:
    """Return a reader of what no model wrote."""

    def read(content: Any) -> Answer:
        model.model_validate(content)
        return Answer(end=end)

    return read


def _models(content: Any) -> Answer:
    assert content["data"]
    for model in content["data"]:
        oa.Model.model_validate(model)
    return Answer(end="stop")


def _embeddings(content: Any) -> Answer:
    for item in content["data"]:
        if isinstance(item["embedding"], str):  # the library asks for this, and decodes it
            numbers = array("f", base64.b64decode(item["embedding"]))
            item["embedding"] = list(numbers)
    oa.CreateEmbeddingResponse.model_validate(content)
    return Answer(end="stop")


def _version(content: Any) -> Answer:
    assert isinstance(content["version"], str)
    return Answer(end="stop")


_WHOLE: dict[str, Callable[[Any], Answer]] = {
    "chat/completions": _chat,
    "responses": _response,
    "messages": _message,
    "messages/count_tokens": _of(an.MessageTokensCount),
    "embeddings": _embeddings,
    "models": _models,
    "api/chat": _ollama_chat,
    "api/generate": _ollama_text,
    "api/embed": _of(ollama.EmbedResponse),
    "api/show": _of(ollama.ShowResponse),
    "api/tags": _of(ollama.ListResponse),
    "api/ps": _of(ollama.ProcessResponse),
    "api/version": _version,
}
_STREAMS: dict[str, Callable[[str], Answer]] = {
    "chat/completions": _chat_stream,
    "responses": _response_stream,
    "messages": _message_stream,
    "api/chat": _lines(_ollama_chat),
    "api/generate": _lines(_ollama_text),
}
