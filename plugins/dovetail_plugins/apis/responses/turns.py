"""Conversion of input items to turns: an assistant's text, reasoning and calls form one turn.

The item types are listed in `words.ITEMS`; items that are left out are skipped here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail.errors import RequestError
from dovetail.server.endpoint import Content, is_left_out, joined
from dovetail_plugins.apis._sealed import NotOurs, opened
from dovetail_plugins.apis.responses import compaction
from dovetail_plugins.apis.responses.client_tools import CLIENT_TOOLS
from dovetail_plugins.apis.responses.files import text_of_file
from dovetail_plugins.apis.responses.output_items import SEALED_AS
from dovetail_plugins.apis.responses.protocol import Item
from dovetail_plugins.apis.responses.words import ITEMS, PARTS

Message = dict[str, Any]


def in_namespace(namespace: Any, name: str) -> str:
    """Return the name of a tool in a namespace that the model sees."""
    return f"{namespace}__{name}" if isinstance(namespace, str) and namespace else name


def left_out_items(given: str | Sequence[Item]) -> list[str]:
    """Return the names to report for items that are left out."""
    items = () if isinstance(given, str) else given
    kinds = [str(item.get("type")) for item in items if _is_left_out(item)]
    return [f"input.{kind}" for kind in dict.fromkeys(kinds)]


def _is_left_out(item: Item) -> bool:
    """Return whether an item is ignored, as is a compaction that another server made."""
    kind, seal = str(item.get("type")), item.get("encrypted_content")
    if kind == "compaction" and isinstance(seal, str):
        return compaction.content_of(seal) is None
    return is_left_out(ITEMS, kind)


def messages_of(given: str | Sequence[Item], earlier: Sequence[Message] = ()) -> list[Message]:
    """Return earlier turns, and items as turns after them; an assistant's text, reasoning and calls
    form one. Raises: RequestError"""
    return placed_messages_of(given, earlier)[0]


def placed_messages_of(
    given: str | Sequence[Item], earlier: Sequence[Message]
) -> tuple[list[Message], dict[int, str]]:
    """Return the turns, and turn number -> the field that its content comes from. Raises:
    RequestError"""
    if isinstance(given, str):
        return [*earlier, {"role": "user", "content": given}], {len(earlier): "input"}
    turns = _Turns(earlier)
    for number, item in enumerate(given):
        turns.add(item, f"input[{number}]")
    return turns.finish(), turns.places


class _Turns:
    """Builds turns from items. `places` are the fields that the turns' contents come from. Results
    may name a call by the id of its item."""

    def __init__(self, earlier: Sequence[Message]) -> None:
        self._done = list(earlier)
        self._open: Message | None = None
        self._call_ids: dict[str, str] = {}
        self.places: dict[int, str] = {}

    def add(self, item: Item, where: str) -> None:
        """Add an item. Raises: RequestError. Mutates: self"""
        kind = item.get("type") or "message"
        word = ITEMS.get(kind) if isinstance(kind, str) else None
        if word is None:
            raise RequestError(
                f'items of type "{str(kind)[:64]}" are not supported here.',
                where=f"{where}.type",
                code="unsupported_field",
            )
        match word.read_as:
            case "message":
                self._message(item, where)
            case "reasoning":
                self._reasoning(item, where)
            case "function":
                self._call(item, where, {"function": _function(item, where)})
            case "custom":
                custom = {"name": _name(item, where), "input": _word(item, "input", where)}
                self._call(item, where, {"type": "custom", "custom": custom})
            case "client":
                tool = CLIENT_TOOLS[str(kind).removesuffix("_call")]
                function = {"name": tool.type, "arguments": tool.arguments(item)}
                self._call(item, where, {"function": function})
            case "compaction":
                self._compact(item, where)
            case "call":
                name = str(kind).removesuffix("_call")
                function = {"name": name, "arguments": _fields(item)}
                self._call(item, where, {"function": function})
            case "output":
                output = _content(item.get("output"), f"{where}.output")
                self._result(_id_of_call(item, where), output, where)
            case "result":
                self._result(_id_of_call(item, where), _result(item, where), where)
            case "mcp":
                self._mcp_call(item, where)

    def _call(self, item: Item, where: str, call: Message) -> None:
        self._assistant(begins_with=("content", "reasoning_content", "tool_calls"))
        assert self._open is not None
        call_id = _id_of_call(item, where)
        if isinstance(item.get("id"), str):
            self._call_ids[item["id"]] = call_id
        self._open.setdefault("tool_calls", []).append({"id": call_id, **call})

    def _result(self, call_id: str, content: Content, where: str) -> None:
        call_id = self._call_ids.get(call_id, call_id)
        message = {"role": "tool", "tool_call_id": call_id, "content": content}
        self._other(message, f"{where}.output")

    def _reasoning(self, item: Item, where: str) -> None:
        thought = _thought(item, where)
        if not thought:
            return
        self._assistant(begins_with=())
        assert self._open is not None
        self._open["reasoning_content"] = thought

    def _compact(self, item: Item, where: str) -> None:
        found = compaction.content_of(_word(item, "encrypted_content", where))
        if found is None:
            return
        earlier = self.finish()
        self.places = {}
        self._done = compaction.turns_of(found, earlier)

    def _mcp_call(self, item: Item, where: str) -> None:
        """Add a call that a tool server has answered; an interrupted one is skipped."""
        if item.get("output") is None and item.get("error") is None:
            return
        self._call({"call_id": item.get("id")}, where, {"function": _function(item, where)})
        self._result(_word(item, "id", where), _mcp_text(item, where), where)

    def _message(self, item: Item, where: str) -> None:
        role = _word(item, "role", where)
        text = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self._other({"role": role, "content": text}, f"{where}.content")
            return
        self._assistant(begins_with=("reasoning_content",))
        assert self._open is not None
        self.places[len(self._done)] = f"{where}.content"
        self._open["content"] = text

    def _assistant(self, begins_with: Sequence[str]) -> None:
        """Make sure that an assistant turn with at most these fields is open. Mutates: self"""
        if self._open is not None and set(self._open) - {"role", *begins_with}:
            self._done.append(self._open)
            self._open = None
        if self._open is None:
            self._open = {"role": "assistant"}

    def _other(self, message: Message, where: str) -> None:
        self.finish()
        self.places[len(self._done)] = where
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


def _id_of_call(item: Item, where: str) -> str:
    """Return the id of a call: `call_id`, or the item's own `id`; empty if both are missing.
    Raises: RequestError"""
    name = next((name for name in ("call_id", "id") if item.get(name) is not None), None)
    return "" if name is None else _word(item, name, where)


def _name(item: Item, where: str) -> str:
    return in_namespace(item.get("namespace"), _word(item, "name", where))


def _function(item: Item, where: str) -> dict[str, Any]:
    return {"name": _name(item, where), "arguments": item.get("arguments")}


_NO_ARGUMENTS = frozenset({"type", "id", "call_id", "status", "created_by", "caller"})


def _fields(item: Item) -> dict[str, Any]:
    """Return the arguments of a call whose tool has its own item format."""
    return {n: value for n, value in item.items() if n not in _NO_ARGUMENTS and value is not None}


def _result(item: Item, where: str) -> Content:
    """Return the result of such a call: text, parts, or JSON of its other fields."""
    output = item.get("output")
    if output is None:
        return json.dumps(_fields(item)) if _fields(item) else str(item.get("status") or "")
    if isinstance(output, str):
        return f"failed: {output}" if item.get("status") == "failed" else output
    parts = output if isinstance(output, list) else [output]
    if all(isinstance(part, dict) and part.get("type") in PARTS for part in parts):
        return _content(parts, f"{where}.output")
    return json.dumps(output, ensure_ascii=False)


def _mcp_text(item: Item, where: str) -> str:
    """Return the text of a call's result for the model. Raises: RequestError"""
    error = item.get("error")
    if error is None:
        return _text(item.get("output"), f"{where}.output")
    if not isinstance(error, dict):
        return f"error: {_text(error, f'{where}.error')}"
    detail = error.get("message", error.get("content"))
    return f"error: {_text(detail, f'{where}.error')}"


