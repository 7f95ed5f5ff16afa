"""gpt-oss: recipients as models write them, and messages that are no call."""

from __future__ import annotations

import pytest

from dovetail.interfaces.data.text import Tool
from dovetail_plugins.reasoning_parsers.openai_gptoss import OpenAiGptOss
from dovetail_plugins.tool_parsers.openai import OpenAi
from dovetail_testing.text_splits import parse_in_pieces
from support.cut_texts import cuts

TO = "<|channel|>commentary to="
NEXT = "<|start|>assistant"
FINAL = f"{NEXT}<|channel|>final<|message|>Done.<|return|>"


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        (f'{TO}f <|constrain|>json<|message|>{{"a": 1}}<|call|>', [("f", '{"a": 1}')], ""),
        (f"{TO}functions.f<|message|>{{}}<|call|>{FINAL}", [("f", "{}")], "Done."),
        (f"{TO}math.sum <|constrain|>json<|message|>{{}}<|call|>", [("math.sum", "{}")], ""),
        ("<|channel|>analysis to=f code<|message|>{}<|call|>", [("f", "{}")], ""),
        (" to=f<|channel|>commentary json<|message|>{}", [("f", "{}")], ""),
        (f"{NEXT} to=f<|channel|>commentary <|constrain|>json<|message|>{{}}", [("f", "{}")], ""),
        (f"{TO}assistant<|message|>I look. <|end|>{NEXT}{TO}f<|message|>{{}}", [("f", "{}")],
         "I look."),
        (f'{TO}assistant <|constrain|>json<|message|>{{"a": 1}}<|call|>', [], '{"a": 1}'),
        (f"{TO}python<|message|>print(1)<|call|>", [], "print(1)"),
        (f"{TO}python<|message|>print(", [], "print("),
        (f'{TO}f<|message|>{{"a": b, "c": 1}}<|call|>{NEXT}{TO}g<|message|>{{}}<|call|>',
         [("g", "{}")], '{"a": b, "c": 1}'),
        (f"{TO}f they say, then {TO}g<|message|>{{}}<|call|>", [("g", "{}")],
         f"{TO}f they say, then"),
        ("to=nobody at all", [], "to=nobody at all"),
    ],
)  # fmt: skip
def test_recipients(text: str, calls: list[tuple[str, str]], content: str) -> None:
    reasoning = OpenAiGptOss(None)
    for pieces in cuts(text):
        got = parse_in_pieces(
            pieces,
            tool_parser=OpenAi(None),
            reasoning=reasoning.markers,
            layout=reasoning.layout,
            tools=(Tool(name="f"),),
        )
        assert [(call.name, call.arguments) for call in got.calls] == calls
        assert got.content == content


def test_a_tool_may_be_named_like_the_assistant() -> None:
    text = f"{TO}functions.assistant<|message|>{{}}<|call|>"
    for tools, names in (((), []), ((Tool(name="assistant"),), ["assistant"])):
        got = parse_in_pieces([text], tool_parser=OpenAi(None), tools=tools)
        assert [call.name for call in got.calls] == names


@pytest.mark.parametrize(
    "text", [f"{TO}f<|message|>hello wor", f"{TO}assistant<|message|>hello wor"]
)
def test_a_message_that_max_tokens_cuts_is_content(text: str) -> None:
    for pieces in cuts(text):
        got = parse_in_pieces(pieces, tool_parser=OpenAi(None), is_cut=True)
        assert (got.content, got.calls) == ("hello wor", ())
