"""Why an answer ended, in every dialect: the whole table, and the same words through HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.server.generate.body.dialect import AnswerEnd
from dovetail_plugins.apis.chat.response import CHAT
from dovetail_plugins.apis.completions.response import COMPLETIONS
from dovetail_plugins.apis.messages.response import MESSAGES
from dovetail_plugins.apis.responses.response import RESPONSES
from dovetail_testing.fakes.async_engine import Script
from support.serving import TOOLS, USER, app_for, events_of, send

TABLE = [
    # cause, calls, forced, stop text; completions, chat, responses, messages
    ("length", 0, False, False, "length", "length", "max_output_tokens", "max_tokens"),
    ("length", 2, False, False, "length", "length", "max_output_tokens", "max_tokens"),
    ("length", 1, True, False, "length", "length", "max_output_tokens", "max_tokens"),
    ("stop", 0, False, False, "stop", "stop", "completed", "end_turn"),
    ("stop", 0, False, True, "stop", "stop", "completed", "stop_sequence"),
    ("stop", 1, False, False, "stop", "tool_calls", "completed", "tool_use"),
    ("stop", 2, False, True, "stop", "tool_calls", "completed", "tool_use"),
    ("stop", 1, True, False, "stop", "stop", "completed", "tool_use"),
]


@pytest.mark.parametrize("row", TABLE)
def test_the_table(row: tuple[Any, ...]) -> None:
    cause, num_calls, is_forced, is_stop_text, *words = row
    end = AnswerEnd(
        cause=cause, num_calls=num_calls, is_forced_call=is_forced, is_stop_text=is_stop_text
    )
    dialects = (COMPLETIONS, CHAT, RESPONSES, MESSAGES)
    assert [dialect.finish_reason(end) for dialect in dialects] == words


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("row", [r for r in TABLE if not r[2] and r[1] < 2])
def test_every_dialect_says_it(row: tuple[Any, ...], stream: bool) -> None:
    cause, num_calls, _, is_stop_text, _, chat, response, message = row
    text = "[call]add {}[/call]" if num_calls else "words"
    stop_reason = "END" if is_stop_text else None
    script = Script(pieces=[text], finish_reason=cause, stop_reason=stop_reason)
    app, _ = app_for(script)
    function = {"name": "add", "parameters": {"type": "object"}}
    tools = {
        "chat/completions": TOOLS,
        "responses": [{"type": "function"} | function],
        "messages": [{"name": "add", "input_schema": {"type": "object"}}],
    }
    asked = {
        "chat/completions": {"messages": USER},
        "responses": {"input": "hi"},
        "messages": {"messages": USER, "max_tokens": 50},
    }
    found = {}
    for path, given in tools.items():
        answer = send(app, "POST", f"/v1/{path}", {"stream": stream, "tools": given} | asked[path])
        assert answer.status_code == 200, answer.text
        found[path] = _events(answer.text) if stream else [answer.json()]
    chunks = [event["choices"][0]["finish_reason"] for event in found["chat/completions"]]
    assert [reason for reason in chunks if reason] == [chat]
    last = found["responses"][-1]
    status = "completed" if response == "completed" else "incomplete"
    assert (last["response"] if stream else last)["status"] == status
    ends = [event.get("delta", event) for event in found["messages"] if "stop_reason" in str(event)]
    assert ends[-1]["stop_reason"] == message
    assert ends[-1]["stop_sequence"] == ("END" if message == "stop_sequence" else None)


def _events(text: str) -> list[Any]:
    """Return the events of a stream, named or not, without [DONE]."""

    class Answer:
        pass

    answer = Answer()
    answer.text = "\n\n".join(part[part.find("data: ") :] for part in text.split("\n\n"))
    return [event for event in events_of(answer) if event != "[DONE]"]
