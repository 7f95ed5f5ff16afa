"""The models of running servers, as their /v1/models says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.commands._client import BROKEN, send_request

if TYPE_CHECKING:
    from dovetail.server.launch.records import ServerRecord

LIMITS_S = (1.0, 5.0)
UNLOAD_LIMITS_S = (1.0, 600.0)


def models_of(record: ServerRecord) -> list[dict[str, Any]]:
    """Return the cards of a server's models; empty if it does not answer, or wants another key than
    OPENAI_API_KEY."""
    found = _ask(record, "GET", "/v1/models")
    cards = found.get("data") if found else None
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []


def offering(records: list[ServerRecord], name: str) -> Iterator[ServerRecord]:
    """Yield the servers that offer a model under this name, or an alias of it."""
    for record in records:
        if _ask(record, "GET", f"/v1/models/{quote(name, safe='')}") is not None:
            yield record


def unload(record: ServerRecord, name: str) -> bool:
    """Unload a model of a server; return whether the server did it."""
    return _ask(record, "POST", "/models/unload", {"model": name}, UNLOAD_LIMITS_S) is not None


def _ask(
    record: ServerRecord,
    method: str,
    path: str,
    body: Any = None,
    limits_s: tuple[float, float] = LIMITS_S,
) -> dict[str, Any] | None:
    """Return a server's answer, None for an error. Servers on Unix sockets are not asked."""
    if not record.url.startswith(("http://", "https://")):
        return None
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    try:
        with send_request(
            urlsplit(record.url), method, path, data, headers, limits_s=limits_s
        ) as response:
            content = json_value(response.read()) if response.status == 200 else None
    except (*BROKEN, InvalidJson):
        return None
    return content if isinstance(content, dict) else None
