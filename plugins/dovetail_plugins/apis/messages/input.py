"""Conversion of a /v1/messages body to a ChatRequest: turns, tools and settings.

Source: the Anthropic API reference, messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from dovetail.errors import RequestError
from dovetail.server.endpoint import (
    ChatRequest,
    Content,
    Switch,
    as_chat,
    check_one,
    is_left_out,
    joined,
    switch,
)
from dovetail_plugins.apis.messages.protocol import (
    Block,
    CountRequest,
    MessagesRequest,
    OutputConfig,
    Turn,
)
from dovetail_plugins.apis.messages.words import BLOCKS, tool_word

NAMES = {
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""Chat's field names -> their different names here."""


def chat_of(body: CountRequest, *, can_budget: bool) -> ChatRequest:
    """Return the conversation as a chat request. Raises: RequestError

    `can_budget`: a thinking budget is passed on. Otherwise the caller reports it as ignored.
    """
    check_one(body)
    fields: dict[str, Any] = {
        "model": body.model,
        "messages": list(_messages(body)),
        "tools": _tools(body),
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
    return as_chat(body, fields)


def switches(body: CountRequest) -> list[Switch]:
    """Return the body's thinking switches and effort. The effort alone turns nothing on, but with
    adaptive thinking it does."""
    effort = body.output_config.effort if body.output_config else None
    found = []
    kind = body.thinking.type if body.thinking else None
    if kind in ("enabled", "disabled") or (kind == "adaptive" and effort is not None):
        found.append(switch("thinking", kind != "disabled"))
    if effort is not None:
        found.append(Switch(field="output_config.effort", kwargs={"reasoning_effort": effort}))
    return found


def ignored_fields(body: CountRequest, *, can_budget: bool) -> list[str]:
    """Return the declared fields that have no effect here."""
    names = []
    if body.thinking is not None and body.thinking.budget_tokens is not None and not can_budget:
        names.append("thinking.budget_tokens")
    if isinstance(body, MessagesRequest) and body.metadata:
        names.append("metadata")
    kinds = dict.fromkeys(block.type for block in _blocks(body))
    return names + [f"messages.content.{kind}" for kind in kinds if is_left_out(BLOCKS, kind)]


def left_out_tools(body: CountRequest) -> list[str]:
    """Return the names to report for tools that are left out."""
    kinds = dict.fromkeys(tool.type or "custom" for tool in body.tools or ())
    return [f"tools.{kind}" for kind in kinds if tool_word(kind) != "custom"]


def _blocks(body: CountRequest) -> Iterator[Block]:
    """Yield the blocks of all turns, including those in tool results."""
    for turn in body.messages:
        for block in turn.content if not isinstance(turn.content, str) else ():
            yield block
            if block.type == "tool_result" and isinstance(block.content, list):
                yield from block.content


def _messages(body: CountRequest) -> Iterable[dict[str, Any]]:
    if body.system:
        yield {"role": "system", "content": _text_of(body.system, "system")}
    for number, turn in enumerate(body.messages):
        where = f"messages[{number}].content"
        if turn.role == "assistant":
            yield _assistant(turn, where)
        elif isinstance(turn.content, str):
            yield {"role": turn.role, "content": turn.content}
        else:
            yield from _user(turn.role, turn.content, where)


def _user(role: str, blocks: Sequence[Block], where: str) -> Iterable[dict[str, Any]]:
    """Yield tool results as separate turns, before the text sent with them."""
    others = []
    for number, block in enumerate(blocks):
        at = f"{where}[{number}]"
        if block.type == "tool_result":
            content = _content_of(_listed(block.content, at), f"{at}.content")
            yield {"role": "tool", "tool_call_id": block.tool_use_id or "", "content": content}
        elif not is_left_out(BLOCKS, block.type):
            others.append(_part(block, at))
    if others or not blocks:
        yield {"role": role, "content": joined(others)}


def _assistant(turn: Turn, where: str) -> dict[str, Any]:
    if isinstance(turn.content, str):
        return {"role": "assistant", "content": turn.content}
    texts, thoughts, calls = [], [], []
    for number, block in enumerate(turn.content):
        if block.type == "thinking":
            thoughts.append(block.thinking or "")
        elif block.type == "tool_use":
            calls.append(_call(block, f"{where}[{number}]"))
        elif not is_left_out(BLOCKS, block.type):
            texts.append(_text(block, f"{where}[{number}]"))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Block, where: str) -> dict[str, Any]:
    if not block.name:
        raise RequestError("must have a name.", where=where)
    return {"id": block.id or "", "function": {"name": block.name, "arguments": block.input}}


