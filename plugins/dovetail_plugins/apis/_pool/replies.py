"""Replies whose numbers are JSON already."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.responses import Response

from dovetail.server.endpoint import HEADER, header_value


def raw_reply(reply: Any, ignored: Iterable[str] = ()) -> Response:
    """Return a body, of which parts may be msgspec.Raw, as a response whose header names the
    ignored fields."""
    names = list(ignored)
    return Response(
        msgspec.json.encode(reply),
        media_type="application/json",
        headers={HEADER: header_value(names)} if names else {},
    )
