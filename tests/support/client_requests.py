"""Requests of public programs, recorded from them; the words in them are ours.

A file of `tests/data/client_requests` has those of one program. Needs openai, anthropic and ollama,
whose types say whether an answer is valid.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "data" / "client_requests"
MAX_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
ANSWER_TOKENS = 48
STREAMING = ("chat/completions", "responses", "messages", "api/chat", "api/generate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """A request, and the fields that a server may ignore in it."""

    program: str
    name: str
    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None
    ignored: frozenset[str]

    @property
    def dialect(self) -> str:
        """Return the end of its path, which tells what the answer is."""
        return self.path.partition("?")[0].removeprefix("/").removeprefix("v1/")

    @property
    def streams(self) -> bool:
        """Return whether its answer may be a stream."""
        return self.dialect in (
            "chat/completions",
            "responses",
            "messages",
            "api/chat",
            "api/generate",
        )

    @property
    def has_picture(self) -> bool:
        """Return whether it shows the model a picture."""
        text = json.dumps(self.body)
        return "data:image/" in text or '"type": "image"' in text

    @property
    def draws(self) -> bool:
        """Return whether two answers may differ."""
        body = self.body or {}
        return bool((body.get("options") or body).get("temperature"))

    @property
    def schema(self) -> dict[str, Any] | None:
        """Return the JSON schema that its answer must have; of any JSON, an empty one."""
        body = self.body or {}
        within = body.get("text") or body.get("output_config") or {}
        wanted = body.get("response_format") or within.get("format") or body.get("format")
        if wanted in (None, []):
            return None
        if wanted == "json" or wanted["type"] == "json_object":
            return {}
        schema = wanted.get("json_schema", wanted).get("schema")
        return schema if "schema" in wanted or "json_schema" in wanted else wanted

    @property
    def demanded_tool(self) -> str | None:
        """Return the tool that the answer must call; of any tool, an empty name."""
        choice = (self.body or {}).get("tool_choice")
        if choice == "required":
            return ""
        if not isinstance(choice, dict) or choice["type"] == "auto":
            return None
        return choice.get("name") or choice.get("function", {}).get("name", "")

    def body_for(self, *, stream: bool | None = None) -> dict[str, Any]:
        """Return the body with a short answer; `stream` replaces what was recorded."""
        body: dict[str, Any] = {**(self.body or {})}
        for name in MAX_TOKENS:
            if name in body:
                body[name] = min(body[name], ANSWER_TOKENS)
        if stream is not None and self.streams:
            body["stream"] = stream
        if not body.get("stream"):
            body.pop("stream_options", None)
        return body


@cache
def client_requests() -> tuple[ClientRequest, ...]:
    """Return all of them."""
    return tuple(request for file in sorted(FOLDER.glob("*.json")) for request in _read(file))


def request_named(program: str, name: str) -> ClientRequest:
    """Return one of them."""
    return next(r for r in client_requests() if (r.program, r.name) == (program, name))


def _read(file: Path) -> Iterator[ClientRequest]:
    content = json.loads(file.read_text(encoding="utf-8"))
    for request in content["requests"]:
        yield ClientRequest(
            program=file.stem,
            name=request["name"],
            method=request["method"],
            path=request["path"],
            headers=content["headers"] | request.get("headers", {}),
            body=request.get("body"),
            ignored=frozenset(content["ignored"]),
        )
