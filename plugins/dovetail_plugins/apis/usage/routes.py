"""GET /v1/usage: what the caller's key used, or with an admin's key what all did."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response

from dovetail.errors import NotFound, RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.observability.caller import CALLER, VISIT
from dovetail_plugins.accounts import report
from dovetail_plugins.accounts.service import SERVED

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


async def show_usage(request: Request) -> Response:
    """Return rows of tokens and device seconds. Query: `by` (of owner, model, day; commas between),
    `start` and `end` (days, UTC, included), `model`, and `owner` for admins."""
    import msgspec

    live = next(iter(SERVED.values()), None)
    if live is None:
        raise NotFound(
            "this server keeps no accounts.", fix="start it with --stat-loggers accounts."
        )
    query = request.query_params
    parts = report.checked_parts(query.get("by", ",".join(report.PARTS)), "by")
    days = {name: _day(query.get(name), name) for name in ("start", "end") if query.get(name)}

    def read() -> list[report.Row]:
        live.read()
        return report.rows_of(live.ledger, by=parts, owner=owner, model=query.get("model"), **days)

    owner = _owner_of(query.get("owner"))
    rows = await asyncio.to_thread(read)
    body = msgspec.json.encode({"object": "list", "data": rows})
    return Response(body, media_type="application/json")


def _owner_of(wanted: str | None) -> str | None:
    """Return whose accounts are shown (None: everybody's). Raises: RequestError"""
    visit, caller = VISIT.get(), CALLER.get()
    if visit is None or caller is None:  # a server without keys: nobody has secrets from another
        return wanted
    if wanted == caller.owner or (wanted or "").startswith(f"{caller.owner}/"):
        return wanted
    try:
        visit.check_admin()
    except RequestError:
        if wanted is not None:
            raise
        return caller.owner
    return wanted


def _day(text: str | None, where: str) -> str:
    if text is None or not _DAY.fullmatch(text):
        raise RequestError(
            f"{(text or '')[:64]!r} is not a day.", where=where, fix="write 2026-12-31."
        )
    return text


class UsageApi(Api):
    """Accounts."""

    info = Info(summary="what each owner used, by model and day (--stat-loggers accounts)")
    routes = (Route(method="GET", path="/v1/usage", endpoint=show_usage),)
