"""A /v1/responses body as a ChatRequest: items become turns, and settings chat's words.

Source: the OpenAI API reference, responses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.api.responses.protocol import Item, ResponsesRequest
from dovetail.server.generate.as_chat import Content, as_chat, check_one, is_deep, joined
from dovetail.server.generate.chat_body import ChatRequest
from dovetail.server.generate.undeclared_fields import fault_of
from dovetail.unsupported import remedy, sentence

NAMES = {
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
}
"""Chat's names of fields that have another one here."""
UNSUPPORTED_FIELDS = {
    "prompt": "stored_prompts",
}
"""Declared fields that ask for a feature of `dovetail.unsupported`, by its name."""
TEXT_LOGPROBS = "message.output_text.logprobs"
"""The word of `include` for them."""
TEXT_PARTS = frozenset({"input_text", "output_text", "text", "refusal", "reasoning_text"})
MEDIA_PARTS = frozenset({"input_image", "input_audio", "input_file"})
SYSTEM_ROLES = frozenset({"system", "developer"})

Message = dict[str, Any]


def chat_of(
    body: ResponsesRequest,
    messages: Sequence[Message],
    offered: Sequence[Item] = (),
    labels: Mapping[str, str] | None = None,
) -> ChatRequest:
    """Return the request in chat's words. `messages` are all turns, `offered` the functions that
    its tools of type mcp stand for, `labels` their servers. Raises: RequestError"""
    check_one(body)
    _check_supported(body)
    _check_depths(body)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": [*_instructions(body), *messages],
        "tools": _tools(body, offered) or None,
        "tool_choice": _tool_choice(body.tool_choice, labels or {}),
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
    """Return the id of the conversation that a request goes on with; empty for none."""
    given = body.conversation
    return (given if isinstance(given, str) else given.id) if given else ""


def tells_logprobs(body: ResponsesRequest) -> bool:
    """Return whether the logprobs of the text's tokens are shown."""
    return body.top_logprobs is not None or TEXT_LOGPROBS in (body.include or ())


def _check_supported(body: ResponsesRequest) -> None:
    """Raise RequestError for the first thing that is asked for and not supported."""
    asks = [(name, feature) for name, feature in UNSUPPORTED_FIELDS.items() if getattr(body, name)]
    verbosity = body.text.verbosity if body.text else None
    fault = None if verbosity is None else fault_of("verbosity", verbosity)
    if fault is not None:
        raise RequestError(fault, where="text.verbosity", code="unsupported_field")
    for where, feature in asks:
        fix = remedy(feature, "leave it out")
        raise RequestError(sentence(feature), where=where, fix=fix, code="unsupported_field")


def without_oldest(chat: ChatRequest, num_turns: int) -> ChatRequest | None:
    """Return the request without its oldest turns, each a user's words and what followed them. The
    last stays, and what the system says. `num_turns` doubles from try to try; None when half of it
    was too many already."""
    messages = chat.messages
    starts = [i for i, message in enumerate(messages) if message.role == "user"]
    if num_turns >= 2 * (len(starts) - 1):
        return None
    num_turns = min(num_turns, len(starts) - 1)
    said = [message for message in messages[: starts[0]] if message.role in SYSTEM_ROLES]
    return chat.model_copy(update={"messages": [*said, *messages[starts[num_turns] :]]})


def ignored_fields(body: ResponsesRequest) -> list[str]:
    """Return the declared fields that change nothing here."""
    found = ["include"] if set(body.include or ()) - {TEXT_LOGPROBS} else []
    if body.max_tool_calls is not None and not any(map(_is_mcp, body.tools or ())):
        found.append("max_tool_calls")
    if body.reasoning is not None:
        names = ("summary", "generate_summary")
        found += [f"reasoning.{name}" for name in names if getattr(body.reasoning, name)]
    return found


def _instructions(body: ResponsesRequest) -> list[Message]:
    return [{"role": "system", "content": body.instructions}] if body.instructions else []


def messages_of(given: str | Sequence[Item]) -> list[Message]:
    """Return items as turns; what an assistant said, thought and called is one. Raises:
    RequestError"""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    turns = _Turns()
    for number, item in enumerate(given):
        turns.add(item, f"input[{number}]")
    return turns.finish()


class _Turns:
    """Turns as they are put together."""

    def __init__(self) -> None:
        self._done: list[Message] = []
        self._open: Message | None = None

    def add(self, item: Item, where: str) -> None:
        """Take an item. Raises: RequestError. Mutates: self"""
        match item.get("type", "message"):
            case "message":
                self._message(item, where)
            case "reasoning":
                self._assistant(begins_with=())
                assert self._open is not None
                self._open["reasoning_content"] = _thought(item, where)
            case "function_call":
                call = {"id": _word(item, "call_id", where), "function": _call(item, where)}
                self._assistant(begins_with=("content", "reasoning_content", "tool_calls"))
                assert self._open is not None
                self._open.setdefault("tool_calls", []).append(call)
            case "mcp_list_tools":
                return
            case "mcp_call":
                self._mcp_call(item, where)
            case "function_call_output":
                output = _content(item.get("output"), f"{where}.output")
                call_id = _word(item, "call_id", where)
                self._other({"role": "tool", "tool_call_id": call_id, "content": output})
            case kind:
                raise RequestError(
                    f'items of type "{str(kind)[:64]}" are not supported here.',
                    where=f"{where}.type",
                    code="unsupported_field",
                )

    def _mcp_call(self, item: Item, where: str) -> None:
        """Take a call that a server of tools has answered; one that was cut short says nothing."""
        if item.get("output") is None and item.get("error") is None:
            return
        call_id = _word(item, "id", where)
        call = _call(item, where)
        call["arguments"] = _object_text(call["arguments"])
        self._assistant(begins_with=("content", "reasoning_content", "tool_calls"))
        assert self._open is not None
        self._open.setdefault("tool_calls", []).append({"id": call_id, "function": call})
        output = _mcp_text(item, where)
        self._other({"role": "tool", "tool_call_id": call_id, "content": output})

    def _message(self, item: Item, where: str) -> None:
        role = _word(item, "role", where)
        text = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._other({"role": role, "content": text})
            return
        self._assistant(begins_with=("reasoning_content",))
        assert self._open is not None
        self._open["content"] = text

    def _assistant(self, begins_with: Sequence[str]) -> None:
        """Have an assistant's turn open that has nothing but these fields. Mutates: self"""
        if self._open is not None and set(self._open) - {"role", *begins_with}:
            self._done.append(self._open)
            self._open = None
        if self._open is None:
            self._open = {"role": "assistant"}

    def _other(self, message: Message) -> None:
        self.finish()
        self._done.append(message)

    def finish(self) -> list[Message]:
        """Return all turns. Mutates: self"""
        if self._open is not None:
            self._done.append(self._open)
            self._open = None
        return self._done


