"""Calls whose markers are special tokens: they are never prose, wherever and however they stand."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Markers, Tool
from dovetail.server.generate.events import Collected, Session, SessionPlan
from dovetail.server.generate.tools.parsers import ParserChoice, Parsers, build_parsers
from dovetail_testing.text_splits import Parsed, parse_in_pieces
from support.cut_texts import cuts
from support.samples import IS_FULL

DSML = "｜DSML｜"
MM = "]<]minimax[>["
TOOLS = (
    Tool(name="f", parameters={"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}),
    Tool(name='a"&<b', parameters={"properties": {"x y": {}, 'k"': {}}}),
    Tool(name="now"),
)


def _parser(name: str) -> Any:
    return registry.make(registry.choose("tool_parser", name))


def _read(name: str, text: str, **more: Any) -> Parsed:
    parser = _parser(name)
    whole = parse_in_pieces([text], tool_parser=parser, tools=TOOLS, **more)
    for pieces in cuts(text):
        assert parse_in_pieces(pieces, tool_parser=parser, tools=TOOLS, **more) == whole, pieces
    return whole


def _made(got: Parsed) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in got.calls]


K3_CALL = (
    '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="string"<|sep|>x<|close|>'
    "argument<|sep|><|close|>call<|sep|>"
)
ONE_CALL = {
    "kimi_k2": '<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "x"}'
    "<|tool_call_end|>",
    "kimi_k3": K3_CALL,
    "deepseek_v3": '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": "x"}\n```'
    "<｜tool▁call▁end｜>",
    "deepseek_v31": '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": "x"}<｜tool▁call▁end｜>',
    "step3": '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">'
    '<steptml:parameter name="a">x</steptml:parameter></steptml:invoke><｜tool_call_end｜>',
    "minimax_m3": f'{MM}<invoke name="f">{MM}<a>x{MM}</a>{MM}</invoke>',
    "hy_v3": "<tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>x</arg_value></tool_call>",
}


@pytest.mark.parametrize("name", ONE_CALL)
def test_calls_count_without_their_section(name: str) -> None:
    call, section = ONE_CALL[name], _parser(name).markers[0]
    for before, behind in (("", ""), (section.start, ""), ("", section.end)):
        got = _read(name, f"I look.{before}{call}\n{call}{behind}")
        assert (_made(got), got.content) == ([("f", {"a": "x"})] * 2, "I look.")
    got = _read(name, f"I look.\n{call} Done.")
    assert (_made(got), got.content.split()) == ([("f", {"a": "x"})], ["I", "look.", "Done."])


INVOKE = (
    f'<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">x</{DSML}parameter>\n'
    f"</{DSML}invoke>"
)


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "deepseek_v41"])
@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("", ""),
        (f"<{DSML}function_calls>", f"</{DSML}function_calls>"),
        (f"<{DSML}tool_calls>", f"</{DSML}tool_calls>"),
        (f"<{DSML}tool_call>\n", f"\n</{DSML}tool_call>"),
        (f"<{DSML}function_call>", f"</{DSML}function_calls>"),
        (f"<{DSML}fucntion_calls>\n", f"\n</{DSML}fucntion_calls>\n"),
        (f"<{DSML} tool-use>", f"</{DSML} Invokes>"),
        ("", f"</{DSML}anything>"),
    ],
)
def test_invokes_count_whatever_their_section_is_called(
    name: str, before: str, behind: str
) -> None:
    space = " " if name == "deepseek_v41" else ""
    calls = f"{INVOKE}\n{INVOKE}".replace(DSML, DSML + space)
    got = _read(name, f"I look.{before}{calls}{behind} Done.")
    assert (_made(got), got.content.split()) == ([("f", {"a": "x"})] * 2, ["I", "look.", "Done."])


def test_closing_tags_that_are_left_out_on_one_line() -> None:
    text = (
        f'<{DSML}function_calls><{DSML}invoke name="f"><{DSML}parameter name="a" string="true">x'
        f'<{DSML}parameter name="b" string="false">2</{DSML}parameter></{DSML}invoke>'
        f"</{DSML}function_calls>"
    )
    assert _made(_read("deepseek_v32", text)) == [("f", {"a": "x", "b": 2})]


def test_kimi_k3_writes_names_with_entities() -> None:
    text = (
        '<|open|>tools<|sep|><|open|>call tool="a&quot;&amp;&lt;b" index="1"<|sep|><|open|>argument'
        ' key="k&quot;" type="string"<|sep|>1 &amp; 2<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>"
    )
    assert _made(_read("kimi_k3", text)) == [('a"&<b', {'k"': "1 &amp; 2"})]


def test_an_empty_message_is_a_call_without_arguments() -> None:
    start = "<|channel|>commentary to=functions."
    for name, nothing in (("now", ""), ("f", " "), ("now", "null"), ("f", '""'), ("now", "()")):
        text = f"{start}{name} <|constrain|>json<|message|>{nothing}<|call|>"
        assert _made(_read("openai", text)) == [(name, {})]
        assert _made(_read("openai", text.removesuffix("<|call|>"))) == [(name, {})]
    text = f"{start}now <|constrain|>json<|message|><|call|>"
    assert _read("openai", text, is_cut=True).content == ""
    assert _read("openai", f"{start}other<|message|><|call|>").calls == ()


def test_minimax_m3_may_close_thinking_that_it_never_opened() -> None:
    reasoning: Any = registry.make(registry.choose("reasoning_parser", "minimax_m3"))
    text = f"{reasoning.markers.end}\n\nIt is 2."
    for pieces in cuts(text):
        got = parse_in_pieces(pieces, reasoning=reasoning.markers, layout=reasoning.layout)
        assert got.content.strip() == "It is 2."


def test_a_special_token_ends_thinking_of_every_family() -> None:
    thinking = Markers(start="<seed:think>", end="</seed:think>")
    parser: Any = registry.make(registry.choose("tool_parser", "hermes"))
    text = '<seed:think>hm <tool_call>{"name": "now", "arguments": {}}</tool_call>'
    for special, num_calls in ((frozenset({"<tool_call>", "</tool_call>"}), 1), (frozenset(), 0)):
        parsers = Parsers(tool=parser, special_texts=special)
        plan = SessionPlan(
            reasoning=thinking, tool_parser=parser, tools=TOOLS,
            special_starts=parsers.special_starts,
        )  # fmt: skip
        for pieces in cuts(text):
            session, answer = Session(plan), Collected()
            for piece in pieces:
                answer.add(session.feed(piece))
            answer.add(session.finish())
            assert len(answer.calls) == num_calls
            assert answer.reasoning.startswith("hm")


def test_added_tokens_count_as_special_ones() -> None:
    """Qwen's <tool_call> is one token of the vocabulary, but none of its special tokens."""
    tokenizer: Any = SimpleNamespace(
        added_texts=lambda: frozenset({"<tool_call>", "<s", ""}),
        facts=lambda: SimpleNamespace(special_texts={}),
    )
    choice = ParserChoice(
        tool=registry.choose("tool_parser", "hermes"),
        reasoning=registry.choose("reasoning_parser", "seed_oss"),
    )
    assert build_parsers(choice, tokenizer).special_starts == {"<tool_call>"}


LENGTHS = (127, 128, 129, 200, 255, 256, 257, 400)
PARSERS = {entry.target: entry.name for entry in registry.entries("tool_parser")}.values()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", PARSERS)
def test_long_names_come_to_the_same_however_they_are_cut(name: str) -> None:
    parser: Any = registry.make(registry.choose("tool_parser", name))
    sample = next(s for s in parser.samples if s.calls)
    key = next(iter(json.loads(sample.calls[0].arguments)), "")
    for word in filter(None, (sample.calls[0].name, key)):
        for number, length in enumerate(LENGTHS):
            text = sample.text.replace(word, "n" * length, 1)
            tools = (*sample.tools, Tool(name="n" * length))
            whole = parse_in_pieces([text], tool_parser=parser, tools=tools)
            sizes = (1, 7, 64, 300)
            for size in sizes if IS_FULL else sizes[number % 4 :][:1]:
                pieces = [text[at : at + size] for at in range(0, len(text), size)]
                assert parse_in_pieces(pieces, tool_parser=parser, tools=tools) == whole
