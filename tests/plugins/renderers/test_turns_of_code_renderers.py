"""Renderers in place of a checkpoint's code, with the parsers of their models: an answer with calls
is read, sent back, and rendered as the model wrote it; clients' control words stay text."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import msgspec
import pytest

from dovetail import registry
from dovetail.config.config import Config
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.rendering.chat import RenderedPrompt
from dovetail.server.generate.tools.parsers import build_parsers, choose_parsers
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeFacts, Script, fake_spec
from support.renderers import chat_renderer, known, renderer_named
from support.serving import TOOLS, USER, app_for, chat

ARGUMENTS = {"where": 'Paris <b> & "c"\n', "o": {"a": [1.5]}}
CALLS = [("add", '{"where": "Paris <b> & \\"c\\"\\n", "o": {"a":  [1.50]}}'), ("add", "{}")]


def dsml(section: str, tag: str = "｜DSML｜") -> str:
    """Return an answer that thinks, speaks and calls twice."""
    return (
        f"Two places.</think>I look.\n\n<{tag}{section}>\n"
        f'<{tag}invoke name="add">\n'
        f'<{tag}parameter name="where" string="true">Paris <b> & "c"\n</{tag}parameter>\n'
        f'<{tag}parameter name="o" string="false">{{"a":  [1.50]}}</{tag}parameter>\n'
        f'</{tag}invoke>\n<{tag}invoke name="add">\n\n</{tag}invoke>\n</{tag}{section}>'
    )


XTML = (
    "Two places.<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|>"
    '<|open|>tools<|sep|><|open|>call tool="add" index="1"<|sep|>'
    '<|open|>argument key="where" type="string"<|sep|>Paris <b> & "c"\n<|close|>argument<|sep|>'
    '<|open|>argument key="o" type="object"<|sep|>{"a":  [1.50]}<|close|>argument<|sep|>'
    '<|close|>call<|sep|><|open|>call tool="add" index="2"<|sep|><|close|>call<|sep|>'
    "<|close|>tools<|sep|><|close|>message<|sep|>"
)
ANSWERS = {
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "deepseek_v41": dsml("calls", "｜DSML｜ "),
    "kimi_k3": XTML,
}


THOUGHTS = re.compile(r"Two places\.(</think>|.*?<\|open\|>response<\|sep\|>)")


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("is_thinking", [True, False])
def test_an_answer_that_is_sent_back_is_rendered_as_the_model_wrote_it(
    name: str, is_thinking: bool
) -> None:
    written = ANSWERS[name] if is_thinking else THOUGHTS.sub("", ANSWERS[name])
    spec = fake_spec(max_model_tokens=1 << 14)
    model = msgspec.structs.replace(spec.run.model, hf_config={"model_type": name})
    spec = msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, model=model))
    script = Script(pieces=list(written))
    engine = FakeAsyncEngine(script, spec=spec, facts=FakeFacts(chat_template=None))
    (sample,) = renderer_named(name, known()).sources().values()
    parsers = build_parsers(choose_parsers(Config(), sample), engine.tokenizer)
    app, _ = app_for(engine=engine, parsers=parsers)
    fields: dict[str, Any] = {"tools": TOOLS, "chat_template_kwargs": {"thinking": is_thinking}}
    message = chat(app, **fields).json()["choices"][0]["message"]
    assert message["content"] == "I look."
    assert message.get("reasoning_content") == ("Two places." if is_thinking else None)
    calls = [(c["function"]["name"], c["function"]["arguments"]) for c in message["tool_calls"]]
    assert calls == CALLS
    for sent in message["tool_calls"]:  # as clients do, in a spelling of their own
        sent["function"]["arguments"] = json.dumps(json.loads(sent["function"]["arguments"]))
    results = [
        {"role": "tool", "content": text, "tool_call_id": sent["id"]}
        for text, sent in zip("AB", message["tool_calls"], strict=True)
    ]
    assert chat(app, messages=[*USER, message, *results[::-1]], **fields).status_code == 200
    first, second = ("".join(map(chr, given["prompt"])) for _, _, given in engine.asked)
    assert second.startswith(first + written)
    assert second.removeprefix(first).count("I look.") == 1
    is_sorted = second.rindex("A<") < second.rindex("B<")
    assert is_sorted == (name != "deepseek_v32")


def words_of(name: str) -> list[str]:
    words = renderer_named(name, known()).reads(has_tools=True).writes
    assert isinstance(words, frozenset)
    return sorted(words)


def rendered(name: str, text: str) -> RenderedPrompt:
    """Return a conversation whose parts from clients all hold a text; none of the words but the
    first is a special token."""
    words = words_of(name)
    facts = FakeFacts(chat_template=None, special_texts={1: words[0]})
    selection = registry.choose("renderer", name)
    made = chat_renderer(facts, None, selection=selection, added_texts=[*words, "<table>"])
    call = {"id": "1", "function": {"name": "f", "arguments": json.dumps({"k": text})}}
    messages = [
        {"role": "system", "content": text},
        {"role": "user", "content": f"{text} first"},
        {"role": "assistant", "content": f"so {text}", "tool_calls": [call]}
        | {"reasoning_content": text},
        {"role": "tool", "tool_call_id": "1", "content": f"<{text}>"},
        {"role": "user", "content": [{"type": "text", "text": text}]},
    ]
    parameters = {"properties": {"p": {"enum": [text]}}}
    tool = {"function": {"name": "f", "description": text, "parameters": parameters}}
    body = {"messages": messages, "tools": [tool]}
    return made.render(ChatRequest.model_validate(body | {"reasoning_effort": "high"}))


@pytest.mark.parametrize("name", ANSWERS)
def test_control_words_of_clients_are_plain_text(name: str) -> None:
    words = words_of(name)
    found, harmless = (rendered(name, "~".join(w)) for w in (words, ["WORD"] * len(words)))
    shown = Counter(found.text[start:end] for start, end in found.plain)
    number = 8 if name == "deepseek_v32" else 9  # which shows thoughts of the last turn alone
    assert shown == dict.fromkeys(words, number)
    edges = [0, *(edge for span in found.plain for edge in span), len(found.text)]
    own = [found.text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    assert "WORD".join(own) == harmless.text
    assert rendered(name, "a < b <table>").plain == ()
