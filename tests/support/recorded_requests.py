"""RecordRequests: middleware of a server (--middleware) that writes each request body to a file.

`requests_in` reads them again, in the order in which they came. The folder is in the variable
FOLDER of the server's environment.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

FOLDER = "DOVETAIL_TEST_REQUESTS"
NAME = f"{__name__}.RecordRequests"


class RecordRequests:
    """ASGI middleware; a request without a body is not recorded."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.folder = Path(os.environ[FOLDER])
        self.numbers = itertools.count()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        parts: list[bytes] = []
        statuses: list[int] = []

        async def received() -> Any:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def sent(message: Any) -> None:
            statuses.append(message.get("status", 0))
            await send(message)

        number = next(self.numbers)
        try:
            await self.app(scope, received, sent)
        finally:
            self._write(number, scope, b"".join(parts), statuses)

    def _write(self, number: int, scope: Any, body: bytes, statuses: list[int]) -> None:
        if body:
            written = {"path": scope["path"], "status": statuses[:1], "body": json.loads(body)}
            (self.folder / f"{number:04}.json").write_text(json.dumps(written))


def requests_in(folder: Path) -> list[dict[str, Any]]:
    """Return path, status and body of each request, oldest first."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
