"""Parsers that read by a response template, against transformers' own reading of whole answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers.cli.serving.utils import _RESPONSE_TEMPLATE_FALLBACKS as FAMILIES
from transformers.utils.chat_parsing import parse_response

from dovetail.errors import ConfigError
from dovetail.interfaces.data.text import Tool
from dovetail_plugins.reasoning_parsers.response_template import ResponseTemplate as Reasoning
from dovetail_plugins.syntax.response_template import (
    REASONING,
    TemplateField,
    TemplateOptions,
    fixed_beginnings,
)
from dovetail_plugins.tokenizers.hf import HfTokenizer
from dovetail_plugins.tool_parsers.response_template import ResponseTemplate
from dovetail_testing.text_splits import Parsed, cuts, parse_in_pieces
from support.tiny_encoders import write_word_tokenizer

OPTIONS = TemplateOptions()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = (Tool(name="weather", parameters=SCHEMA), Tool(name="now"))
CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}}
HARMONY = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "reasoning": {
            "open": "<|channel|>analysis<|message|>",
            "close": "<|end|>",
            "repeats": True,
            "join": "",
        },
        "tool_calls": {
            "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
            "close": ["<|call|>", "<|call|><|start|>"],
            "repeats": True,
            "content": "json",
            "transform": CALL,
        },
        "content": {"open": "<|channel|>final<|message|>", "close": ["<|return|>", "<|end|>"]},
    },
}  # fmt: skip
LIST = {
    "start_anchor": "[/INST]",
    "fields": {
        "tool_calls": {
            "open": "[TOOL_CALLS]",
            "content": "json",
            "transform": NAMED,
            "transform_each": True,
        },
        "content": {"close": "</s>"},
    },
}  # fmt: skip


def template_of(model_type: str) -> dict[str, Any]:
    """Return transformers' template of a family."""
    return next(found for types, found in FAMILIES.items() if model_type in types)


QWEN, CODER, GEMMA = map(template_of, ("qwen3", "qwen3_5", "gemma4"))
ANSWERS = (
    (QWEN, "<think>\nIs it?\n</think>\n\nI look."
           '<tool_call>\n{"name": "weather", "arguments": {"city": "Par\\u00eds", "days": 2}}'
           '\n</tool_call>\n'
           '<tool_call>{"name": "now", "arguments": {}}</tool_call><|im_end|>'),
    (QWEN, "Just words, a < b.<|im_end|>"),
    (CODER, "<think>\nHm.\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\n7\n"
            "</parameter>\n<parameter=days>\n7\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>"),
    (GEMMA, "<|channel>thought\nWhere?<channel|>Let me see. <|tool_call>call:weather"
            '{city:<|"|>a, "b": {c}<|"|>,days:3}<tool_call|><turn|>'),
    (HARMONY, "<|channel|>analysis<|message|>One.<|end|><|channel|>commentary to=functions.weather "
              '<|constrain|>json<|message|>{"city": "<|call|>", "days": 1}<|call|>'),
    (LIST, 'So. [TOOL_CALLS][{"name": "now", "arguments": {}}, '
           '{"name": "weather", "arguments": "{\\"days\\": 4}"}]'),
)  # fmt: skip


def ours(template: Mapping[str, Any], pieces: list[str]) -> Parsed:
    """Return dovetail's reading of an answer in pieces."""
    has_reasoning = any(name in template["fields"] for name in REASONING)
    reasoning = Reasoning(OPTIONS, template) if has_reasoning else None
    return parse_in_pieces(
        pieces,
        tool_parser=ResponseTemplate(OPTIONS, template),
        reasoning=reasoning.markers if reasoning else None,
        tools=TOOLS,
    )


