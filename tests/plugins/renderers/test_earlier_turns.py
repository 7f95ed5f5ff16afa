"""What clients re-order or re-write between turns is rendered as in the turns before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dovetail import registry
from dovetail.server.generate.body.chat import ChatRequest
from dovetail_plugins.renderers import _earlier_turns
from support.renderers import chat_renderer

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.arguments | tojson }}]{% endfor %}"
    "\n{% endfor %}"
)
WRITTEN = '{"path":"caf\\u00e9.py",  "line": 1.0}'
Turn = dict[str, Any]


def tool(name: str, **more: Any) -> Turn:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"} | more}}


READ, WRITE = tool("read", title="r"), tool("write", title="w")
WRITE_IN_ANOTHER_ORDER = {
    "function": {"parameters": {"title": "w", "type": "object"}, "name": "write"},
    "type": "function",
}
FIRST = [{"role": "user", "content": "hi"}]
SECOND = [*FIRST, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}]


def calling(arguments: str, call_id: str = "call_1") -> list[Turn]:
    function = {"name": "read", "arguments": arguments}
    call = {"id": call_id, "type": "function", "function": function}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [*FIRST, answer, {"role": "tool", "tool_call_id": call_id, "content": "done"}]


class Rendered:
    """A renderer of the template; `text` is what it makes of a conversation."""

    def __init__(self, **options: Any) -> None:
        selection = registry.choose("renderer", "template", options=options)
        self.renderer = chat_renderer(None, TEMPLATE, selection=selection)

    def text(self, messages: list[Turn], *tools: Turn) -> str:
        body = ChatRequest.model_validate({"messages": messages, "tools": list(tools) or None})
        return self.renderer.render(body).text


def names_in(text: str) -> list[str]:
    lines = text.splitlines()
    return [json.loads(line)["function"]["name"] for line in lines if line.startswith("{")]


def test_a_later_turn_has_the_tools_in_the_order_of_the_first() -> None:
    rendered = Rendered()
    first = rendered.text(FIRST, WRITE, READ)
    assert names_in(first) == ["write", "read"]
    second = rendered.text(SECOND, READ, WRITE)
    assert second.startswith(first)
    third = rendered.text([*SECOND, *SECOND[1:]], READ, WRITE)
    assert third.startswith(second)


def test_names_in_a_schema_stay_in_their_first_order() -> None:
    rendered = Rendered()
    first = rendered.text(FIRST, WRITE, READ)
    assert rendered.text(SECOND, READ, WRITE_IN_ANOTHER_ORDER).startswith(first)


def test_a_conversation_that_begins_is_rendered_in_its_own_order() -> None:
    rendered = Rendered()
    rendered.text(FIRST, WRITE, READ)
    assert names_in(rendered.text(FIRST, READ, WRITE)) == ["read", "write"]


def test_a_long_conversation_is_rendered_in_the_order_in_which_it_is_first_seen() -> None:
    rendered = Rendered()
    for tools in ([READ, WRITE], [WRITE, READ]):
        text = rendered.text(SECOND, *tools)
        assert names_in(text) == [tool["function"]["name"] for tool in tools]


def test_a_turn_that_is_counted_and_then_sent_has_one_order() -> None:
    rendered = Rendered()
    first = rendered.text(FIRST, WRITE, READ)
    for tools in ([READ, WRITE], [WRITE, READ], [READ, WRITE]):
        assert rendered.text(SECOND, *tools).startswith(first)


@pytest.mark.parametrize(
    "other", [tool("write", title="x"), tool("write"), tool("write", title="w", n=1)]
)
def test_other_tools_are_rendered_as_they_are_sent(other: Turn) -> None:
    rendered = Rendered()
    rendered.text(FIRST, WRITE, READ)
    assert names_in(rendered.text(SECOND, READ, other)) == ["read", "write"]
    assert names_in(rendered.text(SECOND, READ)) == ["read"]


def test_numbers_of_another_type_are_another_tool() -> None:
    rendered = Rendered()
    rendered.text(FIRST, WRITE, tool("n", minimum=1))
    text = rendered.text(SECOND, tool("n", minimum=True), WRITE)
    assert names_in(text) == ["n", "write"]
    assert "true" in text


@pytest.mark.parametrize(
    "sent", [WRITTEN, '{"path": "café.py", "line": 1.0}', '{"line":1,"path":"café.py"}']
)
def test_a_call_is_rendered_as_the_model_wrote_it(sent: str) -> None:
    rendered = Rendered()
    rendered.renderer.note_calls({"call_1": WRITTEN})
    assert f"[{WRITTEN}]" in rendered.text(calling(sent))


@pytest.mark.parametrize(
    "sent",
    ['{"path":"other.py","line":1}', '{"path":"café.py","line":true}', "{}", WRITTEN[:-3]],
)
def test_a_call_that_a_client_changed_is_rendered_as_it_is_sent(sent: str) -> None:
    rendered = Rendered()
    plain = rendered.text(calling(sent))
    rendered.renderer.note_calls({"call_1": WRITTEN})
    assert rendered.text(calling(sent)) == plain
    assert rendered.text(calling(WRITTEN, "call_2")) == Rendered().text(calling(WRITTEN, "call_2"))


def test_calls_with_the_same_id_are_told_apart_by_their_arguments() -> None:
    rendered = Rendered()
    rendered.renderer.note_calls({"functions.read:0": '{"a":1}'})
    rendered.renderer.note_calls({"functions.read:0": '{"b":2}'})
    assert '[{"a":1}]' in rendered.text(calling('{"a": 1}', "functions.read:0"))
    assert '[{"b":2}]' in rendered.text(calling('{"b": 2}', "functions.read:0"))


def test_a_call_that_was_cut_off_is_not_stored() -> None:
    rendered = Rendered()
    rendered.renderer.note_calls({"call_1": WRITTEN[:-3]})
    assert "[{}]" in rendered.text(calling(WRITTEN[:-3]))


def test_a_syntax_of_parameters_has_them_in_the_order_of_the_model() -> None:
    template = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}"
        "{% for name, value in call.function.arguments | items %}<{{ name }}>{{ value }}"
        "{% endfor %}{% endfor %}{% endfor %}"
    )
    renderer = chat_renderer(None, template)
    renderer.note_calls({"call_1": '{"path": "a.py", "line": 2, "and": "b"}'})
    messages = calling('{"and":"b","line":2,"path":"a.py"}')
    found = renderer.render(ChatRequest.model_validate({"messages": messages}))
    assert found.text == "<path>a.py<line>2<and>b"


def test_deepseek_s_own_format_follows_earlier_turns_too() -> None:
    selection = registry.choose("renderer", "deepseek_v32")
    renderer = chat_renderer(None, None, selection=selection)
    tools = [READ, WRITE]
    texts = []
    for messages in (FIRST, SECOND):
        body = ChatRequest.model_validate({"messages": messages, "tools": tools})
        texts.append(renderer.render(body).text)
        tools = tools[::-1]
    assert texts[0].index('"read"') < texts[0].index('"write"')
    assert texts[1].index('"read"') < texts[1].index('"write"')


def test_control_words_of_clients_are_found_beside_a_call_of_the_model() -> None:
    from dovetail_testing.fakes.async_engine import FakeFacts

    facts = FakeFacts(special_texts={0: "<|im_end|>"}, chat_template=None)
    selection = registry.choose("renderer", "template")
    renderer = chat_renderer(facts, TEMPLATE, selection=selection)
    written = '{"text":"a < b",  "end": "<|im_end|>"}'
    renderer.note_calls({"call_1": written})
    messages = calling(json.dumps(json.loads(written)))
    found = renderer.render(ChatRequest.model_validate({"messages": messages}))
    assert f"[{written}]" in found.text
    assert [found.text[start:end] for start, end in found.plain] == ["<|im_end|>"]


def test_without_the_option_everything_is_rendered_as_it_is_sent() -> None:
    rendered = Rendered(follows_earlier_turns=False)
    rendered.renderer.note_calls({"call_1": WRITTEN})
    rendered.text(FIRST, WRITE, READ)
    assert names_in(rendered.text(SECOND, READ, WRITE)) == ["read", "write"]
    assert f"[{WRITTEN}]" not in rendered.text(calling(WRITTEN))


def test_several_api_processes_render_everything_as_it_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "somewhere")
    rendered = Rendered()
    rendered.text(FIRST, WRITE, READ)
    assert names_in(rendered.text(SECOND, READ, WRITE)) == ["read", "write"]


def test_what_is_stored_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_earlier_turns, "MAX_CHARS", 2000)
    latest = _earlier_turns._Latest[str]()
    for number in range(100):
        latest.put(f"k{number}", "x" * 96, 96)
        latest.put(f"k{number}", "y" * 96, 96)
    assert latest._num_chars == sum(size for _, size in latest._values.values()) <= 2000
    assert latest.get("k99") == "y" * 96
    assert latest.get("k0") is None
