"""XML, Python and harmony families beyond their contract: typed values, odd texts, long texts."""

from __future__ import annotations

import ast
import json
import random
import time

import pytest

from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser, UnfinishedToolCall
from dovetail.server.generate.events import Session, SessionPlan, ToolCallArgsDelta
from dovetail_plugins.reasoning_parsers.openai_gptoss import OpenAiGptOss
from dovetail_plugins.syntax.literals import PYTHON, Literals
from dovetail_plugins.syntax.parameters import as_json, parameters_of
from dovetail_plugins.syntax.plain_text import is_closed_pattern, text_constraint
from dovetail_plugins.syntax.schemas import kinds
from dovetail_plugins.tool_parsers.functiongemma import FunctionGemma
from dovetail_plugins.tool_parsers.gemma import Gemma
from dovetail_plugins.tool_parsers.glm45 import Glm45
from dovetail_plugins.tool_parsers.minimax_m2 import MinimaxM2
from dovetail_plugins.tool_parsers.olmo3 import Olmo3
from dovetail_plugins.tool_parsers.openai import OpenAi
from dovetail_plugins.tool_parsers.pythonic import Pythonic
from dovetail_plugins.tool_parsers.qwen3_coder import Qwen3Coder
from dovetail_plugins.tool_parsers.step3 import Step3
from dovetail_testing.text_splits import parse_in_pieces, random_cuts
from support.parser_fuzz import random_text
from support.samples import sample_of

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "code": {"$ref": "#/$defs/code"},
        "count": {"type": "integer"},
        "is_on": {"type": "boolean"},
        "deep": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "$defs": {"code": {"type": "string"}},
}
TOOL = Tool(name="f", parameters=SCHEMA)


def arguments(parser: ToolParser, text: str, *, tools: tuple[Tool, ...] = (TOOL,)) -> str:
    """Return the arguments of the one call that a text is."""
    got = parse_in_pieces([text], tool_parser=parser, tools=tools)
    assert got.content == ""
    (call,) = got.calls
    return call.arguments


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("text", "12", '"12"'),
        ("text", "null", '"null"'),
        ("text", ' {"a": 1} ', '" {\\"a\\": 1} "'),
        ("text", "", '""'),
        ("text", "a\n<parameter=x>\n</tool_call>\n</function> b", None),
        ("code", "7", '"7"'),
        ("count", " 7 ", "7"),
        ("count", "seven", '"seven"'),
        ("count", "7.0", "7.0"),
        ("is_on", "True", "true"),
        ("is_on", "false", "false"),
        ("deep", "{'a': (1, None)}", '{"a": [1, null]}'),
        ("deep", '{"a":  "</parameter>"}', '{"a":  "</parameter>"}'),
        ("maybe", "None", "null"),
        ("maybe", "12", '"12"'),
        ("maybe", "a b", '"a b"'),
        ("unknown", "12", "12"),
        ("unknown", "a b", '"a b"'),
        ("unknown", "NaN", '"NaN"'),
    ],
)
def test_values_follow_the_schema(key: str, written: str, value: str | None) -> None:
    text = (
        f"<tool_call>\n<function=f>\n<parameter={key}>\n{written}\n</parameter>\n</function>\n"
        "</tool_call>"
    )
    assert arguments(Qwen3Coder(None), text) == f'{{"{key}": {value or json.dumps(written)}}}'


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=f>\n<parameter=count>\n1\n</parameter>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=count>\n1\n</function>\n</tool_call>",
        "<tool_call><function=f><parameter=count>1</parameter></function></tool_call>",
        "<function=f>\n<parameter=count>\n1\n</parameter>\n</function>\n</tool_call>",
        "<function=f>\n<parameter=count>\n1\n</parameter>\n</function>",
        "<tool_call>\n<function=f>\n<parameter=count>\n1\n</parameter>\n<parameter=count>\n2\n"
        "</parameter>\n</function>\n</tool_call>",
    ],
)
def test_what_models_leave_out_or_write_twice(text: str) -> None:
    assert arguments(Qwen3Coder(None), text) == '{"count": 1}'