def theirs(template: Mapping[str, Any], text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """Return transformers' reading of a whole answer: reasoning, content and calls."""
    tools = [{"function": {"name": t.name, "parameters": t.parameters}} for t in TOOLS]
    found = parse_response(text, dict(template), prefix="", tools=tools)
    calls = [one["function"] for one in found.get("tool_calls", ())]
    values = [(c["name"], c["arguments"]) for c in calls]
    values = [(name, json.loads(v) if isinstance(v, str) else v) for name, v in values]
    reasoning = next((found[name] for name in REASONING if name in found), "")
    return reasoning, found.get("content", ""), values


@pytest.mark.parametrize("number", range(len(ANSWERS)))
def test_an_answer_is_read_as_transformers_reads_it(number: int) -> None:
    """Whole and in any pieces; a closing text in a string ends no call, where theirs fails."""
    template, text = ANSWERS[number]
    plain = text.replace('"<|call|>"', '"Rome"')
    whole = ours(template, [plain])
    calls = [(call.name, json.loads(call.arguments)) for call in whole.calls]
    assert (whole.reasoning, whole.content.strip(), calls) == theirs(template, plain)
    whole = ours(template, [text])
    assert len(whole.calls) == len(calls)
    for pieces in cuts(text):
        assert ours(template, pieces) == whole, pieces


@pytest.mark.parametrize(
    ("pattern", "beginnings"),
    [
        (r"\s*<tool_call>", ["<tool_call>"]),
        (r"\s*<tool_call>\s*<function=(?P<n>[^>\n]+)>", ["<tool_call>"]),
        (r"<\|tool_call>call:(?P<name>\w+)", ["<|tool_call>call:"]),
        (r"\n+<a>b?", ["<a>"]),
        (r"<a>|<b>\s*", ["<a>", "<b>"]),
        (r"\s*(?:<\|a\|>|<b>)", ["<|a|>", "<b>"]),
        (r"<a(?:x|y)>", ["<a"]),
        (r"(?:<a>|x?)", []),
        (r".*<a>", []),
        (r"(?:<a>(b))", []),
        (r"<a>(b|c)", ["<a>"]),
        (r"<a>(b)|<c>", []),
        (r"<a>((b)|c)", []),
    ],
)
def test_a_pattern_begins_with_a_fixed_text(pattern: str, beginnings: list[str]) -> None:
    """The texts with one of which every match begins, or none."""
    assert list(fixed_beginnings(pattern)) == beginnings


def changed(key: str, **fields: Any) -> dict[str, Any]:
    """Return Qwen's template with another field."""
    return {**QWEN, "fields": {**QWEN["fields"], key: fields}}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"start_anchor": "a", "fields": {"content": {}}}, "has no such field"),
        (changed("tool_calls", close="</a>"), "does not say how a call begins"),
        (changed("tool_calls", open="<a>", content="toml"), "transformers refuses the template"),
        (changed("tool_calls", open_pattern="(a|b)c", content="json"), "fixed text"),
        ({"fields": {"tool_calls": "<a>"}}, "has no such field"),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused(
    template: dict[str, Any], message: str
) -> None:
    """With the reason, when the parser is made."""
    with pytest.raises(ConfigError, match=message):
        ResponseTemplate(OPTIONS, template)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LIST, "no field for the model's thinking"),
        (changed("reasoning_content", open="<a>"), "one text that opens"),
        (changed("reasoning_content", open=["<a>", "<b>"], close="</a>"), "one text that opens"),
        (changed("reasoning_content", open="<a>", close_pattern="[bc]"), "one text that opens"),
    ],
)
def test_thinking_that_cannot_be_found_is_refused(template: dict[str, Any], message: str) -> None:
    """With the reason, when the parser is made."""
    with pytest.raises(ConfigError, match=message):
        Reasoning(OPTIONS, template)


def test_the_template_comes_from_the_checkpoint_or_from_a_file(tmp_path: Path) -> None:
    """tokenizer_config.json has it; the option names another; without both the start ends."""
    folder = write_word_tokenizer(tmp_path / "with", response_template=GEMMA)
    parser = ResponseTemplate(OPTIONS).bound(HfTokenizer(None, str(folder)))
    assert [markers.start for markers in parser.markers] == ["<|tool_call>call:"]
    assert Reasoning(OPTIONS).bound(HfTokenizer(None, str(folder))).markers.end == "<channel|>"
    file = tmp_path / "template.json"
    file.write_text(json.dumps(QWEN))
    bare = HfTokenizer(None, str(write_word_tokenizer(tmp_path / "without")))
    given = ResponseTemplate(TemplateOptions(template=str(file))).bound(bare)
    assert given.markers[0].start == "<tool_call>"
    with pytest.raises(ConfigError, match="brings no response template"):
        ResponseTemplate(OPTIONS).bound(bare)
    file.write_text("[]")
    with pytest.raises(ConfigError, match="response template has a value of another kind"):
        ResponseTemplate(TemplateOptions(template=str(file))).bound(bare)
    with pytest.raises(ConfigError, match="no template can be read"):
        ResponseTemplate(TemplateOptions(template=str(tmp_path / "none"))).bound(bare)


def test_texts_that_end_the_content_are_left_out() -> None:
    """Texts that end a turn, such as <turn|>, are not part of the content."""
    assert "<turn|>" in ResponseTemplate(OPTIONS, GEMMA).layout
    assert TemplateField(GEMMA, "content").opening is None
