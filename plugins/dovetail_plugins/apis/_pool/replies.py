"""Replies with numbers that are already encoded as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.responses import Response

from dovetail.server.endpoint import HEADER, header_value


def raw_reply(reply: Any, ignored: Iterable[str] = ()) -> Response:
    """Return a body, which may include msgspec.Raw, as a response with the ignored fields in a
    header."""
    names = list(ignored)
    return Response(
        msgspec.json.encode(reply),
        media_type="application/json",
        headers={HEADER: header_value(names)} if names else {},
    )
