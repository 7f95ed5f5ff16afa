"""A custom tool's text is in the tool's grammar, in every dialect that offers such tools, streamed
or whole, demanded or begun by the model; judged by the library lark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.samples import sample_of
from support.server_process import ServerProcess

lark = pytest.importorskip("lark")
pytestmark = pytest.mark.e2e

PATCH = r"""
start: begin_patch hunk~1..2 end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: "*** Add File: " filename LF add_line~1..2
    | "*** Delete File: " filename LF
    | "*** Update File: " filename LF ("@@ " /.{1,9}/ LF)? change_line~1..3
filename: /.{1,9}/
add_line: "+" /.{1,9}/? LF -> line
change_line: ("+" | "-" | " ") /.{1,9}/? LF
%import common.LF
"""
NESTED = """
start: value
?value: "(" [value ("," value)*] ")" | NAME | ESCAPED_STRING
NAME: /[a-z<\\/]{1,6}/
%import common.ESCAPED_STRING
%ignore " "
"""
PARSERS = ("hermes", "qwen3_coder", "pythonic")
IGNORED = "x-dovetail-ignored-fields"


@pytest.fixture(scope="module", params=PARSERS)
def client(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """Return a client of a server of the demo model, with one of the parsers."""
    flags = ("--tool-call-parser", request.param, "--enable-auto-tool-choice")
    with ServerProcess("--port", "0", "--max-model-len", "1024", *flags) as server:
        server.wait_ready()
        with server.client() as made:
            made.headers["x-parser"] = request.param
            yield made


def chat_tool(grammar: str, syntax: str = "lark") -> dict[str, Any]:
    form = {"type": "grammar", "grammar": {"syntax": syntax, "definition": grammar}}
    return {"type": "custom", "custom": {"name": "patch", "format": form}}


def response_tool(grammar: str, syntax: str = "lark") -> dict[str, Any]:
    form = {"type": "grammar", "syntax": syntax, "definition": grammar}
    return {"type": "custom", "name": "patch", "format": form}


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat(client: httpx.Client, tool: dict[str, Any], **fields: Any) -> tuple[str, str]:
    """Return the text of the only call, and how the answer ended."""
    body = {"messages": [{"role": "user", "content": "Change it."}], "tools": [tool]}
    body |= {"max_tokens": 500, "temperature": 1.0} | fields
    answer = client.post("/v1/chat/completions", json=body)
    if not fields.get("stream"):
        assert answer.status_code == 200, answer.text
        assert IGNORED not in answer.headers
        (choice,) = answer.json()["choices"]
        calls = choice["message"].get("tool_calls") or [{"custom": {"input": ""}}]
        return calls[0]["custom"]["input"], choice["finish_reason"]
    text, reason = "", ""
    for event in events_of(answer):
        for choice in event["choices"]:
            for piece in choice["delta"].get("tool_calls") or ():
                text += piece["custom"].get("input", "")
            reason = choice["finish_reason"] or reason
    return text, reason


@pytest.mark.parametrize("grammar", [PATCH, NESTED], ids=["patch", "nested"])
def test_calls_of_a_chat(client: httpx.Client, grammar: str) -> None:
    judge = lark.Lark(grammar)
    num_whole = 0
    num_calls = sample_of(20, 6)
    for seed in range(num_calls):
        fields: dict[str, Any] = {"seed": seed, "tool_choice": "required"}
        fields |= {"parallel_tool_calls": False}
        if seed % 2:
            fields["tool_choice"] = {"type": "custom", "custom": {"name": "patch"}}
        text, reason = chat(client, chat_tool(grammar), **fields)
        assert chat(client, chat_tool(grammar), **fields, stream=True) == (text, reason)
        if reason != "length":
            num_whole += 1
            judge.parse(text)
    assert num_whole >= 0.6 * num_calls


def test_a_call_is_whole_at_max_tokens(client: httpx.Client) -> None:
    grammar = PATCH.replace("~1..2", "+").replace("~1..3", "+").replace("{1,9}", "+")
    judge = lark.Lark(grammar)
    fields: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
    fields |= {"structured_outputs": {"close_on_length": True}}
    for seed in range(sample_of(6, 2)):
        text, reason = chat(
            client, chat_tool(grammar), **fields, seed=seed, max_tokens=130 + 17 * seed
        )
        assert reason in ("stop", "tool_calls")
        judge.parse(text)


def test_a_call_that_the_model_begins(client: httpx.Client) -> None:
    """The demo model has a token for the tag; biased, it writes nothing else where it may."""
    call = "<tool_call>"
    found = client.post("/tokenize", json={"prompt": call, "add_special_tokens": False})
    ids = found.json()["tokens"]
    if len(ids) != 1 or client.headers["x-parser"] == "pythonic":
        pytest.skip("calls of this parser do not begin with a token")
    judge = lark.Lark(PATCH)
    free = {"type": "custom", "custom": {"name": "patch"}}
    for seed in range(sample_of(4, 1)):
        fields = {"seed": seed, "logit_bias": {str(ids[0]): 100}, "parallel_tool_calls": False}
        text, reason = chat(client, chat_tool(PATCH), **fields)
        assert chat(client, chat_tool(PATCH), **fields, stream=True) == (text, reason)
        judge.parse(text)
        with pytest.raises(lark.exceptions.LarkError):
            judge.parse(chat(client, free, **fields)[0])


def test_calls_of_a_response(client: httpx.Client) -> None:
    judge = lark.Lark(PATCH)
    for seed in range(sample_of(4, 2)):
        body = {"input": "Change it.", "tools": [response_tool(PATCH)], "seed": seed}
        body |= {"tool_choice": "required", "parallel_tool_calls": False}
        body |= {"temperature": 1.0, "max_output_tokens": 500}
        whole = client.post("/v1/responses", json=body)
        assert whole.status_code == 200, whole.text
        assert IGNORED not in whole.headers
        (item,) = [one for one in whole.json()["output"] if one["type"] == "custom_tool_call"]
        judge.parse(item["input"])
        events = events_of(client.post("/v1/responses", json=body | {"stream": True}))
        kind = "response.custom_tool_call_input.delta"
        assert "".join(e["delta"] for e in events if e["type"] == kind) == item["input"]


def test_a_regular_expression(client: httpx.Client) -> None:
    for seed in range(sample_of(3, 1)):
        text, reason = chat(
            client,
            chat_tool(r'[A-Z]{2,5}\n"\\?[^a-z]', "regex"),
            seed=seed,
            tool_choice="required",
            parallel_tool_calls=False,
        )
        assert reason in ("stop", "tool_calls")
        letters, _, rest = text.partition("\n")
        assert letters.isupper() and 2 <= len(letters) <= 5
        assert rest[0] == '"' and len(rest.replace("\\", "", 1)) <= 2


def test_faults_have_pointers(client: httpx.Client) -> None:
    weather = {"type": "function", "function": {"name": "weather"}}
    messages = [{"role": "user", "content": "Hi."}]
    for tool, where in (
        (chat_tool("start: x"), "custom.format.grammar.definition"),
        (chat_tool("(", "regex"), "custom.format.grammar.definition"),
        (chat_tool("a", "peg"), "custom.format.grammar.syntax"),
        ({"type": "custom", "custom": {}}, "custom.name"),
    ):
        body = {"messages": messages, "tools": [weather, tool], "max_tokens": 4}
        answer = client.post("/v1/chat/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"tools[1].{where}")
    for tool, where in (
        (response_tool("start: x"), "format.definition"),
        (response_tool("(", "regex"), "format.definition"),
        (response_tool("a", "peg"), "format.syntax"),
        ({"type": "custom"}, "name"),
    ):
        tools = [{"type": "web_search"}, {"type": "function", "name": "f"}, tool]
        answer = client.post("/v1/responses", json={"input": "Hi.", "tools": tools})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"tools[2].{where}")
