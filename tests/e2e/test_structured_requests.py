"""Ways to ask for a structured answer, over HTTP: grammars as written, formats of structural tags,
a backend with its options, allowed tools; what cannot be read is refused with a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e

SCHEMA = {
    "type": "object",
    "properties": {"birthdate": {"type": "integer", "maximum": 9}},
    "required": ["birthdate"],
    "additionalProperties": False,
}
TAG = {
    "type": "tag",
    "begin": "<answer>",
    "content": {"type": "json_schema", "json_schema": SCHEMA},
    "end": "</answer>",
}
ANSWER = r'<answer>\s*\{\s*"birthdate"\s*:\s*-?[0-9]+\s*\}\s*</answer>'


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    """Return a client of a server of the demo model."""
    with ServerProcess("--port", "0", "--max-model-len", "1024") as server:
        server.wait_ready()
        with server.client() as made:
            yield made


def chat(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """Return the answer to a short conversation."""
    body = {"messages": [{"role": "user", "content": "When?"}], "max_tokens": 200, "seed": 1}
    response = client.post("/v1/chat/completions", json=body | fields)
    assert response.status_code == 200, response.text
    return dict(response.json()["choices"][0])


def refusal(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    """Return the error of a request that is not taken."""
    body = {"messages": [{"role": "user", "content": "When?"}], "max_tokens": 8}
    response = client.post("/v1/chat/completions", json=body | fields)
    assert response.status_code == 400, response.text
    return dict(response.json()["error"])


@pytest.mark.parametrize(
    ("grammar", "pattern"),
    [
        ('root ::= x "b"\nx ::= [a-z]{0,6}', "[a-z]{0,6}b"),
        ('root ::= "(" root ")" | "." # nested', r"\(*\.\)*"),
        ('root ::= ("a" | "ab") ("c" | "bc")', "ab?b?c"),
    ],
)
def test_a_grammar_is_followed_as_written(client: httpx.Client, grammar: str, pattern: str) -> None:
    for fields in ({"structured_outputs": {"grammar": grammar}}, {"guided_grammar": grammar}):
        found = chat(client, **fields, temperature=1.0, max_tokens=300)
        if found["finish_reason"] == "stop":
            assert re.fullmatch(pattern, found["message"]["content"])


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('root ::= "a" root', "ever ends"),
        ('root ::= x\ny ::= "a"', "not defined"),
        ("start: /^a$/", "anchor"),
    ],
)
def test_a_grammar_that_is_not_read_is_refused(
    client: httpx.Client, grammar: str, said: str
) -> None:
    error = refusal(client, structured_outputs={"grammar": grammar})
    assert said in error["message"]
    assert error["param"] == "structured_outputs.grammar"


def test_formats_of_structural_tags(client: httpx.Client) -> None:
    tags = {"type": "structural_tag", "format": TAG}
    for fields in (
        {"response_format": tags},
        {"structured_outputs": {"structural_tag": json.dumps(tags)}},
        {"structural_tag": json.dumps(tags)},
    ):
        found = chat(client, **fields)
        assert found["finish_reason"] == "stop"
        assert re.fullmatch(ANSWER, found["message"]["content"])
    listed: dict[str, Any] = {
        "type": "tags_with_separator",
        "separator": "\n",
        "at_least_one": True,
    }
    listed |= {"tags": [TAG], "stop_after_first": True}
    found = chat(client, response_format=tags | {"format": listed})
    assert re.fullmatch(ANSWER, found["message"]["content"])
    triggered: dict[str, Any] = {"type": "triggered_tags", "triggers": ["<answer"], "tags": [TAG]}
    triggered |= {"at_least_one": True}
    found = chat(client, response_format=tags | {"format": triggered}, max_tokens=300)
    assert re.match(ANSWER, found["message"]["content"])
    wrong = tags | {"format": {"type": "sequence", "elements": [{"type": "any_tokens"}]}}
    error = refusal(client, response_format=wrong)
    assert error["param"] == "response_format.format.elements[0].type"


def test_tags_for_completions(client: httpx.Client) -> None:
    body = {"prompt": "When?", "max_tokens": 200}
    body |= {"structural_tag": {"type": "structural_tag", "format": TAG}}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert re.fullmatch(ANSWER, response.json()["choices"][0]["text"])


def test_a_backend_with_its_options(client: httpx.Client) -> None:
    fields = {"guided_json": SCHEMA, "guided_decoding_backend": "guidance:disable-any-whitespace"}
    found = chat(client, **fields)
    assert re.fullmatch(r'\{"birthdate":-?[0-9]+\}', found["message"]["content"])
    error = refusal(client, guided_json=SCHEMA, guided_decoding_backend="guidance:quickly")
    assert '"quickly" is not an option' in error["message"]


def test_only_allowed_tools_are_called(client: httpx.Client) -> None:
    tools = [
        {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
        for name in ("first", "second", "third")
    ]
    allowed = [{"type": "function", "function": {"name": "second"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": allowed}}
    for seed in range(3):
        found = chat(client, tools=tools, tool_choice=choice, seed=seed, temperature=1.0)
        names = {call["function"]["name"] for call in found["message"]["tool_calls"]}
        assert names == {"second"}
    unknown = choice | {"allowed_tools": {"tools": [{"type": "function", "name": "fourth"}]}}
    error = refusal(client, tools=tools, tool_choice=unknown)
    assert "not a tool of this request" in error["message"]


def test_only_allowed_tools_are_called_by_responses(client: httpx.Client) -> None:
    tools = [
        {"type": "function", "name": name, "parameters": SCHEMA} for name in ("first", "second")
    ]
    choice = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "second"}],
    }
    body = {"input": "When?", "tools": tools, "tool_choice": choice, "max_output_tokens": 200}
    response = client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    calls = [item for item in response.json()["output"] if item["type"] == "function_call"]
    assert {call["name"] for call in calls} == {"second"}


def test_the_items_of_a_list_differ(client: httpx.Client) -> None:
    """Also within the arguments of a call."""
    ids = {
        "type": "array",
        "items": {"enum": list("abcdefghij")},
        "uniqueItems": True,
        "minItems": 6,
    }
    wrapped = {"type": "json_schema", "json_schema": {"name": "ids", "schema": ids}}
    found = chat(client, response_format=wrapped, temperature=1.0)
    items = json.loads(found["message"]["content"])
    schema = {"type": "object", "properties": {"ids": ids}, "required": ["ids"]}
    schema["additionalProperties"] = False
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    chosen = {"type": "function", "function": {"name": "f"}}
    found = chat(client, tools=[tool], tool_choice=chosen, temperature=1.0)
    arguments = json.loads(found["message"]["tool_calls"][0]["function"]["arguments"])
    for written in (items, arguments["ids"]):
        assert len(set(written)) == len(written) >= 6
