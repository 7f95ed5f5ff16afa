"""Null in every field that the clients' types call nullable is taken as the field's absence.

The fields come from the types of OpenAI's and Anthropic's packages, so that new ones are tried too.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, get_args, get_origin

import httpx
import pytest

from dovetail.server.generate.body.chat import ChatRequest
from dovetail_plugins.apis.completions.protocol import CompletionRequest
from dovetail_plugins.apis.messages.protocol import MessagesRequest
from dovetail_plugins.apis.ollama.protocol import OllamaChatRequest, OllamaGenerateRequest
from dovetail_plugins.apis.responses.protocol import ResponsesRequest
from support.serving import USER, app_for, with_client

pytest.importorskip("openai")
pytest.importorskip("anthropic")
Fields = dict[str, Any]
WRAPPERS = (typing.Required, typing.NotRequired, typing.Annotated)


def bare(hint: Any) -> Any:
    """Return a hint without what says whether it is required."""
    while get_origin(hint) in WRAPPERS:
        hint = get_args(hint)[0]
    return hint


def branches(hint: Any) -> list[Any]:
    """Return the types of which a hint is the union."""
    hint = bare(hint)
    if get_origin(hint) in (typing.Union, types.UnionType):
        return [inner for one in get_args(hint) for inner in branches(one)]
    return [hint]


def dicts(hint: Any) -> list[Any]:
    """Return the typed dictionaries among the branches of a hint."""
    return [one for one in branches(hint) if hasattr(one, "__required_keys__")]


def required(typed: Any) -> dict[str, Any]:
    """Return the required fields of a typed dictionary, by what its annotations say."""
    hints = typing.get_type_hints(typed, include_extras=True)
    return {n: h for n, h in hints.items() if typed.__total__ or get_origin(h) is typing.Required}


def example(hint: Any) -> Any:
    """Return a value of a type, as small as it may be."""
    one = next((b for b in branches(hint) if b is not type(None)), type(None))
    if hasattr(one, "__required_keys__"):
        return {name: example(inner) for name, inner in required(one).items()}
    match get_origin(one):
        case typing.Literal:
            return get_args(one)[0]
        case origin if origin is dict:
            return {}
        case None:
            return {str: "x", int: 1, float: 1.0, bool: False}.get(one, {})
    return []


def nullable(typed: Any) -> Iterator[tuple[Fields, Fields]]:
    """Yield a value of a typed dictionary for each of its nullable fields: without it (as it is,
    where it is required) and with null in it."""
    hints = typing.get_type_hints(typed, include_extras=True)
    base = example(typed)
    for name, hint in hints.items():
        if type(None) in branches(hint):
            without = {k: v for k, v in base.items() if k != name or name in required(typed)}
            yield without, base | {name: None}


def message_of(answer: httpx.Response) -> str:
    message: str = answer.json()["error"]["message"]
    return message


def compare(path: str, bodies: Iterator[tuple[Fields, Fields]]) -> int:
    """Hold the answers to bodies with null against those without; return how many were taken."""
    app, _ = app_for()

    async def work(client: httpx.AsyncClient) -> int:
        num_taken = 0
        for without, with_null in bodies:
            plain = await client.post(path, json=without)
            given = await client.post(path, json=with_null)
            told = f"{json.dumps(with_null)}: {given.text}, and without: {plain.text}"
            assert given.status_code == plain.status_code, told
            if given.status_code != 200:
                assert message_of(given) == message_of(plain), told
            num_taken += given.status_code == 200
        return num_taken

    return with_client(app, work)


def chat_bodies() -> Iterator[tuple[Fields, Fields]]:
    from openai.types.chat import (
        ChatCompletionMessageParam,
        ChatCompletionStreamOptionsParam,
        ChatCompletionToolUnionParam,
    )
    from openai.types.chat.completion_create_params import (
        CompletionCreateParamsNonStreaming,
        ResponseFormat,
    )

    base: Fields = {"model": "fake", "messages": USER, "max_tokens": 2}
    for a, b in nullable(CompletionCreateParamsNonStreaming):
        yield a | base, b | base
    for typed in dicts(ChatCompletionMessageParam):
        for a, b in nullable(typed):
            turns = [[*USER, {"content": "x"} | one] for one in (a, b)]
            yield base | {"messages": turns[0]}, base | {"messages": turns[1]}
    for typed in dicts(ChatCompletionToolUnionParam):
        inner = typing.get_type_hints(typed).get("function")
        for part in dicts(inner):
            for a, b in nullable(part):
                kind = {"type": "function"}
                yield (
                    base | {"tools": [kind | {"function": a}]},
                    base | {"tools": [kind | {"function": b}]},
                )
    for typed in dicts(ResponseFormat):
        inner = typing.get_type_hints(typed).get("json_schema")
        for part in dicts(inner):
            for a, b in nullable(part):
                kind, schema = {"type": "json_schema"}, {"schema": {"type": "object"}}
                yield (
                    base | {"response_format": kind | {"json_schema": a | schema}},
                    base | {"response_format": kind | {"json_schema": b | schema}},
                )
    for a, b in nullable(ChatCompletionStreamOptionsParam):
        yield base | {"stream_options": a}, base | {"stream_options": b}


def response_bodies() -> Iterator[tuple[Fields, Fields]]:
    from openai.types.responses import ResponseInputItemParam, ToolParam
    from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming

    base: Fields = {"model": "fake", "input": "hi", "max_output_tokens": 2}
    hints = typing.get_type_hints(ResponseCreateParamsNonStreaming)
    for a, b in nullable(ResponseCreateParamsNonStreaming):
        yield base | a | base, base | b | {"model": "fake"}
    for name, hint in hints.items():
        for typed in dicts(hint) if name in ("text", "reasoning", "stream_options") else ():
            for a, b in nullable(typed):
                yield base | {name: a}, base | {name: b}
    for typed in dicts(ResponseInputItemParam):
        for a, b in nullable(typed):
            yield base | {"input": [*USER, a]}, base | {"input": [*USER, b]}
    for typed in dicts(ToolParam):
        for a, b in nullable(typed):
            yield base | {"tools": [a]}, base | {"tools": [b]}


def message_bodies() -> Iterator[tuple[Fields, Fields]]:
    from anthropic.types import ContentBlockParam, ToolUnionParam
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    base: Fields = {"model": "fake", "messages": USER, "max_tokens": 2}
    hints = typing.get_type_hints(MessageCreateParamsNonStreaming)
    for a, b in nullable(MessageCreateParamsNonStreaming):
        yield base | a | base, base | b | base
    for name, hint in hints.items():
        for typed in dicts(hint) if name in ("thinking", "output_config", "metadata") else ():
            for a, b in nullable(typed):
                yield base | {name: a}, base | {name: b}
    for typed in dicts(ContentBlockParam):
        for a, b in nullable(typed):
            for role in ("user", "assistant"):
                turns = [[*USER, {"role": role, "content": [x]}, *USER] for x in (a, b)]
                yield base | {"messages": turns[0]}, base | {"messages": turns[1]}
    for typed in dicts(ToolUnionParam):
        for a, b in nullable(typed):
            yield base | {"tools": [a]}, base | {"tools": [b]}


def completion_bodies() -> Iterator[tuple[Fields, Fields]]:
    from openai.types.completion_create_params import CompletionCreateParamsNonStreaming

    base: Fields = {"model": "fake", "prompt": "hi"}
    for a, b in nullable(CompletionCreateParamsNonStreaming):
        yield base | a | base, b | base


@pytest.mark.parametrize(
    ("path", "bodies", "at_least"),
    [
        ("/v1/chat/completions", chat_bodies, 30),
        ("/v1/completions", completion_bodies, 15),
        ("/v1/responses", response_bodies, 90),
        ("/v1/messages", message_bodies, 90),
    ],
)
def test_null_is_the_absence_of_a_field(
    path: str, bodies: Callable[[], Iterator[tuple[Fields, Fields]]], at_least: int
) -> None:
    assert compare(path, bodies()) >= at_least


OWN: dict[str, tuple[Any, Fields]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": USER}),
    "/v1/completions": (CompletionRequest, {"prompt": "hi"}),
    "/v1/responses": (ResponsesRequest, {"input": "hi"}),
    "/v1/messages": (MessagesRequest, {"messages": USER, "max_tokens": 5}),
    "/api/chat": (OllamaChatRequest, {"model": "fake", "messages": USER}),
    "/api/generate": (OllamaGenerateRequest, {"model": "fake", "prompt": "hi"}),
}


UNLIMITED = ("/v1/completions", "max_tokens")
"""Null asks for as many tokens as the context holds, as in vLLM; without it there are 16."""


@pytest.mark.parametrize("path", OWN)
def test_null_is_taken_in_every_field_with_a_default(path: str) -> None:
    typed, base = OWN[path]
    app, engine = app_for()
    names = {f.alias or n for n, f in typed.model_fields.items() if not f.is_required()}

    async def work(client: httpx.AsyncClient) -> None:
        assert (await client.post(path, json=base)).status_code == 200
        for name in sorted(names - set(base)):
            answer = await client.post(path, json=base | {name: None})
            assert answer.status_code == 200, f"{name}: {answer.text}"
            if (path, name) != UNLIMITED:
                assert engine.asked[-1][1:] == engine.asked[0][1:], name

    with_client(app, work)