def test_a_bare_function_tag_is_a_call_only_of_a_tool_that_was_offered() -> None:
    text = "<function=g>\n</function>\n</tool_call>"
    got = parse_in_pieces([text], tool_parser=Qwen3Coder(None), tools=(TOOL,))
    assert (got.content, got.calls) == (text, ())


def test_strings_are_passed_on_while_they_are_written() -> None:
    """A long string parameter does not wait for its closing tag, and no tag is passed on early."""
    session = Session(SessionPlan(tool_parser=Qwen3Coder(None), tools=(TOOL,)))
    head = "<tool_call>\n<function=f>\n<parameter=text>\n"
    said = "".join(e.text for e in session.feed(head) if isinstance(e, ToolCallArgsDelta))
    written = 'line "one"\n</func\n' + "x" * 5000 + "\n"
    for letter in written + "\n</parameter>\n</function>\n</tool_call>":
        events = session.feed(letter)
        said += "".join(e.text for e in events if isinstance(e, ToolCallArgsDelta))
        if letter == "x" and len(said) > 4000:
            break
    else:
        raise AssertionError("nothing came before the end")
    assert json.dumps({"text": written}).startswith(said)


def offered(parser: ToolParser) -> tuple[Tool, ...]:
    """Return the tools of a parser's samples, their parameters declared as strings but a few."""
    kinds_of = {"days": {"type": "integer"}, "o": {"type": "object"}}
    properties = {key: kinds_of.get(key, {"type": "string"}) for key in ("city", "q", "days", "o")}
    names = {call.name for sample in parser.samples for call in sample.calls}
    schema = {"type": "object", "properties": properties}
    return tuple(Tool(name=name, parameters=schema) for name in sorted(names))


@pytest.mark.parametrize("parser", [Qwen3Coder(None), Glm45(None), MinimaxM2(None), Step3(None)])
def test_random_cuts_while_strings_are_passed_on(parser: ToolParser) -> None:
    """The hostile texts again, with tools: strings are then known as such and come in parts."""
    chance = random.Random(3)
    tools = offered(parser)
    num_calls = 0
    for number in range(60):
        text = random_text(parser, chance)
        whole = parse_in_pieces([text], tool_parser=parser, tools=tools)
        num_calls += len(whole.calls)
        for pieces in random_cuts(text, seed=number, num=10):
            assert parse_in_pieces(pieces, tool_parser=parser, tools=tools) == whole, pieces
        for call in whole.calls:
            assert call.arguments.startswith("{")
    assert num_calls > 30


def so_far(parser: ToolParser, body: str, tools: tuple[Tool, ...]) -> list[ToolCall]:
    """Return what the parser says of a beginning; none where it can be no call."""
    try:
        return parser.so_far(body, tools)
    except MalformedToolCall:
        return []


@pytest.mark.parametrize("parser", [Qwen3Coder(None), Glm45(None), MinimaxM2(None), Step3(None)])
def test_strings_only_grow(parser: ToolParser) -> None:
    tools = offered(parser)
    num_cut = 0
    for sample in parser.samples:
        start, end = sample.text.find(parser.markers[0].start), sample.text.rfind("</")
        body = sample.text[start + len(parser.markers[0].start) : end] if start >= 0 else ""
        before: list[ToolCall] = []
        for at in range(len(body) + 1):
            now = so_far(parser, body[:at], tools)
            assert [call.name for call in now][: len(before)] == [call.name for call in before]
            for old, new in zip(before, now, strict=False):
                assert new.arguments.startswith(old.arguments)
                num_cut += old.arguments != new.arguments
            before = now
    assert num_cut > 5


