"""A small client of the OpenAI HTTP API: one request at a time, with streamed answers.

A stream is server-sent events, each one JSON object, the last one `[DONE]`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dovetail.errors import ConfigError, DovetailError
from dovetail.json_values import json_value
from dovetail_plugins.http_client.events import EventReader

DEFAULT_URL = "http://localhost:8000/v1"
CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 600.0
BROKEN = (OSError, http.client.HTTPException)
"""What sending a request and reading its response may raise."""

_FIXES = {
    401: "give the key with --api-key or OPENAI_API_KEY.",
    404: f"check --url and --model-name; an address is e.g. {DEFAULT_URL}",
}
"""Status -> how to fix the error, if known."""


class ServerError(DovetailError):
    """The server cannot be reached, or answered with an error."""


class Client:
    """Talks to one server. `url` is its base address; /v1 is added if it has no path."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = _parts(url)
        self._path = parts.path.rstrip("/") or "/v1"
        self._url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._parts = parts
        self._api_key = api_key

    def first_model(self) -> str:
        """Return the first model the server lists. Raises: ServerError."""
        return str(self.models()[0]["id"])

    def models(self) -> list[dict[str, Any]]:
        """Return what the server says of each model, at least one. Raises: ServerError."""
        response = self._send("GET", "/models", None)
        models: list[dict[str, Any]] = _json(response).get("data") or []
        if not models:
            raise ServerError("the server lists no model.", where=self._url)
        return models

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the chunks of a streamed answer. Raises: ServerError."""
        response = self._send("POST", path, {**body, "stream": True})
        try:
            for chunk in read_events(response):
                if "error" in chunk:
                    raise ServerError(_message(chunk), where=self._url)
                yield chunk
        except BROKEN as error:
            raise ServerError(f"the answer broke off: {error}.", where=self._url) from error
        finally:
            response.close()

    def at_root(
        self, method: str, path: str, body: Any = None, *, wait_s: float = 0.0
    ) -> dict[str, Any]:
        """Return the answer of a route that is not below /v1, which may take `wait_s` longer than
        usual. Raises: ServerError."""
        path = self._path.removesuffix("/v1") + path
        return _json(self._sent(method, path, body, ANSWER_TIMEOUT_S + wait_s))

    def _send(self, method: str, path: str, body: Any) -> http.client.HTTPResponse:
        return self._sent(method, self._path + path, body, ANSWER_TIMEOUT_S)

    def _sent(self, method: str, path: str, body: Any, limit_s: float) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        data = None if body is None else json.dumps(body).encode()
        try:
            limits_s = (CONNECT_TIMEOUT_S, limit_s)
            response = send_request(self._parts, method, path, data, headers, limits_s=limits_s)
        except BROKEN as error:
            raise ServerError(
                f"no answer: {_error_text(error)}.", where=self._url, fix=_fix_of(error)
            ) from error
        if response.status >= 400:
            raise self._refused(response)
        return response

    def _refused(self, response: http.client.HTTPResponse) -> ServerError:
        fix = _FIXES.get(response.status)
        try:
            reason = _message(_json(response))
        except ServerError:
            reason = response.reason
        return ServerError(f"status {response.status}: {reason}", where=self._url, fix=fix)


def send_request(
    server: SplitResult,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    limits_s: tuple[float, float] = (CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S),
) -> http.client.HTTPResponse:
    """Return the response once its headers have arrived; close it after use. `limits_s` are for
    connecting and for each read. Raises: BROKEN"""
    is_tls = server.scheme == "https"
    kind = http.client.HTTPSConnection if is_tls else http.client.HTTPConnection
    connection = kind(str(server.hostname), server.port, timeout=limits_s[0])
    try:
        connection.connect()
        connection.sock.settimeout(limits_s[1])
        connection.request(method, path, body, {"Connection": "close", **(headers or {})})
        return connection.getresponse()
    except BROKEN:
        connection.close()
        raise


def add_server_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the server's address, the model and the key. Mutates: parser."""
    text = f"base address; default {DEFAULT_URL}"
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=text)
    text = "model; default the first one served"
    parser.add_argument("--model-name", metavar="NAME", help=text)
    parser.add_argument("--api-key", metavar="KEY", help="key; default $OPENAI_API_KEY")


def add_answer_arguments(parser: argparse._ActionsContainer, *, quick: str, text: str) -> None:
    """Add the options that apply to every answer; `quick` names the value of -q. Mutates:
    parser."""
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens per answer")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 is greedy")
    parser.add_argument("-q", "--quick", metavar=quick, help=text)


def client_of(args: argparse.Namespace) -> tuple[Client, dict[str, Any]]:
    """Return the client, and the body fields of every request."""
    client = Client(args.url, args.api_key or os.environ.get("OPENAI_API_KEY"))
    return client, fields_of(args, args.model_name or client.first_model())


def fields_of(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """Return the body fields of every request."""
    sampling = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    return {"model": model} | {name: value for name, value in sampling.items() if value is not None}


def read_events(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an event stream until [DONE]. Raises: ServerError."""
    reader = EventReader()
    for data in (data for line in lines for data in reader.feed(line)):
        if data == b"[DONE]":
            return
        try:
            yield json_value(data)
        except ValueError as error:
            shown = data.decode("utf-8", "replace")[:80]
            raise ServerError(f"the server sent no JSON: {shown!r}.") from error


def _parts(url: str) -> SplitResult:
    """Return the parts of an address. Raises: ConfigError"""
    with contextlib.suppress(ValueError):  # a port that is not a number, an unclosed bracket
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    raise ConfigError(f"{url!r} is not an address.", where="--url", fix=f"e.g. {DEFAULT_URL}")


def _error_text(error: Exception) -> str:
    """Return an error's text without the location in OpenSSL's source."""
    return str(error).partition(" (_ssl.c")[0]


def _fix_of(error: Exception) -> str:
    """Return how to fix a failed connection."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "name the file of its authority in the variable SSL_CERT_FILE."
    if isinstance(error, ssl.SSLError):
        return "check --url: does the server speak http, not https?"
    return "check --url, or start a server with `dovetail serve`."


def _json(response: http.client.HTTPResponse) -> dict[str, Any]:
    try:
        content = json_value(response.read())
    except (ValueError, *BROKEN) as error:
        raise ServerError("the answer is not JSON.", fix="check --url; it ends in /v1.") from error
    finally:
        response.close()
    return content if isinstance(content, dict) else {}


def _message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    return str(error.get("message", error)) if isinstance(error, Mapping) else str(error or body)
