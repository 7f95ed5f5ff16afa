"""Files from and to http(s) URLs: GET into a file, PUT from one.

The query of a signed URL contains a secret, so it is never shown.
"""

from __future__ import annotations

import http.client
import logging
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from dovetail.errors import DovetailError

logger = logging.getLogger("dovetail_plugins.batch")
TIMEOUT_S = 60.0
PAUSES_S = (1.0, 4.0)
"""Pauses between attempts. A client error (4xx) is not retried."""

COPY_BYTES = 1 << 20
CONTENT_TYPE = "application/jsonl"


class TransferError(DovetailError):
    """A URL could not be read or written."""


def is_address(name: str) -> bool:
    """Return whether a file name is an http(s) URL."""
    return name.lower().startswith(("http://", "https://"))


def shown(address: str) -> str:
    """Return a URL without its possibly secret parts."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"


def fetch(address: str, path: Path) -> None:
    """GET a URL into a file. Raises: TransferError"""

    def once() -> None:
        with urllib.request.urlopen(address, timeout=TIMEOUT_S) as response, path.open("wb") as out:
            shutil.copyfileobj(response, out, COPY_BYTES)
            _check_length(response, out)

    _tried("fetch", address, once)


def send(path: Path, address: str) -> None:
    """PUT a file to a URL. Raises: TransferError"""

    def once() -> None:
        with path.open("rb") as file:
            headers = {"Content-Type": CONTENT_TYPE, "Content-Length": str(path.stat().st_size)}
            request = urllib.request.Request(address, data=file, headers=headers, method="PUT")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S):
                return

    _tried("send the results to", address, once)


def _check_length(response: http.client.HTTPResponse, out: BinaryIO) -> None:
    # When reading in pieces, http.client treats a broken connection as the end.
    wanted = response.headers.get("Content-Length")
    if wanted is not None and out.tell() != int(wanted):
        raise OSError(f"it broke off after {out.tell()} of {wanted} bytes")


def _tried(verb: str, address: str, once: Callable[[], None]) -> None:
    for pause_s in (*PAUSES_S, None):
        try:
            once()
            return
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason, is_final = _reason(error)
            if pause_s is None or is_final:
                raise TransferError(f"cannot {verb} {shown(address)}: {reason}.") from error
            logger.warning("cannot %s %s yet: %s", verb, shown(address), reason)
            time.sleep(pause_s)


def _reason(error: Exception) -> tuple[str, bool]:
    """Return (the reason, whether another attempt is useless)."""
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"status {error.code} {error.reason}", error.code < 500
    if isinstance(error, urllib.error.URLError):
        return str(error.reason), False
    return str(error) or type(error).__name__, isinstance(error, ValueError)