@pytest.mark.parametrize(
    "text",
    ["1", "-1.5e+3", "'it\\'s'", '"a" "b"', "'''a'b''' ", 'r"\\d"', "[1, (2,), ()]", "(1)",
     "'\\x41'", "{'a': {}, 3: None}", "1_000", ".5", "0x10", "[True, False]", "'\\u00e9\\n'",
     '""', "'''' '''"],
)  # fmt: skip
def test_literals_are_pythons(text: str) -> None:
    """Against Python's own reading of them."""
    made, end = PYTHON.value(text + ",", 0)
    assert json.loads(made) == json.loads(json.dumps(ast.literal_eval(text.strip())))
    assert text[end:].strip() == ""


def test_random_values_come_back_from_python() -> None:
    chance = random.Random(0)
    letters = "ab\"'\\\n\t\r\x00é☃😀 {}[](),:="

    def value(depth: int) -> object:
        kind = chance.randrange(8 if depth else 6)
        if kind < 3:
            return "".join(chance.choices(letters, k=chance.randrange(9)))
        if kind == 3:
            return chance.choice((True, False, None))
        if kind in (4, 5):
            return chance.choice((chance.randrange(-99, 99), chance.random() * 1e9))
        if kind == 6:
            return [value(depth - 1) for _ in range(chance.randrange(4))]
        return {f"k{i}": value(depth - 1) for i in range(chance.randrange(4))}

    for _ in range(400):
        wanted = {"a": value(3), "b": value(1)}
        text = ", ".join(f"{key}={item!r}" for key, item in wanted.items())
        (call,) = Pythonic(None).parse(f"[f({text})]", ())
        assert json.loads(call.arguments) == wanted


@pytest.mark.parametrize(
    "text",
    ["[f(x)]", "[f(1)]", "[f(a=g())]", "[f(a=b)]", "[f(a=1+1)]", "[f(**{})]", "[f(a=f'{x}')]", "[]",
     "[f(a=b'x')]", "[f(a=nan)]", "[f(a=1) + g()]", "[f(a=...)]", "[f]", "[f(a={[]: 1})]", "[a.b]",
     "[f(a=" + "[" * 99 + "]" * 99 + ")]", "[f(a=" + "9" * 5000 + ")]"],
)  # fmt: skip
def test_python_that_is_no_call_of_literals(text: str) -> None:
    with pytest.raises(MalformedToolCall):
        Pythonic(None).parse(text, ())


def test_surrogates_that_json_habits_write_become_one_character() -> None:
    assert json.loads(PYTHON.value('"\\ud83d\\ude00\\ud800"', 0)[0]) == "😀�"


def test_marks_instead_of_quotes() -> None:
    made, _ = Literals("<escape>").value("{a b:1}".replace(" ", "_"), 0)
    assert made == '{"a_b": 1}'
    text = "<start_function_call>call:f{text:<escape>a<b,}<escape>,count:2"
    assert FunctionGemma(None).so_far(text[21:], ())[0].arguments == '{"text": "a<b,}"'
    with pytest.raises(UnfinishedToolCall):
        FunctionGemma(None).parse("call:f{a:<escape>", ())


def test_lines_of_calls_and_a_wrapper() -> None:
    body = "\nprint(f(a=1))\nf(b='x'); f(),"
    calls = [ToolCall(name="f", arguments=text) for text in ('{"a": 1}', '{"b": "x"}', "{}")]
    assert Gemma(None).parse(body, ()) == calls
    wrapped = ToolCall(name="", arguments="{", text="print(f(a=1))\n")
    assert Olmo3(None).parse(body, ()) == [wrapped, *calls[1:]]


HARMONY = (
    "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "I look.<|end|><|start|>assistant<|channel|>analysis<|message|>so<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|end|>"}<|call|>'
    "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
)


def test_channels_of_harmony() -> None:
    reasoning = OpenAiGptOss(None)
    whole = parse_in_pieces(
        [HARMONY],
        tool_parser=OpenAi(None),
        reasoning=reasoning.markers,
        layout=reasoning.layout,
    )
    assert (whole.reasoning, whole.content) == ("hmso", "I look.Done.")
    assert whole.calls == (ToolCall(name="f", arguments='{"a": "<|end|>"}'),)
    for at in range(len(HARMONY)):
        assert whole == parse_in_pieces(
            [HARMONY[:at], HARMONY[at:]],
            tool_parser=OpenAi(None),
            reasoning=reasoning.markers,
            layout=reasoning.layout,
        )


