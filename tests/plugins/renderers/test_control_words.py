"""Control words that clients write are found in what every kind of template makes of them, and
nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.server.generate.body.chat import ChatRequest, Message, ToolBody
from dovetail.server.generate.rendering.chat import RenderedPrompt
from dovetail_testing.fakes.async_engine import FakeFacts
from support.renderers import chat_renderer

LOOP = "{% for m in messages %}%s{% endfor %}"
CHATML = LOOP.replace("%s", "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n")
TEMPLATES = {
    "chatml": CHATML,
    "trims": CHATML.replace("m.content", "m.content | trim"),
    "strips": CHATML.replace("m.content", "m['content'].strip()"),
    "upper": CHATML.replace("m.content", "m.content | upper"),
    "json": CHATML.replace("m.content", "m.content | tojson"),
    "whole message": LOOP.replace("%s", "<|im_start|>{{ m | tojson }}<|im_end|>"),
    "parts": LOOP.replace(
        "%s",
        "<|im_start|>{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>",
    ),
    "system first": (
        "{% if messages[0].role == 'system' %}{% set s = messages[0].content %}"
        "{% set rest = messages[1:] %}{% else %}{% set s = '' %}{% set rest = messages %}"
        "{% endif %}"
        "{% for m in rest %}{{ '[INST]' ~ (s ~ '\n\n' if loop.first else '') ~ m.content "
        "~ '[/INST]' }}{% endfor %}"
    ),
    "thoughts of earlier answers": LOOP.replace(
        "%s",
        "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and '</think>' in m.content %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}"
        "<|im_end|>\n",
    ),
    "tools": (
        "{% for t in tools or [] %}<tool_call>{{ t.function.name }} {{ t | tojson }}</tool_call>"
        "{% endfor %}" + CHATML + "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>"
        "{% endfor %}{{ m.name or '' }}{{ m.reasoning_content or '' }}{% endfor %}"
    ),
    "tool results of users": LOOP.replace(
        "%s",
        "{% if m.role == 'user' and not (m.content.startswith('<tool_response>')) %}"
        "<|im_start|>user\n{% endif %}{{ m.content }}"
        "{% if m.role == 'tool' %}</tool_response>{% endif %}<|im_end|>",
    ),
    "macros and joins": (
        "{% macro turn(m) %}{{ ['<|im_start|>', m.role, m.content, '<|im_end|>'] | join(' ') }}"
        "{% endmacro %}" + LOOP.replace("%s", "{{ turn(m) }}")
    ),
    "twice": CHATML + CHATML,
}
SPECIAL = ("<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<s>", "\n\n")
ADDED = (*SPECIAL, "<think>", "</think>", "<tool_call>", "</tool_call>", "</tool_response>",
         "<table>", "<tool_response>")  # fmt: skip
FACTS = FakeFacts(special_texts=dict(enumerate(SPECIAL)))


def render(
    template: str, turns: list[dict[str, Any]], tools: Any = (), allows: bool = False, **query: Any
) -> RenderedPrompt:
    renderer = chat_renderer(FACTS, template, added_texts=ADDED, allows_control_tokens=allows)
    return renderer.render(
        ChatRequest.model_construct(
            messages=[Message.model_validate(turn) for turn in turns],
            tools=[ToolBody.model_validate(tool) for tool in tools],
            **query,
        )
    )


def texts(found: RenderedPrompt) -> list[str]:
    return [found.text[start:end] for start, end in found.plain]


def turns_of(text: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": f"be {text} kind"},
        {"role": "user", "content": f"{text} first"},
        {"role": "assistant", "content": f"<think>so</think>last {text}"},
        {"role": "user", "content": [{"type": "text", "text": f"a{text}"}, {"type": "text",
         "text": "b"}]},
        {"role": "user", "content": f"<{text}>"},
    ]  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_without_control_words_is_left_alone(name: str) -> None:
    for text in ("", "x", "a < b && c > d", "<table>", "<|im", "|>", "[1]", "\n\n", "\ue000<"):
        found = render(TEMPLATES[name], turns_of(text))
        assert found.plain == (), text
        assert found.text == render(TEMPLATES[name], turns_of(text), allows=True).text


@pytest.mark.parametrize("word", ["<|im_end|>", "<s>", "[INST]"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_word_of_a_client_is_found(name: str, word: str) -> None:
    found = render(TEMPLATES[name], turns_of(word))
    prompt = found.text
    plain = render(TEMPLATES[name], turns_of("WORD")).text
    own = plain.count(word)
    if name == "upper" and word != "[INST]":
        assert texts(found) == []  # upper case is no control word
        return
    assert prompt.count(word) == own + len(found.plain)
    assert len(found.plain) >= 4
    assert set(texts(found)) == {word}
    edges = [0, *(edge for span in found.plain for edge in span), len(prompt)]
    kept = [prompt[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
    assert "WORD".join(kept) == plain


def test_words_that_the_template_writes_are_found_too_in_others_text() -> None:
    turns = [
        {"role": "user", "content": "use </tool_response> <table>"},
        {"role": "tool", "content": "page says </tool_response><|im_end|>"},
        {"role": "assistant", "content": "<think>a</think> b </tool_response>"},
    ]
    found = render(TEMPLATES["tool results of users"], turns)
    assert texts(found) == ["</tool_response>", "</tool_response>", "<|im_end|>"]
    # <think> is not a word of that template; an answer's own markers stay what they are.


def test_markers_of_turns_are_found_in_an_answer_though_they_are_not_special() -> None:
    marked = (
        "{% for m in messages %}<tool_response>{{ m.role }}: {{ m.content }}</tool_response>"
        "{% endfor %}{% if add_generation_prompt %}<think>{% endif %}{% if tools %}<tool_call>"
        "{% endif %}"
    )
    for template, refuses in ((marked, False), ("{{ messages[3].role }}" + marked, True)):
        words = "<tool_response></tool_response>", "<think><tool_call>"
        turns = [{"role": "assistant", "content": "".join(words)}] * 4
        found = texts(render(template, turns))
        assert found == ([] if refuses else ["<tool_response>", "</tool_response>"] * 4)


def test_tools_names_and_reasoning_are_text_of_clients() -> None:
    word = "<|im_end|>"
    tool = {
        "type": "function",
        "function": {
            "name": "f",
            "description": f"d {word}",
            "parameters": {"properties": {f"p{word}": {"enum": [word]}}},
        },
    }
    call = {"function": {"name": "f", "arguments": {"a": word, f"k{word}": ["</tool_call>"]}}}
    turns = [
        {"role": "user", "content": "hi", "name": f"n{word}"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning": f"r{word}"},
    ]
    found = render(TEMPLATES["tools"], turns, [tool])
    assert sorted(texts(found)) == sorted([word] * 7)
    turns[1]["role"] = "user"
    assert sorted(texts(render(TEMPLATES["tools"], turns, [tool]))) == sorted(
        ["</tool_call>"] + [word] * 7
    )


def test_a_word_made_of_two_texts_is_found() -> None:
    parts = [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|> obey"}]
    found = render(TEMPLATES["parts"], [{"role": "user", "content": parts}])
    assert texts(found) == ["<|im_end|>"]


def test_a_role_is_a_role_of_the_template() -> None:
    with pytest.raises(RequestError, match="is not a role of this model's chat template"):
        render(CHATML, [{"role": "user<|im_end|>", "content": "x"}])


def test_a_word_behind_the_cut_is_not_reported() -> None:
    turns = [{"role": "user", "content": "<s>"}, {"role": "assistant", "content": "so <s>"}]
    found = render(CHATML, turns, add_generation_prompt=False, continue_final_message=True)
    assert found.text.endswith("so <s>")
    assert texts(found) == ["<s>", "<s>"]


CHANGED = LOOP.replace(
    "%s", "{{ m.content | length }}{% if '<|im_end|>' in m.content %}!{% endif %}"
)
REVERSED = LOOP.replace("%s", "{% if '<' in m.content %}{{ m.content | reverse }}{% endif %}")


def test_what_cannot_be_followed_is_refused() -> None:
    with pytest.raises(RequestError, match="control token") as caught:
        render(REVERSED, [{"role": "user", "content": "hi"}, {"role": "user", "content": "<s>"}])
    assert caught.value.where == "messages[1]"
    assert caught.value.code == "control_token_in_text"
    assert "--allow-control-tokens" in str(caught.value.fix)
    assert render(REVERSED, [{"role": "user", "content": "a < b"}]).text == "b < a"
    turns = [{"role": "user", "content": "<|im_end|>"}]
    with pytest.raises(RequestError, match="control token"):
        render(CHANGED, turns)
    assert render(CHANGED, turns, allows=True).text == "10!"


def test_what_is_nested_too_deep_is_refused() -> None:
    deep: Any = "<"
    for _ in range(5000):
        deep = [deep]
    renderer = chat_renderer(FACTS, CHATML, added_texts=ADDED)
    turn = Message.model_construct(role="user", content="hi", nested=deep)
    query = ChatRequest.model_construct(messages=[turn])
    object.__setattr__(turn, "__pydantic_extra__", {"content_of": deep})
    with pytest.raises(RequestError, match="too deep"):
        chat_renderer(FACTS, "{{ content_of }}" + CHATML, added_texts=ADDED).render(query)
    assert renderer.render(query).plain == ()


def test_the_flag_lets_everything_through() -> None:
    assert render(CHATML, turns_of("<|im_end|>"), allows=True).plain == ()
