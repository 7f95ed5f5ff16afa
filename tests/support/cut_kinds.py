"""Every kind of request that a server of the demo model can be asked, to be cut off.

`KINDS` are bodies of JSON, by path. `OTHER_KINDS` need a server with --file-storage, or what was
stored before: `{response}`, `{conversation}` and `{file}` are their ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "demo"
USER = [{"role": "user", "content": "hi"}]
LONG_TEXT = "word " * 60_000
LINE = b'{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}\n'
BOUNDARY = "cut"

CHAT = "/v1/chat/completions"
_WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
_FUNCTION = {"name": "weather", "parameters": _WEATHER}
_TOOL = {"type": "function", "function": _FUNCTION}


def _schema(which: int) -> dict[str, Any]:
    """Return a schema that nobody has sent before, so that it waits to be compiled."""
    names = {f"name_{which}": {"type": "string"}, "n": {"enum": list(range(which % 50 + 1))}}
    return {"type": "object", "properties": names, "required": list(names)}


def _formatted(which: int) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": _schema(which)}}


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, "max_tokens": 24, "seed": 1} | fields


def _prompt(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hi", "max_tokens": 24} | fields


def _response(**fields: Any) -> dict[str, Any]:
    return {"input": "hi", "max_output_tokens": 24} | fields


def _message(**fields: Any) -> dict[str, Any]:
    return {"messages": USER, "max_tokens": 24} | fields


def _ollama(**fields: Any) -> dict[str, Any]:
    return {"model": NAME, "options": {"num_predict": 24}} | fields


def _long_chat(which: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{which} {LONG_TEXT}"}]


KINDS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "chat": (CHAT, lambda i: _chat()),
    "chat stream": (CHAT, lambda i: _chat(stream=True)),
    "chat n": (CHAT, lambda i: _chat(n=3, stream=bool(i % 2))),
    "chat logprobs": (CHAT, lambda i: _chat(logprobs=True, top_logprobs=4, stream=bool(i % 2))),
    "chat schema": (CHAT, lambda i: _chat(response_format=_formatted(i))),
    "chat schema stream": (CHAT, lambda i: _chat(response_format=_formatted(i), stream=True)),
    "chat tools": (
        CHAT,
        lambda i: _chat(tools=[_TOOL], tool_choice="required", stream=bool(i % 2)),
    ),
    "chat tools auto": (CHAT, lambda i: _chat(tools=[_TOOL], stream=bool(i % 2))),
    "chat beams": (CHAT, lambda i: _chat(use_beam_search=True, n=2)),
    "chat long": (CHAT, lambda i: _chat(messages=_long_chat(i))),
    "completion": ("/v1/completions", lambda i: _prompt()),
    "completion stream": ("/v1/completions", lambda i: _prompt(stream=True)),
    "completions": (
        "/v1/completions",
        lambda i: _prompt(prompt=["a", "b", "c"], max_tokens=16, stream=bool(i % 2)),
    ),
    "completion best_of": ("/v1/completions", lambda i: _prompt(max_tokens=8, n=1, best_of=3)),
    "completion regex": (
        "/v1/completions",
        lambda i: _prompt(structured_outputs={"regex": f"[a-z]{{{i % 900 + 1}}}"}),
    ),
    "completion echo": (
        "/v1/completions",
        lambda i: _prompt(echo=True, logprobs=2, prompt=f"{i} " * 50),
    ),
    "response": ("/v1/responses", lambda i: _response()),
    "response stream": ("/v1/responses", lambda i: _response(stream=True)),
    "response background": ("/v1/responses", lambda i: _response(background=True)),
    "response background stream": (
        "/v1/responses",
        lambda i: _response(background=True, stream=True),
    ),
    "response schema": (
        "/v1/responses",
        lambda i: _response(
            text={"format": {"type": "json_schema", "name": "x", "schema": _schema(i)}},
            stream=bool(i % 2),
        ),
    ),
    "response tools": (
        "/v1/responses",
        lambda i: _response(tools=[{"type": "function", **_FUNCTION}], stream=bool(i % 2)),
    ),
    "response tokens": ("/v1/responses/input_tokens", lambda i: {"input": f"{i} {LONG_TEXT}"}),
    "conversation": ("/v1/conversations", lambda i: {"metadata": {"number": str(i)}}),
    "message": ("/v1/messages", lambda i: _message()),
    "message stream": ("/v1/messages", lambda i: _message(stream=True)),
    "message tools": (
        "/v1/messages",
        lambda i: _message(
            tools=[{"name": "weather", "input_schema": _WEATHER}], stream=bool(i % 2)
        ),
    ),
    "message tokens": ("/v1/messages/count_tokens", lambda i: {"messages": _long_chat(i)}),
    "ollama chat": ("/api/chat", lambda i: _ollama(messages=USER)),
    "ollama generate": (
        "/api/generate",
        lambda i: _ollama(prompt="hi", stream=bool(i % 2), format=_schema(i)),
    ),
    "invocation": ("/invocations", lambda i: _chat(stream=bool(i % 2))),
    "parse": ("/v1/parse", lambda i: {"text": f"{i} {LONG_TEXT}"}),
    "tokenize": ("/tokenize", lambda i: {"prompt": f"{i} {LONG_TEXT}"}),
    "detokenize": ("/detokenize", lambda i: {"tokens": [i % 256] * 20_000}),
    "vectors refused": ("/v1/embeddings", lambda i: {"input": f"{i} {LONG_TEXT}"}),
}
"""Path and body of each kind of request, by its number."""


def upload(which: int, num_lines: int = 200) -> bytes:
    """Return the form that uploads a file for batches."""
    part = f"--{BOUNDARY}\r\nContent-Disposition: form-data; name="
    head = f'{part}"purpose"\r\n\r\nbatch\r\n{part}"file"; filename="x.jsonl"\r\n\r\n'
    return head.encode() + LINE % which * num_lines + f"\r\n--{BOUNDARY}--\r\n".encode()


OTHER_KINDS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "response more": (
        "POST /v1/responses",
        lambda i: _response(previous_response_id="{response}", stream=bool(i % 2)),
    ),
    "response again": ("GET /v1/responses/{response}", lambda i: b""),
    "response in conversation": (
        "POST /v1/responses",
        lambda i: _response(conversation="{conversation}", stream=bool(i % 2)),
    ),
    "file": ("POST /v1/files", upload),
    "batch": (
        "POST /v1/batches",
        lambda i: {
            "input_file_id": "{file}",
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        },
    ),
}