@pytest.mark.parametrize(
    ("pattern", "is_taken"),
    [("^[a-z]{2,5}$", True), (r"^\d+-\d+$", True), ("^(a|b)-[A-Z0-9_]*$", True), ("a", False),
     ("^a|b$", False), ("^[^a]$", False), ("^.$", False), ("^<$", False), ("^[!-~]$", False),
     (r"^\S$", False)],
)  # fmt: skip
def test_patterns_that_can_stand_for_a_whole_value(pattern: str, is_taken: bool) -> None:
    assert is_closed_pattern(pattern) is is_taken
    constraint = text_constraint({"type": "string", "pattern": pattern}, "</p>")
    assert (constraint is not None) is is_taken


@pytest.mark.parametrize(
    ("schema", "found"),
    [({}, None), ({"type": ["string", "null"]}, {"string", "null"}), ({"enum": ["a", 1]}, None),
     ({"const": None}, {"null"}), ({"anyOf": [{"type": "integer"}, {}]}, None),
     ({"type": "string", "nullable": True}, {"string", "null"}),
     ({"allOf": [{}, {"type": "array"}]}, {"array"})],
)  # fmt: skip
def test_kinds(schema: dict[str, object], found: set[str] | None) -> None:
    wanted = {"string", "integer"} if "enum" in schema else found
    assert kinds(schema) == wanted


def test_what_holds_only_together_cannot_be_held_apart() -> None:
    more: dict[str, object]
    for more in ({"minProperties": 1}, {"anyOf": []}, {"type": "array"}, {"properties": 1}):
        assert parameters_of(Tool(name="f", parameters={**SCHEMA, **more})) is None
    assert as_json("[1, 2", {"type": "array"}) == '"[1, 2"'


LONG = sample_of(60_000, 20_000)
LONG_S = 2.0


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("parser", "start", "part"),
    [
        (Qwen3Coder(None), "<tool_call><function=f><parameter=deep>{\"", "</parameter>"),
        (Qwen3Coder(None), "<tool_call><function=f>", "<parameter=a>1</parameter>"),
        (Qwen3Coder(None), "<tool_call><function=f><parameter=text>", "\n</function><"),
        (Qwen3Coder(None), "", "<function=f></function>"),
        (Qwen3Coder(None), "<tool_call>", " \n"),
        (Glm45(None), "<tool_call>", "f"),
        (Glm45(None), '<tool_call>f<arg_key>d</arg_key><arg_value>["', "</arg_value></tool_call>"),
        (Pythonic(None), "[f(", "a=1,"),
        (Pythonic(None), "[", "f(a=1),"),
        (Pythonic(None), "[", "f"),
        (Pythonic(None), "[f(a=", "'x' "),
        (Pythonic(None), '[f(a="', "\\"),
        (Pythonic(None), '[f(a="""', '""\\'),
        (Pythonic(None), "[f(a", " "),
        (Pythonic(None), "[f(a=[", "[1],"),
        (Gemma(None), "```tool_code", "print("),
        (FunctionGemma(None), "<start_function_call>call:f{", "a:<escape>x<escape>,"),
        (OpenAi(None), "<|channel|>commentary to=functions.f", " "),
        (OpenAi(None), "", "<|channel|>commentary to=functions.f <|message|>{"),
        (OpenAi(None), "<|channel|>commentary to=functions.", "f"),
    ],
)  # fmt: skip
def test_long_texts_take_linear_time(parser: ToolParser, start: str, part: str) -> None:
    text = start + part * (LONG // len(part))
    for pieces in ([text], [text[at : at + 64] for at in range(0, len(text), 64)]):
        start_s = time.process_time()
        parse_in_pieces(pieces, tool_parser=parser, tools=(TOOL,))
        assert time.process_time() - start_s < LONG_S