def _word(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise RequestError("must be text.", where=f"{where}.{name}")
    return value


def _call(item: Item, where: str) -> dict[str, str]:
    return {
        "name": _word(item, "name", where),
        "arguments": _word(item, "arguments", where),
    }


def _object_text(text: str) -> str:
    """Return the text of an object as it is; what is none was never passed on, so it is empty."""
    try:
        return text if isinstance(json.loads(text), dict) else "{}"
    except (ValueError, RecursionError):
        return "{}"


def _mcp_text(item: Item, where: str) -> str:
    """Return the text of a call's end that the model reads. Raises: RequestError"""
    error = item.get("error")
    if error is None:
        return _text(item.get("output"), f"{where}.output")
    if not isinstance(error, dict):
        return f"error: {_text(error, f'{where}.error')}"
    told = error.get("message", error.get("content"))
    return f"error: {_text(told, f'{where}.error')}"


def _thought(item: Item, where: str) -> str:
    content = item.get("content") or item.get("summary") or []
    parts = [part | {"type": "text"} for part in content if isinstance(part, dict)]
    return _text(parts, f"{where}.content")


def _text(content: Any, where: str) -> str:
    """Return text given as it is or in parts. Raises: RequestError"""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("must be text or a list of parts.", where=where)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _content(content: Any, where: str) -> Content:
    """Return text given as it is or in parts, media among them. Raises: RequestError"""
    if not isinstance(content, list):
        return _text(content, where)
    return joined([_text_or_medium(part, f"{where}[{i}]") for i, part in enumerate(content)])


def _text_or_medium(part: Any, where: str) -> str | dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in MEDIA_PARTS:
        if part.get("file_id") is not None:
            raise RequestError(
                "files are not kept here.",
                where=f"{where}.file_id",
                fix="send image_url.",
                code="unsupported_field",
            )
        return dict(part)
    return _part(part, where)


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise RequestError("must be an object.", where=where)
    kind = part.get("type", "text")
    if kind not in TEXT_PARTS:
        raise RequestError(
            f'parts of type "{str(kind)[:64]}" are not supported.',
            where=where,
            code="unsupported_field",
        )
    return _word(part, "refusal" if kind == "refusal" else "text", where)


def _check_depths(body: ResponsesRequest) -> None:
    """Raise RequestError for schemas that are nested too deep to be sent back."""
    schemas = {
        f"tools[{i}].parameters": t.get("parameters") for i, t in enumerate(body.tools or ())
    }
    if body.text is not None and body.text.format is not None:
        schemas["text.format.schema"] = body.text.format.schema_
    for where, schema in schemas.items():
        if is_deep(schema):
            raise RequestError("is nested too deep.", where=where)


def _is_mcp(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") == "mcp"


def _tools(body: ResponsesRequest, offered: Sequence[Item]) -> list[dict[str, Any]]:
    given = [(i, tool) for i, tool in enumerate(body.tools or ()) if not _is_mcp(tool)]
    return [
        *(_tool(tool, f"tools[{i}]") for i, tool in given),
        *(_tool(tool, "tools") for tool in offered),
    ]


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = tool.get("type", "function")
    if kind != "function":
        raise RequestError(
            f'tools of type "{str(kind)[:64]}" are not supported; only functions and mcp are.',
            where=f"{where}.type",
            code="unsupported_field",
        )
    names = ("name", "description", "parameters", "strict")
    return {"function": {n: tool[n] for n in names if tool.get(n) is not None}}


def _tool_choice(
    choice: str | dict[str, Any] | None, labels: Mapping[str, str]
) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        return choice
    name, label = choice.get("name"), choice.get("server_label")
    is_offered = isinstance(name, str) and labels.get(name) == label is not None
    if choice.get("type") != "function" and not (_is_mcp(choice) and is_offered):
        raise RequestError(
            "must be auto, none, required, a function, or a tool of an offered MCP server.",
            where="tool_choice",
            code="unsupported_field",
        )
    return {"type": "function", "function": {"name": name}}


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    given = body.text.format if body.text else None
    if given is None:
        return None
    if given.type != "json_schema":
        return {"type": given.type, "schema": given.schema_}
    schema = {"name": given.name, "schema": given.schema_}
    return {"type": "json_schema", "json_schema": schema}


def output_messages(output: Iterable[Item]) -> list[Message]:
    """Return a response's output as the turns that follow from it."""
    return messages_of(list(output))