def _text_of(content: str | Sequence[Block], where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_text(block, f"{where}[{i}]") for i, block in enumerate(content))


def _content_of(content: str | Sequence[Block], where: str) -> Content:
    if isinstance(content, str):
        return content
    return joined(
        [
            _part(block, f"{where}[{i}]")
            for i, block in enumerate(content)
            if not is_left_out(BLOCKS, block.type)
        ]
    )


def _listed(content: Any, where: str) -> str | Sequence[Block]:
    """Return a result's content. Raises: RequestError if it is neither text nor blocks"""
    if isinstance(content, dict):
        raise RequestError("must be text or a list of blocks.", where=f"{where}.content")
    return content or ""


def _part(block: Block, where: str) -> str | dict[str, Any]:
    """Return a block as a chat part, or its text. Raises: RequestError"""
    if block.type != "image":
        return _text(block, where)
    source = block.source if isinstance(block.source, dict) else {}
    kind, data = source.get("type"), source.get("data")
    if kind == "url" and isinstance(source.get("url"), str):
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if kind == "base64" and isinstance(data, str):
        name = str(source.get("media_type", ""))[:64]
        return {"type": "image_url", "image_url": {"url": f"data:{name};base64,{data}"}}
    raise RequestError(
        "must hold data (type base64) or a URL (type url); files are not kept here.",
        where=f"{where}.source",
        code="unsupported_field",
    )


def _document(block: Block, where: str) -> str:
    """Return a document as text: its title, context and text. Raises: RequestError"""
    source = block.source if isinstance(block.source, dict) else {}
    kind, data = source.get("type"), source.get("data")
    if kind == "content":
        inner = source.get("content")
        text = inner if isinstance(inner, str) else _inner(inner, f"{where}.source.content")
    elif kind == "text" and isinstance(data, str):
        text = data
    else:
        raise RequestError(
            "documents are read as text alone: PDFs, URLs and files are not.",
            where=f"{where}.source",
            fix='send {"type": "text", "media_type": "text/plain", "data": TEXT}.',
            code="unsupported_field",
        )
    return _lines(block.title, block.context, text)


def _found(block: Block, where: str) -> str:
    """Return a search result as text. Raises: RequestError"""
    source = block.source if isinstance(block.source, str) else None
    content = _listed(block.content, where)
    return _lines(block.title, source, _text_of(content, f"{where}.content"))


def _inner(blocks: Any, where: str) -> str:
    """Return the text of a document's inner blocks. Raises: RequestError"""
    try:
        return _text_of([Block.model_validate(one) for one in blocks or ()], where)
    except (ValidationError, TypeError) as error:
        raise RequestError("must be text or a list of text blocks.", where=where) from error


def _lines(*texts: str | None) -> str:
    return "\n".join(text for text in texts if text)


def _text(block: Block, where: str) -> str:
    match BLOCKS[block.type].read_as if block.type in BLOCKS else "":
        case "document":
            return _document(block, where)
        case "found":
            return _found(block, where)
        case "compaction":
            return block.content if isinstance(block.content, str) else ""
    if block.type != "text":
        raise RequestError(
            f'blocks of type "{block.type[:64]}" are not supported here.',
            where=where,
            code="unsupported_field",
        )
    if block.text is None:
        raise RequestError("a text block without text.", where=where)
    return block.text


def _tools(body: CountRequest) -> list[dict[str, Any]] | None:
    tools = []
    for number, tool in enumerate(body.tools or ()):
        if tool_word(tool.type) != "custom":
            continue
        if tool.name is None or tool.name.split() != [tool.name]:
            raise RequestError("must be a name without blanks.", where=f"tools[{number}].name")
        function = {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        tools.append({"function": {k: v for k, v in function.items() if v is not None}})
    return tools or None


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
