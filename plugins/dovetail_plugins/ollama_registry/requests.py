"""Requests to Ollama's registry, and their errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from dovetail.errors import ConfigError

VARIABLE = "OLLAMA_REGISTRY"
"""The variable with the registry's address, if it is another one."""
TIMEOUT_S = 30.0


@contextmanager
def opened(url: str, accept: str = "*/*", *, start: int = 0) -> Iterator[Any]:
    """Yield the response to a GET request for the bytes from `start` on. Raises: OSError,
    HTTPException"""
    headers = {"User-Agent": "dovetail", "Accept": accept}
    if start:
        headers["Range"] = f"bytes={start}-"
    with urlopen(Request(url, headers=headers), timeout=TIMEOUT_S) as response:
        yield response


@contextmanager
def registry_errors(what: str) -> Iterator[None]:
    """Turn the errors of a request for `what` into one that says what to do. Raises: ConfigError"""
    try:
        yield
    except HTTPError as error:
        why, fix = f"it answered with {error.code} {error.reason}", "try again later."
        if error.code == 404:
            why, fix = "it does not have it", "check the name and the tag."
        elif error.code in (401, 403):
            why, fix = "it wants a login", "log in and fetch it with `ollama pull`."
        raise ConfigError(f"Ollama's registry did not give {what}: {why}.", fix=fix) from error
    except (OSError, HTTPException) as error:
        raise ConfigError(
            f"Ollama's registry cannot be reached for {what}: {error}.",
            fix=f"check the network, or set {VARIABLE} to its address.",
        ) from error
