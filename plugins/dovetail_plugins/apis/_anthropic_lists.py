"""Lists and times as Anthropic's API has them. Source: its API reference, models and batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from dovetail.errors import NotFound, RequestError

MAX_PAGE = 1000


def page_of(found: Sequence[dict[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page of a list that a query asks for. Raises: RequestError, NotFound"""
    limit = query.get("limit", "20")
    if not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_PAGE:
        raise RequestError(f"must be 1 to {MAX_PAGE}.", where="limit")
    places = {one["id"]: place for place, one in enumerate(found)}
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in places:
            raise NotFound(f'there is no "{query[name][:128]}".', where=name)
    if "before_id" in query:
        end = places[query["before_id"]]
        start = max(0, end - int(limit))
        has_more = start > 0
    else:
        start = places[query["after_id"]] + 1 if "after_id" in query else 0
        end = start + int(limit)
        has_more = end < len(found)
    page = found[start:end]
    return {
        "data": page,
        "has_more": has_more,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }


def time_of(seconds: float) -> str:
    """Return a time in the format of RFC 3339."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
