"""The input of a response in the API's format: items with their ids, paged.

Source: the OpenAI API reference, responses: list input items.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.datastructures import QueryParams

from dovetail.errors import NotFound, RequestError
from dovetail_plugins.apis.responses.protocol import Item

MAX_PAGE = 100
DEFAULT_PAGE = 20
_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "mcp_call": "mcp",
    "mcp_list_tools": "mcpl",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "apply_patch_call": "apc",
    "compaction": "cmp",
    "local_shell_call": "lsh",
    "shell_call": "sh",
}


def as_items(given: str | Sequence[Item]) -> list[Item]:
    """Return input as items, each with an id and a type; text becomes a user message."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    return [_as_item(item) for item in given]


def _as_item(item: Mapping[str, Any]) -> Item:
    kind = str(item.get("type") or "message")
    item_id = item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{secrets.token_hex(24)}"
    found = {**item, "id": item_id, "type": kind, "status": item.get("status") or "completed"}
    if kind == "message" and isinstance(item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        extra: Item = {"annotations": []} if part == "output_text" else {}
        found["content"] = [{"type": part, "text": item["content"], **extra}]
    return found


def with_references(
    given: str | Sequence[Item], find: Callable[[str], Item | None]
) -> str | list[Item]:
    """Return input with references replaced by the items that `find` returns. Raises: NotFound"""
    if isinstance(given, str):
        return given
    return [_referred(item, f"input[{number}].id", find) for number, item in enumerate(given)]


def _referred(item: Item, where: str, find: Callable[[str], Item | None]) -> Item:
    is_bare = item.get("type") is None and "role" not in item and "id" in item
    if item.get("type") != "item_reference" and not is_bare:
        return item
    item_id = item.get("id")
    if not isinstance(item_id, str):
        raise RequestError("must be text.", where=where)
    found = find(item_id)
    if found is None:
        raise NotFound(
            f'there is no item "{item_id[:128]}".',
            where=where,
            fix="send the item itself; items are stored with their responses, for an hour.",
            code="item_not_found",
        )
    return found


def page_of(items: Sequence[Item], query: QueryParams) -> dict[str, Any]:
    """Return the page selected by a query's `limit`, `order` and `after` (an item id).

    Raises: RequestError, NotFound
    """
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError('must be "asc" or "desc".', where="order")
    ordered = list(items if order == "asc" else reversed(items))
    after = query.get("after")
    if after is not None:
        ordered = ordered[_place_of(ordered, after) + 1 :]
    limit = _limit(query.get("limit"))
    page = ordered[:limit]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(ordered) > limit,
    }


def _place_of(items: Sequence[Item], item_id: str) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise NotFound(f'there is no item "{item_id[:128]}".', where="after", code="item_not_found")


def _limit(given: str | None) -> int:
    if given is None:
        return DEFAULT_PAGE
    if not given.isdecimal() or not 1 <= int(given[:9]) <= MAX_PAGE:
        raise RequestError(f"must be 1 to {MAX_PAGE}.", where="limit")
    return int(given)