def _unsealed(item: Item, where: str, read: Callable[[str], Any]) -> Any:
    """Return what `read` makes of an item's sealed text. Raises: RequestError"""
    try:
        return read(_word(item, "encrypted_content", where))
    except NotOurs as error:
        raise RequestError(
            f"cannot be read: {error}.",
            where=f"{where}.encrypted_content",
            fix="send back what this server answered, or leave the item out.",
            code="invalid_encrypted_content",
        ) from error


def _thought(item: Item, where: str) -> str:
    if item.get("encrypted_content"):
        return str(_unsealed(item, where, lambda seal: opened(seal, SEALED_AS)))
    content = item.get("content") or item.get("summary") or []
    parts = [part | {"type": "text"} for part in content if isinstance(part, dict)]
    return _text(parts, f"{where}.content")


def _text(content: Any, where: str) -> str:
    """Return text given directly or in parts. Raises: RequestError"""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestError("must be text or a list of parts.", where=where)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _content(content: Any, where: str) -> Content:
    """Return text given directly or in parts, including media. Raises: RequestError"""
    if not isinstance(content, list):
        return _text(content, where)
    return joined([_text_or_medium(part, f"{where}[{i}]") for i, part in enumerate(content)])


def _text_or_medium(part: Any, where: str) -> str | dict[str, Any]:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in PARTS and PARTS[kind].read_as == "medium":
        if kind == "input_file":
            return text_of_file(part, where)
        if part.get("file_id") is not None:
            raise RequestError(
                "files are not kept here.",
                where=f"{where}.file_id",
                fix="send image_url.",
                code="unsupported_field",
            )
        return {**part, "type": "input_image"} if kind == "computer_screenshot" else dict(part)
    return _part(part, where)


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise RequestError("must be an object.", where=where)
    kind = part.get("type", "text")
    if not isinstance(kind, str) or kind not in PARTS or PARTS[kind].read_as != "text":
        raise RequestError(
            f'parts of type "{str(kind)[:64]}" are not supported.',
            where=where,
            code="unsupported_field",
        )
    return _word(part, "refusal" if kind == "refusal" else "text", where)
